"""The exponent of a power law, fitted to costs at several sizes, with an interval for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}
"""The 97.5 % quantile of Student's t by degrees of freedom: two-sided intervals of 95 % (any table of it)."""


class Exponent(NamedTuple):
    """The slope of log cost against log size, and its interval of 95 %.

    The interval is that of a straight line with independent residuals. What bends the line (a cost a call has at any
    size, a cache that is outgrown) is a residual as well, and widens it.
    """

    value: float
    low: float
    high: float


def fitted_exponent(sizes: Sequence[float], costs: Sequence[float]) -> Exponent | None:
    """Return the exponent a of cost = c size^a by least squares on the logarithms.

    Args:
        sizes: positive, 3 to 10 of them, not all the same.
        costs: of each size; those that are not positive have no logarithm and are left out.

    Returns:
        None if fewer than three costs are positive: two points leave no residual to make an interval of.
    """
    pairs = [(size, cost) for size, cost in zip(sizes, costs, strict=True) if cost > 0]
    freedom = len(pairs) - 2
    if freedom < 1:
        return None
    x, y = np.log(np.asarray(pairs, np.float64)).T
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    residuals = y - y.mean() - slope * centred
    half = _STUDENT[freedom] * float(np.sqrt(residuals @ residuals / freedom / spread))
    return Exponent(slope, slope - half, slope + half)
