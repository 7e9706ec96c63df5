"""Whether a quantity moved between two runs by more than chance, over all cases of a file on a runtime.

What is compared is the difference of each case between the runs: whatever a case is like in itself, hard or easy, drops
out. With other inputs, or sums in another order, the differences scatter about 0; what they scatter by is seen in them,
so nothing has to be assumed of it. Student's t of their mean tells a shift, and a quantity that was exact and is not any
more has no logarithm: there the cases that changed are counted as throws of a coin.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from onnx_attest.verify.compare.distributions import coin_tail, student_tail
from onnx_attest.verify.compare.match import Pair

T = TypeVar("T")

FALSE_ALARMS = 1e-3
"""Of a comparison: one in a thousand pairs of runs that differ by noise alone has a change of a kind; each of m tests
has the m-th part of it (Bonferroni), for they are not independent."""
RESOLUTION_BITS = math.sqrt(2) * math.log2(1.05)
"""0.1 bits: sigma is right within 5 % (NUMERICS.md section 2), and so is the bound made from the same products; two such
measurements differ by so much and say nothing."""


@dataclass(frozen=True)
class Shift(Generic[T]):
    """By how much a quantity moved over several cases.

    Attributes:
        mean: of the differences, new less old, in bits.
        probability: of a mean at least as large, in that direction, by chance.
        pairs: whose difference is known.
        worst: the pair that moved farthest in the direction of the mean.
    """

    mean: float
    probability: float
    pairs: int
    worst: Pair[T]

    def is_sure(self, tests: int) -> bool:
        """Whether it is no chance, being one of so many tests, and more than the measure resolves."""
        return self.probability < FALSE_ALARMS / tests and abs(self.mean) > RESOLUTION_BITS


def shift_of(pairs: Iterable[Pair[T]], bits: Callable[[T], float | None]) -> Shift[T] | None:
    """Return the shift of a quantity that is on a scale of bits; None where fewer than two cases have it.

    Args:
        pairs: of one file on one runtime, each of another case.
        bits: the quantity, None where it is not known.
    """
    known = [(after - before, pair) for pair in pairs if (after := bits(pair.new)) is not None
             and (before := bits(pair.old)) is not None]  # fmt: skip
    if len(known) < 2:
        return None
    differences = [difference for difference, _ in known]
    mean, scatter = statistics.fmean(differences), statistics.stdev(differences)
    sign = math.copysign(1.0, mean)
    worst = max(known, key=lambda one: sign * one[0])[1]
    return Shift(mean, _tail(mean, scatter, len(known)), len(known), worst)


def _tail(mean: float, scatter: float, count: int) -> float:
    if mean == 0:
        return 0.5
    if scatter == 0:
        return 0.0
    return student_tail(abs(mean) * math.sqrt(count) / scatter, count - 1)


def log2_of(value: float | None) -> float | None:
    """Return the logarithm of a ratio to a bound; None where it is unknown, or 0."""
    return math.log2(value) if value is not None and 0 < value < math.inf else None


@dataclass(frozen=True)
class Exactness(Generic[T]):
    """Of cases that were exactly right in one run alone.

    Attributes:
        lost, gained: those that are no longer, and those that are now.
        probability: of at least so many on the larger side by chance.
    """

    lost: tuple[Pair[T], ...]
    gained: tuple[Pair[T], ...]
    probability: float


def exactness_of(pairs: Sequence[Pair[T]], error: Callable[[T], float | None]) -> Exactness[T]:
    """Return which cases were exact before, or are now, by their error over a bound."""
    both = [(pair, error(pair.old), error(pair.new)) for pair in pairs]
    lost = tuple(pair for pair, old, new in both if old == 0 and new is not None and new > 0)
    gained = tuple(pair for pair, old, new in both if new == 0 and old is not None and old > 0)
    changed = len(lost) + len(gained)
    return Exactness(lost, gained, coin_tail(max(len(lost), len(gained)), changed) if changed else 1.0)
