"""Activation functions that are put together from pieces: straight ones, and an exponential below zero."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import (
    Array,
    Bounded,
    add,
    divide,
    exact,
    exponential,
    multiply,
    subtract,
)
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    required,
    rounds,
)
from onnx_attest.verify.oracle.ops.pointwise.composed import coefficient, each_stored, in_steps, stored
from onnx_attest.verify.oracle.ops.pointwise.jumps import crossing
from onnx_attest.verify.oracle.ops.pointwise.limits import clipped

_ZERO, _ONE = exact(np.zeros(())), exact(np.ones(()))
_SIXTH = np.array([1 / 6])
_SINCE_NUMPY = 7
"""Before opset 7, a slope for each channel stood for the axis of the channels."""
_SINCE_EXACT_SELU = 6
_SELU, _FIRST_SELU = (1.6732632423543772, 1.0507009873554805), (1.6732, 1.0507)
"""alpha and gamma, and what they were in opset 1."""


def _relu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    node.get("consumed_inputs")  # of opset 1, about memory
    a = required(inputs, 0)
    return [clipped(a, Bounded(np.zeros((), a.value.dtype)), None)]


def _bent(x: Bounded, below: Callable[[Bounded], Bounded], arithmetic: Arithmetic) -> Bounded:
    """Return x above zero, and below it a function that is zero there.

    A number that may be on either side is off by no more than both pieces are together.
    """
    right, left = clipped(x, _ZERO, None), below(clipped(x, None, _ZERO))
    value = np.where(x.value < 0, left.value, x.value)
    if arithmetic.kernel is not None:
        return Bounded(value)
    surely = x.value - x.errors() >= 0
    error = right.errors() + np.where(surely, 0.0, left.errors())
    variance = None
    if arithmetic.deviations:
        variance = np.where(x.value < 0, left.variances(), x.variances())
    return Bounded(value, np.broadcast_to(error, value.shape), variance=variance)


def _leaky_relu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    node.get("consumed_inputs")
    alpha, steps = coefficient(node, "alpha", 0.01, arithmetic), in_steps(arithmetic)
    return [_bent(required(inputs, 0), lambda x: stored(multiply(x, alpha, steps), arithmetic), arithmetic)]


def _prelu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """PRelu: LeakyRelu with a slope for each number, or for each channel."""
    node.get("consumed_inputs")
    x, slope, steps = required(inputs, 0), required(inputs, 1), in_steps(arithmetic)
    if node.opset < _SINCE_NUMPY and slope.value.ndim == 1:
        behind = (1,) * max(x.value.ndim - 2, 0)
        slope = slope.moved(lambda array: array.reshape(*array.shape, *behind))
    if not x.is_float:
        if rounds(x) or rounds(slope):
            raise UnsupportedOperatorError("PRelu of integers that rounding decides")
        return [Bounded(np.where(x.value < 0, x.value * slope.value, x.value))]
    return [_bent(x, lambda below: stored(multiply(below, slope, steps), arithmetic), arithmetic)]


def _exponential_unit(
    x: Bounded, alpha: Bounded, arithmetic: Arithmetic, *, width: Bounded | None = None
) -> Bounded:
    """Return x above zero, and alpha (e^(x / width) - 1) below."""
    steps = in_steps(arithmetic)

    def below(part: Bounded) -> Bounded:
        raised = exponential(part if width is None else divide(part, width, steps), steps)
        # Once more: alpha may be multiplied with the exponential before it is subtracted.
        return stored(multiply(subtract(stored(raised, steps), _ONE, steps), alpha, steps), arithmetic)

    return _bent(x, below, arithmetic)


def _elu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    node.get("consumed_inputs")
    return [_exponential_unit(required(inputs, 0), coefficient(node, "alpha", 1.0, arithmetic), arithmetic)]


def _celu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Celu: max(0, x) + min(0, alpha (e^(x / alpha) - 1))."""
    alpha = coefficient(node, "alpha", 1.0, arithmetic)
    if alpha.value <= 0:
        raise UnsupportedOperatorError("Celu with an alpha that is not positive")
    return [_exponential_unit(required(inputs, 0), alpha, arithmetic, width=alpha)]


