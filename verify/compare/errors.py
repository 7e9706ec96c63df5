"""What became of errors: effective bits, and where there are none the error over its bound.

Two tests, since a kernel may be worse everywhere or in one case alone: Student's t of the differences over the cases of
a file on a runtime (`shifts.py`), and for each case by itself Fisher's F of its two mean squares of z. The mean square
of a case has at least as many degrees of freedom as its outputs have rows that are unlike each other: elements of one
row share the roundings of its weights, and roundings of different rows are independent. Where the differences of all
cases scatter by more than that says, as they do where a row's own z is not Gaussian, they are taken to scatter so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnx_attest.verify.compare.change import Change, Direction
from onnx_attest.verify.compare.distributions import f_tail
from onnx_attest.verify.compare.match import Pair, Place, case_id, place
from onnx_attest.verify.compare.shifts import FALSE_ALARMS, exactness_of, log2_of, shift_of
from onnx_attest.verify.records import CellRecord
from onnx_attest.verify.report.grouping import grouped
from onnx_attest.verify.report.outcomes import is_known

Cells = Sequence[Pair[CellRecord]]
BITS, OVER_TAU, EXACT = "effective_bits", "max_err_over_tau", "exactly right"
_TO_DEVIATION = 1.4826  # of the median absolute deviation, for a normal distribution


def errors(pairs: Cells) -> Iterator[Change]:
    """Yield where errors became larger or smaller; known failures and other arithmetics are not compared."""
    usable = [pair for pair in pairs if _comparable(pair)]
    groups = grouped(usable, lambda pair: place(pair.new))
    shifted: set[Place] = set()
    for where, members in groups.items():
        for change in (*_shift(where, members, len(groups)), *_exactness(where, members, len(groups))):
            shifted.add(where)
            yield change
    yield from _single(groups, shifted)


def _comparable(pair: Pair[CellRecord]) -> bool:
    judged = all(one.verdict in ("passed", "failed") and not is_known(one) for one in (pair.old, pair.new))
    return judged and pair.old.arithmetic == pair.new.arithmetic


def over_tau(cell: CellRecord) -> float | None:
    """Return the largest error over its bound, None if there is none."""
    return cell.gates.get("proof", {}).get("max_err_over_tau")


def _shift(where: Place, members: Cells, tests: int) -> Iterator[Change]:
    bits = shift_of(members, lambda cell: cell.effective_bits)
    if bits is not None:
        if bits.is_sure(tests):
            old, new = (_mean([one.effective_bits for one in side]) for side in _with_bits(members))
            text = f"{abs(bits.mean):.2f} effective bits {'fewer' if bits.mean < 0 else 'more'} over {bits.pairs} cases, {old:.1f} before and {new:.1f} now"
            yield _change(where, bits.worst, BITS, (old, new), bits.mean, bits.pairs, text, _up(-bits.mean))
        return
    ratio = shift_of(members, lambda cell: log2_of(over_tau(cell)))
    if ratio is not None and ratio.is_sure(tests):
        before, after = over_tau(ratio.worst.old), over_tau(ratio.worst.new)
        text = f"errors over their bound times {2**ratio.mean:.3g} over {ratio.pairs} cases"
        yield _change(
            where, ratio.worst, OVER_TAU, (before, after), ratio.mean, ratio.pairs, text, _up(ratio.mean)
        )


def _exactness(where: Place, members: Cells, tests: int) -> Iterator[Change]:
    found = exactness_of(members, over_tau)
    if found.probability >= FALSE_ALARMS / tests:
        return
    lost = len(found.lost) > len(found.gained)
    side = found.lost if lost else found.gained
    worst = max(side, key=lambda pair: over_tau(pair.new if lost else pair.old) or 0.0)
    text = (
        f"{len(side)} cases that were exactly right are not any more"
        if lost
        else f"{len(side)} cases are exactly right now"
    )
    values = (over_tau(worst.old), over_tau(worst.new))
    yield _change(where, worst, EXACT, values, None, len(side), text, "worse" if lost else "better")


@dataclass(frozen=True)
class _Alone:
    """One case: its difference in bits, new less old, and the rows of either run."""

    pair: Pair[CellRecord]
    difference: float
    rows: tuple[float, float]

    @property
    def deviation(self) -> float:
        """What the difference scatters by if all rows are Gaussian.

        The mean square over w of them has a relative variance of 2 / w, and bits are half of its binary logarithm.
        """
        return math.sqrt((1 / self.rows[0] + 1 / self.rows[1]) / 2) / math.log(2)

    def probability(self, times: float) -> float:
        """Return the probability of a difference as large in its direction, if it scatters `times` as far."""
        over, under = self.rows if self.difference > 0 else self.rows[::-1]
        return f_tail(4 ** (abs(self.difference) / times), over, under)


def _single(groups: dict[Place, list[Pair[CellRecord]]], shifted: set[Place]) -> Iterator[Change]:
    """Yield single cases that moved, of those files on runtimes that did not as a whole."""
    alone = {
        where: [one for pair in members if (one := _alone(pair)) is not None]
        for where, members in groups.items()
    }
    tests = sum(map(len, alone.values()))
    times = _overdispersion(alone.values())
    for where, members in alone.items():
        for one in members if where not in shifted else ():
            if one.probability(times) < FALSE_ALARMS / tests:
                before, after = one.pair.old.effective_bits, one.pair.new.effective_bits
                text = f"{abs(one.difference):.2f} effective bits {'fewer' if one.difference < 0 else 'more'} in this case, {before:.1f} before and {after:.1f} now"
                yield _change(
                    where, one.pair, BITS, (before, after), one.difference, 1, text, _up(-one.difference)
                )


def _alone(pair: Pair[CellRecord]) -> _Alone | None:
    before, after = pair.old.effective_bits, pair.new.effective_bits
    rows = tuple(one.gates.get("noise", {}).get("unlike_rows") for one in (pair.old, pair.new))
    if before is None or after is None or not rows[0] or not rows[1]:
        return None
    return _Alone(pair, after - before, (rows[0], rows[1]))


def _overdispersion(groups: Iterable[Sequence[_Alone]]) -> float:
    """Return how many times as far as Gaussian rows would the differences scatter; at least 1.

    Each is taken from the middle of its group, so that a shift of a whole group does not hide in it.
    """
    scaled: list[float] = []
    for group in groups:
        if len(group) > 1:
            middle = statistics.median(one.difference for one in group)
            scaled += [abs(one.difference - middle) / one.deviation for one in group]
    return max(1.0, _TO_DEVIATION * statistics.median(scaled)) if scaled else 1.0


def _with_bits(members: Cells) -> tuple[list[CellRecord], list[CellRecord]]:
    both = [one for one in members if None not in (one.old.effective_bits, one.new.effective_bits)]
    return [one.old for one in both], [one.new for one in both]


def _mean(values: Sequence[float | None]) -> float:
    return statistics.fmean(value for value in values if value is not None)


def _up(amount: float) -> Direction:
    return "worse" if amount > 0 else "better"


def _change(
    where: Place,
    pair: Pair[CellRecord],
    quantity: str,
    values: tuple[float | None, float | None],
    amount: float | None,
    records: int,
    text: str,
    direction: Direction,
) -> Change:
    return Change(
        kind="error",
        direction=direction,
        counts=direction == "worse",
        **where.fields(),
        case=case_id(pair.new),
        quantity=quantity,
        before=values[0],
        after=values[1],
        amount=amount,
        records=records,
        message=text,
    )
