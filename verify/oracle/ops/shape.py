"""Operators that move numbers without changing them: values and errors go the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Array, Bounded, exact
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    required,
    tensors,
)

Mover = Callable[[Node, Inputs, Array], Array]


def _moving(move: Mover) -> Operator:
    """Return the operator that applies `move` to the value and to the error of its first input."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        return [required(inputs, 0).moved(lambda array: move(node, inputs, array))]

    return operator


def _identity(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return [required(inputs, 0)]


def _reshape(node: Node, inputs: Inputs, array: Array) -> Array:
    sizes = integers(inputs, 1)
    if not node.get("allowzero", 0):
        sizes = [array.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return array.reshape(sizes)


def _transpose(node: Node, inputs: Inputs, array: Array) -> Array:
    return array.transpose(node.get("perm") or tuple(reversed(range(array.ndim))))


def _expand(node: Node, inputs: Inputs, array: Array) -> Array:
    return np.broadcast_to(array, np.broadcast_shapes(array.shape, tuple(integers(inputs, 1))))


def _unsqueeze(node: Node, inputs: Inputs, array: Array) -> Array:
    axes = _given_axes(node, inputs) or []
    rank = array.ndim + len(axes)
    return np.expand_dims(array, tuple(axis % rank for axis in axes))


def _squeeze(node: Node, inputs: Inputs, array: Array) -> Array:
    axes = _given_axes(node, inputs)
    return np.squeeze(array, None if axes is None else tuple(axes))


def _given_axes(node: Node, inputs: Inputs) -> list[int] | None:
    """Return the axes: an attribute before opset 13, an input since."""
    if optional(inputs, 1) is not None:
        return integers(inputs, 1)
    return node.get("axes")  # type: ignore[no-any-return]


def _slice(node: Node, inputs: Inputs, array: Array) -> Array:
    if optional(inputs, 1) is None:  # before opset 10
        raise UnsupportedOperatorError("Slice with attributes, before opset 10")
    starts, ends = integers(inputs, 1), integers(inputs, 2)
    axes = integers(inputs, 3) if optional(inputs, 3) is not None else list(range(len(starts)))
    steps = integers(inputs, 4) if optional(inputs, 4) is not None else [1] * len(starts)
    index: list[slice] = [slice(None)] * array.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # A negative step that runs to the front names an end below every index: None for Python.
        stop = None if step < 0 and end < -array.shape[axis] else end
        index[axis] = slice(start, stop, step)
    return array[tuple(index)]


def _trilu(node: Node, inputs: Inputs, array: Array) -> Array:
    diagonal = integers(inputs, 1)[0] if optional(inputs, 1) is not None else 0
    return np.triu(array, diagonal) if node.get("upper", 1) else np.tril(array, diagonal)


def _gather(node: Node, inputs: Inputs, array: Array) -> Array:
    return np.take(array, required(inputs, 1).value, axis=node.get("axis", 0))


def _concat(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return [bounded.concatenated(tensors(inputs), node.get("axis"))]


def _split(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a, axis = required(inputs, 0), node.get("axis", 0)
    size, parts = a.value.shape[axis], len(node.outputs)
    node.get("num_outputs")  # opset 18: it says how many outputs the node has
    if optional(inputs, 1) is not None:
        sizes = integers(inputs, 1)
    else:
        each = -(-size // parts)  # the last part is the shorter one (opset 18)
        sizes = node.get("split") or [each] * (parts - 1) + [size - each * (parts - 1)]
    cuts = np.cumsum(sizes)[:-1]
    return [a.moved(lambda array, index=index: np.split(array, cuts, axis)[index]) for index in range(parts)]  # type: ignore[misc]


def _shape(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    sizes = np.array(required(inputs, 0).value.shape, np.int64)
    return [Bounded(sizes[node.get("start", 0) : node.get("end", len(sizes))])]


def _constant(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    if "value" in node.attributes:
        return [exact(onnx.numpy_helper.to_array(node.get("value")))]
    (name, value), *_ = node.attributes.items()
    dtypes: dict[str, Any] = {
        "value_float": np.float64, "value_floats": np.float64, "value_int": np.int64, "value_ints": np.int64
    }  # fmt: skip
    if name not in dtypes:
        raise UnsupportedOperatorError(f"Constant with {name}")
    return [Bounded(np.asarray(value, dtypes[name]))]


def _constant_of_shape(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    fill = node.get("value")
    value = np.zeros(1, np.float64) if fill is None else exact(onnx.numpy_helper.to_array(fill)).value
    return [Bounded(np.full(integers(inputs, 0), value[0], value.dtype))]


def _range(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Range of whole numbers, whatever their dtype; of others, rounding decides how many there are."""
    ends = [required(inputs, index).value.reshape(()) for index in range(3)]
    if any(required(inputs, index).error is not None for index in range(3)) or any(end % 1 for end in ends):
        raise UnsupportedOperatorError("Range of fractions: its length depends on rounding")
    return [Bounded(np.arange(*(int(end) for end in ends)).astype(ends[0].dtype))]


OPERATORS: dict[str, Operator] = {
    "Identity": _identity,
    "Reshape": _moving(_reshape),
    "Transpose": _moving(_transpose),
    "Expand": _moving(_expand),
    "Unsqueeze": _moving(_unsqueeze),
    "Squeeze": _moving(_squeeze),
    "Slice": _moving(_slice),
    "Trilu": _moving(_trilu),
    "Gather": _moving(_gather),
    "Concat": _concat,
    "Split": _split,
    "Shape": _shape,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
}
