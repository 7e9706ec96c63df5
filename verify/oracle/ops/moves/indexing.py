"""Operators that take numbers from where indices, a condition or bounds say."""

from __future__ import annotations

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Array, Bounded
from onnx_attest.verify.oracle.ops.moves.moving import moving, only
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    placing,
    required,
)


def _slice(node: Node, inputs: Inputs, array: Array) -> Array:
    if node.opset < 10:
        starts, ends, axes, steps = node.get("starts"), node.get("ends"), node.get("axes"), None
    else:
        starts, ends = integers(inputs, 1), integers(inputs, 2)
        axes, steps = (integers(inputs, i) if optional(inputs, i) is not None else None for i in (3, 4))
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    index: list[slice] = [slice(None)] * array.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # Backwards from before the front: ONNX starts at the first number, Python has none left.
        first = max(start, -array.shape[axis]) if step < 0 else start
        index[axis] = slice(first, end, step)
    return array[tuple(index)]


def _trilu(node: Node, inputs: Inputs, array: Array) -> Array:
    diagonal = min(
        max(only(inputs, 1, 0), -array.shape[-2]), array.shape[-1]
    )  # any further keeps all, or none
    return np.triu(array, diagonal) if node.get("upper", 1) else np.tril(array, diagonal)


def _gather(node: Node, inputs: Inputs, array: Array) -> Array:
    return np.take(array, placing(inputs, 1), axis=node.get("axis", 0))


def _gather_elements(node: Node, inputs: Inputs, array: Array) -> Array:
    return np.asarray(array[along(placing(inputs, 1), node.get("axis", 0))])


def along(indices: Array, axis: int) -> tuple[Array, ...]:
    """Return where each entry of `indices` points to: its own place but along the axis."""
    places: list[Array] = list(np.indices(indices.shape, sparse=True))
    places[axis] = indices
    return tuple(places)


def _gather_nd(node: Node, inputs: Inputs, array: Array) -> Array:
    indices = placing(inputs, 1)
    batch = np.indices(indices.shape[:-1], sparse=True)[: node.get("batch_dims", 0)]
    return np.asarray(array[(*batch, *np.moveaxis(indices, -1, 0))])


def _compress(node: Node, inputs: Inputs, array: Array) -> Array:
    return np.compress(placing(inputs, 1), array, node.get("axis"))


def _reverse_sequence(node: Node, inputs: Inputs, array: Array) -> Array:
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    lengths = np.expand_dims(placing(inputs, 1), time)  # of two axes, batch and time
    steps = np.expand_dims(np.arange(array.shape[time]), batch)
    places = np.where(steps < lengths, lengths - 1 - steps, steps)
    places = places.reshape(*places.shape, *(1,) * (array.ndim - 2))
    return np.take_along_axis(array, places, time)


def _one_hot(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    indices, depth = placing(inputs, 0).astype(np.int64), only(inputs, 1, 0)
    axis = node.get("axis", -1)
    wrapped = np.expand_dims(np.where(indices < 0, indices + depth, indices), axis)
    shape = [1] * wrapped.ndim
    shape[axis] = depth
    hot = wrapped == np.arange(depth).reshape(shape)
    return [required(inputs, 2).moved(lambda values: np.where(hot, values[1], values[0]))]


def _non_zero(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a = required(inputs, 0)
    error = np.asarray(a.errors())
    if np.any((error > 0) & (np.abs(a.value) <= error)):
        raise UnsupportedOperatorError("NonZero of a number that is zero within its rounding error")
    places = np.nonzero(np.atleast_1d(a.value))
    # A scalar has no axes: ONNX tells one column of none for each number that is not zero.
    stacked = np.stack(places) if a.value.ndim else np.zeros((0, len(places[0])))
    return [Bounded(stacked.astype(np.int64))]


OPERATORS: dict[str, Operator] = {
    "Slice": moving(_slice),
    "Trilu": moving(_trilu),
    "Gather": moving(_gather),
    "GatherElements": moving(_gather_elements),
    "GatherND": moving(_gather_nd),
    "Compress": moving(_compress),
    "ReverseSequence": moving(_reverse_sequence),
    "OneHot": _one_hot,
    "NonZero": _non_zero,
}
