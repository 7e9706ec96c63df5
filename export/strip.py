"""Removal of what an exporter writes into a file beside the graph, so that one module gives one sequence of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx


def strip_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without documentation, metadata and local build numbers.

    torch's exporter writes source paths and stack traces into every node: they name the machine, and they change
    when a line is added above the module.
    """
    stripped = onnx.ModelProto()
    stripped.CopyFrom(model)
    stripped.producer_version = model.producer_version.partition("+")[
        0
    ]  # 2.13.0+cpu and 2.13.0+cu130 are one
    stripped.doc_string = ""
    del stripped.metadata_props[:]
    _strip_graph(stripped.graph)
    for function in stripped.functions:
        function.doc_string = ""
        del function.metadata_props[:]
        _strip_nodes(function.node)
    return stripped


def _strip_graph(graph: onnx.GraphProto) -> None:
    graph.doc_string = ""
    del graph.metadata_props[:]
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.doc_string = ""
        del value.metadata_props[:]
    for tensor in graph.initializer:
        tensor.doc_string = ""
        del tensor.metadata_props[:]
    _strip_nodes(graph.node)


def _strip_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        node.doc_string = ""
        del node.metadata_props[:]
        for attribute in node.attribute:
            attribute.doc_string = ""
            for subgraph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _strip_graph(subgraph)


def without_prefix(model: onnx.ModelProto, prefix: str) -> onnx.ModelProto:
    """Return the model, in place, with the prefix taken off the names of its constants, wherever they are used."""
    new = {tensor.name: tensor.name.removeprefix(prefix) for tensor in model.graph.initializer}
    kept = {name for name, short in new.items() if name == short}
    new = {name: short for name, short in new.items() if name != short and short not in kept}
    if new:
        _rename(model.graph, new)
    return model


def _rename(graph: onnx.GraphProto, new: Mapping[str, str]) -> None:
    for value in (*graph.initializer, *graph.value_info, *graph.output):
        value.name = new.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _rename(inner, new)
