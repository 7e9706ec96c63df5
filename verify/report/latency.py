"""How fast it was: latency.md and latency.csv. Statistics are derived here, from the raw samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from onnx_attest.verify.records import AnyRecord, FindingRecord, LatencyRecord, MachineRecord
from onnx_attest.verify.report.flatten import flat_rows
from onnx_attest.verify.report.formats import UNKNOWN, listed, number, seconds, share, sizes
from onnx_attest.verify.report.grouping import of_kind, subject
from onnx_attest.verify.report.reasons import NO_REASON
from onnx_attest.verify.report.shipping import shipping
from onnx_attest.verify.report.tables import Column, Value, fill, page, to_csv, to_markdown
from onnx_attest.verify.report.timings import Floor, Timing, by_size, floors, rate, rounds_at, timings
from onnx_attest.verify.samples import Interval, Power, exponent, floor_of, measured, median_of

_MIB = 2**20


def latency(records: Iterable[AnyRecord]) -> str:
    """Return latency.md: which variant to ship, each timing, what it says at most, and how it grows."""
    records = list(records)
    found = timings(records)
    beside = (
        fill("A runtime against itself", FLOOR_COLUMNS, floors(records), FLOOR_NOTE),
        fill("Growth with length", GROWTH_COLUMNS, growths(found), GROWTH_NOTE),
        fill("The machine", MACHINE_COLUMNS, of_kind(records, MachineRecord), MACHINE_NOTE),
    )
    not_timed = [f"- {one.message}" for one in of_kind(records, FindingRecord) if one.code == "OA704"]
    parts = [
        *shipping(records, found),
        *(["Verified and not timed:\n" + "\n".join(not_timed)] if not_timed else []),
        to_markdown(fill("By export, runtime and shape", COLUMNS, found, LIMITS)),
        *(to_markdown(table) for table in beside if table.rows),
    ]
    return page("Latency", parts)


def latency_csv(records: Iterable[AnyRecord]) -> str:
    """Return latency.csv: the fields of each record, its raw samples, and the statistics unrounded; twins come last."""
    records = list(records)
    found = [*timings(records), *(Timing(floor.record) for floor in floors(records))]
    columns, rows = flat_rows(LatencyRecord, [timing.record for timing in found])
    derived = [_derived(timing) for timing in found]
    return to_csv([*columns, *DERIVED], [row | more for row, more in zip(rows, derived, strict=True)])


def _derived(timing: Timing) -> dict[str, Value]:
    quantiles, median, ratio = timing.quantiles, timing.median, timing.over_torch
    values = (
        len(timing.record.latency_s),
        *(
            None if quantiles is None else (getattr(quantiles, name))
            for name in ("median_s", "p90_s", "p99_s", "iqr_s")
        ),
        *_ends(median),
        *((None,) * 3 if ratio is None else (ratio.estimate, *_ends(ratio))),
        timing.floor,
        timing.shown,
        timing.record.session_bytes,
        timing.record.call_bytes,
        timing.flops_per_s,
        timing.of_machine,
    )
    return dict(zip(DERIVED, values, strict=True))


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


@dataclass(frozen=True)
class Growth:
    """How time and memory of one artifact on one runtime grow with the length."""

    record: LatencyRecord
    lengths: tuple[int, ...]
    time: Power
    memory: Power | None


def growths(found: Sequence[Timing]) -> list[Growth]:
    """Return how each artifact grows on each runtime, where it was timed at two lengths or more."""
    grown = []
    for members in by_size(found).values():
        points = [point for timing in members if (point := rounds_at(timing)) is not None]
        time = exponent(points)
        if time is not None:
            held = [
                (max(timing.record.axes.values()), (((0, float(timing.record.call_bytes)),),))
                for timing in members
                if timing.record.call_bytes and timing.record.axes
            ]
            lengths = tuple(sorted(length for length, _ in points))
            grown.append(Growth(members[0].record, lengths, time, exponent(held)))
    return grown


def _measured(show: Callable[[Timing], str]) -> Callable[[Timing], str]:
    """Return the same, but `n/a` where no call was timed: then no number of the row means anything."""
    return lambda timing: show(timing) if timing.record.latency_s else UNKNOWN


def _of_quantiles(name: str) -> Callable[[Timing], str]:
    return _measured(lambda timing: seconds(getattr(timing.quantiles, name)))


def _interval(interval: Interval | None, show: Callable[[float | None], str]) -> str:
    if interval is None or not interval.known:
        return UNKNOWN
    return f"{show(interval.low)} .. {show(interval.high)}"


def _over_torch(timing: Timing) -> str:
    if timing.over_torch is None:
        return UNKNOWN
    return f"{number(timing.over_torch.estimate)}x"


def _interval_over_torch(timing: Timing) -> str:
    return UNKNOWN if timing.reference is timing.record else _interval(timing.over_torch, number)


def _reason(timing: Timing) -> str:
    record = timing.record
    return record.reason or ("" if record.latency_s else NO_REASON)


def _gflops(value: float | None) -> str:
    return number(None if value is None else value / 1e9)


def _mib(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value / _MIB:.3g} MiB"


def _power(power: Power | None) -> str:
    if power is None:
        return UNKNOWN
    ends = _interval(power.exponent, number)
    return number(power.exponent.estimate) + ("" if ends == UNKNOWN else f" ({ends})")


DERIVED = (
    "samples", "median_s", "p90_s", "p99_s", "iqr_s", "median_low_s", "median_high_s", "median_over_torch",
    "median_over_torch_low", "median_over_torch_high", "noise_floor", "shown", "session_bytes", "call_bytes", "flops_per_s",
    "of_machine_rate",
)  # fmt: skip
LIMITS = (
    "Limits: all that compute the same were timed in turns, in random order, each in a process of its own, on a machine "
    "shared with others; compare ratios, not absolute times. Intervals are of 95 %, by a bootstrap over sittings and "
    "rounds. A ratio inside the noise floor of its group shows no difference. GFLOP/s counts the graph's matrix products "
    "alone."
)
FLOOR_NOTE = (
    "The same runtime in two processes, in the same rounds as all others. Its floor is the farther end of the interval: "
    "a smaller difference between two runtimes of that group is told as no difference."
)
GROWTH_NOTE = (
    "Least squares of the logarithm on that of the length: t ~ length^exponent. At small lengths what does not depend on "
    "the length weighs more, and the exponent is below that of large ones. Memory is measured once a length, so its "
    "exponent has no interval."
)
MACHINE_NOTE = (
    "A product of two float32 matrices, with the same number of threads, timed in the same rounds. A slower one than in "
    "other groups means that the machine was slower then."
)
COLUMNS: tuple[Column[Timing], ...] = (
    Column("model", "name of the module", lambda timing: timing.record.model),
    Column("variant", "form of the graph", lambda timing: timing.record.variant),
    Column("opset", "opset of the file", lambda timing: subject(timing.record).opset),
    Column("dtype", "floating dtype of the graph", lambda timing: timing.record.dtype),
    Column("runtime", "what executed the file", lambda timing: timing.record.runtime),
    Column("axes", "size of each symbolic axis", lambda timing: sizes(timing.record.axes)),
    Column(
        "verdict", "of the measurement; it says nothing about accuracy", lambda timing: timing.record.verdict
    ),
    Column(
        "provider used",
        "what the runtime says it ran on, not what was asked for",
        lambda timing: listed(timing.record.provider_used),
    ),
    Column("threads", "threads inside one operator", _measured(lambda timing: number(timing.record.threads))),
    Column(
        "session", "time to create the session", _measured(lambda timing: seconds(timing.record.session_s))
    ),
    Column(
        "first call",
        "time of the first call at this shape",
        _measured(lambda timing: seconds(timing.record.first_call_s)),
    ),
    Column(
        "copies",
        "time to copy the inputs to the device and the outputs back, in no call; n/a where it computes in main memory",
        _measured(lambda timing: seconds(timing.record.copies_s)),
    ),
    Column("median", "median of the warm calls", _of_quantiles("median_s")),
    Column("interval", "of the median", _measured(lambda timing: _interval(timing.median, seconds))),
    Column("p90", "90th percentile of the warm calls", _of_quantiles("p90_s")),
    Column("p99", "99th percentile of the warm calls", _of_quantiles("p99_s")),
    Column("iqr", "interquartile range of the warm calls", _of_quantiles("iqr_s")),
    Column("samples", "warm calls timed", _measured(lambda timing: number(len(timing.record.latency_s)))),
    Column(
        "ratio to torch", "median over rounds of the ratio to torch in the same round", _measured(_over_torch)
    ),
    Column("interval of the ratio", "of that median", _measured(_interval_over_torch)),
    Column(
        "shown",
        "what the ratio shows: faster, slower, or no difference",
        _measured(lambda timing: timing.shown or UNKNOWN),
    ),
    Column(
        "GFLOP/s",
        "operations of the graph's matrix products per second of the median",
        _measured(lambda timing: _gflops(timing.flops_per_s)),
    ),
    Column(
        "of the machine",
        "that rate over the machine's own product of matrices in the same rounds",
        _measured(lambda timing: share(timing.of_machine)),
    ),
    Column(
        "session memory",
        "what the process came to hold when the session was opened",
        _measured(lambda timing: _mib(timing.record.session_bytes)),
    ),
    Column(
        "call memory",
        "the most that calls held beyond session and inputs",
        _measured(lambda timing: _mib(timing.record.call_bytes)),
    ),
    Column("reason", "why there is no number", _reason),
)
FLOOR_COLUMNS: tuple[Column[Floor], ...] = (
    Column("model", "name of the module", lambda floor: floor.record.model),
    Column("dtype", "floating dtype of the graph", lambda floor: floor.record.dtype),
    Column("axes", "size of each symbolic axis", lambda floor: sizes(floor.record.axes)),
    Column("runtime", "what was timed twice", lambda floor: floor.record.runtime),
    Column(
        "ratio to itself",
        "of the second process to the first",
        lambda floor: number(None if floor.ratio is None else floor.ratio.estimate),
    ),
    Column("interval", "of that ratio", lambda floor: _interval(floor.ratio, number)),
    Column(
        "noise floor",
        "differences below this part say nothing",
        lambda floor: _percent(floor_of(floor.ratio)),
    ),
)
GROWTH_COLUMNS: tuple[Column[Growth], ...] = (
    Column("model", "name of the module", lambda growth: growth.record.model),
    Column("variant", "form of the graph", lambda growth: growth.record.variant),
    Column("opset", "opset of the file", lambda growth: subject(growth.record).opset),
    Column("dtype", "floating dtype of the graph", lambda growth: growth.record.dtype),
    Column("runtime", "what executed the file", lambda growth: growth.record.runtime),
    Column("lengths", "that were timed", lambda growth: listed(map(str, growth.lengths))),
    Column("exponent of time", "fitted, with its interval", lambda growth: _power(growth.time)),
    Column("exponent of memory", "fitted", lambda growth: _power(growth.memory)),
)
MACHINE_COLUMNS: tuple[Column[MachineRecord], ...] = (
    Column("group", "number of the measurement", lambda record: number(record.group)),
    Column("library", "that multiplied", lambda record: record.library),
    Column("threads", "it was given", lambda record: number(record.threads)),
    Column("GFLOP/s", "operations per second of the median", lambda record: _gflops(rate(record))),
    Column(
        "interval", "of the time of a product", lambda record: _interval(median_of(measured(record)), seconds)
    ),
)


def _percent(part: float | None) -> str:
    return UNKNOWN if part is None else f"{part:.1%}"
