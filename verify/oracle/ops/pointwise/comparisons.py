"""Comparisons, and logic on truth values and on bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Array, Bounded
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    required,
    rounds,
)
from onnx_attest.verify.oracle.ops.pointwise.broadcasting import operands

_SINCE_ANY_SHIFT = 28
"""Before opset 28, nothing was said of shifts by the width of the type or more."""


def _comparison(compare: Callable[[Any, Any], Any]) -> Operator:
    """Return a comparison; it is only defined where rounding cannot decide it."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        a, b = operands(node, inputs)
        uncertain = np.asarray(a.errors() + b.errors())
        if uncertain.any():
            distance = np.abs(np.subtract(a.value, b.value, dtype=np.float64))
            if np.any((uncertain > 0) & (distance <= uncertain)):
                raise UnsupportedOperatorError("compares numbers that are equal within their rounding errors")
        return [Bounded(np.asarray(compare(a.value, b.value)))]

    return operator


def _logical(function: Callable[..., Any]) -> Operator:
    """Return an operation on two truth values, or on the bits of two integers."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        a, b = operands(node, inputs)
        return [Bounded(np.asarray(function(_surely(node, a), _surely(node, b))))]

    return operator


def _inverse(function: Callable[[Any], Any]) -> Operator:
    return lambda node, inputs, arithmetic: [
        Bounded(np.asarray(function(_surely(node, required(inputs, 0)))))
    ]


def _surely(node: Node, a: Bounded) -> Array:
    if rounds(a):
        raise UnsupportedOperatorError(f"{node.operator} of integers that rounding decides")
    return a.value


def _bit_shift(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Shift bits; past the width of the type only copies of the sign are left, of opset 28 on."""
    a, by = np.broadcast_arrays(*(_surely(node, required(inputs, index)) for index in (0, 1)))
    width, direction = np.iinfo(a.dtype).bits, node.get("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise UnsupportedOperatorError(f"BitShift in the direction {direction}")
    beyond = (by < 0) | (by >= width)
    if beyond.any() and node.opset < _SINCE_ANY_SHIFT:
        raise UnsupportedOperatorError("BitShift by the width of the type or more, before opset 28")
    shift = np.where(beyond, 0, by).astype(a.dtype)
    if direction == "LEFT":
        return [Bounded(np.where(beyond, 0, np.left_shift(a, shift)).astype(a.dtype))]
    return [Bounded(np.where(beyond, np.where(a < 0, -1, 0), np.right_shift(a, shift)).astype(a.dtype))]


def _is_nan(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return [Bounded(np.isnan(required(inputs, 0).value))]


def _is_inf(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Whether a number is infinite: one beyond the stored range is."""
    a = required(inputs, 0)
    size, error = np.abs(a.value), a.errors()
    if np.any(np.isfinite(size) & (size + error > arithmetic.largest) & (size - error <= arithmetic.largest)):
        raise UnsupportedOperatorError("IsInf of numbers that overflow within their rounding errors")
    infinite = size > arithmetic.largest
    signs = [
        sign for sign, asked in ((1.0, "detect_positive"), (-1.0, "detect_negative")) if node.get(asked, 1)
    ]
    return [Bounded(infinite & np.isin(np.sign(a.value), signs))]


OPERATORS: dict[str, Operator] = {
    "Equal": _comparison(np.equal),
    "Less": _comparison(np.less),
    "LessOrEqual": _comparison(np.less_equal),
    "Greater": _comparison(np.greater),
    "GreaterOrEqual": _comparison(np.greater_equal),
    "And": _logical(np.logical_and),
    "Or": _logical(np.logical_or),
    "Xor": _logical(np.logical_xor),
    "Not": _inverse(np.logical_not),
    "BitwiseAnd": _logical(np.bitwise_and),
    "BitwiseOr": _logical(np.bitwise_or),
    "BitwiseXor": _logical(np.bitwise_xor),
    "BitwiseNot": _inverse(np.bitwise_not),
    "BitShift": _bit_shift,
    "IsNaN": _is_nan,
    "IsInf": _is_inf,
}
