"""Products of codes that give codes again: the count, times the scales of both operands over that of the result."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, optional, required
from onnx_attest.verify.oracle.ops.quantized.codes import (
    by_column,
    by_row,
    rounded_with_zero,
    scalar,
    scaled,
)
from onnx_attest.verify.oracle.ops.quantized.integer import (
    counted,
    counted_convolution,
    sum_of,
    within_32_bits,
)


def _qlinear_matmul(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a_scale, b_scale = by_row(required(inputs, 1)), by_column(required(inputs, 4))
    count = counted(
        required(inputs, 0), required(inputs, 3), (required(inputs, 2), required(inputs, 5)), arithmetic
    )
    before = scaled(count, [a_scale, b_scale], [scalar(inputs, 6)], arithmetic)
    zero = scalar(inputs, 7)
    return [rounded_with_zero(before, zero, zero.value.dtype, arithmetic)]


def _qlinear_conv(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return [_convolution(node, inputs, required(inputs, 0), arithmetic)]


def _qlinear_conv_of_layout(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """com.microsoft.QLinearConv, whose input and output may have their channels on the last axis."""
    x = required(inputs, 0)
    if not node.get("channels_last", 0):
        return [_convolution(node, inputs, x, arithmetic)]
    first = x.moved(lambda array: np.moveaxis(array, -1, 1))
    return [_convolution(node, inputs, first, arithmetic).moved(lambda array: np.moveaxis(array, 1, -1))]


def _convolution(node: Node, inputs: Inputs, x: Bounded, arithmetic: Arithmetic) -> Bounded:
    w, w_scale = required(inputs, 3), required(inputs, 4)
    zeros = scalar(inputs, 2), required(inputs, 5)
    count = counted_convolution(node, x, w, zeros, optional(inputs, 8), arithmetic)
    channels = by_column(w_scale)
    if channels.value.size > 1:
        channels = channels.moved(lambda array: array.reshape(-1, *(1,) * (w.value.ndim - 2)))
    before = scaled(count, [scalar(inputs, 1), channels], [scalar(inputs, 6)], arithmetic)
    zero = scalar(inputs, 7)
    return rounded_with_zero(before, zero, zero.value.dtype, arithmetic)


def _qgemm(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """com.microsoft.QGemm: alpha (A @ B + C) in codes, or in numbers where no scale of the output is given."""
    a, b = (
        required(inputs, index).moved(lambda array, attribute=attribute: _turned(node, attribute, array))  # type: ignore[misc]
        for index, attribute in ((0, "transA"), (3, "transB"))
    )
    count = counted(a, b, (scalar(inputs, 2), required(inputs, 5)), arithmetic)
    c = optional(inputs, 6)
    if c is not None:
        count = within_32_bits(sum_of(count, c))
    factors = [node.real("alpha", 1.0).moved(lambda array: array.reshape(()))]
    factors += [scalar(inputs, 1), by_column(required(inputs, 4))]
    if optional(inputs, 7) is None:
        return [scaled(count, factors, [], arithmetic)]
    before = scaled(count, factors, [scalar(inputs, 7)], arithmetic)
    zero = None if optional(inputs, 8) is None else scalar(inputs, 8)
    dtype = a.value.dtype if zero is None else zero.value.dtype
    return [rounded_with_zero(before, zero, dtype, arithmetic)]


def _turned(node: Node, attribute: str, array: Any) -> Any:
    return array.T if node.get(attribute, 0) else array


OPERATORS: dict[str, Operator] = {
    "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
    "com.microsoft.QLinearConv": _qlinear_conv_of_layout,
    "com.microsoft.QGemm": _qgemm,
}
