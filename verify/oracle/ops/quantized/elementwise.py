"""ONNX Runtime's operators that take codes, do what the float operator does, and give codes again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import KAPPA, Bounded, Floats
from onnx_attest.verify.oracle.ops import attention
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, UnsupportedOperatorError, required
from onnx_attest.verify.oracle.ops.pointwise import activations
from onnx_attest.verify.oracle.ops.quantized.codes import (
    Grid,
    differences,
    in_units,
    rounded_with_zero,
    scalar,
    scalar_grid,
    scaled,
)
from onnx_attest.verify.oracle.ops.quantized.integer import product_of

_SUM_ROUNDINGS = 6
"""A term of QLinearAdd meets the ratio of two scales, the product with it, and up to four sums with zero points."""


def _qlinear_add(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """QLinearAdd: (s_a (a - z_a) + s_b (b - z_b)) / s_c + z_c.

    MLAS multiplies it out, r_a a + r_b b + (z_c - r_a z_a - r_b z_b) with ratios r of scales: what is rounded then is as
    large as codes and zero points apart.
    """
    a, b = required(inputs, 0), required(inputs, 3)
    grids, result = (scalar_grid(inputs, 1), scalar_grid(inputs, 4)), scalar_grid(inputs, 6)
    u = max(arithmetic.u, arithmetic.u_s)
    left, right = grids[0].numbers(a, arithmetic), grids[1].numbers(b, arithmetic)
    before = in_units(bounded.add(left, right, arithmetic), result.scale, u, arithmetic)
    if arithmetic.kernel is None:
        sizes = [_apart(codes, grid) for codes, grid in zip((a, b), grids, strict=True)]
        size = (sizes[0] + sizes[1]) / np.abs(result.scale.value) + _size(result.zero)
        variance = None if before.variance is None else before.variance + KAPPA * (u * size) ** 2
        before = replace(before, error=before.errors() + gamma(_SUM_ROUNDINGS, u) * size, variance=variance)
    return [rounded_with_zero(before, result.zero, a.value.dtype, arithmetic)]


def _apart(codes: Bounded, grid: Grid) -> Floats:
    """Return the size of a number whose code and zero point are multiplied by the scale each."""
    size = np.abs(codes.value.astype(np.float64)) + codes.errors() + _size(grid.zero)
    return np.asarray(size * (np.abs(grid.scale.value) + grid.scale.errors()))


def _size(zero: Bounded | None) -> Floats:
    if zero is None:
        return np.zeros(())
    return np.asarray(np.abs(zero.value.astype(np.float64)) + zero.errors())


def _qlinear_mul(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """QLinearMul: (a - z_a)(b - z_b) s_a s_b / s_c + z_c."""
    a, b = required(inputs, 0), required(inputs, 3)
    grids, result = (scalar_grid(inputs, 1), scalar_grid(inputs, 4)), scalar_grid(inputs, 6)
    left, right = differences(a, grids[0].zero), differences(b, grids[1].zero)
    count = product_of(np.multiply, left, right, arithmetic)
    before = scaled(count, [grid.scale for grid in grids], [result.scale], arithmetic)
    return [rounded_with_zero(before, result.zero, a.value.dtype, arithmetic)]


def _qlinear_sigmoid(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    codes = required(inputs, 0)
    x = scalar_grid(inputs, 1).numbers(codes, arithmetic)
    (y,) = activations.OPERATORS["Sigmoid"](node, [x], arithmetic)
    assert isinstance(y, Bounded)
    return [scalar_grid(inputs, 3).codes(y, codes.value.dtype, arithmetic)]


def _qlinear_leaky_relu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """QLinearLeakyRelu: x, or alpha x below 0; an error that reaches over 0 goes with the steeper side."""
    codes, alpha = required(inputs, 0), node.real("alpha", 0.01)
    x = scalar_grid(inputs, 1).numbers(codes, arithmetic)
    below = bounded.multiply(x, alpha, arithmetic)
    y = bounded.where(Bounded(x.value >= 0), x, below)
    if x.error is not None:
        straddles = np.abs(x.value) <= x.error
        y = replace(y, error=np.where(straddles, np.maximum(x.errors(), below.errors()), y.errors()))
    return [scalar_grid(inputs, 3).codes(y, codes.value.dtype, arithmetic)]


def _qlinear_softmax(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """QLinearSoftmax: Softmax as the attribute `opset` has it."""
    codes = required(inputs, 0)
    x = scalar_grid(inputs, 1).numbers(codes, arithmetic)
    softmax = attention.OPERATORS["Softmax"]
    (y,) = softmax(replace(node, opset=node.get("opset")), [x], arithmetic)
    assert isinstance(y, Bounded)
    return [scalar_grid(inputs, 3).codes(y, codes.value.dtype, arithmetic)]


def _qlinear_concat(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """QLinearConcat: a scale and a zero point of the result, then three inputs for each part."""
    result = scalar_grid(inputs, 0)
    parts = []
    for index in range(2, len(inputs), 3):
        codes = required(inputs, index)
        parts.append(_recoded(codes, scalar_grid(inputs, index + 1), result, arithmetic))
    return [bounded.concatenated(parts, node.get("axis"))]


def _recoded(codes: Bounded, own: Grid, result: Grid, arithmetic: Arithmetic) -> Bounded:
    return result.codes(own.numbers(codes, arithmetic), codes.value.dtype, arithmetic)


def _qlinear_where(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """QLinearWhere: a condition, three inputs for each side, and a scale and a zero point of the result."""
    result = Grid(scalar(inputs, 7), scalar(inputs, 8))
    a, b = (
        _recoded(required(inputs, index), scalar_grid(inputs, index + 1), result, arithmetic)
        for index in (1, 4)
    )
    condition = required(inputs, 0).value.astype(bool)
    if np.any(required(inputs, 0).errors()):
        raise UnsupportedOperatorError("QLinearWhere with a condition within its rounding error")
    errors = None
    if a.error is not None or b.error is not None:
        errors = np.where(condition, a.errors(), b.errors())
    variance = None
    if a.variance is not None or b.variance is not None:
        variance = np.where(condition, a.variances(), b.variances())
    return [Bounded(np.where(condition, a.value, b.value), errors, variance=variance)]


OPERATORS: dict[str, Operator] = {
    "com.microsoft.QLinearAdd": _qlinear_add,
    "com.microsoft.QLinearMul": _qlinear_mul,
    "com.microsoft.QLinearSigmoid": _qlinear_sigmoid,
    "com.microsoft.QLinearLeakyRelu": _qlinear_leaky_relu,
    "com.microsoft.QLinearSoftmax": _qlinear_softmax,
    "com.microsoft.QLinearConcat": _qlinear_concat,
    "com.microsoft.QLinearWhere": _qlinear_where,
}
