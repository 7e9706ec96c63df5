"""A case: one small model with its inputs, and what is known of the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import onnx
from numpy.typing import NDArray

from onnx_attest.verify.gates import Tolerance
from onnx_attest.verify.node_cases import coarsest_dtype
from onnx_attest.verify.oracle.types import element_type, graphs_in

Arrays = Mapping[str, NDArray[Any]]
Form = Literal["operator", "expanded"]
"""The operator as it is, or its function body in its place."""
Origin = Literal["onnx", "beyond"]
"""Of ONNX's own suite, or of ours."""

OPERATORS: Mapping[str, str] = {
    "Attention": "",
    "FlexAttention": "ai.onnx.preview",
    "LinearAttention": "",
    "Softmax": "",
    "LogSoftmax": "",
    "RotaryEmbedding": "",
    "LayerNormalization": "",
    "RMSNormalization": "",
    "Gelu": "",
    "TensorScatter": "",
}
"""The operators that attention models are made of, with the domain of each."""


@dataclass(frozen=True, eq=False)
class Case:
    """One case.

    Attributes:
        name: as ONNX has it, without its prefix `test_`; ours begin with `beyond_`.
        operator: what the case is about, for both forms.
        features: what it asks of the operator, in a few words each; rows of the matrix.
        model: what a runtime is given.
        references: graphs that say what is right, the best first: the model itself, then the same with the operator's
            function body in its place, or, of an expanded case, with the operator.
        inputs, expected: by name; `expected` is None where nobody but the oracle says what is right.
        tolerance: the case's own, None without `expected`.
    """

    name: str
    origin: Origin
    operator: str
    form: Form
    features: tuple[str, ...]
    model: onnx.ModelProto
    references: tuple[tuple[Form, onnx.ModelProto], ...]
    inputs: Arrays
    expected: Arrays | None = None
    tolerance: Tolerance | None = None

    @cached_property
    def dtype(self) -> str:
        """NumPy's name of the coarsest floating type that the case declares or casts to; it says the arithmetic."""
        graph = self.model.graph
        kinds = {element_type(value.type) for value in (*graph.input, *graph.output)}
        nodes = (node for inner in graphs_in(graph) for node in inner.node)
        kinds |= {attribute.i for node in nodes for attribute in node.attribute if attribute.name == "to"}
        return coarsest_dtype({onnx.TensorProto.DataType.Name(kind) for kind in kinds})

    @cached_property
    def opset(self) -> int:
        """The opset of ONNX's own operators that the model asks for."""
        versions = [one.version for one in self.model.opset_import if one.domain in ("", "ai.onnx")]
        return int(versions[0]) if versions else 0

    @cached_property
    def size(self) -> int:
        """How many numbers the inputs are."""
        return sum(int(array.size) for array in self.inputs.values())


def node_of(model: onnx.ModelProto, operator: str) -> onnx.NodeProto | None:
    """Return the node of the operator, None if the graph has none."""
    return next((node for node in model.graph.node if node.op_type == operator), None)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes as Python values; text as str."""
    found = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}
