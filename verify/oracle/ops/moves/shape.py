"""Operators that give numbers another shape or order without changing them, and those that tell a shape."""

from __future__ import annotations

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Array, Bounded
from onnx_attest.verify.oracle.ops.moves.moving import moving
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    placing,
    required,
    tensors,
)
from onnx_attest.verify.oracle.values import Value


def _identity(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    """Return the input as it is: a tensor, a sequence, or an optional."""
    return [inputs[0]]


def _dropout(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Dropout of inference: nothing is dropped, and the mask says so since opset 12."""
    a = required(inputs, 0)
    if _drops(node, inputs):
        raise UnsupportedOperatorError("Dropout in training: what it drops is random")
    for irrelevant in ("seed", "ratio", "consumed_inputs"):
        node.get(irrelevant)
    return [a, Bounded(np.ones(a.value.shape, np.bool_))] if node.opset >= 12 else [a]


def _drops(node: Node, inputs: Inputs) -> bool:
    if node.opset < 7:
        return not node.get("is_test", 0) and node.get("ratio", 0.5) != 0
    if node.opset < 12 or optional(inputs, 2) is None or not placing(inputs, 2).any():
        return False
    return optional(inputs, 1) is None or bool(placing(inputs, 1).any())


def _reshape(node: Node, inputs: Inputs, array: Array) -> Array:
    node.get("consumed_inputs")  # of opset 1, about memory
    sizes = integers(inputs, 1) if node.opset >= 5 else list(node.get("shape", ()))
    if not node.get("allowzero", 0):
        sizes = [array.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return array.reshape(sizes)


def _flatten(node: Node, inputs: Inputs, array: Array) -> Array:
    axis = node.get("axis", 1)
    rows = array.shape[: axis + array.ndim if axis < 0 else axis]
    columns = array.shape[len(rows) :]
    return array.reshape(np.prod(rows, dtype=np.int64), np.prod(columns, dtype=np.int64))


def _transpose(node: Node, inputs: Inputs, array: Array) -> Array:
    return array.transpose(node.get("perm") or tuple(reversed(range(array.ndim))))


def _expand(node: Node, inputs: Inputs, array: Array) -> Array:
    return np.broadcast_to(array, np.broadcast_shapes(array.shape, tuple(integers(inputs, 1))))


def _tile(node: Node, inputs: Inputs, array: Array) -> Array:
    repeats = integers(inputs, 1)
    if node.opset < 6:  # so many tiles along one axis
        (tiles,), (axis,) = repeats, integers(inputs, 2)
        repeats = [1] * array.ndim
        repeats[axis] = tiles
    if len(repeats) != array.ndim:
        raise UnsupportedOperatorError(f"Tile with {len(repeats)} repeats of {array.ndim} axes")
    return np.tile(array, repeats)


def _unsqueeze(node: Node, inputs: Inputs, array: Array) -> Array:
    return np.expand_dims(array, tuple(_given_axes(node, inputs) or ()))


def _squeeze(node: Node, inputs: Inputs, array: Array) -> Array:
    axes = _given_axes(node, inputs)
    return np.squeeze(array, None if axes is None else tuple(axes))


def _given_axes(node: Node, inputs: Inputs) -> list[int] | None:
    """Return the axes: an attribute before opset 13, an input since."""
    if optional(inputs, 1) is not None:
        return integers(inputs, 1)
    return node.get("axes")  # type: ignore[no-any-return]


def _depth_to_space(node: Node, inputs: Inputs, array: Array) -> Array:
    block, (n, c, h, w) = node.get("blocksize"), array.shape
    depth = c // block**2
    if _columns_first(node):
        blocks = array.reshape(n, depth, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    else:
        blocks = array.reshape(n, block, block, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, depth, h * block, w * block)


def _space_to_depth(node: Node, inputs: Inputs, array: Array) -> Array:
    block, (n, c, h, w) = node.get("blocksize"), array.shape
    blocks = array.reshape(n, c, h // block, block, w // block, block)
    order = (0, 1, 3, 5, 2, 4) if _columns_first(node) else (0, 3, 5, 1, 2, 4)
    return blocks.transpose(order).reshape(n, c * block**2, h // block, w // block)


def _columns_first(node: Node) -> bool:
    mode = node.get("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise UnsupportedOperatorError(f"{node.operator} in the mode {mode}")
    return bool(mode == "CRD")


def _concat(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return [bounded.concatenated(tensors(inputs), node.get("axis", 1))]  # required since opset 4


def _split(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a, axis = required(inputs, 0), node.get("axis", 0)
    size, parts = a.value.shape[axis], len(node.outputs)
    given = integers(inputs, 1) if optional(inputs, 1) is not None else node.get("split")
    sizes = _even_sizes(node, size, node.get("num_outputs", parts)) if given is None else given
    if sum(sizes) != size or min(sizes) < 0 or len(sizes) != parts:
        raise UnsupportedOperatorError(f"Split of {size} into {parts} parts of {list(sizes)}")
    return split(a, sizes, axis)


def split(a: Bounded, sizes: list[int], axis: int) -> list[Bounded]:
    """Return the parts of these sizes along an axis."""
    cuts = np.cumsum(sizes)[:-1]
    return [
        a.moved(lambda array, index=index: np.split(array, cuts, axis)[index])  # type: ignore[misc]
        for index in range(len(sizes))
    ]


def _even_sizes(node: Node, size: int, parts: int) -> list[int]:
    if node.opset < 18 and size % parts:
        raise UnsupportedOperatorError(f"Split of {size} into {parts} equal parts")
    each = -(-size // parts)  # the last part is the shorter one (opset 18)
    return [each] * (parts - 1) + [size - each * (parts - 1)]


def _shape(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    sizes = np.array(required(inputs, 0).value.shape, np.int64)
    return [Bounded(sizes[node.get("start", 0) : node.get("end", len(sizes))])]


def _size(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return [Bounded(np.array(required(inputs, 0).value.size, np.int64))]


OPERATORS: dict[str, Operator] = {
    "Identity": _identity,
    "Dropout": _dropout,
    "Reshape": moving(_reshape),
    "Flatten": moving(_flatten),
    "Transpose": moving(_transpose),
    "Expand": moving(_expand),
    "Tile": moving(_tile),
    "Unsqueeze": moving(_unsqueeze),
    "Squeeze": moving(_squeeze),
    "DepthToSpace": moving(_depth_to_space),
    "SpaceToDepth": moving(_space_to_depth),
    "Concat": _concat,
    "Split": _split,
    "Shape": _shape,
    "Size": _size,
}
