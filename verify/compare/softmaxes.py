"""What became of softmax rows, and of the logit at which each softmax breaks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from onnx_attest.verify.compare.change import Change, Direction
from onnx_attest.verify.compare.match import Pair, Place, case_id, place, same_inputs
from onnx_attest.verify.compare.shifts import log2_of, shift_of
from onnx_attest.verify.compare.verdicts import is_excused
from onnx_attest.verify.records import HeadroomRecord, StabilityRecord
from onnx_attest.verify.report.grouping import grouped

RATIOS = (
    "weight_err_over_limit",
    "row_sum_err_over_limit",
    "kl_over_limit",
    "lse_err_over_limit",
)
BREAKS = 0.01
"""A part of the logit: within it prediction and measurement agree (`HeadroomRecord.agrees`), so it is what one is worth."""


def stability(pairs: Sequence[Pair[StabilityRecord]]) -> Iterator[Change]:
    """Yield where errors of weights grew or shrank beyond chance, and what of masked keys shows now or does not any more."""
    looked = [pair for pair in pairs if pair.old.rows and pair.new.rows and not _excused(pair)]
    groups = grouped(looked, lambda pair: place(pair.new))
    tests = len(groups) * len(RATIOS)
    for where, members in groups.items():
        for field in RATIOS:
            yield from _shift(where, members, field, tests)
        yield from _poison(where, members)


def _excused(pair: Pair[StabilityRecord]) -> bool:
    return is_excused(pair.old) or is_excused(pair.new)


def _shift(
    where: Place, members: Sequence[Pair[StabilityRecord]], field: str, tests: int
) -> Iterator[Change]:
    found = shift_of(members, lambda record: log2_of(getattr(record, field)))
    if found is None or not found.is_sure(tests):
        return
    direction: Direction = "worse" if found.mean > 0 else "better"
    yield Change(
        kind="stability",
        direction=direction,
        counts=direction == "worse",
        **where.fields(),
        case=case_id(found.worst.new),
        quantity=field,
        before=getattr(found.worst.old, field),
        after=getattr(found.worst.new, field),
        amount=found.mean,
        records=found.pairs,
        message=f"{field} times {2**found.mean:.3g} over {found.pairs} cases",
    )


def _poison(where: Place, members: Sequence[Pair[StabilityRecord]]) -> Iterator[Change]:
    """Yield whether huge numbers behind the mask reach the outputs: bit by bit equality is no matter of chance."""
    known = [pair for pair in members if {pair.old.poison, pair.new.poison} == {"same", "differs"}]
    for after, same in grouped(known, lambda pair: pair.new.poison).items():
        worse = after == "differs"
        yield Change(
            kind="stability",
            direction="worse" if worse else "better",
            counts=worse,
            **where.fields(),
            case=case_id(same[0].new),
            quantity="poison",
            before=same[0].old.poison,
            after=after,
            records=len(same),
            message=f"huge masked keys and values {'change' if worse else 'do not change'} the outputs now, in {len(same)} cases",
        )


def headroom(pairs: Sequence[Pair[HeadroomRecord]]) -> Iterator[Change]:
    """Yield which softmaxes break at another logit than before.

    Rows of one large or of equal logits break where they do whatever the data is; those of a case are compared where it
    is the same.
    """
    alike = [pair for pair in pairs if _same_rows(pair)]
    changed = [(pair, moved) for pair in alike if (moved := _moved(pair)) != "other"]
    groups = grouped(changed, lambda one: (place(one[0].new), one[1], one[0].new.profile))
    for (where, direction, profile), members in groups.items():
        pair = min(members, key=lambda one: _logit(one[0].new))[0]
        worse = direction == "worse"
        yield Change(
            kind="headroom",
            direction=direction,
            counts=worse and not (pair.new.known and pair.new.verdict == "failed"),
            **where.fields(),
            case=case_id(pair.new),
            quantity="broke_at_logit",
            before=pair.old.broke_at_logit,
            after=pair.new.broke_at_logit,
            amount=_bits(pair),
            records=len(members),
            message=f"{pair.new.softmax}, {profile} logits: {_breaks(pair.old)} before, {_breaks(pair.new)} now",
        )


def _same_rows(pair: Pair[HeadroomRecord]) -> bool:
    old, new = pair.old, pair.new
    measured = all(one.profile is not None and one.tried_to_logit is not None for one in (old, new))
    return measured and old.keys == new.keys and (new.profile != "given" or same_inputs(old, new))


def _logit(record: HeadroomRecord) -> float:
    return math.inf if record.broke_at_logit is None else record.broke_at_logit


def _moved(pair: Pair[HeadroomRecord]) -> Direction:
    """Return whether it breaks earlier or later; where one was not tried so far, nothing is known of it."""
    old, new = _logit(pair.old), _logit(pair.new)
    if new < old and new < (pair.old.tried_to_logit or 0.0) and new < old * (1 - BREAKS):
        return "worse"
    if old < new and old < (pair.new.tried_to_logit or 0.0) and old < new * (1 - BREAKS):
        return "better"
    return "other"


def _bits(pair: Pair[HeadroomRecord]) -> float | None:
    old, new = pair.old.broke_at_logit, pair.new.broke_at_logit
    return math.log2(new / old) if old and new and old > 0 and new > 0 else None


def _breaks(record: HeadroomRecord) -> str:
    if record.broke_at_logit is None:
        return f"holds up to {record.tried_to_logit:.4g}"
    return f"breaks at a logit of {record.broke_at_logit:.4g}"
