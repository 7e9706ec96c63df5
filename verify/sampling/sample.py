"""Which query rows of a long attention are verified, and what that says of the others.

Some rows are always taken: the first, the last, and those on both sides of each power of two, where blocks of kernels
begin. The rest is drawn from the other rows, uniformly and without replacement, so what the sample misses follows the
hypergeometric distribution: of N rows not always taken of which K are at fault, m drawn ones hold none with the
probability C(N - K, m) / C(N, m). For m much smaller than N that is (1 - K/N)^m, and K/N = 1 - 0.05^(1/m).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
ROWS = 4096
"""Rows of a sample, if nobody says how many: a fault in 0.073 % of many more would be seen with 95 % confidence."""
_DIGITS = 2
LEAST_ROWS = 256
"""Rows of a sample at least, however many heads and keys there are."""
SAMPLED_FROM = 2**31
"""Scores, of all heads together, above which rows are sampled: the oracle takes about half a minute for so many."""

Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows that are verified, in increasing order.

    Attributes:
        rows: all of them.
        count: rows there are.
        fixed: how many are always taken.
        drawn: how many were drawn from the others.
        seed: that they were drawn with.
    """

    rows: Rows
    count: int
    fixed: int
    drawn: int
    seed: int

    @staticmethod
    def of(count: int, wanted: int, seed: int) -> Sample:
        """Return a sample of so many rows, all if there are no more; the fixed ones are always among them."""
        if wanted >= count:
            return Sample(np.arange(count), count, count, 0, seed)
        fixed = edges(count)
        others = np.setdiff1d(np.arange(count), fixed, assume_unique=True)
        drawn = np.random.default_rng(seed).choice(others, max(0, wanted - len(fixed)), replace=False)
        return Sample(np.union1d(fixed, drawn), count, len(fixed), len(drawn), seed)

    @property
    def is_whole(self) -> bool:
        """Whether all rows are verified."""
        return len(self.rows) == self.count

    @property
    def least_seen(self) -> int:
        """How many rows at fault, of those that are not always taken, would have been seen with 95 % confidence."""
        return least_seen(self.count - self.fixed, self.drawn)

    @property
    def share(self) -> float:
        """The same as a share of the rows that are not always taken; 0 where all are verified."""
        return 0.0 if self.is_whole else self.least_seen / (self.count - self.fixed)

    def __str__(self) -> str:
        """Return what was verified and what that says."""
        return (
            f"{len(self.rows):,} of {self.count:,} rows, seed {self.seed}: a fault in more than "
            f"{_percent(self.share)} % of the rows would have been seen with {100 * CONFIDENCE:.0f} % confidence; the rest "
            f"is untested. {self.fixed} rows are always verified, at the edges of blocks; {self.drawn:,} were drawn from "
            f"the other {self.count - self.fixed:,}, of which {self.least_seen:,} or more at fault would have shown one; "
            "seen is what exceeds the bound"
        )


def _percent(share: float) -> str:
    """Return a share in per cent, two digits, rounded up: no more is said than is so."""
    step = 10.0 ** (math.floor(math.log10(share)) + 1 - _DIGITS)
    return f"{100 * math.ceil(share / step - 1e-9) * step:.{_DIGITS}g}"


def edges(count: int) -> Rows:
    """Return the rows that are always taken: the first, the last, and 2^k - 1 and 2^k."""
    powers = 2 ** np.arange(count.bit_length() + 1)
    rows = np.unique(np.concatenate(([0, count - 1], powers - 1, powers)))
    return rows[rows < count].astype(np.intp)


def missed(rows: int, at_fault: int, drawn: int) -> float:
    """Return the probability that none of the drawn rows is at fault, C(rows - at_fault, drawn) / C(rows, drawn)."""
    if at_fault + drawn > rows:
        return 0.0
    return math.exp(_log_choose(rows - at_fault, drawn) - _log_choose(rows, drawn))


def least_seen(rows: int, drawn: int) -> int:
    """Return the fewest rows at fault that are missed with a probability of 5 % at most."""
    low, high = 0, rows - drawn + 1  # so many cannot be missed
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if missed(rows, middle, drawn) <= 1 - CONFIDENCE else (middle, high)
    return high


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
