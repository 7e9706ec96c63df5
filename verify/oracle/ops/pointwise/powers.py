"""Pow, of floats and of integers."""

from __future__ import annotations

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import FUNCTION_VARIANCE, Array, Bounded, Floats, rounded
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, UnsupportedOperatorError, rounds
from onnx_attest.verify.oracle.ops.pointwise.broadcasting import operands
from onnx_attest.verify.oracle.ops.pointwise.curves import FUNCTION_ROUNDINGS


def _pow(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Return x^y in the type of x; y may be of another one since opset 12."""
    x, y = operands(node, inputs)
    return [_real(x, y, arithmetic) if x.is_float else _whole(x, y)]


def _real(x: Bounded, y: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return x^y of a float x.

    A runtime multiplies, has a pow of its own, or takes e^(y ln x): then the exponent is off by |y| times the error of
    the logarithm and by u |y ln x|, and the exponential by c_exp u. Multiplying rounds |y| - 1 times, which is less.
    """
    exponent = y.value.astype(np.float64)
    with np.errstate(all="ignore"):
        value = np.power(x.value, exponent)
        if arithmetic.kernel is not None:
            return rounded(value, 0.0, arithmetic)
        inherited = _inherited(x, Bounded(exponent, y.error), value)
        size = np.abs(np.log(np.abs(x.value)))
        logarithm = FUNCTION_ROUNDINGS * np.maximum(size, 1.0) + size
        W = arithmetic.u * (np.abs(exponent) * logarithm + arithmetic.c_exp)
        own = np.where((value == 0) | (exponent == 0), 0.0, np.expm1(W) * (np.abs(value) + inherited))
        variance = _variance(x, Bounded(exponent, variance=y.variance), value, arithmetic)
    return rounded(value, inherited + own, arithmetic, variance=variance)


def _inherited(x: Bounded, y: Bounded, value: Floats) -> Floats | float:
    """Return how far x^y goes within the errors: it is monotone in each of both while x is positive.

    To a whole power it is monotone or convex in x on each side of 0, and on both if that is positive.
    """
    ex, ey = np.asarray(x.errors()), np.asarray(y.errors())
    if not (ex.any() or ey.any()):
        return 0.0
    around_zero = np.abs(x.value) <= ex
    whole = (np.rint(y.value) == y.value) & (ey == 0)
    if np.any((ex > 0) & around_zero & ~(whole & (y.value >= 0))):
        raise UnsupportedOperatorError("Pow of a number that is zero within its rounding error")
    if np.any((x.value <= 0) & (ey > 0)):
        raise UnsupportedOperatorError("Pow of a number below zero with an exponent that is rounded")
    corners = [np.power(x.value + s * ex, y.value + t * ey) for s in (-1.0, 1.0) for t in (-1.0, 1.0)]
    reached = np.maximum.reduce([np.abs(corner - value) for corner in corners])
    return np.where((ex > 0) | (ey > 0), reached, 0.0)


def _variance(x: Bounded, y: Bounded, value: Floats, arithmetic: Arithmetic) -> Floats | float:
    if not arithmetic.deviations:
        return 0.0
    vx, vy = np.asarray(x.variances()), np.asarray(y.variances())
    of_base = np.where(vx > 0, (y.value * np.power(x.value, y.value - 1)) ** 2 * vx, 0.0)
    of_exponent = np.where(vy > 0, (np.log(x.value) * value) ** 2 * vy, 0.0)
    squared = y.value == 2  # that is one product, whose rounding is the last
    return of_base + of_exponent + np.where(squared, 0.0, FUNCTION_VARIANCE * (arithmetic.u * value) ** 2)


def _whole(x: Bounded, y: Bounded) -> Bounded:
    """Return x^y of an integer x, cut off to an integer.

    Raises:
        UnsupportedOperatorError: a result that is no integer of the type; a rounding would decide about others.
    """
    if rounds(x) or rounds(y):
        raise UnsupportedOperatorError("Pow of integers that rounding decides")
    exponent, known = y.value.astype(np.float64), np.iinfo(x.value.dtype)
    if np.any(exponent < 0) or np.any(exponent != np.rint(exponent)):
        raise UnsupportedOperatorError("Pow of integers with an exponent that is negative or a fraction")
    size = np.power(x.value.astype(np.float64), exponent)
    if np.any((size > known.max) | (size < known.min)) or np.any(
        np.abs(size) >= _DOUBTFUL * float(known.max)
    ):
        raise UnsupportedOperatorError(f"Pow beyond {x.value.dtype}")
    return Bounded(_power(x.value, y.value.astype(np.uint64)))


_DOUBTFUL = 1 - 2.0**-40
"""So close to the last integer, the power in float64 does not tell whether it is beyond."""


def _power(x: Array, y: Array) -> Array:
    """Return an integer power by squaring, exact."""
    x, y = np.broadcast_arrays(x, y)
    base, result = x.copy(), np.ones_like(x)
    while y.any():
        result = np.where(y & 1, result * base, result)
        base, y = base * base, y >> 1
    return result


OPERATORS: dict[str, Operator] = {"Pow": _pow}
