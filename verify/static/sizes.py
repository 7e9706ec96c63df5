"""Rules about axes that were to be dynamic."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnx_attest.verify.finder.found import Found
from onnx_attest.verify.finder.graph import Scope, Shape, attribute, label
from onnx_attest.verify.findings import Finding, finding


def fixed_by_a_constant(found: Found, _empty_rows: str, traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield constants that hold the size of an axis which is open in the file.

    A shape without a -1 or 0 fits one number of elements; that is certain. Where the sizes that the module was traced
    with are known, a constant that equals one of them, at a place where nothing else in the file has that size, is
    nearly so.
    """
    scope = found.scopes[0]
    dynamic = {
        axis for name in scope.inputs for axis in scope.shapes.get(name, ()) if isinstance(axis, str) and axis
    }
    if not dynamic:
        return
    for node in scope.nodes:
        yield from _in_shape(scope, node, traced, dynamic)
        yield from _in_parts(scope, node, traced)
        yield from _in_slice(scope, node, traced)
    yield from _in_masks(found, traced)


def _in_shape(scope: Scope, node: Any, traced: Mapping[str, int], dynamic: set[str]) -> Iterator[Finding]:
    if node.op_type != "Reshape" or len(node.input) < 2:
        return
    shape, data = scope.constant(node.input[1]), scope.shape(node.input[0])
    if shape is None or data is None or scope.is_constant(node.input[0]):
        return
    sizes = [int(size) for size in shape.reshape(-1)]
    # A name that inference made up may be a number all the same.
    open_ = [axis for axis in data if isinstance(axis, str) and _names(axis) and _names(axis) <= dynamic]
    kept = -1 in sizes or (0 in sizes and not attribute(node, "allowzero"))
    if open_ and not kept:
        text = f"{label(node)} makes {sizes} of {node.input[0]}, whose axis {open_[0]} is open: only one size fits"
        yield finding("OA121", text, blame="exporter", node=label(node))
        return
    for axis in open_:
        size = traced.get(axis)
        if size and size > 1 and size in sizes and _explains(data, sizes, traced, axis):
            text = f"{label(node)} makes {sizes} of {node.input[0]}: {size} is the size that {axis} was traced with"
            yield finding("OA121", text, blame="exporter", node=label(node))


def _names(axis: str) -> set[str]:
    """Return the names in an axis such as past + 2*seq."""
    return set(re.findall(r"[A-Za-z_][\w.]*", axis))


def _explains(data: Shape, sizes: Sequence[int | None], traced: Mapping[str, int], axis: str) -> bool:
    """Whether the numbers of a new shape are those of the old one times the size that an axis was traced with.

    Numbers that multiply to what the old ones do are theirs: of heads, or groups. Where an old one is not known, nobody
    can tell.

    Args:
        data: sizes before, names where they are open.
        sizes: after; 0 for one that stays, -1 or None for one that is open.
        traced: of the open axes; others may be among the numbers as well.
        axis: the one in question.
    """
    if any(size is None for size in data):
        return False
    left = [size for index, size in enumerate(data) if index >= len(sizes) or sizes[index] != 0]
    before = math.prod(size for size in left if isinstance(size, int))
    after = math.prod(size for size in sizes if size is not None and size > 0)
    others = {1}
    for size in left:
        if isinstance(size, str) and size in traced and size != axis:
            others |= {traced[size] * one for one in others}
    return bool(before) and after in {before * traced[axis] * one for one in others}


def _in_parts(scope: Scope, node: Any, traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield shapes that are put together of sizes and of a constant that is a traced one, as the older exporter does."""
    made = scope.maker(node.input[1]) if node.op_type == "Reshape" and len(node.input) > 1 else None
    if made is None or made.op_type != "Concat":
        return
    numbers = {int(value) for name in made.input if (value := scope.number(name)) is not None}
    if len(numbers) == len(made.input):
        return  # all of it is constant, and is looked at as such
    data = scope.shape(node.input[0])
    sizes = [None if part is None else int(part) for part in map(scope.number, made.input)]
    # Where the axis is still there, the number is another's: of groups, for example.
    there = {*(scope.shape(node.output[0]) or ()), *map(scope.size_named, made.input)}
    for axis, size in traced.items():
        if size < 2 or size not in numbers or axis in there:
            continue
        # Of data whose sizes nobody knows: a number that nothing else in the file has.
        told = (
            size not in _lengths(scope)
            if data is None
            else axis in data and _explains(data, sizes, traced, axis)
        )
        if told:
            text = (
                f"{label(node)} makes a shape with the constant {size}, the size that {axis} was traced with"
            )
            yield finding("OA121", text, blame="exporter", node=label(node))


def _lengths(scope: Scope) -> set[int]:
    """Return the sizes of the constants and inputs of a graph."""
    found = {length for tensor in scope.tensors.values() for length in tensor.dims}
    return found | {
        length for name in scope.inputs for length in scope.shapes.get(name, ()) if isinstance(length, int)
    }


def _in_slice(scope: Scope, node: Any, traced: Mapping[str, int]) -> Iterator[Finding]:
    if node.op_type != "Slice" or len(node.input) < 4:
        return
    ends, axes = scope.constant(node.input[2]), scope.constant(node.input[3])
    data = scope.shape(node.input[0])
    if ends is None or axes is None or data is None:
        return
    for end, axis in zip(ends.reshape(-1).tolist(), axes.reshape(-1).tolist(), strict=False):
        name = data[int(axis)] if -len(data) <= axis < len(data) else None
        if isinstance(name, str) and traced.get(name) == end and end > 1:
            text = f"{label(node)} cuts {node.input[0]} at {int(end)} along {name}: the size that was traced"
            yield finding("OA121", text, blame="exporter", node=label(node))


def _in_masks(found: Found, traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield masks and biases that are constants of as many keys as were traced."""
    for attention in found.attentions:
        for mask in attention.masks:
            shape = attention.scope.shape(mask.value) if attention.scope.is_constant(mask.value) else None
            logits = attention.scope.shape(attention.softmax.logits)
            if logits and isinstance(logits[-1], int):
                continue  # so many keys there always are, in a window for example
            sizes = {axis: size for axis, size in traced.items() if size > 1}
            fixed = [axis for axis, size in sizes.items() if shape and shape[-1] == size and len(shape) > 1]
            if fixed:
                text = f"{mask.node} reads a constant of the sizes {list(shape or ())}: {fixed[0]} was traced with {sizes[fixed[0]]}"
                yield finding("OA121", text, blame="exporter", node=mask.node)
