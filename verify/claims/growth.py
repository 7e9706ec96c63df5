"""Statement 2, the cost grows as n^2: time and peak memory of one attention at several lengths, on every runtime.

Both are measured after everything else, all runtimes and both forms side by side at each length: see `latency/measure.py`.
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
from onnx_attest.verify.records import CaseRecord, ClaimRecord, LatencyRecord, Verdict
from onnx_attest.verify.runtimes.registry import reference_of

CLAIM = 2
LENGTHS = (512, 724, 1024, 1448, 2048, 2896)
"""In steps of the root of 2. Below, what a call costs at any length bends the line; above, the largest takes seconds."""
SHORTEST_WEIGHED = 1024
"""Its score matrix is 4 MiB, well above the pages that a runtime takes for other things."""
FORMS = {"written out": "onnx_attest.models.costs:WRITTEN_OUT", "fused": "onnx_attest.models.costs:FUSED"}
_BUDGET = LatencyBudget(sittings=1, most_sittings=1, rounds=3, block_s=0.01, seconds=0.15)
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
    weighed = [length for length in lengths if length >= SHORTEST_WEIGHED]
    timed = _timed(artifacts, plan, threads, lengths)
    for runtime in plan.runtimes:
        mine = [record for record in timed if record.runtime == runtime.name]
        for cost, point, sizes in (("time", _time, lengths), ("memory", _memory, weighed)):
            for form in FORMS:
                found = [_of(mine, artifacts[form], length) for length in sizes]
                points = [point(length, record) for length, record in zip(sizes, found, strict=True)]
                yield excuse_claim(_judged(runtime.name, form, cost, points), plan.known)


def _export(reference: str, folder: Path) -> Artifact:
    # Of the opsets that have Attention the lowest comes first; most runtimes know it.
    result = next(export_entry(resolve(reference), folder))
    if not isinstance(result, Artifact):
        raise UsageError(f"{result.model} could not be exported: {result.reason}")
    return replace(result, trusted=True)


def _timed(
    artifacts: Mapping[str, Artifact], plan: Plan, threads: int, lengths: Sequence[int]
) -> list[LatencyRecord]:
    jobs = [_job(artifact, length, plan.seed) for length in lengths for artifact in artifacts.values()]
    names = [reference_of(runtime) for runtime in plan.runtimes]
    records = measure(names, jobs, threads=threads, budget=_BUDGET, seed=plan.seed)
    return [record for record in records if isinstance(record, LatencyRecord) and not record.twin]


def _job(artifact: Artifact, length: int, seed: int) -> LatencyJob:
    assert artifact.manifest is not None  # made here
    axes = {"seq_len": length}
    case = CaseRecord(name="growth", axes=axes, seed=seed)
    return LatencyJob(artifact, axes, make_inputs(artifact.manifest.contract, case), f"length {length}")


def _of(records: Sequence[LatencyRecord], artifact: Artifact, length: int) -> LatencyRecord:
    return next(
        record
        for record in records
        if record.artifact_sha256 == artifact.sha256 and record.axes["seq_len"] == length
    )


def _time(length: int, record: LatencyRecord) -> _Point:
    # The fastest call, since what disturbs a call only adds to its time, and differently at each length.
    return _Point(length, min(record.latency_s, default=None), record.verdict, record.reason)


def _memory(length: int, record: LatencyRecord) -> _Point:
    """Return the most that calls held beyond the session and the inputs."""
    if record.copies_s is not None:
        return _Point(length, None, "skipped", "it computes in the memory of a device, which is not measured")
    if record.verdict == "passed" and record.call_bytes is None:
        return _Point(length, None, "skipped", "this system does not tell the peak of a process")
    return _Point(length, record.call_bytes, record.verdict, record.reason)


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
