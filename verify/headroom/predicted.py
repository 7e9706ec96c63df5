"""Where a softmax breaks by the numbers of its format alone: formulas, and no runtime."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_HALVINGS = 60
"""Of an interval, until float64 has no more digits."""


@dataclass(frozen=True)
class Limits:
    """What the exponentials of a format can be, by their arguments.

    Attributes:
        overflow: ln of the largest number: an exponential, or a sum of them, above it is infinite.
        flushed: ln of half of the smallest subnormal number: an exponential below it is 0 however it is rounded.
        flushed_early: ln of the smallest normal number: below it, an exponential is 0 where subnormal ones are.
    """

    overflow: float
    flushed: float
    flushed_early: float

    @staticmethod
    def of(kept: str) -> Limits:
        """Return the limits of exponentials that are kept in this dtype."""
        import ml_dtypes

        info: Any = ml_dtypes.finfo(kept)
        least = math.log(float(info.smallest_subnormal)) - math.log(2)
        return Limits(math.log(float(info.max)), least, math.log(float(info.smallest_normal)))


@dataclass(frozen=True)
class Break:
    """The factor on the logits at which the first row of a softmax without the maximum subtracted breaks.

    Attributes:
        factor: at which the sum of a row's exponentials overflows, or all of them are 0; inf if neither ever is.
        least: the smallest factor that a correct runtime may break at; only where exponentials flush is it another one.
        overflow: at which a sum overflows, the one that counts where the runtime clamps small exponentials.
        logit: the largest logit of the row that breaks, there.
        cause: `overflow`, `underflow`, "" if it never breaks.
    """

    factor: float
    least: float
    overflow: float
    logit: float
    cause: str

    def agrees(self, factor: float, tolerance: float) -> bool:
        """Whether a factor that was measured is this one, within a relative tolerance."""
        low, high = (1 - tolerance) * self.least, (1 + tolerance) * self.factor
        return low <= factor <= high or abs(factor - self.overflow) <= tolerance * self.overflow


def unshifted_break(logits: Floats, kept: str, *, least: float = 0.0) -> Break:
    """Return where exp(t l) / sum exp(t l) breaks as t grows.

    A row overflows at the t where ln sum_j exp(t l_j) reaches ln(largest): at t max_j l_j = ln(largest) where one
    logit is large, and ln(n) earlier where all n are equal. A row whose logits are all negative breaks where the
    last exponential rounds to 0: the quotient is 0/0.

    Args:
        logits: (rows, keys), -inf where a key is masked; no row is masked whole.
        kept: name of the dtype in which exponentials and their sum are kept.
        least: what the graph keeps the sum from 0 by; where the format has it, no row is 0/0.
    """
    limits = Limits.of(kept)
    top = logits.max(-1)
    overflow = _overflow_factors(logits, limits.overflow)
    negative = np.where((top < 0) & (least < math.exp(limits.flushed)), -top, np.nan)
    flushed = np.nan_to_num(-limits.flushed / negative, nan=math.inf)
    early = np.nan_to_num(-limits.flushed_early / negative, nan=math.inf)
    both = np.minimum(overflow, flushed)
    row = int(both.argmin())
    factor = float(both[row])
    if math.isinf(factor):
        return Break(math.inf, math.inf, math.inf, math.inf, "")
    cause = "overflow" if overflow[row] <= flushed[row] else "underflow"
    least = float(np.minimum(overflow, early).min())
    return Break(factor, least, float(overflow.min()), factor * float(top[row]), cause)


def _overflow_factors(logits: Floats, limit: float) -> Floats:
    """Return for each row the smallest t >= 0 with ln sum_j exp(t l_j) >= limit, inf if there is none, (rows,)."""
    top = logits.max(-1)
    full = np.log(np.isfinite(logits).sum(-1)) >= limit  # that many exponentials of 0 overflow
    grows = (top > 0) & ~full
    high = np.where(grows, limit / np.where(grows, top, 1.0), 0.0)  # there the largest overflows alone
    low = np.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        over = _log_sum_exp(middle[:, None] * np.where(np.isfinite(logits), logits, -np.inf)) >= limit
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return np.where(full, 0.0, np.where(grows, high, np.inf))


def _log_sum_exp(scaled: Floats) -> Floats:
    top = np.nan_to_num(scaled, nan=-np.inf).max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        terms = np.exp(np.nan_to_num(scaled - top, nan=-np.inf))
    return np.asarray(top[:, 0] + np.log(terms.sum(-1)))
