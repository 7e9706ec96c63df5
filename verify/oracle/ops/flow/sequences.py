"""Sequences and optionals: a sequence is `Listed`, an optional is its content or None."""

from __future__ import annotations

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.moves.moving import only
from onnx_attest.verify.oracle.ops.moves.shape import split
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    required,
    sequence,
)
from onnx_attest.verify.oracle.values import Listed, Value


def _construct(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    return [Listed(tuple(inputs))]


def _empty(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    node.get("dtype")
    return [Listed(())]


def _at(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    items = sequence(inputs, 0).items
    return [items[_position(inputs, 1, len(items), -1)]]


def _insert(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    items = sequence(inputs, 0).items
    at = _position(inputs, 2, len(items), len(items), behind=1)
    return [Listed((*items[:at], inputs[1], *items[at:]))]


def _erase(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    items = sequence(inputs, 0).items
    at = _position(inputs, 1, len(items), -1)
    return [Listed((*items[:at], *items[at + 1 :]))]


def _position(inputs: Inputs, index: int, size: int, default: int, *, behind: int = 0) -> int:
    """Return a place in a sequence, counted from the front; one may be inserted behind the last as well."""
    given = only(inputs, index, default)
    place = given + size if given < 0 else given
    if not 0 <= place < size + behind:
        raise UnsupportedOperatorError(f"place {given} in a sequence of {size}")
    return place


def _length(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    return [Bounded(np.array(len(sequence(inputs, 0).items), np.int64))]


def _split_to_sequence(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    a, axis, keepdims = required(inputs, 0), node.get("axis", 0), node.get("keepdims", 1)
    size, given = a.value.shape[axis], optional(inputs, 1)
    if given is not None and given.value.ndim:
        sizes = integers(inputs, 1)
    else:
        each = only(inputs, 1, 1)
        sizes = [min(each, size - start) for start in range(0, size, each)]
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise UnsupportedOperatorError(f"SplitToSequence of {size} into parts of {sizes}")
    parts = split(a, sizes, axis) if sizes else []
    if given is None and not keepdims:
        parts = [part.moved(lambda array: np.squeeze(array, axis)) for part in parts]
    return [Listed(tuple(parts))]


def _concat_from_sequence(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    items, axis = sequence(inputs, 0).items, node.get("axis")
    parts = [required(items, index) for index in range(len(items))]
    return [stacked(parts, axis) if node.get("new_axis", 0) else bounded.concatenated(parts, axis)]


def stacked(parts: list[Bounded], axis: int) -> Bounded:
    """Return the parts one behind the other along a new axis."""
    return bounded.concatenated(
        [part.moved(lambda array: np.expand_dims(array, axis)) for part in parts], axis
    )


def _optional(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    node.get("type")
    return [inputs[0] if inputs else None]


def _get_element(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    if inputs[0] is None:
        raise UnsupportedOperatorError("the element of an empty optional")
    return [inputs[0]]


def _has_element(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    return [Bounded(np.array(bool(inputs) and inputs[0] is not None))]


OPERATORS: dict[str, Operator] = {
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceAt": _at,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceLength": _length,
    "SplitToSequence": _split_to_sequence,
    "ConcatFromSequence": _concat_from_sequence,
    "Optional": _optional,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
}
