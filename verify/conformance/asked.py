"""A node with what goes into it, as the descriptions of features read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray

from onnx_attest.verify.conformance.case import Arrays, attributes_of, node_of

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Asked:
    """What a case asks of its operator.

    Attributes:
        inputs: in the order of the operator's definition, None for one that is not given.
        outputs: which of the outputs are asked for.
        opset: of the operator's domain.
        symbolic: the axes of the first input that the file leaves open.
    """

    attributes: Mapping[str, Any]
    inputs: tuple[Array | None, ...]
    outputs: tuple[bool, ...]
    opset: int
    symbolic: frozenset[int]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        return self.attributes.get(name, default)

    def optional(self, index: int) -> Array | None:
        """Return an input, None if it is not given."""
        return self.inputs[index] if index < len(self.inputs) else None

    def required(self, index: int) -> Array:
        """Return an input that the operator cannot do without."""
        array = self.optional(index)
        if array is None:
            raise ValueError(f"input {index} is not given")
        return array

    def asks_for(self, output: int) -> bool:
        """Whether an output is asked for."""
        return output < len(self.outputs) and self.outputs[output]


def asked_of(model: onnx.ModelProto, operator: str, inputs: Arrays) -> Asked:
    """Return what a model whose graph has a node of `operator` asks of it."""
    node = node_of(model, operator)
    if node is None:
        raise ValueError(f"the graph has no {operator}")
    known = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer} | dict(inputs)
    return Asked(
        attributes_of(node),
        tuple(known[name] if name else None for name in node.input),
        tuple(bool(name) for name in node.output),
        _opset(model, node.domain),
        _symbolic(model.graph, node.input[0]),
    )


def _opset(model: onnx.ModelProto, domain: str) -> int:
    same = ("", "ai.onnx") if domain in ("", "ai.onnx") else (domain,)
    return int(next(one.version for one in model.opset_import if one.domain in same))


def _symbolic(graph: onnx.GraphProto, name: str) -> frozenset[int]:
    axes = [axis for value in graph.input if value.name == name for axis in value.type.tensor_type.shape.dim]
    return frozenset(index for index, axis in enumerate(axes) if not axis.HasField("dim_value"))
