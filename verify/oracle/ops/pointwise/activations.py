"""Smooth activation functions; those that are put together from straight pieces are in rectifiers.py."""

from __future__ import annotations

import math

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import FUNCTION_VARIANCE, Bounded, Floats, multiply, rounded
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, UnsupportedOperatorError, required
from onnx_attest.verify.oracle.ops.pointwise.composed import coefficient, each_stored, in_steps, stored
from onnx_attest.verify.oracle.ops.pointwise.curves import (
    FUNCTION_ROUNDINGS,
    curve,
    ends,
    flattening,
    through_slope,
    unary,
)
from onnx_attest.verify.oracle.ops.pointwise.error_function import erf
from onnx_attest.verify.oracle.ops.pointwise.functions import RECIPROCAL_ROUNDINGS, tanh

_STEEPEST_GELU = 1.13
_SOFTPLUS_ROUNDINGS = FUNCTION_ROUNDINGS + 5.0
"""ln(1 + e^x): the logarithm's, c_exp of the exponential, and one of the sum; the sum is never below either."""
_SOFTSIGN_ROUNDINGS = 1.0 + RECIPROCAL_ROUNDINGS
"""x / (1 + |x|): of the sum, and of its reciprocal if x is multiplied with that, as Eigen does; then comes the last."""


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))


def _softplus(x: Floats) -> Floats:
    return np.asarray(np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))


def _softsign(x: Floats) -> Floats:
    return np.asarray(x / (1 + np.abs(x)))


sigmoid = curve(_sigmoid, lambda x, y: y * (1 - y), flattening(lambda x: _sigmoid(x) * (1 - _sigmoid(x))))
"""1 / (1 + e^-x)."""
softplus = curve(_softplus, lambda x, y: _sigmoid(x), ends(_softplus), roundings=_SOFTPLUS_ROUNDINGS)
"""ln(1 + e^x)."""
softsign = curve(
    _softsign,
    lambda x, y: (1 - np.abs(y)) ** 2,
    flattening(lambda x: np.asarray((1 + np.abs(x)) ** -2.0)),
    size=0.0,
    roundings=_SOFTSIGN_ROUNDINGS,
)
"""x / (1 + |x|)."""


def swish(x: Bounded, alpha: Bounded, steps: Arithmetic) -> Bounded:
    """Return x sigmoid(alpha x)."""
    argument = x if alpha.value == 1 else multiply(x, alpha, steps)
    return multiply(x, sigmoid(argument, steps), steps)


def _mish(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return x tanh(softplus(x))."""
    steps = in_steps(arithmetic)
    return stored(multiply(a, tanh(softplus(a, steps), steps), steps), arithmetic)


def _swish(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Swish of opset 24."""
    alpha = coefficient(node, "alpha", 1.0, arithmetic)
    return [stored(swish(required(inputs, 0), alpha, in_steps(arithmetic)), arithmetic)]


def _swiglu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """SwiGLU of opset 28: the first input gates the second."""
    gate, linear, steps = required(inputs, 0), required(inputs, 1), in_steps(arithmetic)
    alpha = coefficient(node, "alpha", 1.0, arithmetic)
    return [stored(multiply(swish(gate, alpha, steps), linear, steps), arithmetic)]


def _gelu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Gelu of opset 20: x Phi(x), or the approximation by tanh."""
    kind = node.get("approximate", "none")
    if kind not in ("none", "tanh"):
        raise UnsupportedOperatorError(f"Gelu with approximate={kind}")
    a = required(inputs, 0)
    x = a.value
    factor, slope = _normal(x) if kind == "none" else _almost_normal(x)
    # |gelu'| is at most 1.13; the factor 1 + erf is off by a few u whatever its size, times |x|.
    inherited = _STEEPEST_GELU * a.errors()
    inherited = inherited + FUNCTION_ROUNDINGS * arithmetic.u * (np.abs(x) + a.errors())
    variance: Floats | float = 0.0
    if arithmetic.deviations:
        variance = through_slope(factor + x * slope, a) + FUNCTION_VARIANCE * (arithmetic.u * x) ** 2
    return [rounded(x * factor, inherited, arithmetic, variance=variance)]


def _normal(x: Floats) -> tuple[Floats, Floats]:
    """Return Phi(x), and its slope."""
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return np.asarray(0.5 * (1 + erf(x / math.sqrt(2)))), np.asarray(density)


def _almost_normal(x: Floats) -> tuple[Floats, Floats]:
    """Return Gelu's approximation of Phi(x), and its slope."""
    scale = math.sqrt(2 / math.pi)
    bent = np.tanh(scale * (x + 0.044715 * x**3))
    return np.asarray(0.5 * (1 + bent)), np.asarray(
        0.5 * (1 - bent * bent) * scale * (1 + 3 * 0.044715 * x * x)
    )


OPERATORS: dict[str, Operator] = {
    "Tanh": unary(tanh),
    "Sigmoid": unary(sigmoid),
    "Gelu": _gelu,
    "Softplus": unary(lambda a, arithmetic: softplus(a, each_stored(arithmetic))),
    "Softsign": unary(lambda a, arithmetic: softsign(a, each_stored(arithmetic))),
    "Mish": unary(_mish),
    "Swish": _swish,
    "SwiGLU": _swiglu,
}
