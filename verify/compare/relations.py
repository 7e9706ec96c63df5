"""Relations that hold less exactly than before, or more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx_attest.verify.compare.change import Change, Direction
from onnx_attest.verify.compare.match import Pair, case_id, place, same_inputs
from onnx_attest.verify.compare.verdicts import is_excused
from onnx_attest.verify.records import RelationRecord
from onnx_attest.verify.report.grouping import grouped

_ORDER = ("bitwise", "rounding", "no")


def relations(pairs: Sequence[Pair[RelationRecord]]) -> Iterator[Change]:
    """Yield relations that hold otherwise than before.

    One that somebody asks for and that stopped to hold counts. Where rounding is allowed, sums in another order may come
    out bit for bit the same by chance, in float16 often: that is compared on the same inputs alone, and does not count.
    """
    known = [
        pair for pair in pairs if {pair.old.holds, pair.new.holds} <= set(_ORDER) and not _is_chance(pair)
    ]
    changed = [pair for pair in known if pair.old.holds != pair.new.holds]
    groups = grouped(
        changed, lambda pair: (place(pair.new), pair.new.relation, pair.old.holds, pair.new.holds)
    )
    for (where, relation, before, after), members in groups.items():
        worse = _ORDER.index(after) > _ORDER.index(before)
        stopped = [pair for pair in members if _stopped(pair)]
        pair = (stopped or members)[0]
        direction: Direction = ("worse" if worse else "better") if pair.new.asked_by else "other"
        yield Change(
            kind="relation",
            direction=direction,
            counts=bool(stopped),
            **where.fields(),
            case=case_id(pair.new),
            quantity=relation,
            before=before,
            after=after,
            records=len(members),
            message=f"{relation}: {_holds(before)} before, {_holds(after)} now{_asked(pair.new)}",
        )


def _is_chance(pair: Pair[RelationRecord]) -> bool:
    both = {pair.old.holds, pair.new.holds} == {"bitwise", "rounding"}
    return both and pair.new.exactness != "bitwise" and not same_inputs(pair.old, pair.new)


def _stopped(pair: Pair[RelationRecord]) -> bool:
    """Whether it is asked for, held as exactly as it has to, and does not any more."""
    new = pair.new
    return (
        bool(new.asked_by)
        and pair.old.verdict == "passed"
        and new.verdict == "failed"
        and not is_excused(new)
    )


def _holds(word: str) -> str:
    return {"bitwise": "bit for bit", "rounding": "within rounding", "no": "not at all"}[word]


def _asked(record: RelationRecord) -> str:
    return f" (asked for by the {record.asked_by})" if record.asked_by else " (nobody asks for it)"
