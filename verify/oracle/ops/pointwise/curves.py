"""Smooth functions of one number: the error goes through the function, and the function itself is off by c_f u."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import FUNCTION_VARIANCE, Bounded, Floats, blockwise, rounded
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, UnsupportedOperatorError, required

Function = Callable[[Floats], Floats]
Reach = Callable[[Floats, Floats], Floats]
"""How far a function may be from f(x) at a number that is at most the second argument away from x."""
Curve = Callable[[Bounded, Arithmetic], Bounded]

FUNCTION_ROUNDINGS = 8.0
"""Absolute error of a runtime's function in units of u, for results of size 1, relative above: the approximations in
use (MLAS' erf and tanh are rational ones) are within a few ulp of the largest value."""


def lipschitz(slope: float) -> Reach:
    """Return the reach of a function whose slope is nowhere larger."""
    return lambda x, error: slope * error


def flattening(slope: Function) -> Reach:
    """Return the reach of a function whose slope only depends on |x|, and falls with it."""
    return lambda x, error: slope(np.maximum(np.abs(x) - error, 0.0)) * error


def ends(function: Function) -> Reach:
    """Return the reach of a monotone or a convex function: it is farthest from f(x) at one of both ends."""

    def reach(x: Floats, error: Floats) -> Floats:
        value = function(x)
        above, below = (np.abs(function(end) - value) for end in (x + error, x - error))
        return np.where(error > 0, np.maximum(above, below), 0.0)

    return reach


def curve(
    function: Function,
    slope: Callable[[Floats, Floats], Floats],
    reach: Reach,
    *,
    size: float = 1.0,
    roundings: float = FUNCTION_ROUNDINGS,
) -> Curve:
    """Return a function of numbers that are within their errors.

    Args:
        function: evaluated in float64.
        slope: f' from x and f(x), for the variance.
        reach: what becomes of the error.
        size: of the values that an absolute error of the approximation refers to; 0 for relative errors only.
        roundings: error of the approximation in units of u.
    """

    @blockwise
    def of(a: Bounded, arithmetic: Arithmetic) -> Bounded:
        value = np.asarray(function(a.value))
        if arithmetic.kernel is not None:
            return rounded(_as_computed(value, arithmetic.kernel), 0.0, arithmetic)
        inherited: Floats | float = 0.0
        if a.error is not None:
            inherited = reach(a.value, np.broadcast_to(a.error, value.shape))
        sizes = np.maximum(np.abs(value), size)
        variance: Floats | float = 0.0
        if arithmetic.deviations:
            variance = (
                through_slope(slope(a.value, value), a) + FUNCTION_VARIANCE * (arithmetic.u * sizes) ** 2
            )
        approximation = roundings * arithmetic.u * (sizes + inherited)
        return rounded(value, inherited + approximation, arithmetic, variance=variance)

    return of


def _as_computed(value: Floats, kernel: Kernel) -> Floats:
    """Return a function's value as a kernel has it: correctly rounded, or, by the one that sums one after another, low.

    What a polynomial is off by has a sign: forty layers of ONNX Runtime's tanh are low by 30 roundings, all of them.
    """
    if kernel.block != 1:
        return value
    return np.asarray(value * (1 - float(np.finfo(kernel.working).eps) / 2))


def through_slope(slope: Floats, a: Bounded) -> Floats:
    """Return the variance of a smooth function of numbers with a variance; a number without has no share."""
    given = np.broadcast_to(a.variances(), a.value.shape)
    return np.where(given > 0, np.square(slope) * given, 0.0)


def within(of: Curve, *edges: float, missing: str) -> Curve:
    """Return a function that is refused where rounding decides on which side of an edge of its domain a number is."""

    def guarded(a: Bounded, arithmetic: Arithmetic) -> Bounded:
        error = np.asarray(a.errors())
        for edge in edges:
            if np.any((error > 0) & (np.abs(a.value - edge) <= error)):
                raise UnsupportedOperatorError(f"takes {missing} within its rounding error")
        return of(a, arithmetic)

    return guarded


def unary(of: Curve) -> Operator:
    """Return the operator of one operand."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        node.get("consumed_inputs")  # of opset 1, about memory
        return [of(required(inputs, 0), arithmetic)]

    return operator
