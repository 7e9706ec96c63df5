"""Tails of the distributions that a comparison asks for: Student's t, Fisher's F, and that of a fair coin.

All but the last are the regularised incomplete beta function I_x(a, b), by its continued fraction (Abramowitz and
Stegun, 26.5.8, evaluated after Lentz); SciPy has them too, and is no dependency.
"""

from __future__ import annotations

import math

_TINY = 1e-300
_ENOUGH = 1e-14
_TERMS = 10_000  # sqrt(max(a, b)) of them are needed


def student_tail(t: float, degrees: float) -> float:
    """Return P(T > t) for t >= 0 of Student's distribution."""
    return 0.5 * incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def f_tail(ratio: float, over: float, under: float) -> float:
    """Return P(F > ratio) of the ratio of two mean squares with `over` and `under` degrees of freedom."""
    return incomplete_beta(under / (under + over * ratio), under / 2, over / 2)


def coin_tail(heads: int, throws: int) -> float:
    """Return the probability of at least so many heads."""
    return float(sum(math.comb(throws, count) for count in range(heads, throws + 1)) / 2**throws)


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Return I_x(a, b), for 0 <= x <= 1 and positive a and b."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # On the other side of the mean the fraction converges slowly: I_x(a, b) = 1 - I_{1-x}(b, a).
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _off_zero(1 + term * d)
            c = _off_zero(1 + term / c)
            step = c * d
            value *= step
        if abs(step - 1) < _ENOUGH:
            return value
    raise ArithmeticError(f"the incomplete beta function did not converge at x={x}, a={a}, b={b}")


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
