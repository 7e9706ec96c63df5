"""What became slower or faster, beyond what two measurements differ by.

Two runs have no rounds in common: between them the machine's clock, its other programs and where memory lies have
changed, so that a time is not compared with a time. What is compared is the ratio to a yardstick that was timed in the
same rounds of each run and is the same in both: the reference runtime (the one that is timed twice), if its version is
the same, else the machine's own product of matrices. A change of that ratio counts if

* its interval leaves out 1: both runs' bootstrap intervals in logarithms, added as independent errors are, and widened
  from their 95 % to what so many tests need;
* it is beyond both runs' noise floors together: each is what a runtime differs from itself in that run;
* the machine's product, where both have it, does not say otherwise: that tells a yardstick that moved itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from onnx_attest.verify.compare.change import Change, Direction
from onnx_attest.verify.compare.match import Pair, matched, of_kind, of_timings, place
from onnx_attest.verify.compare.shifts import FALSE_ALARMS
from onnx_attest.verify.records import AnyRecord, EnvironmentRecord, LatencyRecord, MachineRecord, TimedRecord
from onnx_attest.verify.report.formats import seconds
from onnx_attest.verify.report.grouping import grouped
from onnx_attest.verify.samples import (
    LEVEL,
    REFERENCE,
    Interval,
    against_itself,
    floor_of,
    measured,
    median_of,
    paired,
)


@dataclass(frozen=True)
class Timed:
    """One timing with what it can be held against.

    Attributes:
        reference: of its group, None if it is that itself.
        machine: the product of matrices of its group.
        floor: of its group.
    """

    record: LatencyRecord
    reference: LatencyRecord | None
    machine: MachineRecord | None
    floor: float | None


def timed(records: Sequence[AnyRecord]) -> list[Timed]:
    """Return what was timed, without the twins."""
    machines = {one.group: one for one in of_kind(records, MachineRecord) if one.latency_s}
    found = []
    for group, members in grouped(of_kind(records, LatencyRecord), lambda one: one.group).items():
        floor, reference = floor_of(against_itself(members)), _reference(members)
        found += [
            Timed(one, None if one is reference else reference, machines.get(group), floor)
            for one in members
            if one.latency_s and not one.twin
        ]
    return found


def _reference(members: Sequence[LatencyRecord]) -> LatencyRecord | None:
    """Return what was timed twice; without it torch, if that was timed."""
    results = [one for one in members if one.latency_s and not one.twin]
    twin = next((one for one in members if one.twin), None)
    doubled = [one for one in results if twin is not None and _alike(one, twin)]
    return next(iter(doubled or [one for one in results if one.runtime == REFERENCE]), None)


def _alike(one: LatencyRecord, other: LatencyRecord) -> bool:
    return (one.artifact_sha256, one.runtime, one.axes) == (other.artifact_sha256, other.runtime, other.axes)


@dataclass(frozen=True)
class Ratio:
    """By what a ratio to a yardstick changed, in natural logarithms, with the half-width of its interval at LEVEL."""

    estimate: float
    half_width: float

    def low(self, times: float) -> float:
        """The end nearer to 0, or beyond it, of the interval widened so many times, for a change made positive."""
        return abs(self.estimate) - times * self.half_width


def latency(old: Sequence[AnyRecord], new: Sequence[AnyRecord]) -> tuple[list[Change], int, dict[str, str]]:
    """Return the changes, how many timings were compared, and why others were not."""
    found = matched(timed(old), timed(new), lambda one: of_timings(one.record))
    if not found.pairs:
        return [], 0, {}
    if (why := _other_machine(old, new)) is not None:
        return [], 0, {"latency": why}
    usable = [(pair, yardsticks) for pair in found.pairs if (yardsticks := _yardsticks(pair))]
    unusable = len(found.pairs) - len(usable)
    lacking = {
        f"latency of {unusable} timings": "no noise floor, or nothing that is the same was timed in both runs"
    }
    changes = [change for pair, yardsticks in usable for change in _judged(pair, yardsticks, len(usable))]
    return changes, len(usable), lacking if unusable else {}


def _other_machine(old: Sequence[AnyRecord], new: Sequence[AnyRecord]) -> str | None:
    """Return why times say nothing, None if both runs were on the same kind of machine, or did not say."""
    machines = [
        {(one.cpu, one.machine, one.cores, one.cpu_features) for one in of_kind(records, EnvironmentRecord)}
        for records in (old, new)
    ]
    if not all(machines) or machines[0] == machines[1]:
        return None
    return "the runs are of different machines: a ratio of two times on one says little of the other"


def _yardsticks(pair: Pair[Timed]) -> list[tuple[str, Ratio]]:
    """Return the change against each yardstick, the one that counts first; none without noise floors."""
    old, new = pair.old, pair.new
    if old.floor is None or new.floor is None:
        return []
    found = []
    if old.reference is not None and new.reference is not None and _unchanged(old.reference, new.reference):
        found.append((new.reference.runtime, _ratio(pair, old.reference, new.reference)))
    if old.machine is not None and new.machine is not None and _same_product(old.machine, new.machine):
        found.append(("the machine's product of matrices", _ratio(pair, old.machine, new.machine)))
    return [(name, ratio) for name, ratio in found if ratio is not None]


def _unchanged(old: LatencyRecord, new: LatencyRecord) -> bool:
    """Whether two references are the same: torch runs the module, others the file."""
    same_file = old.artifact_sha256 == new.artifact_sha256 or new.runtime == REFERENCE
    return (old.runtime, old.runtime_version) == (new.runtime, new.runtime_version) and same_file


def _same_product(old: MachineRecord, new: MachineRecord) -> bool:
    return (old.library, old.flops, old.threads) == (new.library, new.flops, new.threads)


def _ratio(pair: Pair[Timed], old: TimedRecord, new: TimedRecord) -> Ratio | None:
    before, after = median_of(paired(pair.old.record, old)), median_of(paired(pair.new.record, new))
    if before is None or after is None or not before.known or not after.known:
        return None
    estimate = math.log(after.estimate / before.estimate)
    up = estimate > 0
    return Ratio(estimate, math.hypot(_half(after, lower=up), _half(before, lower=not up)))


def _half(interval: Interval, *, lower: bool) -> float:
    """Return how far an end is from the estimate, in logarithms."""
    assert interval.low is not None
    assert interval.high is not None
    return (
        math.log(interval.estimate / interval.low) if lower else math.log(interval.high / interval.estimate)
    )


def _judged(pair: Pair[Timed], yardsticks: Sequence[tuple[str, Ratio]], tests: int) -> Iterator[Change]:
    normal = NormalDist()
    times = normal.inv_cdf(1 - FALSE_ALARMS / tests / 2) / normal.inv_cdf((1 + LEVEL) / 2)
    (name, ratio), *others = yardsticks
    floor = math.log1p(pair.old.floor or 0.0) + math.log1p(pair.new.floor or 0.0)
    if ratio.low(times) <= 0 or abs(ratio.estimate) <= floor:
        return
    sign = math.copysign(1.0, ratio.estimate)
    if any(sign * other.estimate + times * other.half_width < ratio.low(times) for _, other in others):
        return
    slower = ratio.estimate > 0
    old, new = (median_of(measured(one.record)) for one in (pair.old, pair.new))
    assert old is not None
    assert new is not None
    axes = ", ".join(f"{axis}={size}" for axis, size in pair.new.record.axes.items())
    direction: Direction = "worse" if slower else "better"
    yield Change(
        kind="latency",
        direction=direction,
        counts=slower,
        **place(pair.new.record).fields(),
        case=axes,
        quantity="median_s",
        before=old.estimate,
        after=new.estimate,
        amount=math.exp(ratio.estimate),
        message=f"{'slower' if slower else 'faster'}: takes {math.exp(ratio.estimate):.3g} times as long beside {name} "
        f"(noise floor {math.expm1(floor):.1%}), "
        f"{seconds(old.estimate)} before, {seconds(new.estimate)} now",
    )
