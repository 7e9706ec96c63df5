"""Statement 2, the cost grows as n^2: time and peak memory of one attention at several lengths, on every runtime.

Both are measured alone, in processes of their own, after everything else: see `latency.py` and `peak.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from onnx_attest.errors import UsageError
from onnx_attest.export.api import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models.costs import D_HEAD
from onnx_attest.models.entry import resolve
from onnx_attest.verify.cases import make_inputs
from onnx_attest.verify.claims import measures
from onnx_attest.verify.claims.measured import recorded
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.excuse import excuse_claim
from onnx_attest.verify.latency import LatencyBudget, LatencyJob, measure
from onnx_attest.verify.peak import PeakJob, measure_peaks
from onnx_attest.verify.records import CaseRecord, ClaimRecord, Verdict
from onnx_attest.verify.runtimes.base import Runtime
from onnx_attest.verify.runtimes.registry import reference_of

CLAIM = 2
LENGTHS = (512, 724, 1024, 1448, 2048, 2896, 4096)
"""In steps of the root of 2. Below, what a call costs at any length bends the line; above, the largest takes seconds."""
SHORTEST_WEIGHED = 1024
"""Its score matrix is 4 MiB, well above the pages that a runtime takes for other things."""
FORMS = {"written out": "onnx_attest.models.costs:WRITTEN_OUT", "fused": "onnx_attest.models.costs:FUSED"}
_BUDGET = LatencyBudget(warm_up_calls=1, minimum_samples=5, maximum_samples=200, seconds=0.15)
NOT_TIMED = "what attention costs is measured with the latency, and this run measures none (--no-latency)"


class _Point(NamedTuple):
    """What one length cost, or why that is not known."""

    length: int
    cost: float | None
    verdict: Verdict
    reason: str


_Points = dict[str, list[_Point]]
"""By form."""


def not_measured(plan: Plan) -> Iterator[ClaimRecord]:
    """Yield the records of a run that measures no time."""
    for runtime in plan.runtimes:
        yield ClaimRecord(claim=CLAIM, runtime=runtime.name, verdict="skipped", reason=NOT_TIMED)


def run_growth(
    plan: Plan, folder: Path, threads: int, lengths: Sequence[int] = LENGTHS
) -> Iterator[ClaimRecord]:
    """Yield the fitted exponents of time and of memory, of both forms, on each runtime, one after another.

    Args:
        plan: its runtimes, seed and known failures.
        folder: where the exports go.
        threads: of each runtime.
        lengths: that are timed; the shorter ones are not weighed.
    """
    try:
        artifacts = {form: _export(reference, folder) for form, reference in FORMS.items()}
    except UsageError as error:  # no torch to export with
        for runtime in plan.runtimes:
            yield ClaimRecord(claim=CLAIM, runtime=runtime.name, verdict="errored", reason=str(error))
        return
    for runtime in plan.runtimes:
        times = _times(artifacts, runtime, plan, threads, lengths)
        weighed = [length for length in lengths if length >= SHORTEST_WEIGHED]
        peaks = _peaks(artifacts, runtime, plan, threads, weighed)
        for cost, points in (("time", times), ("memory", peaks)):
            for form in FORMS:
                yield excuse_claim(_judged(runtime.name, form, cost, points[form]), plan.known)


def _export(reference: str, folder: Path) -> Artifact:
    # Of the opsets that have Attention the lowest comes first; most runtimes know it.
    result = next(export_entry(resolve(reference), folder))
    if not isinstance(result, Artifact):
        raise UsageError(f"{result.model} could not be exported: {result.reason}")
    return replace(result, trusted=True)


def _times(
    artifacts: Mapping[str, Artifact], runtime: Runtime, plan: Plan, threads: int, lengths: Sequence[int]
) -> _Points:
    jobs = [_timed(artifact, length, plan.seed) for artifact in artifacts.values() for length in lengths]
    records = iter(measure(reference_of(runtime), jobs, threads=threads, budget=_BUDGET))
    points: _Points = {}
    for form in artifacts:
        points[form] = []
        for length in lengths:
            one = next(records)
            # The fastest call, since what disturbs a call only adds to its time, and differently at each length.
            points[form].append(_Point(length, min(one.latency_s, default=None), one.verdict, one.reason))
    return points


def _timed(artifact: Artifact, length: int, seed: int) -> LatencyJob:
    assert artifact.manifest is not None  # made here
    axes = {"seq_len": length}
    case = CaseRecord(name="growth", axes=axes, seed=seed)
    return LatencyJob(artifact, axes, make_inputs(artifact.manifest.contract, case))


def _peaks(
    artifacts: Mapping[str, Artifact], runtime: Runtime, plan: Plan, threads: int, lengths: Sequence[int]
) -> _Points:
    jobs = [PeakJob(artifact, {"seq_len": length}) for artifact in artifacts.values() for length in lengths]
    answers = iter(measure_peaks(reference_of(runtime), jobs, threads=threads, seed=plan.seed))
    points: _Points = {}
    for form in artifacts:
        points[form] = []
        for length in lengths:
            one = next(answers)
            points[form].append(_Point(length, one.peak_bytes, one.verdict, one.reason))
    return points


def _judged(runtime: str, form: str, cost: str, points: Sequence[_Point]) -> ClaimRecord:
    setting = f"{form}, {cost}"
    known = {point.length: float(point.cost) for point in points if point.cost is not None}
    if len(known) < measures.FEWEST:
        lacking = next((point for point in points if point.cost is None), None)
        verdict, reason = (lacking.verdict, lacking.reason) if lacking else ("skipped", "too few lengths")
        return ClaimRecord(claim=CLAIM, runtime=runtime, verdict=verdict, reason=reason, setting=setting)
    if cost == "time":
        measured, unit = measures.time_growth(known, D_HEAD), "fastest_s"
    else:
        measured, unit = measures.memory_growth(known, fused=form == "fused"), "peak_bytes"
    return recorded(CLAIM, runtime, measured, setting, {"n": known, unit: known.values()})
