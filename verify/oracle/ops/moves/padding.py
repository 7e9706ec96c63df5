"""Operators that add to the ends of axes, or cut from them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Array, Bounded
from onnx_attest.verify.oracle.ops.moves.moving import arranged, moving
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    required,
)

Ends = dict[int, tuple[int, int]]
"""How much to add at the front and the back of each axis that is named."""


def _pad(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    data, mode = required(inputs, 0), node.get("mode", "constant")
    ends, fill = _ends(node, inputs, data.value.ndim), _fill(node, inputs, data)
    cut = data.moved(lambda array: _cut(array, ends))
    if mode == "constant":
        return [arranged(lambda array, constant: _surrounded(array, ends, constant), cut, fill)]
    if mode not in _PLACES:
        raise UnsupportedOperatorError(f"Pad in the mode {mode}")
    return [cut.moved(lambda array: _continued(array, ends, mode))]


def _ends(node: Node, inputs: Inputs, rank: int) -> Ends:
    attribute = "pads" if node.opset >= 2 else "paddings"
    pads = node.get(attribute) if node.opset < 11 else integers(inputs, 1)
    axes = integers(inputs, 3) if optional(inputs, 3) is not None else range(rank)
    fronts, backs = pads[: len(axes)], pads[len(axes) :]
    return {axis % rank: pair for axis, *pair in zip(axes, fronts, backs, strict=True)}  # type: ignore[misc]


def _fill(node: Node, inputs: Inputs, data: Bounded) -> Bounded:
    if node.opset < 11:
        return node.real("value", 0.0).moved(lambda array: array.reshape(()))
    given = optional(inputs, 2)
    if given is None:
        return Bounded(np.zeros((), data.value.dtype))
    return given.moved(lambda array: array.reshape(()))


def _cut(array: Array, ends: Ends) -> Array:
    """Return the array without what negative pads remove; the others then continue what is left."""
    for axis, (front, back) in ends.items():
        size = array.shape[axis]
        kept = slice(max(-front, 0), size - max(-back, 0))
        if kept.stop < kept.start:
            raise UnsupportedOperatorError("Pad that removes more than there is")
        array = array[(*[slice(None)] * axis, kept)]
    return array


def _surrounded(array: Array, ends: Ends, constant: Array) -> Array:
    pairs = [tuple(max(end, 0) for end in ends.get(axis, (0, 0))) for axis in range(array.ndim)]
    shape = [front + size + back for size, (front, back) in zip(array.shape, pairs, strict=True)]
    result = np.full(shape, constant, array.dtype)
    inside = [slice(front, front + size) for size, (front, _) in zip(array.shape, pairs, strict=True)]
    result[tuple(inside)] = array
    return result


def _continued(array: Array, ends: Ends, mode: str) -> Array:
    for axis, (front, back) in ends.items():
        if front <= 0 and back <= 0:
            continue
        size = array.shape[axis]
        places = _PLACES[mode](np.arange(-max(front, 0), size + max(back, 0)), size)
        array = np.take(array, places, axis)  # of an axis without numbers there is nothing to take: it raises
    return array


def _reflected(places: Array, size: int) -> Array:
    period = max(2 * (size - 1), 1)
    return np.asarray((size - 1) - np.abs(places % period - (size - 1)))


_PLACES: dict[str, Callable[[Array, int], Array]] = {
    "reflect": _reflected,
    "edge": lambda places, size: np.clip(places, 0, size - 1),
    "wrap": lambda places, size: places % size,
}


def _center_crop_pad(node: Node, inputs: Inputs, array: Array) -> Array:
    sizes = integers(inputs, 1)
    axes = [axis % array.ndim for axis in node.get("axes") or range(array.ndim)]
    # Halves are rounded down: half a place to the left when cutting, one more on the right when adding.
    missing = {axis: size - array.shape[axis] for axis, size in zip(axes, sizes, strict=True)}
    fronts = {axis: less // 2 if less > 0 else -(-less // 2) for axis, less in missing.items()}
    ends = {axis: (fronts[axis], less - fronts[axis]) for axis, less in missing.items()}
    return _surrounded(_cut(array, ends), ends, np.zeros((), array.dtype))


OPERATORS: dict[str, Operator] = {"Pad": _pad, "CenterCropPad": moving(_center_crop_pad)}
