"""From trials to records, one for each mutant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from onnx_attest.verify.power.experiment import STRONG, Bench, Trial
from onnx_attest.verify.power.mutants import Mutant
from onnx_attest.verify.records import CORRECT, PowerRecord, finite


def power_records(bench: Bench) -> list[PowerRecord]:
    """Run every mutant of a bench on every case and return a record for each mutant."""
    chosen = list(bench.mutants())
    by_mutant: dict[int, list[Trial]] = {}
    for trial in bench.trials(chosen):
        by_mutant.setdefault(id(trial.mutant), []).append(trial)
    refused = bench.refused
    return [
        _record(bench, mutant, by_mutant.get(id(mutant), []), refused.get(id(mutant), ""))
        for mutant in chosen
    ]


def _record(bench: Bench, mutant: Mutant, trials: Sequence[Trial], reason: str) -> PowerRecord:
    manifest = [trial for trial in trials if trial.manifest]
    counted = trials if mutant.fault == CORRECT else manifest
    survivors = [trial for trial in manifest if not trial.killed]
    beyond, strong = ([t for t in manifest if t.strength > least] for least in (1.0, STRONG))
    found = Counter(code for trial in counted if trial.killed for code in trial.cell.findings)
    return PowerRecord(
        **bench.identity.fields(),
        runtime=bench.runtime_name,
        arithmetic=bench.arithmetic.name,
        fault=mutant.fault,
        label=mutant.label,
        node=mutant.node,
        size=mutant.size,
        above_resolution=above_resolution(mutant, bench.arithmetic.resolution),
        reason=reason,
        cases=len(trials),
        manifest=len(manifest),
        killed=sum(trial.killed for trial in counted),
        beyond_pool=len(beyond),
        beyond_pool_killed=sum(trial.killed for trial in beyond),
        strong=len(strong),
        strong_killed=sum(trial.killed for trial in strong),
        undone=sum(trial.undone for trial in trials),
        errored=sum(trial.cell.verdict == "errored" for trial in trials),
        second_hand=sum(trial.second_hand for trial in trials),
        found_by=dict(found),
        survivors=tuple(trial.case.id for trial in survivors),
        strongest_survivor=finite(max((trial.strength for trial in survivors), default=None)),
    )


def above_resolution(mutant: Mutant, resolution: float) -> bool:
    """Whether a fault is one that its dtype can tell from a constant's own rounding: 1 + 1e-7 is not, in float32."""
    if mutant.fault in _ROUNDED_TO:  # what the arithmetic does anyway is no fault in it
        return _ROUNDED_TO[mutant.fault] > resolution
    if mutant.fault != "scale" or mutant.size is None:
        return mutant.above_fp32
    return abs(mutant.size) > _ROUNDINGS_OF_A_CONSTANT * resolution


_ROUNDINGS_OF_A_CONSTANT = 4.0
_HALF, _BRAIN = 2.0**-11, 2.0**-8
_ROUNDED_TO = {
    "weights-fp16": _HALF, "logits-fp16": _HALF, "products-tf32": _HALF, "accumulate-fp16": _HALF,
    "weights-bf16": _BRAIN, "logits-bf16": _BRAIN,
}  # fmt: skip
