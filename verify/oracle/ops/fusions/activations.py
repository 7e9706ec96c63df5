"""Activations with a bias before them, and a softmax with one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import FUNCTION_VARIANCE, Bounded, Floats, rounded
from onnx_attest.verify.oracle.ops import attention
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, optional, required
from onnx_attest.verify.oracle.ops.pointwise.curves import FUNCTION_ROUNDINGS
from onnx_attest.verify.oracle.ops.pointwise.error_function import erf

_STEEPEST_GELU = 1.13
_STEEPEST_SWISH = 1.1
"""The largest slopes of x Phi(x), 1.129, of its approximation by tanh, 1.129, and of x sigmoid(x), 1.0998."""
_SWISH_BY_ALPHA = 0.225
"""The largest of y sigmoid'(y), 0.2239: what a relative error of alpha x makes of the sigmoid."""
_ONE_AXIS_BEFORE = 12
"""An opset in which Softmax is taken over all axes from the given one on, 1 by default."""


def _gated(
    gate: Callable[[Floats], Floats], slope: Callable[[Floats], Floats], steepest: float
) -> Callable[[Bounded, Arithmetic], Bounded]:
    """Return the function x gate(x): the gate is off by a few u whatever its size."""

    def function(a: Bounded, arithmetic: Arithmetic) -> Bounded:
        x = a.value
        # 0 * inf, far out on the left, is NaN as IEEE has it.
        with np.errstate(invalid="ignore", over="ignore"):
            value = x * gate(x)
            inherited = steepest * a.errors() + _steps(np.abs(x), value, arithmetic)
            variance: Floats | float = 0.0
            if arithmetic.deviations:
                variance = slope(x) ** 2 * a.variances() + FUNCTION_VARIANCE * (arithmetic.u * x) ** 2
        return rounded(value, inherited, arithmetic, variance=variance)

    return function


def _steps(x: Floats, value: Floats, arithmetic: Arithmetic) -> Floats:
    """Return what the gate's own error and, where values between nodes are stored, its two steps make of x."""
    stored = 2 * arithmetic.u_s * (x + np.abs(value))
    return np.asarray(FUNCTION_ROUNDINGS * arithmetic.u * x + stored)


def _normal(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + erf(x / math.sqrt(2))))


def _normal_slope(x: Floats) -> Floats:
    return np.asarray(_normal(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def _angle(x: Floats) -> Floats:
    return np.asarray(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _fast_slope(x: Floats) -> Floats:
    t, inner = np.tanh(_angle(x)), math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return np.asarray(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)


gelu = _gated(_normal, _normal_slope, _STEEPEST_GELU)
"""x Phi(x)."""
fast_gelu = _gated(lambda x: np.asarray(0.5 * (1 + np.tanh(_angle(x)))), _fast_slope, _STEEPEST_GELU)
"""x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""


def swish(a: Bounded, alpha: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return x sigmoid(alpha x), whose slope does not depend on alpha's size."""
    factor = float(alpha.value[0])

    def gate(x: Floats) -> Floats:
        return np.asarray(0.5 * (1 + np.tanh(0.5 * factor * x)))

    def slope(x: Floats) -> Floats:
        s = gate(x)
        return np.asarray(s + factor * x * s * (1 - s))

    result = _gated(gate, slope, _STEEPEST_SWISH)(a, arithmetic)
    if result.error is None or not factor:
        return result
    relative = 2 * arithmetic.u + arithmetic.u_s + float(np.max(alpha.errors())) / abs(factor)
    moved = _SWISH_BY_ALPHA * relative * np.abs(a.value)
    return replace(result, error=np.where(np.isfinite(result.value), result.error + moved, 0.0))


def _of_sum(function: Callable[[Bounded, Arithmetic], Bounded]) -> Operator:
    """Return the operator of a function of the first input, with the second one, if there is any, added."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        return [function(_biased(inputs, arithmetic), arithmetic)]

    return operator


def _biased(inputs: Inputs, arithmetic: Arithmetic) -> Bounded:
    x, bias = required(inputs, 0), optional(inputs, 1)
    return x if bias is None else bounded.add(x, bias, arithmetic)


def _quick_gelu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return [swish(required(inputs, 0), node.real("alpha", 1.702), arithmetic)]


def _bias_split_gelu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """BiasSplitGelu: the left half times Gelu of the right one."""
    whole = _biased(inputs, arithmetic)
    left, right = (
        whole.moved(lambda array, index=index: np.split(array, 2, -1)[index])  # type: ignore[misc]
        for index in range(2)
    )
    return [bounded.multiply(left, gelu(right, arithmetic), arithmetic)]


def _bias_softmax(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """BiasSoftmax: softmax of a sum, over all axes from `axis` on, as before opset 13."""
    node.get("is_inner_broadcast")  # which axes of the bias are one; its shape says that as well
    scores = bounded.add(required(inputs, 0), required(inputs, 1), arithmetic)
    softmax = attention.OPERATORS["Softmax"]
    return [required(softmax(replace(node, opset=_ONE_AXIS_BEFORE), [scores], arithmetic), 0)]


def _bias_add(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return [bounded.add(_biased(inputs, arithmetic), required(inputs, 2), arithmetic)]


OPERATORS: dict[str, Operator] = {
    "Gelu": _of_sum(gelu),
    "BiasGelu": _of_sum(gelu),
    "FastGelu": _of_sum(fast_gelu),
    "QuickGelu": _quick_gelu,
    "BiasSplitGelu": _bias_split_gelu,
    "BiasSoftmax": _bias_softmax,
    "BiasAdd": _bias_add,
}
