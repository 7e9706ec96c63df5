"""Smooth functions of one number: the error goes through the derivative, and the function itself is off by c_f u."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Bounded, Floats, rounded
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, UnsupportedOperatorError, required

_ERF: Callable[[Any], Any] = np.frompyfunc(math.erf, 1, 1)  # NumPy has none, and SciPy is no dependency

# Absolute error of a runtime's function in units of u, for results of size 1: the approximations in use (MLAS' erf
# and tanh are rational ones) are within a few ulp of the largest value.
_FUNCTION_ROUNDINGS = 8.0


def erf(x: Floats) -> Floats:
    """Return the error function."""
    return np.asarray(_ERF(x), np.float64)


def smooth(
    function: Callable[[Floats], Floats], slope: Callable[[Floats], Floats] | float, *, size: float = 1.0
) -> Operator:
    """Return the operator of a function.

    Args:
        function: evaluated in float64.
        slope: |f'| at x, or the largest there is. Where it is a function, the curvature within the error is
            covered by taking the largest of both ends and the middle, and twice the rest.
        size: of the values that an absolute error of the approximation refers to; 0 for relative errors only.
    """

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        a = required(inputs, 0)
        value = function(a.value)
        inherited = _through(slope, a)
        sizes = np.maximum(np.abs(value), size)
        variance = _variance(function, a, sizes, arithmetic)
        approximation = _FUNCTION_ROUNDINGS * arithmetic.u * sizes
        return [rounded(value, inherited + approximation, arithmetic, variance=variance)]

    return operator


def _through(slope: Callable[[Floats], Floats] | float, a: Bounded) -> Floats | float:
    error = a.errors()
    if not callable(slope):
        return slope * error
    ends = [slope(a.value + sign * error) for sign in (-1.0, 0.0, 1.0)]
    return np.asarray(np.maximum.reduce(ends) * error)


_STEP = (
    2.0**-17
)  # of a central difference in float64: what is cut off and what is rounded away are both below 1e-9


def _variance(
    function: Callable[[Floats], Floats], a: Bounded, sizes: Floats, arithmetic: Arithmetic
) -> Floats | float:
    """Return the variance through the slope at x, which is taken by a difference, and the function's own."""
    if not arithmetic.deviations:
        return 0.0
    slope = (function(a.value + _STEP) - function(a.value - _STEP)) / (2 * _STEP)
    own = bounded.FUNCTION_VARIANCE * arithmetic.u**2 * sizes**2
    return np.asarray(slope**2 * a.variances() + own)


def _gelu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Gelu of opset 20: x Phi(x), or the approximation by tanh."""
    kind = node.get("approximate", "none")
    if kind not in ("none", "tanh"):
        raise UnsupportedOperatorError(f"Gelu with approximate={kind}")
    function = _gelu_exact if kind == "none" else _gelu_tanh
    a = required(inputs, 0)
    value = function(a.value)
    # |gelu'| is at most 1.13; the factor 1 + erf is off by a few u whatever its size, times |x|.
    inherited = 1.13 * a.errors() + _FUNCTION_ROUNDINGS * arithmetic.u * np.abs(a.value)
    variance = _variance(function, a, np.abs(a.value), arithmetic)
    return [rounded(value, inherited, arithmetic, variance=variance)]


def _gelu_exact(x: Floats) -> Floats:
    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))))


def _gelu_tanh(x: Floats) -> Floats:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _relu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a = required(inputs, 0)
    variance = None if a.variance is None else np.where(a.value > 0, a.variance, 0.0)
    return [Bounded(np.maximum(a.value, 0), a.error, variance=variance)]


OPERATORS: dict[str, Operator] = {
    "Erf": smooth(erf, 2 / math.sqrt(math.pi)),
    "Tanh": smooth(np.tanh, 1.0),
    "Sigmoid": smooth(lambda x: 1 / (1 + np.exp(-x)), 0.25),
    "Sin": smooth(np.sin, 1.0),
    "Cos": smooth(np.cos, 1.0),
    "Gelu": _gelu,
    "Relu": _relu,
}
