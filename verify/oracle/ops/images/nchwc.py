"""The domain com.microsoft.nchwc: what ONNX Runtime's optimiser makes of a CPU's convolutions, channels in blocks.

A tensor of shape (N, C, H, W) then holds (N, C / block, H, W, block): that is in the data alone, not in the shape.
Weights are laid out the same way, and all counts of channels are rounded up to whole blocks, with zeros. Each operator
here takes the blocks apart, evaluates what it stands for, and puts them together again.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Array, Bounded
from onnx_attest.verify.oracle.ops.images.convolution import activated, by_channel, convolved
from onnx_attest.verify.oracle.ops.images.pooling import global_mean, maximum, mean, pooled_windows
from onnx_attest.verify.oracle.ops.images.resampling import upsampled_whole
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    optional,
    required,
)

_WIDE, _NARROW = 16, 8
"""Channels in a block: 16 with AVX-512, 8 without."""


def block_of(*channels: int) -> int:
    """Return how many channels a block has, for these counts of whole blocks.

    Where both sizes fit, it is this machine's: ONNX Runtime lays a graph out for the CPU that it runs on.
    """
    return _NARROW if any(count % _WIDE for count in channels) else _own_block()


def _own_block() -> int:
    features: dict[str, Any] = importlib.import_module("numpy._core._multiarray_umath").__cpu_features__
    # Where there is no such instruction set at all, on ARM for example, the layout has 16.
    return _WIDE if features.get("AVX512F", False) or "AVX" not in features else _NARROW


def _apart(x: Bounded, block: int) -> Bounded:
    """Return (N, C, H, W) as it says, from blocks."""

    def move(array: Array) -> Array:
        n, c, h, w = array.shape
        return array.reshape(n, c // block, h, w, block).transpose(0, 1, 4, 2, 3).reshape(n, c, h, w)

    return x.moved(move)


def _together(x: Bounded, block: int) -> Bounded:
    """Return blocks, from (N, C, H, W) as it says."""

    def move(array: Array) -> Array:
        n, c, h, w = array.shape
        return array.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2).reshape(n, c, h, w)

    return x.moved(move)


def _reorder_input(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """ReorderInput: to blocks, from channels behind the batch or last."""
    x = required(inputs, 0)
    if node.get("channels_last", 0):
        x = x.moved(lambda array: array.transpose(0, 3, 1, 2))
    channels = x.value.shape[1]
    block = _own_block()
    missing = -channels % block
    whole = x.moved(lambda array: np.pad(array, ((0, 0), (0, missing), (0, 0), (0, 0))))
    return [_together(whole, block)]


def _reorder_output(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """ReorderOutput: from blocks, without the channels that fill up the last."""
    x, channels, last = required(inputs, 0), int(node.get("channels")), bool(node.get("channels_last", 0))
    result = _apart(x, block_of(x.value.shape[1])).moved(lambda array: array[:, :channels])
    return [result.moved(lambda array: array.transpose(0, 2, 3, 1)) if last else result]


def _conv(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Conv: few channels come as they are; then, and where each channel has its own filter, inputs are not in blocks."""
    x, w, bias, other = required(inputs, 0), required(inputs, 1), optional(inputs, 2), optional(inputs, 3)
    outputs, depth = w.value.shape[:2]
    channels, groups = x.value.shape[1], int(node.get("group", 1))
    block = block_of(outputs)
    plain = channels < block
    depthwise = groups > 1 and depth == 1
    weights = _filter(w, block, inner=not plain and not depthwise)
    addends = [] if bias is None else [by_channel(bias, x.value.ndim)]
    if other is not None:
        addends.append(_apart(other, block))
    result = convolved(node, x if plain else _apart(x, block), weights, addends, arithmetic)
    return [_together(activated(node, result, arithmetic), block)]


def _filter(w: Bounded, block: int, *, inner: bool) -> Bounded:
    """Return weights (outputs, inputs, H, W) from (outputs / block, inputs, H, W, block), or with blocks of inputs too.

    Those are (outputs / block, inputs / block, H, W, block of inputs, block of outputs).
    """

    def move(array: Array) -> Array:
        o, i, h, width = array.shape
        if not inner:
            return array.reshape(o // block, i, h, width, block).transpose(0, 4, 1, 2, 3).reshape(array.shape)
        parts = array.reshape(o // block, i // block, h, width, block, block)
        return parts.transpose(0, 5, 1, 4, 2, 3).reshape(array.shape)

    return w.moved(move)


def _max_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x = required(inputs, 0)
    node.get("storage_order")  # of indices, which this operator does not give
    block = block_of(x.value.shape[1])
    windows = pooled_windows(node, x, ceil=True, dilated=True)
    return [_together(maximum(_apart(x, block), windows), block)]


def _average_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x = required(inputs, 0)
    block, pads = block_of(x.value.shape[1]), bool(node.get("count_include_pad", 0))
    windows = pooled_windows(node, x, ceil=True, dilated=True)
    return [_together(mean(_apart(x, block), windows, arithmetic, pads=pads), block)]


def _global_max_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x = required(inputs, 0)
    block = block_of(x.value.shape[1])
    return [_together(bounded.largest(_apart(x, block), (2, 3), keepdims=True), block)]


def _global_average_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x = required(inputs, 0)
    block = block_of(x.value.shape[1])
    return [_together(global_mean(_apart(x, block), arithmetic), block)]


def _upsample(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x, scales = required(inputs, 0), node.get("scales")
    if scales is None or list(scales[:2]) != [1, 1]:
        raise UnsupportedOperatorError("Upsample of batch or channels in blocks")
    block = block_of(x.value.shape[1])
    return [_together(upsampled_whole(node, _apart(x, block), scales, arithmetic), block)]


_DOMAIN = "com.microsoft.nchwc"
OPERATORS: dict[str, Operator] = {
    f"{_DOMAIN}.ReorderInput": _reorder_input,
    f"{_DOMAIN}.ReorderOutput": _reorder_output,
    f"{_DOMAIN}.Conv": _conv,
    f"{_DOMAIN}.MaxPool": _max_pool,
    f"{_DOMAIN}.AveragePool": _average_pool,
    f"{_DOMAIN}.GlobalMaxPool": _global_max_pool,
    f"{_DOMAIN}.GlobalAveragePool": _global_average_pool,
    f"{_DOMAIN}.Upsample": _upsample,
}
