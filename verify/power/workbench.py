"""A copy of a model whose graph can be cut open: nodes go in at an edge or in place of a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.verify.finder.messages import with_shapes
from onnx_attest.verify.oracle.graph import constants_of

LOWEST_OPSET = 13
"""Since then Softmax sums one axis, and Unsqueeze and ReduceSum take their axes as an input."""
_REDUCE_MAX_TAKES_AXES = 18
_END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Edge:
    """Where one node reads a value: the node, by its first output, and the place among its inputs."""

    node: str
    index: int


class Workbench:
    """A model being changed; the one it was made from stays as it is.

    New nodes may be made in any order: `finish` sorts them.
    """

    def __init__(self, model: onnx.ModelProto, like: Workbench | None = None) -> None:
        """Copy a model; `like` is a workbench with the same one, whose shapes and constants are taken over."""
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self.opset = opset_of(model)
        self.constants: dict[str, NDArray[Any]] = (
            constants_of(model) if like is None else dict(like.constants)
        )
        self._producers = {name: node for node in self.graph.node for name in node.output if name}
        self._taken = set(_names(self.graph))
        self._types: dict[str, onnx.TypeProto.Tensor] = _types(model) if like is None else dict(like._types)

    def copy(self) -> Workbench:
        """Return another workbench with the same model."""
        return Workbench(self.model, like=self)

    def producer(self, value: str) -> onnx.NodeProto | None:
        """Return the node that gives a value, None for an input, an initializer and "" ."""
        return self._producers.get(value)

    def consumers(self, value: str) -> list[onnx.NodeProto]:
        """Return the nodes that read a value."""
        return [node for node in self.graph.node if value in node.input]

    def read(self, edge: Edge) -> str:
        """Return the name of the value at an edge, "" if none is given."""
        inputs = self._producers[edge.node].input
        return str(inputs[edge.index]) if edge.index < len(inputs) else ""

    def shape(self, value: str) -> tuple[int | str | None, ...] | None:
        """Return the axes of a value as far as shape inference knows them, None if not even their number."""
        kind = self._types.get(value)
        if value in self.constants:
            return tuple(self.constants[value].shape)
        if kind is None or not kind.HasField("shape"):
            return None
        return tuple(
            axis.dim_value if axis.HasField("dim_value") else axis.dim_param or None
            for axis in kind.shape.dim
        )

    def dtype(self, value: str) -> np.dtype[Any]:
        """Return the dtype of a value, float32 if inference does not know it."""
        if value in self.constants:
            return self.constants[value].dtype
        kind = self._types.get(value)
        if kind is None or not kind.elem_type:
            return np.dtype(np.float32)
        dtype: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        return dtype

    def is_boolean(self, value: str) -> bool:
        """Whether a value is of booleans."""
        return self.dtype(value) == np.dtype(bool)

    def fresh(self, name: str) -> str:
        """Return a name that nothing has."""
        candidate, count = name, 1
        while candidate in self._taken:
            candidate, count = f"{name}_{count}", count + 1
        self._taken.add(candidate)
        return candidate

    def op(self, op_type: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Return the output of a new node."""
        return self.node(op_type, inputs, (self.fresh(name or f"power_{op_type.lower()}"),), **attributes)

    def node(self, op_type: str, inputs: Iterable[str], outputs: Iterable[str], **attributes: Any) -> str:
        """Make a node with outputs of these names and return the first."""
        names = tuple(outputs)
        name = self.fresh(f"node_{names[0]}")
        made = onnx.helper.make_node(op_type, list(inputs), names, name=name, **attributes)
        self.graph.node.append(made)
        # What is appended is a copy: later changes have to reach that one.
        self._producers.update(dict.fromkeys((name for name in names if name), self.graph.node[-1]))
        return names[0]

    def constant(self, value: NDArray[Any] | float | list[int], dtype: Any = np.int64) -> str:
        """Return the name of a new initializer; a list is one of sizes, axes or positions."""
        value = np.asarray(value, dtype)
        name = self.fresh("power_constant")
        self.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        self.constants[name] = value
        return name

    def insert(self, edge: Edge, change: Callable[[str], str]) -> None:
        """Let one node read `change` of what it read; all others go on as before."""
        self.connect(edge, change(self.read(edge)))

    def connect(self, edge: Edge, value: str) -> None:
        """Let one node read this value; "" takes an optional input away."""
        inputs = self._producers[edge.node].input
        while len(inputs) <= edge.index:
            inputs.append("")
        inputs[edge.index] = value
        while inputs and not inputs[-1]:
            inputs.pop()

    def replace(self, value: str, change: Callable[[str], str]) -> None:
        """Put `change` of a value in its place, for whatever reads it and under its name."""
        node = self._producers[value]
        old = self.fresh(f"{value}_correct")
        node.output[list(node.output).index(value)] = old
        self._producers[old] = self._producers.pop(value)
        if value in self._types:
            self._types[old] = self._types[value]
        self.node("Identity", (change(old),), (value,))

    def set_attribute(self, node: str, name: str, value: Any) -> None:
        """Set an attribute of the node whose first output has this name; None takes it away."""
        proto = self._producers[node]
        kept = [attribute for attribute in proto.attribute if attribute.name != name]
        del proto.attribute[:]
        proto.attribute.extend(kept)
        if value is not None:
            proto.attribute.append(onnx.helper.make_attribute(name, value))

    def note(self, value: str, like: str, shape: tuple[int | str | None, ...]) -> str:
        """Say what axes a new value has, and that its dtype is that of another; return its name."""
        element = onnx.helper.np_dtype_to_tensor_dtype(self.dtype(like))
        self._types[value] = onnx.helper.make_tensor_type_proto(element, shape).tensor_type
        return value

    def remove(self, node: str) -> None:
        """Take the node away whose first output has this name; something else has to give its outputs."""
        proto = self._producers[node]
        for name in proto.output:
            self._producers.pop(name, None)
        index = next(i for i, other in enumerate(self.graph.node) if list(other.output) == list(proto.output))
        del self.graph.node[index]

    def axis_length(self, value: str, axis: int) -> str:
        """Return one axis of a value's shape, counted from the end, as a tensor of one number."""
        return self.op(
            "Slice", self.op("Shape", value), self.constant([axis]), self.constant([axis + 1 or _END])
        )

    def sizes(self, *parts: str | int) -> str:
        """Return a shape made of numbers and of tensors of one number."""
        named = [self.constant([part]) if isinstance(part, int) else part for part in parts]
        return self.op("Concat", *named, axis=0)

    def part(self, value: str, start: str | int, end: str | int | None, axis: int) -> str:
        """Return value[start:end] along an axis; the ends are numbers, or values of one."""
        stop = _END if end is None else end
        bounds = [self.constant([bound]) if isinstance(bound, int) else bound for bound in (start, stop)]
        return self.op("Slice", value, *bounds, self.constant([axis]))

    def reduce(self, op_type: str, value: str) -> str:
        """Return ReduceMax or ReduceSum over the last axis, which is kept with length 1."""
        if op_type == "ReduceMax" and self.opset < _REDUCE_MAX_TAKES_AXES:
            return self.op(op_type, value, axes=[-1], keepdims=1)
        return self.op(op_type, value, self.constant([-1]), keepdims=1)

    def swapped(self, value: str, rank: int) -> str:
        """Return a value of this rank with its last two axes swapped."""
        return self.op("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])

    def finish(self) -> onnx.ModelProto:
        """Return the model: sorted, without what no output needs, without shapes that may be another value's now."""
        nodes = _sorted_and_needed(self.graph)
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        del self.graph.value_info[:]
        read = {name for node in nodes for name in _reads(node)} | {v.name for v in self.graph.output}
        declared = {value.name for value in self.graph.input}
        kept = [tensor for tensor in self.graph.initializer if tensor.name in read or tensor.name in declared]
        if len(kept) < len(self.graph.initializer):
            copies = onnx.GraphProto()
            copies.initializer.extend(kept)
            del self.graph.initializer[:]
            self.graph.initializer.extend(copies.initializer)
        return self.model


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators that a model imports, 0 if none."""
    return next((int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)


def _types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto.Tensor]:
    graph = with_shapes(model).graph
    return {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.input, *graph.output)}


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from (node.name, *node.input, *node.output)
    yield from (value.name for value in (*graph.input, *graph.output, *graph.initializer))


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield what a node reads, its subgraphs included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _reads(inner)
            yield from (value.name for value in graph.output)


def _sorted_and_needed(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return copies of the nodes that an output needs, each after what it reads, else in the order they had."""
    producers = {name: node for node in graph.node for name in node.output if name}
    order: dict[int, onnx.NodeProto] = {}
    begun: set[int] = set()
    wanted = [(value.name, False) for value in reversed(graph.output)]
    while wanted:
        value, ready = wanted.pop()
        node = producers.get(value)
        if node is None or id(node) in order:
            continue
        if ready:
            order[id(node)] = node
            continue
        assert id(node) not in begun, f"{value} reads itself"
        begun.add(id(node))
        wanted.append((value, True))
        wanted += [(name, False) for name in reversed(list(_reads(node)))]
    copies = onnx.GraphProto()
    copies.node.extend(order.values())
    return list(copies.node)
