"""Verdicts that changed, of whatever has one: exports, cells, softmaxes, relations, statements, timings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from onnx_attest.verify.compare.change import Change, Direction, Kind
from onnx_attest.verify.compare.match import Pair, Place, case_id, place
from onnx_attest.verify.records import Verdict
from onnx_attest.verify.report.grouping import grouped
from onnx_attest.verify.report.outcomes import STALE

RANK: dict[Verdict, int] = {"passed": 0, "inconclusive": 1, "errored": 2, "failed": 2}
"""What was skipped has none: it was not looked at, and is told as not run any more, or now."""


def is_excused(record: Any) -> bool:
    """Whether it is a failure that was expected; an expected failure that did not come is not."""
    bad = record.verdict in ("failed", "errored")
    return bad and bool(getattr(record, "known", "")) and STALE not in getattr(record, "findings", ())


def said(record: Any) -> str:
    """Return the verdict in words."""
    return f"{record.verdict} (known)" if is_excused(record) else str(record.verdict)


def verdict_changes(
    kind: Kind, pairs: Iterable[Pair[Any]], counts: Callable[[Any], bool] = lambda record: True
) -> Iterator[Change]:
    """Yield one change for all cases of a file on a runtime whose verdict changed alike.

    Args:
        kind: of the records.
        pairs: the same thing in both runs.
        counts: whether the verdict of a record is one of the run's.
    """
    changed = [pair for pair in pairs if _ran(pair) and said(pair.old) != said(pair.new)]
    alike = grouped(changed, lambda pair: (place(pair.new), said(pair.old), said(pair.new), _about(pair.new)))
    for (where, before, after, about), members in alike.items():
        direction = _direction(members[0])
        count = direction == "worse" and any(map(counts, (pair.new for pair in members)))
        yield _change(kind, where, members, (before, after), about, direction, count)


def _ran(pair: Pair[Any]) -> bool:
    return pair.old.verdict in RANK and pair.new.verdict in RANK


def _direction(pair: Pair[Any]) -> Direction:
    """Return where a verdict went; a failure that is not expected any more is worse, whatever it was."""
    excused = is_excused(pair.old), is_excused(pair.new)
    if all(excused):
        return "other"
    before, after = RANK[pair.old.verdict], RANK[pair.new.verdict]
    if before == after:
        return ("worse" if excused[0] else "other") if any(excused) else "other"
    return "worse" if after > before else "better"


def _change(
    kind: Kind,
    where: Place,
    members: Sequence[Pair[Any]],
    words: tuple[str, str],
    about: str,
    direction: Direction,
    count: bool,
) -> Change:
    first = members[0].new
    reason = next((pair.new.reason for pair in members if pair.new.reason), "")
    cases = f" in {len(members)} cases" if len(members) > 1 else ""
    text = f"{about + ': ' if about else ''}{words[0]} before, {words[1]} now{cases}"
    return Change(
        kind=kind,
        direction=direction,
        counts=count and not is_excused(first),
        **where.fields(),
        case=case_id(first),
        quantity="verdict",
        before=words[0],
        after=words[1],
        records=len(members),
        message=f"{text}: {reason}" if reason and direction != "better" else text,
    )


def _about(record: Any) -> str:
    """Return what a record is about beside file, runtime and case, "" for most."""
    if hasattr(record, "claim"):
        return f"statement {record.claim}, {record.setting}"
    axes = getattr(record, "axes", None)
    timed = isinstance(axes, dict) and hasattr(record, "latency_s")
    return str(getattr(record, "relation", "")) or (
        ", ".join(f"{axis}={size}" for axis, size in axes.items()) if timed and axes else ""
    )
