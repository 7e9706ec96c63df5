"""DynamicQuantizeLinear, which finds scale and zero point itself, and ONNX Runtime's product with its codes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, optional, required
from onnx_attest.verify.oracle.ops.quantized.codes import (
    by_column,
    differences,
    in_units,
    reachable,
    scaled,
    to_codes,
)
from onnx_attest.verify.oracle.ops.quantized.integer import product_of, within_32_bits

_MOST = 255.0


def _parameters(x: Bounded, arithmetic: Arithmetic) -> tuple[Bounded, Bounded]:
    """Return the scale, (max - min) / 255 of numbers among which 0 is, and the zero point, -min / scale rounded.

    Without any number but 0 the scale may be anything: ONNX's function has 0, its reference 1/255, ONNX Runtime 1.
    """
    axes = tuple(range(x.value.ndim))
    most, least = _at_least_zero(x, axes), _at_least_zero(replace(x, value=-x.value), axes)
    span = bounded.add(most, least, arithmetic)
    if span.value == 0:
        certain = not np.any(most.errors() + least.errors())
        if arithmetic.kernel is not None:
            return Bounded(np.ones(())), Bounded(np.zeros((), np.uint8))
        scale = Bounded(np.ones(()), np.full((), 1.0 if certain else np.inf))
        return scale, Bounded(np.zeros((), np.uint8), np.full((), 0.0 if certain else _MOST))
    scale = _divided(span, arithmetic)
    u = max(arithmetic.u, arithmetic.u_s)
    return scale, to_codes(in_units(least, scale, u, arithmetic), None, np.uint8)


def _at_least_zero(x: Bounded, axes: tuple[int, ...]) -> Bounded:
    """Return the largest of the numbers and 0: as far off as the numbers may be, or as they may exceed 0."""
    top = bounded.largest(x, axes, keepdims=False)
    value = np.maximum(np.asarray(top.value), 0.0)
    if top.error is None:
        return Bounded(value)
    above = np.maximum(top.value + top.error, 0.0) - value
    below = value - np.maximum(top.value - top.error, 0.0)
    variance = None if top.variance is None else np.where(top.value > 0, top.variance, 0.0)
    return Bounded(value, np.asarray(np.maximum(above, below)), variance=variance)


def _divided(span: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the span over 255; two roundings cover a runtime that multiplies by 1/255."""
    value = np.asarray(span.value / _MOST)
    inherited = np.asarray(span.errors()) / _MOST
    return bounded.rounded(
        value, inherited, arithmetic, 2.0 + arithmetic.u, variance=np.asarray(span.variances()) / _MOST**2
    )


def _dynamic_quantize_linear(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x, u = required(inputs, 0), max(arithmetic.u, arithmetic.u_s)
    scale, zero = _parameters(x, arithmetic)
    return [to_codes(in_units(x, scale, u, arithmetic), zero, np.uint8), scale, zero]


def _dynamic_quantize_matmul(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """com.microsoft.DynamicQuantizeMatMul: a left factor of codes that are made on the way."""
    x, b = required(inputs, 0), required(inputs, 1)
    b_zero = optional(inputs, 3)
    scale, zero = _parameters(x, arithmetic)
    left = _distances(x, scale, zero, arithmetic)
    right = differences(b, None if b_zero is None else by_column(b_zero))
    count = within_32_bits(product_of(np.matmul, left, right, arithmetic))
    product = scaled(count, [scale, by_column(required(inputs, 2))], [], arithmetic)
    bias = optional(inputs, 4)
    return [product if bias is None else bounded.add(product, bias, arithmetic)]


def _distances(x: Bounded, scale: Bounded, zero: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the codes less their zero point: where that is off by one, so are all codes, but those that saturate."""
    before = in_units(x, scale, max(arithmetic.u, arithmetic.u_s), arithmetic)
    codes = to_codes(before, zero, np.uint8)
    value = codes.value.astype(np.float64) - zero.value
    low, high = reachable(before)
    first, last = zero.value - zero.errors(), zero.value + zero.errors()
    low, high = np.clip(low, -last, _MOST - last), np.clip(high, -first, _MOST - first)
    error = np.where(np.isnan(before.value), _MOST, np.maximum(high - value, value - low))
    return Bounded(value, error, variance=codes.variance) if error.any() else Bounded(value)


OPERATORS: dict[str, Operator] = {
    "DynamicQuantizeLinear": _dynamic_quantize_linear,
    "com.microsoft.DynamicQuantizeMatMul": _dynamic_quantize_matmul,
}
