"""What an ONNX file really holds: opset, inputs, outputs, axes, operators; read from the graph, not from a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import onnx

from onnx_attest.export.artifact import Got

Axes = tuple[str | int | None, ...]
STANDARD_DOMAINS = ("", "ai.onnx")


def observe(model: onnx.ModelProto) -> Got:
    """Return what the file holds. An axis is a name, a number, or None where the file says nothing of it."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    # Before IR version 4 every initializer is listed as an input too; nobody feeds those.
    inputs = [value for value in model.graph.input if value.name not in initializers]
    return Got(
        opset=opset_of(model),
        inputs=tuple(value.name for value in inputs),
        outputs=tuple(value.name for value in model.graph.output),
        axes={value.name: _axes(value) for value in (*inputs, *model.graph.output)},
        operators=dict(sorted(Counter(_qualified(node) for node in model.graph.node).items())),
    )


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard operator set that the file imports."""
    versions = [opset.version for opset in model.opset_import if opset.domain in STANDARD_DOMAINS]
    return max(versions, default=0)


def dtypes_of(values: Iterable[onnx.ValueInfoProto]) -> dict[str, Any]:
    """Return the NumPy dtype of each tensor; a value that is no tensor, or of no known type, is left out."""
    known = onnx.helper.get_all_tensor_dtypes()
    return {
        value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in values
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type in known
    }


def _qualified(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"


def _axes(value: onnx.ValueInfoProto) -> Axes:
    return tuple(
        # Some exporters write -1 or 0 for a size that is open, and a question mark for its name.
        dimension.dim_value
        if dimension.HasField("dim_value") and dimension.dim_value >= 0
        else dimension.dim_param.replace("?", "") or None
        for dimension in value.type.tensor_type.shape.dim
    )