def _selu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Selu: gamma times x, or alpha (e^x - 1) below zero."""
    node.get("consumed_inputs")
    defaults = _SELU if node.opset >= _SINCE_EXACT_SELU else _FIRST_SELU
    alpha, gamma = (
        coefficient(node, name, default, arithmetic)
        for name, default in zip(("alpha", "gamma"), defaults, strict=True)
    )
    unit = _exponential_unit(required(inputs, 0), alpha, in_steps(arithmetic))
    return [multiply(unit, gamma, each_stored(arithmetic))]


def hard_sigmoid(x: Bounded, alpha: Bounded, beta: Bounded, steps: Arithmetic) -> Bounded:
    """Return alpha x + beta within 0 and 1."""
    return clipped(add(multiply(x, alpha, steps), beta, steps), _ZERO, _ONE)


def _hard_sigmoid(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    node.get("consumed_inputs")
    alpha, beta = (
        coefficient(node, name, default, arithmetic) for name, default in (("alpha", 0.2), ("beta", 0.5))
    )
    return [stored(hard_sigmoid(required(inputs, 0), alpha, beta, in_steps(arithmetic)), arithmetic)]


def _hard_swish(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return x times HardSigmoid with a sixth, which ONNX's own function writes as float32."""
    steps = in_steps(arithmetic)
    error = np.abs(_SIXTH.astype(np.float32) - _SIXTH) + max(arithmetic.u, arithmetic.u_s) * _SIXTH
    gate = hard_sigmoid(a, Bounded(_SIXTH, error), exact(np.array([0.5])), steps)
    # The sixth may be the last factor instead: then there is a scale's rounding in the end.
    return stored(multiply(a, gate, steps), arithmetic, arithmetic.c_s)


def _thresholded(x: Bounded, limit: Bounded, above: Bounded) -> Bounded:
    """Return `above` where x is above a limit, 0 elsewhere; all of it is uncertain where rounding decides."""
    margin = np.asarray(x.errors() + limit.errors())
    distance = x.value - limit.value
    value = np.where(distance > 0, above.value, np.zeros((), above.value.dtype))
    unsure = (margin > 0) & (np.abs(distance) <= margin)
    size = np.abs(above.value) + above.errors()
    error = np.where(unsure, size, np.where(distance > 0, above.errors(), 0.0))
    variance = None
    if above.variance is not None:
        jumps = crossing(np.abs(distance), x) * above.value.astype(np.float64) ** 2
        variance = np.where(unsure, jumps, 0.0) + np.where(distance > 0, above.variance, 0.0)
    return Bounded(value, error if np.any(error) else None, variance=variance)


def _thresholded_relu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x = required(inputs, 0)
    return [_thresholded(x, coefficient(node, "alpha", 1.0, arithmetic), x)]


def _shrink(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Shrink: x + bias below -lambd, x - bias above lambd, 0 between."""
    x = required(inputs, 0)
    limit, bias = (
        coefficient(node, name, default, arithmetic) for name, default in (("lambd", 0.5), ("bias", 0.0))
    )
    if not x.is_float:
        return [Bounded(_shrunk_integers(x, float(limit.value[0]), float(bias.value[0])))]
    if limit.value < 0:
        raise UnsupportedOperatorError("Shrink with a negative lambd")
    sides = []
    for sign in (1.0, -1.0):
        turned = Bounded(sign * x.value, x.error, variance=x.variance)
        moved = turned if bias.value == 0 else subtract(turned, bias, each_stored(arithmetic))
        sides.append(_thresholded(turned, limit, moved))
    right, left = sides
    value = right.value - left.value
    error = np.broadcast_to(right.errors() + left.errors(), value.shape)
    variance = right.variances() + left.variances() if arithmetic.deviations else None
    return [
        Bounded(value, error, variance=None if variance is None else np.broadcast_to(variance, value.shape))
    ]


def _shrunk_integers(x: Bounded, limit: float, bias: float) -> Array:
    if limit != int(limit) or bias != int(bias) or rounds(x):
        raise UnsupportedOperatorError("Shrink of integers with a lambd or a bias that is a fraction")
    value = x.value.astype(np.int64)
    shrunk = np.where(value < -limit, value + int(bias), np.where(value > limit, value - int(bias), 0))
    return np.asarray(shrunk.astype(x.value.dtype))


OPERATORS: dict[str, Operator] = {
    "Relu": _relu,
    "LeakyRelu": _leaky_relu,
    "PRelu": _prelu,
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda node, inputs, arithmetic: [_hard_swish(required(inputs, 0), arithmetic)],
    "ThresholdedRelu": _thresholded_relu,
    "Shrink": _shrink,
}
