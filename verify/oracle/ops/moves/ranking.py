"""Operators that order numbers: they are defined where rounding does not decide the order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Array, Bounded
from onnx_attest.verify.oracle.ops.moves.moving import only
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    required,
    rounds,
)


def _top_k(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a, axis = required(inputs, 0), node.get("axis", -1)
    count = node.get("k") if node.opset < 10 else only(inputs, 1, 0)
    largest = bool(node.get("largest", 1))
    if not 0 <= count <= a.value.shape[axis]:
        raise UnsupportedOperatorError(f"TopK of {count} among {a.value.shape[axis]}")
    if not node.get("sorted", 1) and count > 1:
        raise UnsupportedOperatorError("TopK that is not sorted: its order is left open")
    _refuse_nan(a, "TopK")
    order = _order(np.moveaxis(a.value, axis, -1), largest=largest)
    places = np.moveaxis(order[..., :count], -1, axis)
    values = a.moved(lambda array: np.take_along_axis(array, places, axis))
    if rounds(a) and _is_open(a, order, axis, count, largest=largest):
        if any(node.outputs[1:]):
            raise UnsupportedOperatorError("TopK of numbers that are equal within their rounding errors")
        # The k-th largest of numbers that are all off by no more than E is itself off by no more than E.
        worst = np.broadcast_to(a.errors(), a.value.shape).max(axis, keepdims=True, initial=0.0)
        shape = values.value.shape
        return [Bounded(values.value, np.broadcast_to(worst, shape), variance=values.variance)]
    return [values, Bounded(places.astype(np.int64))]


def _order(array: Array, *, largest: bool) -> Array:
    """Return the places along the last axis in order; of equal numbers the first one comes first."""
    if not largest:
        return np.argsort(array, -1, kind="stable")
    backwards = np.argsort(array[..., ::-1], -1, kind="stable")[..., ::-1]
    return np.asarray(array.shape[-1] - 1 - backwards)


def _is_open(a: Bounded, order: Array, axis: int, count: int, *, largest: bool) -> bool:
    """Whether one of the first `count` may change places with one that comes later, within their errors."""
    sign = 1.0 if largest else -1.0
    error = np.moveaxis(np.broadcast_to(a.errors(), a.value.shape), axis, -1)
    value = np.take_along_axis(sign * np.moveaxis(a.value, axis, -1), order, -1)
    error = np.take_along_axis(error, order, -1)
    reach = value + error
    later = _largest_later(reach)[..., :count]
    later_rounded = _largest_later(np.where(error > 0, reach, -np.inf))[..., :count]
    least, own = (value - error)[..., :count], error[..., :count] > 0
    return bool(np.any(np.where(own, later, later_rounded) >= np.where(np.isneginf(least), np.inf, least)))


def _largest_later(array: Array) -> Array:
    """Return, at each place of the last axis, the largest of what comes after it."""
    running = np.maximum.accumulate(array[..., ::-1], -1)[..., ::-1]
    return np.concatenate([running[..., 1:], np.full((*array.shape[:-1], 1), -np.inf)], -1)


def _refuse_nan(a: Bounded, operator: str) -> None:
    if a.is_float and np.isnan(a.value).any():
        raise UnsupportedOperatorError(f"{operator} with NaN, which has no place in an order")


def _unique(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a, axis = required(inputs, 0), node.get("axis")
    _refuse_nan(a, "Unique")
    if rounds(a) and (axis is not None or not _all_apart(a)):
        raise UnsupportedOperatorError("Unique of numbers that may be equal within their rounding errors")
    _, first, inverse, counts = np.unique(
        a.value, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not node.get("sorted", 1):  # in the order of first occurrence
        order = np.argsort(first)
        inverse = np.argsort(order)[inverse]
        first, counts = first[order], counts[order]
    found = a.moved(lambda array: np.take(array, first, axis))
    return [found, *_whole_numbers((first, inverse, counts))]


def _whole_numbers(arrays: Sequence[Array]) -> list[Bounded]:
    return [Bounded(array.astype(np.int64)) for array in arrays]


def _all_apart(a: Bounded) -> bool:
    """Whether no rounded number is equal to another one within their errors."""
    value = a.value.reshape(-1)
    error = np.broadcast_to(a.errors(), a.value.shape).reshape(-1)
    order = np.argsort(value - error, kind="stable")
    least, reach, own = (value - error)[order], (value + error)[order], error[order] > 0
    before = np.maximum.accumulate(reach)[:-1]
    before_rounded = np.maximum.accumulate(np.where(own, reach, -np.inf))[:-1]
    touched = np.where(own[1:], before >= least[1:], before_rounded >= least[1:])
    return not bool(np.any(touched & np.isfinite(least[1:])))


OPERATORS: dict[str, Operator] = {"TopK": _top_k, "Unique": _unique}
