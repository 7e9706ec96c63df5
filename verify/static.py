"""What is wrong with a file by its graph alone, known before anything runs."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from onnx_attest.export.observe import STANDARD_DOMAINS
from onnx_attest.verify.findings import Finding, finding

_MASK, _QUERY_AXIS = 3, -2


def static_findings(model: onnx.ModelProto) -> list[Finding]:
    """Return what the static rules find."""
    attentions = [
        node for node in model.graph.node if node.op_type == "Attention" and node.domain in STANDARD_DOMAINS
    ]
    return list(_masks_of_one_row(model, attentions)) if attentions else []


def _masks_of_one_row(model: onnx.ModelProto, attentions: list[onnx.NodeProto]) -> Iterator[Finding]:
    """Yield the masks whose axis of queries has size 1: they broadcast by the standard, and not in ONNX Runtime.

    microsoft/onnxruntime#12149, microsoft/onnxscript#2332.
    """
    shapes = _shapes(model)
    for node in attentions:
        name = node.input[_MASK] if len(node.input) > _MASK else ""
        mask, query = shapes.get(name, []), shapes.get(node.input[0], [])
        if len(mask) < 2 or mask[_QUERY_AXIS] != 1 or not query or query[_QUERY_AXIS] == 1:
            continue
        text = f"{name}, the mask of {node.name or node.output[0]}, has one row for all queries"
        yield finding("OA118", text, blame="exporter", node=node.name)


def _shapes(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):  # a graph that is not consistent
        return {}
    return {
        value.name: [axis.dim_value or axis.dim_param for axis in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.input, *graph.output)
    }
