"""Frames between Python and JavaScript: a JSON header and the bytes of all arrays; see js/sessions.mjs."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.runtimes.base import Tensors, UnavailableError

LENGTHS = struct.Struct("<II")
_TYPES = ("float32", "float64", "float16", "int64", "uint64", "int32", "uint32", "int16", "uint16", "int8", "uint8")  # fmt: skip


def pack(header: Mapping[str, Any], *parts: bytes) -> bytes:
    """Return a frame."""
    text, body = json.dumps(header).encode(), b"".join(parts)
    return LENGTHS.pack(len(text), len(body)) + text + body


def unpack(frame: bytes) -> tuple[dict[str, Any], memoryview]:
    """Return the header and the body of a frame."""
    length, _ = LENGTHS.unpack_from(frame)
    start = LENGTHS.size + length
    return json.loads(frame[LENGTHS.size : start]), memoryview(frame)[start:]


def type_of(dtype: np.dtype[Any]) -> str:
    """Return what JavaScript's onnxruntime calls a dtype.

    Raises:
        UnavailableError: it has no tensor of that type.
    """
    if dtype == np.bool_:
        return "bool"
    if dtype.name in _TYPES:
        return dtype.name
    raise UnavailableError(f"onnxruntime in JavaScript has no tensor of {dtype.name}")


def write_inputs(header: Mapping[str, Any], inputs: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the frame of a run.

    Raises:
        UnavailableError: see `type_of`.
    """
    arrays = {name: np.asarray(value, order="C") for name, value in inputs.items()}
    listed = [
        {"name": name, "type": type_of(array.dtype), "dims": list(array.shape), "bytes": array.nbytes}
        for name, array in arrays.items()
    ]
    return pack({**header, "inputs": listed}, *(array.tobytes() for array in arrays.values()))


def read_outputs(header: Mapping[str, Any], body: memoryview) -> Tensors:
    """Return the outputs that an answer holds, by name."""
    outputs: Tensors = {}
    at = 0
    for one in header["outputs"]:
        dtype = np.dtype(np.bool_ if one["type"] == "bool" else one["type"])
        array = np.frombuffer(body[at : at + one["bytes"]], dtype)
        outputs[one["name"]] = array.reshape(one["dims"]).copy()
        at += one["bytes"]
    return outputs
