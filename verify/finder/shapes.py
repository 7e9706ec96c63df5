"""Sizes that ONNX's own inference leaves open, from the nodes themselves.

The older exporter makes the shape of a Reshape of parts, some taken from an input's sizes: which of them are numbers
decides what the head size is, and inference gives such a value no sizes at all.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx_attest.verify.finder.graph import Axis, Scope, Shape

_SAME = frozenset({
    "Cast", "CastLike", "Identity", "Neg", "Softmax", "LogSoftmax", "Exp", "Tanh", "Dropout", "Clip", "Relu", "Sqrt",
    "QuantizeLinear", "DequantizeLinear", "Trilu", "LayerNormalization", "RMSNormalization", "Not", "IsNaN",
})  # fmt: skip
_BROADCAST = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Max", "Min", "Pow", "And", "Or"})


def complete(scope: Scope) -> None:
    """Write down the shapes of a graph's values that are still missing, in the order of its nodes."""
    for node in scope.nodes:
        if not node.output or scope.shapes.get(node.output[0]) is not None:
            continue
        shape = _shape(scope, node)
        if shape is not None:
            scope.shapes[node.output[0]] = shape


def _shape(scope: Scope, node: Any) -> Shape | None:
    if node.domain not in ("", "ai.onnx") or not node.input:
        return None
    kind = node.op_type
    if kind == "Reshape":
        return _reshaped(scope, node)
    shapes = [scope.shape(name) for name in node.input if name]
    if not shapes or shapes[0] is None:
        return None
    first = shapes[0]
    if kind in _SAME:
        return first
    if kind == "Transpose":
        return _transposed(scope, node, first)
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    if kind in _BROADCAST:
        return _broadcast(known)
    if kind == "MatMul" and len(first) > 1 and len(known[1]) > 1:
        return (*_broadcast([first[:-2], known[1][:-2]]), first[-2], known[1][-1])
    return None


def _transposed(scope: Scope, node: Any, shape: Shape) -> Shape | None:
    from onnx_attest.verify.finder.graph import attribute

    order = attribute(node, "perm")
    order = range(len(shape))[::-1] if order is None else order
    return tuple(shape[axis] for axis in order) if sorted(order) == list(range(len(shape))) else None


def _broadcast(shapes: list[Shape]) -> Shape:
    """Return the sizes of values that are broadcast; None where two names may be the same number or not."""
    columns = zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)
    return tuple(map(_widest, columns))[::-1]


def _widest(sizes: tuple[Axis, ...]) -> Axis:
    large = {size for size in sizes if size != 1}
    if not large:
        return 1
    numbers = {size for size in large if isinstance(size, int)}
    return next(iter(large)) if len(large) == 1 else next(iter(numbers), None)


def _reshaped(scope: Scope, node: Any) -> Shape | None:
    data = scope.shape(node.input[0])
    parts = _parts(scope, node.input[1])
    if parts is None:
        return None
    zeros = [index for index, part in enumerate(parts) if part == 0]
    if zeros and (data is None or zeros[-1] >= len(data)):
        return tuple(None if part in (0, -1) else part for part in parts)
    sizes = [data[index] if part == 0 and data is not None else part for index, part in enumerate(parts)]
    return tuple(None if size == -1 else size for size in sizes)


def _parts(scope: Scope, name: str) -> list[Axis] | None:
    """Return the elements of a vector of sizes: a number, the name of an axis whose size it is, or None."""
    whole = scope.constant(name)
    if whole is not None:
        return [int(part) for part in whole.reshape(-1)]
    node = scope.maker(name)
    if node is None or node.op_type != "Concat":
        return None
    parts: list[Axis] = []
    for one in node.input:
        given = scope.constant(one)
        if given is not None:
            parts += [int(part) for part in given.reshape(-1)]
            continue
        shape = scope.shape(one)
        if shape is not None and shape != (1,):
            return None
        parts.append(scope.size_named(one))
    return parts
