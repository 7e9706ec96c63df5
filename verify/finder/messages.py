"""ONNX's messages, checker and shape inference without `import onnx`, which takes three quarters of a second.

Most of that is ml_dtypes, which a graph's structure does not need. Where the parts of the package are not where they
have been for years, the package is imported as usual.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

_KEPT = 1024
"""Elements of an initializer up to which shape inference may need its numbers."""

_PROPAGATED = 2**22
"""Size of an axis up to which ONNX may propagate numbers: it takes 64 bytes for each element of a vector of that size."""

MOST = 2**16
"""Elements of a constant up to which its numbers are read."""


def part(name: str) -> Any:
    """Return a module of the package onnx by its last name, without the package if that can be."""
    whole = f"onnx.{name}"
    if whole in sys.modules:
        return sys.modules[whole]
    return (None if "onnx" in sys.modules else _alone(whole)) or importlib.import_module(whole)


def _alone(whole: str) -> Any:
    spec = importlib.util.find_spec("onnx")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    name = whole.rpartition(".")[2]
    files = (
        []
        if folder is None
        else [*folder.glob(f"{name}.py"), *folder.glob(f"{name}.*so"), *folder.glob(f"{name}.*pyd")]
    )
    if not files:
        return None
    found = importlib.util.spec_from_file_location(whole, files[0])
    if found is None or found.loader is None:
        return None
    module = importlib.util.module_from_spec(found)
    sys.modules[whole] = module
    try:
        found.loader.exec_module(module)
    except ImportError:
        del sys.modules[whole]
        return None
    return module


def _without_large_numbers(model: Any) -> Any:
    """Return a copy that never held them: the weights of a large file are not doubled to be dropped."""
    light = type(model)(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = model.graph
    light.graph.name = graph.name
    for field in ("input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, field).extend(getattr(graph, field))
    # Inference propagates the numbers of initializers, and not those of Constant nodes, which the older exporter writes.
    held = [
        (node, attribute.t)
        for node in graph.node
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx")
        for attribute in node.attribute
        if attribute.name == "value" and math.prod(attribute.t.dims) <= _KEPT
    ]
    for node, tensor in held:
        light.graph.initializer.append(tensor)
        light.graph.initializer[-1].name = node.output[0]
    moved = {id(node) for node, _ in held}
    light.graph.node.extend(node for node in graph.node if id(node) not in moved)
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= _KEPT:
            light.graph.initializer.append(tensor)
        else:
            light.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return light


def inferred(model: Any) -> Any:
    """Return the model, without large numbers, with the types and shapes that inference finds; as it is where it fails."""
    light = _without_large_numbers(model)
    try:
        return with_shapes(light)
    except Exception:  # noqa: BLE001 - its exception's class is the extension's own: a graph that is not consistent
        return light


def with_shapes(model: Any) -> Any:
    """Return an onnx.ModelProto with what inference finds, sizes that the graph itself computes among it if that can be.

    To propagate numbers, ONNX (1.23) makes a message for each element of each vector that it meets: a file of a few hundred
    bytes may ask for billions. So it is asked for the shapes first. A size of any axis counts: by the numbers that are then
    propagated, a vector may turn out to be as long.

    Raises:
        Exception: of a class of the extension's own, for a graph that is not consistent.
    """
    infer = part("onnx_cpp2py_export").shape_inference.infer_shapes
    data, result = model.SerializeToString(), type(model)()
    result.ParseFromString(infer(data, False, False, False))
    if _largest_size(result.graph) <= _PROPAGATED:
        result.ParseFromString(infer(data, False, False, True))
    return result


def _largest_size(graph: Any) -> int:
    """Return the largest size of an axis of any value, also in graphs inside this one."""
    values = (*graph.input, *graph.output, *graph.value_info)
    sizes = [axis.dim_value for value in values for axis in value.type.tensor_type.shape.dim]
    sizes += [size for tensor in graph.initializer for size in tensor.dims]
    inside = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return max((*sizes, *map(_largest_size, inside)), default=0)


def inlined(model: Any) -> tuple[Any, list[Any]]:
    """Return the model with its functions put where they are called, and those that could not be: of another opset."""
    if not model.functions:
        return model, []
    light = _without_large_numbers(model)
    result = type(model)()
    try:
        inline = part("onnx_cpp2py_export").inliner.inline_local_functions
        result.ParseFromString(inline(light.SerializeToString(), False))
    except Exception:  # noqa: BLE001 - its exception's class is the extension's own: a call that does not fit
        return model, list(model.functions)
    large = {one.name: one for one in model.graph.initializer if _KEPT < math.prod(one.dims) <= MOST}
    for tensor in result.graph.initializer:
        if tensor.name in large:
            tensor.CopyFrom(large[tensor.name])
    return result, list(result.functions)
