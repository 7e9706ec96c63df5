"""Latency records with what is derived from their samples: what latency.md, latency.csv and the choice of a variant share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from onnx_attest.verify.records import AnyRecord, LatencyRecord, MachineRecord
from onnx_attest.verify.report.grouping import grouped, of_kind, subject
from onnx_attest.verify.samples import (
    REFERENCE,
    Interval,
    Quantiles,
    Rounds,
    against_itself,
    difference,
    floor_of,
    measured,
    median_of,
    paired,
    quantiles,
)


@dataclass(frozen=True)
class Timing:
    """One latency record, and those that it is compared with; nothing is known where it has no samples.

    Attributes:
        reference: torch's timing of the same computation in the same rounds, None if there is none.
        floor: what the reference of its group differs from itself, as a part; None if that was not measured.
        machine: the machine's own product of matrices in the same rounds.
    """

    record: LatencyRecord
    reference: LatencyRecord | None = None
    floor: float | None = None
    machine: MachineRecord | None = None

    @cached_property
    def quantiles(self) -> Quantiles | None:
        """Of all calls."""
        return quantiles(self.record.latency_s) if self.record.latency_s else None

    @cached_property
    def median(self) -> Interval | None:
        """The median of the blocks' medians, with its interval."""
        return median_of(measured(self.record))

    @cached_property
    def over_torch(self) -> Interval | None:
        """The ratio to torch, round by round."""
        return None if self.reference is None else median_of(paired(self.record, self.reference))

    @property
    def shown(self) -> str:
        """What that ratio shows."""
        return "" if self.reference is self.record else difference(self.over_torch, self.floor)

    @cached_property
    def flops_per_s(self) -> float | None:
        """Operations of the graph's products per second of the median call."""
        work = self.record.flops
        return work / self.median.estimate if work and self.median is not None else None

    @cached_property
    def of_machine(self) -> float | None:
        """That rate as a part of the machine's own, measured in the same rounds."""
        own = None if self.machine is None else rate(self.machine)
        return self.flops_per_s / own if self.flops_per_s is not None and own else None


def timings(records: Iterable[AnyRecord]) -> list[Timing]:
    """Return the timings that are results, not those of twins."""
    records = list(records)
    machines = {record.group: record for record in of_kind(records, MachineRecord)}
    found: list[Timing] = []
    for group, members in grouped(of_kind(records, LatencyRecord), lambda record: record.group).items():
        floor = floor_of(against_itself(members))
        references = [one for one in members if one.runtime == REFERENCE and one.latency_s and not one.twin]
        found += [
            Timing(one, _reference(one, references), floor, machines.get(group))
            for one in members
            if not one.twin
        ]
    return found


@dataclass(frozen=True)
class Floor:
    """A runtime against itself.

    Attributes:
        record: of the second process.
        ratio: to the first.
    """

    record: LatencyRecord
    ratio: Interval | None


def floors(records: Iterable[AnyRecord]) -> list[Floor]:
    """Return what each group's reference differs from itself."""
    groups = grouped(of_kind(records, LatencyRecord), lambda record: record.group).values()
    return [Floor(twin, against_itself(members)) for members in groups for twin in members if twin.twin]


def rate(machine: MachineRecord) -> float | None:
    """Return the operations per second of the machine's own product."""
    median = median_of(measured(machine))
    return None if median is None else machine.flops / median.estimate


def by_size(records: Sequence[Timing]) -> Mapping[object, list[Timing]]:
    """Return the timings of each artifact on each runtime, of all sizes."""
    return grouped(
        [timing for timing in records if timing.record.latency_s],
        lambda timing: (subject(timing.record), timing.record.artifact_sha256, timing.record.runtime),
    )


def rounds_at(timing: Timing) -> tuple[int, Rounds] | None:
    """Return the length of a timing, the largest of its sizes, and its rounds; None where it has no size."""
    sizes = timing.record.axes.values()
    return (max(sizes), measured(timing.record)) if sizes else None


def _reference(record: LatencyRecord, references: Sequence[LatencyRecord]) -> LatencyRecord | None:
    """Return torch's timing of the same computation, if possible that which was taken with the same export."""
    same = [
        one
        for one in references
        if (one.model, one.dtype, one.axes, one.threads)
        == (record.model, record.dtype, record.axes, record.threads)
    ]
    return min(same, key=lambda one: subject(one) != subject(record), default=None)
