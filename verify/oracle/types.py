"""Element types of a model's values, which the oracle does not carry: to it all floats are float64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import onnx


class Types:
    """Element types by name, inferred when the first is asked for: most graphs never need one."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Keep the model."""
        self._model = model

    def of(self, name: str) -> int:
        """Return ONNX's number of a value's element type, 0 where it is not known."""
        return self._kinds.get(name, 0)

    @cached_property
    def _kinds(self) -> dict[str, int]:
        bare = onnx.ModelProto()
        bare.CopyFrom(self._model)
        for graph in graphs_in(bare.graph):
            for tensor in graph.initializer:
                _empty(tensor)
        inferred = onnx.shape_inference.infer_shapes(bare)
        found: dict[str, int] = {}
        for graph in graphs_in(inferred.graph):
            found |= {tensor.name: tensor.data_type for tensor in graph.initializer}
            for value in (*graph.value_info, *graph.output, *graph.input):
                if kind := element_type(value.type):
                    found[value.name] = kind
        return found


def element_type(kind: onnx.TypeProto) -> int:
    """Return ONNX's number of the element type of a tensor, or of what a sequence or an optional holds."""
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        return element_type(getattr(kind, which).elem_type)
    return int(kind.tensor_type.elem_type)


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the graphs inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs_in(attribute.g)


_FEW = 64
"""Shapes and axes are told by tensors of so few numbers; the others say nothing about types."""


def _empty(tensor: onnx.TensorProto) -> None:
    """Drop the numbers of a large tensor: the inference would copy them."""
    count = 1
    for size in tensor.dims:
        count *= size
    if count > _FEW:
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        tensor.ClearField("int64_data")
        tensor.ClearField("int32_data")
        tensor.ClearField("double_data")
