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
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, field).extend(getattr(graph, field))
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
        infer = part("onnx_cpp2py_export").shape_inference.infer_shapes
        result = type(model)()
        result.ParseFromString(infer(light.SerializeToString(), False, False, True))
    except Exception:  # noqa: BLE001 - its exception's class is the extension's own: a graph that is not consistent
        return light
    return result
