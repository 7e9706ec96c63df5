"""The error function: NumPy has none, and SciPy is no dependency."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_attest.verify.oracle.bounded import Floats

# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969), 631-637, as in his
# routine CALERF (netlib, specfun). Highest power first.
_NEAR = 0.46875
_FAR = 6.0
"""From here on erf is 1 in float64."""
_NEAR_ABOVE = (
    1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
    3.20937758913846947e3,
)  # fmt: skip
_NEAR_BELOW = (
    1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3,
)  # fmt: skip
_FAR_ABOVE = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
    2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
    1.23033935479799725e3,
)  # fmt: skip
_FAR_BELOW = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
    3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
)  # fmt: skip


_BLOCK = 2**13
"""Numbers that are worked on at once: what is between fits the cache."""


def erf(x: Floats) -> Floats:
    """Return the error function, within a few units of float64's last place."""
    flat = np.asarray(x, np.float64).reshape(-1)
    result = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        result[start : start + _BLOCK] = _erf(flat[start : start + _BLOCK])
    return result.reshape(np.shape(x))


def _erf(x: Floats) -> Floats:
    """Return erf in Cody's first two pieces.

    He has a third one above 4: there 1 - erf is below 2e-8, and the second piece is still right to 1e-6 of that.
    """
    size = np.abs(x)
    y = np.minimum(size, _FAR)
    near = x * _ratio(_NEAR_ABOVE, _NEAR_BELOW, np.square(np.minimum(y, _NEAR)))
    far = np.exp(-y * y) * _ratio(_FAR_ABOVE, _FAR_BELOW, np.maximum(y, _NEAR))
    return np.where(size <= _NEAR, near, np.copysign(1.0 - far, x))


def _ratio(above: Sequence[float], below: Sequence[float], x: Floats) -> Floats:
    quotient = _polynomial(above, x)
    quotient /= _polynomial(below, x)
    return quotient


def _polynomial(coefficients: Sequence[float], x: Floats) -> Floats:
    first, *others = coefficients
    value = np.full_like(x, first)
    for coefficient in others:
        value *= x
        value += coefficient
    return value
