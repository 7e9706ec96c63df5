"""How a graph uses its inputs: what an integer indexes, and which of them hide keys from an attention.

A file says names, dtypes and axes; what may be fed is in the graph. Values are followed forward from an input through
nodes that only move or convert them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx

from onnx_attest.export.observe import STANDARD_DOMAINS
from onnx_attest.verify.oracle.types import graphs_in

_MOVING = frozenset({
    "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Expand", "Flatten", "Split", "Concat",
    "Tile", "Gather", "CastLike", "GatherND", "Pad", "ScatterND", "ScatterElements", "GatherElements",
})  # fmt: skip
_MASKING = _MOVING | {
    "Not", "Sub", "Mul", "Div", "Neg", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Where",
    "Add", "Min", "Max", "Trilu", "Clip", "IsNaN",
}  # fmt: skip
_INDEXING = ("Gather", "GatherElements")
"""Their second input says where in the first one."""
_EMBEDDINGS = {0: 2, 1: 4, 8: 3}
"""com.microsoft EmbedLayerNormalization: ids, segments and positions, and the table of each."""
_WHOLE = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
_ATTENTIONS = {"Attention": 3, "com.microsoft.Attention": 3, "com.microsoft.MultiHeadAttention": 4}
"""The input that is a mask."""
_COUNTING = frozenset({
    "Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Sign", "Min", "Max", "Clip", "Where", "ReduceSum", "MatMulInteger",
    "ConvInteger", "QLinearMatMul", "QLinearConv", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot",
})  # fmt: skip
"""They take any integer: as a number, never as a place or a size."""
_DECIDING = frozenset({"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "DequantizeLinear"})
"""They do so too, and give no integers."""
_SAID_WHERE = frozenset({
    "Gather", "GatherElements", "GatherND", "Reshape", "Slice", "Expand", "Tile", "Pad", "Split", "Squeeze", "Unsqueeze",
    "ReduceSum", "ScatterND", "ScatterElements",
})  # fmt: skip
"""Of these the first input is data; others are places, axes and sizes."""
_BYTES = {onnx.TensorProto.UINT8: (0, 256), onnx.TensorProto.INT8: (-128, 128)}
_NUMBERS = (-100, 101)
_LENGTHS = (1, 17)


@dataclass(frozen=True)
class Usage:
    """What a graph does with one of its inputs.

    Attributes:
        below: values from 0 up to here, not included, index a table within its size; None where none is indexed.
        masks: whether it decides which keys an attention may see.
        least: the smallest of these values.
    """

    below: int | None = None
    masks: bool = False
    least: int = 0


class Uses:
    """The uses of all inputs of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Read the graph."""
        self._graph = model.graph
        self._consumers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in model.graph.node:
            for place, name in enumerate(node.input):
                self._consumers.setdefault(name, []).append((node, place))

    def of(self, name: str) -> Usage:
        """Return how an input is used."""
        below, masks = self._below(name), self._masks(name)
        if below is None and (numbers := self._numbers(name, masks=masks)):
            return Usage(numbers[1], masks, numbers[0])
        return Usage(below, masks)

    def _numbers(self, name: str, *, masks: bool) -> tuple[int, int] | None:
        """Return from where up to where, not included, an input's integers may be anything, None if they may not."""
        value = next((value for value in self._graph.input if value.name == name), None)
        kind = value.type.tensor_type.elem_type if value else 0
        axes = len(value.type.tensor_type.shape.dim) if value else 0
        if kind not in (*_WHOLE, *_BYTES) or "mask" in name.lower() or (masks and axes > 1):
            return None
        divides = self._only_counts(name)
        if divides is None:
            return None
        if masks or divides:  # lengths of sequences, and what nothing may be divided by if it is zero
            return _LENGTHS
        return _BYTES.get(kind, _NUMBERS)

    def _only_counts(self, name: str) -> bool | None:
        """Return whether something is divided by a value that is only computed with, None if it is more than that."""
        if name in self._inside:
            return None
        divides = False
        reached, seen = [name], {name}
        while reached:
            for node, place in self._consumers.get(reached.pop(), []):
                if not _takes_any(node, place):
                    return None
                divides |= node.op_type in ("Div", "Mod") and place == 1
                fresh = [output for output in node.output if output and output not in seen]
                seen.update(fresh)
                reached += fresh if _gives_integers(node) else []
        return divides

    @cached_property
    def _inside(self) -> set[str]:
        """The names that graphs inside this one use."""
        inner = [graph for graph in graphs_in(self._graph) if graph is not self._graph]
        return {name for graph in inner for node in graph.node for name in node.input}

    @cached_property
    def _constants(self) -> Mapping[str, onnx.TensorProto]:
        made = [
            (node.output[0], attribute.t)
            for node in self._graph.node
            for attribute in node.attribute
            if node.op_type == "Constant" and attribute.name == "value"
        ]
        return {tensor.name: tensor for tensor in self._graph.initializer} | dict(made)

    def _below(self, name: str) -> int | None:
        """Return the smallest table that the values of an input index, less what is added to them first."""
        found: list[int] = []
        reached = [(name, 0)]
        seen = {name}
        while reached:
            current, added = reached.pop()
            for node, place in self._consumers.get(current, []):
                if (size := self._indexes(node, place)) is not None:
                    found.append(size - added)
                    continue
                more = self._added(node, current) if node.op_type in ("Add", "Sub") else 0
                if more is None or (node.op_type not in _MOVING and node.op_type not in ("Add", "Sub")):
                    continue
                for output in node.output:
                    if output not in seen:
                        seen.add(output)
                        reached.append((output, added + more))
        return max(1, min(found)) if found else None

    def _indexes(self, node: onnx.NodeProto, place: int) -> int | None:
        """Return how many values may be indexed by a node's input, None if it indexes nothing of a known size."""
        if node.op_type == "EmbedLayerNormalization" and place in _EMBEDDINGS:
            return self._size(node.input[_EMBEDDINGS[place]], 0)
        if node.op_type not in _INDEXING or node.domain not in STANDARD_DOMAINS or place != 1:
            return None
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        return self._size(node.input[0], axis)

    def _size(self, table: str, axis: int) -> int | None:
        tensor = self._constants.get(table)
        return None if tensor is None or axis >= len(tensor.dims) else int(tensor.dims[axis])

    def _added(self, node: onnx.NodeProto, current: str) -> int | None:
        """Return the constant that is added to a value, None if it is no constant."""
        other = next((name for name in node.input if name != current), "")
        tensor = self._constants.get(other)
        if tensor is None or int(np.prod(tensor.dims)) != 1 or tensor.data_type not in _WHOLE:
            return None
        number = int(onnx.numpy_helper.to_array(tensor).reshape(-1)[0])
        return -number if node.op_type == "Sub" else number

    def _masks(self, name: str) -> bool:
        """Whether a value reaches the mask of an attention: what is added to, or chosen for, what goes into a softmax."""
        before_softmax = self._before_softmax
        reached, seen = [name], {name}
        while reached:
            current = reached.pop()
            for node, place in self._consumers.get(current, []):
                operator = (
                    f"{node.domain}.{node.op_type}" if node.domain not in STANDARD_DOMAINS else node.op_type
                )
                if _ATTENTIONS.get(operator) == place:
                    return True
                if (
                    node.output
                    and node.output[0] in before_softmax
                    and node.op_type in ("Add", "Where", "Sub")
                ):
                    return True
                if node.op_type not in _MASKING:
                    continue
                for output in node.output:
                    if output and output not in seen:
                        seen.add(output)
                        reached.append(output)
        return False

    @cached_property
    def _before_softmax(self) -> set[str]:
        """What goes into a softmax that is computed from products: the sums and choices right before it."""
        makers = {output: node for node in self._graph.node for output in node.output if output}
        found: set[str] = set()
        for node in self._graph.node:
            if node.op_type == "Softmax":
                found |= set(_behind(node.input[0], makers))
        return found


def _takes_any(node: onnx.NodeProto, place: int) -> bool:
    """Whether a node takes any integer as one of its inputs, as data."""
    if node.domain not in STANDARD_DOMAINS or (node.op_type in _SAID_WHERE and place > 0):
        return False
    return node.op_type in _MOVING | _COUNTING | _DECIDING


def _gives_integers(node: onnx.NodeProto) -> bool:
    """Whether a node gives integers where it is given some: a float, or a truth, is no place in a table."""
    to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
    return node.op_type not in _DECIDING and (node.op_type != "Cast" or to in (*_WHOLE, *_BYTES))


def _behind(name: str, makers: Mapping[str, onnx.NodeProto]) -> Iterator[str]:
    """Yield a value and those it is made of, as far as a mask is added or chosen on the way."""
    reached = [name]
    for _ in range(8):
        following = []
        for current in reached:
            yield current
            node = makers.get(current)
            if node is not None and node.op_type in (
                "Add",
                "Where",
                "Reshape",
                "Cast",
                "Sub",
                "Div",
                "Mul",
                "Identity",
            ):
                following += [
                    one for one in node.input[:3] if one in makers and makers[one].op_type != "MatMul"
                ]
        reached = following
