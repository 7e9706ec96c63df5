"""The figures that a person reads: pure functions of the records of mutants, for reports made elsewhere and later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnx_attest.verify.records import CORRECT, PowerRecord


@dataclass(frozen=True)
class Score:
    """What all mutants of a file came to.

    Attributes:
        false_alarms, correct: cases of the file itself and of its correct rewritings in which a gate found something.
        pairs, beyond_pool, strong: (killed, of) manifest pairs above the resolution of the dtype.
        smallest_scale: the smallest relative error of the scale that was found in most cases in which it shows; None
            if none was.
    """

    false_alarms: int
    correct: int
    pairs: tuple[int, int]
    beyond_pool: tuple[int, int]
    strong: tuple[int, int]
    smallest_scale: float | None


def score(records: Iterable[PowerRecord]) -> Score:
    """Return the figures of all mutants together."""
    records = list(records)
    correct = [record for record in records if record.fault == CORRECT]
    faults = [record for record in records if record.fault != CORRECT and record.above_resolution]
    scales = list(_sizes_found(record for record in records if record.fault == "scale"))
    return Score(
        false_alarms=sum(record.killed for record in correct),
        correct=sum(record.cases for record in correct),
        pairs=(sum(r.killed for r in faults), sum(r.manifest for r in faults)),
        beyond_pool=(sum(r.beyond_pool_killed for r in faults), sum(r.beyond_pool for r in faults)),
        strong=(sum(r.strong_killed for r in faults), sum(r.strong for r in faults)),
        smallest_scale=min(scales, default=None),
    )


def _sizes_found(records: Iterable[PowerRecord]) -> Iterator[float]:
    """Yield sizes from the largest down to the first that some attention hides in half of its cases or more."""
    by_size: dict[float, list[PowerRecord]] = {}
    for record in records:
        by_size.setdefault(abs(record.size or 0.0), []).append(record)
    for size in sorted(by_size, reverse=True):
        showing = [record for record in by_size[size] if record.manifest]
        if not showing or not all(2 * record.killed > record.manifest for record in showing):
            return
        yield size


def lines(records: Sequence[PowerRecord]) -> Iterator[str]:
    """Yield the figures in words, most important first."""
    total = score(records)
    yield f"false alarms: {total.false_alarms} of {total.correct} runs of the file itself and of correct rewritings of it"
    for what, (killed, of) in (
        ("faults that show in the outputs", total.pairs),
        ("beyond the worst error of correct implementations", total.beyond_pool),
        ("beyond four times that", total.strong),
    ):
        share = f"{100 * killed / of:.1f} %" if of else "n/a"
        yield f"{what}: {killed} of {of} caught ({share})"
    least = "none" if total.smallest_scale is None else f"{total.smallest_scale:g}"
    yield f"smallest scale error caught in most cases: {least}"
