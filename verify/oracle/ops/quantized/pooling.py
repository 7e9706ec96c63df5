"""ONNX Runtime's means and maxima of codes, with the channels on the second or on the last axis."""

from __future__ import annotations

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.images.pooling import maximum, mean, pooled_windows
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, required
from onnx_attest.verify.oracle.ops.quantized.codes import scalar_grid


def _qlinear_average_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    codes, last = required(inputs, 0), bool(node.get("channels_last", 0))
    x = scalar_grid(inputs, 1).numbers(_channels_second(codes, last=last), arithmetic)
    windows = pooled_windows(node, x, ceil=True, dilated=False)
    pooled = mean(x, windows, arithmetic, pads=bool(node.get("count_include_pad", 0)))
    return [_as_given(scalar_grid(inputs, 3).codes(pooled, codes.value.dtype, arithmetic), last=last)]


def _nhwc_max_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """NhwcMaxPool: the largest code of each window, the channels on the last axis."""
    x = _channels_second(required(inputs, 0), last=True)
    return [_as_given(maximum(x, pooled_windows(node, x, ceil=True, dilated=True)), last=True)]


def _channels_second(a: Bounded, *, last: bool) -> Bounded:
    return a.moved(lambda array: np.moveaxis(array, -1, 1)) if last else a


def _as_given(a: Bounded, *, last: bool) -> Bounded:
    return a.moved(lambda array: np.moveaxis(array, 1, -1)) if last else a


def _qlinear_global_average_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    rank, last = required(inputs, 0).value.ndim, node.get("channels_last", 0)
    axes = tuple(range(1, rank - 1)) if last else tuple(range(2, rank))
    return [_mean(inputs, axes, arithmetic, keepdims=True)]


def _qlinear_reduce_mean(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    rank = required(inputs, 0).value.ndim
    axes = tuple(axis % rank for axis in node.get("axes") or range(rank))
    return [_mean(inputs, axes, arithmetic, keepdims=bool(node.get("keepdims", 1)))]


def _mean(inputs: Inputs, axes: tuple[int, ...], arithmetic: Arithmetic, *, keepdims: bool) -> Bounded:
    """Return the mean over axes, in codes again."""
    codes = required(inputs, 0)
    x = scalar_grid(inputs, 1).numbers(codes, arithmetic)
    total = bounded.total(x, axes, keepdims=keepdims, arithmetic=arithmetic)
    count = float(np.prod([codes.value.shape[axis] for axis in axes], dtype=np.int64))
    mean_of_all = bounded.divide(total, Bounded(np.array(count)), arithmetic)
    return scalar_grid(inputs, 3).codes(mean_of_all, codes.value.dtype, arithmetic)


OPERATORS: dict[str, Operator] = {
    "com.microsoft.QLinearAveragePool": _qlinear_average_pool,
    "com.microsoft.QLinearGlobalAveragePool": _qlinear_global_average_pool,
    "com.microsoft.QLinearReduceMean": _qlinear_reduce_mean,
    "com.microsoft.NhwcMaxPool": _nhwc_max_pool,
}
