"""How fast it was: latency.md and latency.csv. Statistics are derived here, from the raw samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from onnx_attest.verify.records import AnyRecord, LatencyRecord, finite
from onnx_attest.verify.report.flatten import flat_rows
from onnx_attest.verify.report.formats import UNKNOWN, listed, number, seconds, sizes
from onnx_attest.verify.report.grouping import of_kind, subject
from onnx_attest.verify.report.reasons import NO_REASON
from onnx_attest.verify.report.tables import Column, Value, fill, page, to_csv, to_markdown

REFERENCE = "torch"


@dataclass(frozen=True)
class Timing:
    """One latency record with what is derived from its samples; None where there are too few."""

    record: LatencyRecord
    median_s: float | None
    p10_s: float | None
    p90_s: float | None
    median_over_torch: float | None


def latency(records: Iterable[AnyRecord]) -> str:
    """Return latency.md: one row for each export, runtime and shape."""
    table = fill("By export, runtime and shape", COLUMNS, _timings(records), LIMITS)
    return page("Latency", [to_markdown(table)])


def latency_csv(records: Iterable[AnyRecord]) -> str:
    """Return latency.csv: the fields of each record, its raw samples, and the statistics unrounded."""
    timings = _timings(records)
    columns, rows = flat_rows(LatencyRecord, [timing.record for timing in timings])
    derived = [_derived(timing) for timing in timings]
    return to_csv([*columns, *DERIVED], [row | more for row, more in zip(rows, derived, strict=True)])


def _derived(timing: Timing) -> dict[str, Value]:
    samples = len(timing.record.latency_s)
    values = (samples, timing.median_s, timing.p10_s, timing.p90_s, timing.median_over_torch)
    return dict(zip(DERIVED, values, strict=True))


def _timings(records: Iterable[AnyRecord]) -> list[Timing]:
    latencies = of_kind(records, LatencyRecord)
    references = [record for record in latencies if record.runtime == REFERENCE and record.latency_s]
    return [_timing(record, references) for record in latencies]


def _timing(record: LatencyRecord, references: Sequence[LatencyRecord]) -> Timing:
    median = statistics.median(record.latency_s) if record.latency_s else None
    p10, p90 = _spread(record.latency_s)
    reference = _reference(record, references)
    if median is None or reference is None:
        return Timing(record, median, p10, p90, None)
    base = statistics.median(reference.latency_s)
    return Timing(record, median, p10, p90, median / base if base > 0 else None)


def _spread(samples: Sequence[float]) -> tuple[float | None, float | None]:
    if len(samples) < 2:  # one sample has no spread
        return None, None
    deciles = statistics.quantiles(samples, n=10, method="inclusive")
    return deciles[0], deciles[-1]


def _reference(record: LatencyRecord, references: Sequence[LatencyRecord]) -> LatencyRecord | None:
    """Return torch's timing of the same computation, if possible that which was taken with the same export."""
    same = [
        one for one in references if _computation(one) == _computation(record) and _same_threads(one, record)
    ]
    return min(same, key=lambda one: subject(one) != subject(record), default=None)


def _computation(record: LatencyRecord) -> tuple[str, str, dict[str, int]]:
    return record.model, record.dtype, record.axes


def _same_threads(one: LatencyRecord, other: LatencyRecord) -> bool:
    """Return whether a ratio would compare like with like; a number that is not known is no objection."""
    return None in (one.threads, other.threads) or one.threads == other.threads


def _measured(show: Callable[[Timing], str]) -> Callable[[Timing], str]:
    """Return the same, but `n/a` where no call was timed: then no number of the row means anything."""
    return lambda timing: show(timing) if timing.record.latency_s else UNKNOWN


def _p10_to_p90(timing: Timing) -> str:
    return UNKNOWN if timing.p10_s is None else f"{seconds(timing.p10_s)} .. {seconds(timing.p90_s)}"


def _over_torch(timing: Timing) -> str:
    known = finite(timing.median_over_torch)
    return UNKNOWN if known is None else f"{number(known)}x"


def _reason(timing: Timing) -> str:
    record = timing.record
    return record.reason or ("" if record.latency_s else NO_REASON)


DERIVED = ("samples", "median_s", "p10_s", "p90_s", "median_over_torch")
LIMITS = (
    "Limits: one runtime at a time, each in a process of its own, on a machine shared with others; compare ratios, "
    "not absolute times. A ratio is given only against torch with the same model, dtype, sizes and threads."
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
        "first call", "time of the first call", _measured(lambda timing: seconds(timing.record.first_call_s))
    ),
    Column("median", "median of the warm calls", _measured(lambda timing: seconds(timing.median_s))),
    Column("p10 .. p90", "10th and 90th percentile of the warm calls", _measured(_p10_to_p90)),
    Column("samples", "warm calls timed", _measured(lambda timing: number(len(timing.record.latency_s)))),
    Column("ratio to torch", "median over the median of torch", _measured(_over_torch)),
    Column("reason", "why there is no number", _reason),
)
