"""Products of codes that are counted in 32 bits: exact, however they are summed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Bounded, Floats
from onnx_attest.verify.oracle.ops.images.convolution import convolved
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    optional,
    required,
)
from onnx_attest.verify.oracle.ops.quantized.codes import (
    by_column,
    by_row,
    counting,
    differences,
    scalar,
    scaled,
)

_LIMIT = 2.0**31
Product = Callable[[Floats, Floats], Floats]


def counted(
    a: Bounded, b: Bounded, zeros: tuple[Bounded | None, Bounded | None], arithmetic: Arithmetic
) -> Bounded:
    """Return (a - zero) @ (b - zero)."""
    left = differences(a, None if zeros[0] is None else by_row(zeros[0]))
    right = differences(b, None if zeros[1] is None else by_column(zeros[1]))
    return within_32_bits(product_of(np.matmul, left, right, arithmetic))


def counted_convolution(
    node: Node,
    x: Bounded,
    w: Bounded,
    zeros: tuple[Bounded | None, Bounded | None],
    bias: Bounded | None,
    arithmetic: Arithmetic,
) -> Bounded:
    """Return the convolution of x less its zero point, which is what it is padded with, with w less its own, and a bias."""
    rank = w.value.ndim
    left, right = differences(x, zeros[0]), differences(w, _by_output(zeros[1], rank))

    def product(own: Floats, weights: Floats) -> Floats:
        exact = counting(arithmetic)
        return np.asarray(convolved(node, Bounded(own), Bounded(weights), [], exact).value)

    count = product_of(product, left, right, arithmetic)
    if bias is not None:
        count = sum_of(count, bias.moved(lambda array: array.reshape(-1, *(1,) * (rank - 2))))
    return within_32_bits(count)


def _by_output(given: Bounded | None, rank: int) -> Bounded | None:
    if given is None or given.value.size == 1:
        return None if given is None else given.moved(lambda array: array.reshape(()))
    return given.moved(lambda array: array.reshape(-1, *(1,) * (rank - 1)))


def product_of(product: Product, a: Bounded, b: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return an exact product of whole numbers: |A| E_B + E_A |B| + E_A E_B, and nothing of its own.

    ONNX has products accumulated in 32 bits. A runtime that saturates them earlier, as x86 without VNNI does in 16
    bits, is wrong, and no bound covers it. Float64 holds such sums exactly, however they are summed.
    """
    error = variance = None
    if a.error is not None or b.error is not None:
        error = _linear(product, np.abs(a.value), a.error, np.abs(b.value), b.error)
        if a.error is not None and b.error is not None:
            error = error + product(a.error, b.error)
        if arithmetic.deviations and not (a.variance is None and b.variance is None):
            variance = _linear(product, a.value**2, a.variance, b.value**2, b.variance)
    return Bounded(product(a.value, b.value), error, variance=variance)


def _linear(product: Product, a: Floats, of_a: Floats | None, b: Floats, of_b: Floats | None) -> Floats:
    """Return what comes of something of a, and of something of b."""
    parts = [] if of_a is None else [product(of_a, b)]
    parts += [] if of_b is None else [product(a, of_b)]
    return np.asarray(sum(parts))


def sum_of(count: Bounded, other: Bounded) -> Bounded:
    """Return the exact sum of two counts."""
    return differences(count, replace(other, value=-other.value.astype(np.float64)))


def within_32_bits(count: Bounded) -> Bounded:
    """Return a count.

    Raises:
        UnsupportedOperatorError: it is too large for 32 bits: ONNX allows that it wraps around, or does not.
    """
    with np.errstate(invalid="ignore"):
        if np.any(np.abs(count.value) + count.errors() >= _LIMIT):
            raise UnsupportedOperatorError("a sum of products of codes that exceeds 32 bits")
    return count


def _as_int32(count: Bounded) -> Bounded:
    return Bounded(count.value.astype(np.int32), count.error, variance=count.variance)


def _matmul_integer(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    zeros = optional(inputs, 2), optional(inputs, 3)
    return [_as_int32(counted(required(inputs, 0), required(inputs, 1), zeros, arithmetic))]


def _conv_integer(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    zeros = None if optional(inputs, 2) is None else scalar(inputs, 2), optional(inputs, 3)
    x, w = required(inputs, 0), required(inputs, 1)
    return [_as_int32(counted_convolution(node, x, w, zeros, None, arithmetic))]


def _matmul_integer_to_float(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """com.microsoft.MatMulIntegerToFloat: a product of codes in numbers, and a bias."""
    a, b = required(inputs, 0), required(inputs, 1)
    zeros = None if optional(inputs, 4) is None else scalar(inputs, 4), optional(inputs, 5)
    count = counted(a, b, zeros, arithmetic)
    product = scaled(count, [scalar(inputs, 2), by_column(required(inputs, 3))], [], arithmetic)
    bias = optional(inputs, 6)
    return [product if bias is None else bounded.add(product, bias, arithmetic)]


OPERATORS: dict[str, Operator] = {
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "com.microsoft.MatMulIntegerToFloat": _matmul_integer_to_float,
}
