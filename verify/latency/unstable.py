"""Measurements that do not settle: which, how far, and the likely reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from onnx_attest.verify.findings import finding
from onnx_attest.verify.records import CaseRecord, FindingRecord, LatencyRecord
from onnx_attest.verify.samples import RESOLUTION, Interval, against_itself, floor_of, measured, median_of

_NEIGHBOURS = 0.05
"""The part of this process's own processor time that others may take meanwhile before they are named."""
_DRIFT = 0.05
"""The part by which the last sitting may differ from the first before that is called a drift."""
_STEPS = 4
"""All in one direction: by chance once in eight times."""


def unstable(records: Sequence[LatencyRecord]) -> Iterator[FindingRecord]:
    """Yield the findings about one group, each once: who says less than 5 %, who was not warm, and the noise floor."""
    timed = [record for record in records if record.latency_s and not record.twin]
    wide = {
        id(record): interval
        for record in timed
        if (interval := median_of(measured(record))) is not None
        and interval.known
        and interval.spread > RESOLUTION
    }
    if wide:
        worst = max((one for one in timed if id(one) in wide), key=lambda one: wide[id(one)].spread)
        more = f" (and {len(wide) - 1} more of {len(timed)} here)" if len(wide) > 1 else ""
        yield _about(worst, "OA701", f"{_shown(wide[id(worst)])}{more}; {likely_reason(worst)}")
    cold = [record for record in timed if record.warm is False]
    if cold:
        calls = len(cold[0].warm_up_s)
        more = f" (and {len(cold) - 1} more of {len(timed)} here)" if len(cold) > 1 else ""
        yield _about(
            cold[0], "OA702", f"after {calls} calls two windows of five still differed by more than 5 %{more}"
        )
    floor = floor_of(against := against_itself(records))
    if against is not None and floor is not None and floor > RESOLUTION:
        twin = next(record for record in records if record.twin)
        text = f"{twin.runtime} against itself: {_ratio(against)}, so differences of up to {floor:.0%} say nothing here"
        yield _about(twin, "OA703", f"{text}; {likely_reason(twin)}")


def likely_reason(record: LatencyRecord) -> str:
    """Return what the counters beside the timings point to."""
    reasons = []
    if record.threads is not None and record.affinity and record.threads > len(record.affinity):
        reasons.append(f"{record.threads} threads on {len(record.affinity)} processors")
    if record.others_s is not None and record.busy_s and record.others_s > _NEIGHBOURS * record.busy_s:
        share = record.others_s / record.busy_s
        reasons.append(
            f"neighbours: other programs, or the host, took {share:.0%} of the processor time it took itself"
        )
    if (drift := _drift(record)) is not None and abs(drift) > _DRIFT:
        more = "slower" if drift > 0 else "faster"
        reasons.append(f"a drift: {abs(drift):.0%} {more} at the end (throttling, or a clock that rises)")
    if not reasons and record.preempted:
        reasons.append(f"it was put aside for other programs {record.preempted} times")
    return "likely: " + "; ".join(reasons) if reasons else "the counters show no reason"


def _drift(record: LatencyRecord) -> float | None:
    """Return by which part the last sitting is slower than the first, None unless each is slower, or faster, than the one before."""
    medians = [median_of((sitting,)) for sitting in measured(record)]
    known = [median.estimate for median in medians if median is not None]
    steps = [later > earlier for earlier, later in pairwise(known)]
    if len(steps) < _STEPS or len(set(steps)) > 1:
        return None
    return known[-1] / known[0] - 1


def _shown(interval: Interval) -> str:
    assert interval.low is not None
    assert interval.high is not None
    return f"median {1e3 * interval.estimate:.3g} ms, between {1e3 * interval.low:.3g} and {1e3 * interval.high:.3g} ms"


def _ratio(interval: Interval) -> str:
    assert interval.low is not None
    assert interval.high is not None
    return f"{interval.estimate:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def _about(record: LatencyRecord, code: str, message: str) -> FindingRecord:
    item = finding(code, message)
    return FindingRecord(
        code=item.code, severity=item.severity, message=item.message, next_step=item.next_step,
        model=record.model, variant=record.variant, opset=record.opset, dtype=record.dtype, runtime=record.runtime,
        case=CaseRecord(name="latency", axes=record.axes).id,
    )  # fmt: skip
