"""Logarithms of sums of exponentials: ReduceLogSumExp and LogSoftmax."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.attention import SoftmaxFacts, softmax
from onnx_attest.verify.oracle.bounded import FUNCTION_VARIANCE, KAPPA, Bounded, Floats, rounded, sum_variance
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, UnsupportedOperatorError, required
from onnx_attest.verify.oracle.ops.pointwise.composed import each_stored, in_steps
from onnx_attest.verify.oracle.ops.pointwise.curves import FUNCTION_ROUNDINGS
from onnx_attest.verify.oracle.ops.reducing.reductions import Axes, reducing

_SINCE_ONE_AXIS = 13
"""Before opset 13, all axes from `axis` (default 1) on were one."""


def by_rows(node: Node, a: Bounded, of: Callable[[Bounded], Bounded]) -> Bounded:
    """Return what an operator makes of the rows along its axis, or, before opset 13, along all axes from it on."""
    shape, rank = a.value.shape, a.value.ndim
    if node.opset >= _SINCE_ONE_AXIS:
        axis = node.get("axis", -1) % rank
        moved = of(a.moved(lambda array: array.swapaxes(axis, -1)))
        return moved.moved(lambda array: array.swapaxes(axis, -1))
    axis = node.get("axis", 1)
    first = axis + rank if axis < 0 else axis
    rows, row = (int(np.prod(part, dtype=np.int64)) for part in (shape[:first], shape[first:]))
    return of(a.moved(lambda array: array.reshape(rows, row))).moved(lambda array: array.reshape(shape))


def _log_softmax(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return [by_rows(node, required(inputs, 0), lambda rows: log_softmax(rows, arithmetic))]


def _top(a: Bounded) -> Floats:
    """Return the maximum of each row, 0 where that is no number."""
    top = a.value.max(-1, keepdims=True, initial=-np.inf)
    return np.where(np.isneginf(top), 0.0, top)


def log_softmax(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return x - max - ln(sum e^(x - max)) over the last axis; a row of -inf only is NaN.

    The logarithm of the weight, W and the sum's error, and what is left are rounded; the logarithm of the sum may be
    stored with the maximum added.
    """
    top = a.value.max(-1, keepdims=True, initial=-np.inf)
    if arithmetic.kernel is not None:
        return rounded(_carried_out(a.value, top, in_steps(arithmetic).kernel), 0.0, arithmetic)
    steps = each_stored(arithmetic)
    facts = softmax(Bounded(a.value, a.error, variance=a.variance), steps).softmax
    assert facts is not None
    shifted = a.value - top
    logarithm = np.log(np.exp(shifted).sum(-1, keepdims=True))
    value = shifted - logarithm
    W = a.errors() + steps.u * (np.abs(shifted) + steps.c_exp)  # of the exponent; the sum has that of all
    functions = FUNCTION_ROUNDINGS * np.maximum(np.maximum(logarithm, np.abs(value)), 1.0)
    own = steps.u * (functions + np.abs(shifted) + np.abs(top + logarithm))
    variance = _variance(facts, logarithm, shifted, steps)
    return rounded(value, W + _sum_error(facts) + own, steps, variance=variance)


def _sum_error(facts: SoftmaxFacts) -> Floats:
    """Return how far the logarithm of a sum of exponentials is off: ln(1 + sum p theta) - ln(1 - G)."""
    remaining = np.maximum(1 - facts.normaliser, 0.0)
    return np.asarray(np.log1p(facts.mean_theta) - np.log(remaining))


def _sum_variance(facts: SoftmaxFacts, logarithm: Floats, steps: Arithmetic) -> Floats:
    assert facts.variance is not None
    p2 = facts.weights**2
    given = (p2 * facts.variance).sum(-1, keepdims=True)
    summed = sum_variance(np.ones(()), p2.sum(-1, keepdims=True), p2.shape[-1], steps)
    return np.asarray(given + summed + FUNCTION_VARIANCE * (steps.u * np.maximum(logarithm, 1.0)) ** 2)


def _variance(facts: SoftmaxFacts, logarithm: Floats, shifted: Floats, steps: Arithmetic) -> Floats | float:
    if facts.variance is None:
        return 0.0
    # As of a weight, without the exponential's own: x_i moves with itself and with the sum of all.
    v = np.maximum(facts.variance - FUNCTION_VARIANCE * steps.u**2, 0.0)
    apart = np.maximum(v * (1 - 2 * facts.weights), 0.0)
    return np.asarray(apart + _sum_variance(facts, logarithm, steps) + KAPPA * (steps.u * shifted) ** 2)


def _carried_out(x: Floats, top: Floats, kernel: Kernel | None) -> Floats:
    """Return the same as a kernel computes it."""
    assert kernel is not None
    shifted = kernel.stored(x - top)
    summed = kernel.total(kernel.stored(np.exp(shifted)), (-1,), keepdims=True)
    return kernel.stored(shifted - kernel.stored(np.log(summed)))


def _log_sum_exp(a: Bounded, axes: Axes, keepdims: bool, arithmetic: Arithmetic) -> Bounded:
    """Return max + ln(sum e^(x - max)) over axes, -inf of no numbers."""
    if not a.is_float:
        raise UnsupportedOperatorError("ReduceLogSumExp of integers, for which there is no exponential")
    kept = [axis for axis in range(a.value.ndim) if axis not in axes]
    shape = tuple(a.value.shape[axis] for axis in kept)
    width = int(np.prod([a.value.shape[axis] for axis in axes], dtype=np.int64))
    rows = a.moved(lambda array: array.transpose(*kept, *axes).reshape(*shape, width))
    result = _of_rows(rows, arithmetic)
    return result.moved(lambda array: np.expand_dims(array[..., 0], axes) if keepdims else array[..., 0])


def _of_rows(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    top = _top(a)
    endless = np.isposinf(top)
    exponentials = np.exp(a.value - np.where(endless, 0.0, top))
    logarithm = np.log(exponentials.sum(-1, keepdims=True))
    value = np.where(endless, np.inf, top + logarithm)
    if arithmetic.kernel is not None:
        kernel = in_steps(arithmetic).kernel
        assert kernel is not None
        summed = kernel.total(kernel.stored(exponentials), (-1,), keepdims=True)
        return rounded(np.where(endless, np.inf, top + kernel.stored(np.log(summed))), 0.0, arithmetic)
    steps = each_stored(arithmetic)
    facts = softmax(Bounded(a.value, a.error, variance=a.variance), steps).softmax
    assert facts is not None
    # Without the shift the logarithm is the result; with it, one of at most the number of terms.
    own = FUNCTION_ROUNDINGS * steps.u * np.maximum(np.maximum(np.abs(value), np.abs(logarithm)), 1.0)
    variance = 0.0 if facts.variance is None else _sum_variance(facts, logarithm, steps)
    return rounded(value, _sum_error(facts) + own, steps, variance=variance)


OPERATORS: dict[str, Operator] = {"LogSoftmax": _log_softmax, "ReduceLogSumExp": reducing(_log_sum_exp)}
