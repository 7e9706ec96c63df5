"""Values between a runtime's process and its parent: a line of JSON, and a file that both hold for what is large.

Needs the standard library and NumPy alone: one end may run under another interpreter. The two take turns, so that one
file serves both directions.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import os
import tempfile
from dataclasses import is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEPT_BYTES = 2**28
"""Of the file between two values: fresh pages cost more than what is written to them."""
_LONG_TEXT = 2**20
_TAG = "!"
_OURS = "onnx_attest."


class SharedFile:
    """A file for two processes. On Linux it is memory without a name: whatever dies, nothing is left behind.

    Attributes:
        token: what the other process opens it by: a descriptor to inherit, a path on Windows.
    """

    def __init__(self, file: io.FileIO, token: int | str) -> None:
        self.token, self._file, self._end = token, file, 0

    @staticmethod
    def create() -> SharedFile:
        """Return a new one.

        Raises:
            OSError: there is no room for it.
        """
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("onnx-attest")
        elif os.name == "posix":
            handle, path = tempfile.mkstemp(prefix="onnx-attest-")
            os.unlink(path)  # noqa: PTH108 - it lives on as long as it is open
        else:
            handle, path = tempfile.mkstemp(prefix="onnx-attest-")
            return SharedFile(io.FileIO(handle, "r+b"), path)
        return SharedFile(io.FileIO(handle, "r+b"), handle)

    @staticmethod
    def of(token: int | str) -> SharedFile:
        """Return the one that the other process made."""
        return SharedFile(io.FileIO(token, "r+b"), token)

    def close(self) -> None:
        """Give it up, and its name where it has one."""
        self._file.close()
        if isinstance(self.token, str):
            with contextlib.suppress(OSError):  # the other process still holds it
                os.unlink(self.token)  # noqa: PTH108

    def begin(self) -> None:
        """Forget what was written, before the next value."""
        self._end = 0
        if self._file.seek(0, os.SEEK_END) > _KEPT_BYTES:
            self._file.truncate(0)

    def write(self, data: NDArray[Any] | bytes) -> int:
        """Append bytes and return where they are.

        Raises:
            OSError: there is no room.
        """
        view = memoryview(data).cast("B") if isinstance(data, bytes) else _bytes_of(data).data
        start = self._end
        self._file.seek(start)
        while len(view):
            view = view[self._file.write(view) or 0 :]
        self._end = self._file.tell()
        return start

    def read(self, start: int, count: int) -> NDArray[np.uint8]:
        """Return so many bytes.

        Raises:
            ValueError: it holds fewer: the other end has lost count.
        """
        data = np.empty(count, np.uint8)
        view = data.data
        self._file.seek(start)
        while len(view):
            got = self._file.readinto(view)
            if not got:
                raise ValueError("what was to be read is not there")
            view = view[got:]
        return data


def encode(value: Any, file: SharedFile) -> Any:
    """Return a value as JSON takes it; what is large goes into the file.

    Arrays keep dtype and shape, those of ml_dtypes by their bits; dictionaries, lists, tuples, text, bytes, numbers and
    this package's dataclasses stay what they are.

    Raises:
        TypeError: it is, or holds, something else.
    """
    file.begin()
    tree = _packed(value, file)
    text = json.dumps(tree).encode()
    return [file.write(text), len(text)] if len(text) > _LONG_TEXT else {"tree": tree}


def decode(encoded: Any, file: SharedFile) -> Any:
    """Return what `encode` was given; arrays are copies of their own.

    Raises:
        Exception: it is nothing that `encode` gives.
    """
    tree = json.loads(file.read(*encoded).tobytes()) if isinstance(encoded, list) else encoded["tree"]
    return _unpacked(tree, file)


def _packed(value: Any, file: SharedFile) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray):
        return _packed_array(value, file)
    if isinstance(value, np.generic):
        return {_TAG: "scalar", "value": _packed_array(np.asarray(value), file)}
    if isinstance(value, bytes):
        return {_TAG: "bytes", "at": [file.write(value), len(value)]}
    if isinstance(value, dict):
        return {_TAG: "dict", "items": [[_packed(k, file), _packed(v, file)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {_TAG: kind, "items": [_packed(item, file) for item in value]}
    if is_dataclass(value) and type(value).__module__.startswith(_OURS):
        where = [type(value).__module__, type(value).__name__]
        return {_TAG: "record", "of": where, "items": [_packed(vars(value), file)]}
    raise TypeError(f"a value of the type {type(value).__name__} cannot leave the runtime's process")


def _packed_array(array: NDArray[Any], file: SharedFile) -> Any:
    if array.dtype == object:
        items = [_packed(item, file) for item in array.reshape(-1).tolist()]
        return {_TAG: "objects", "shape": array.shape, "items": items}
    # The dtypes of ml_dtypes call themselves void of so many bytes.
    name = array.dtype.name if array.dtype.kind == "V" else array.dtype.str
    return {_TAG: "array", "dtype": name, "shape": array.shape, "at": [file.write(array), array.nbytes]}


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    # ascontiguousarray makes one axis of none.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _unpacked(tree: Any, file: SharedFile) -> Any:
    if not isinstance(tree, dict):
        return tree
    kind = tree[_TAG]
    if kind == "array":
        return file.read(*tree["at"]).view(_dtype(tree["dtype"])).reshape(tree["shape"])
    if kind == "scalar":
        return _unpacked(tree["value"], file)[()]
    if kind == "bytes":
        return file.read(*tree["at"]).tobytes()
    items = tree["items"]
    if kind == "dict":
        return {_unpacked(key, file): _unpacked(value, file) for key, value in items}
    unpacked = [_unpacked(item, file) for item in items]
    if kind == "objects":
        array = np.empty(math.prod(tree["shape"]), object)
        for index, item in enumerate(unpacked):  # all at once, arrays would be taken apart
            array[index] = item
        return array.reshape(tree["shape"])
    if kind == "record":
        module, name = tree["of"]
        return _record(module, name, unpacked[0])
    return unpacked if kind == "list" else tuple(unpacked)


def _record(module: str, name: str, values: dict[str, Any]) -> Any:
    kind = getattr(importlib.import_module(module), name) if module.startswith(_OURS) else None
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise ValueError(f"{module}.{name} is no dataclass of ours")
    return kind(**values)


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        # Makes NumPy know bfloat16 and its kin by name. Late, because this import alone takes half a second.
        import ml_dtypes  # noqa: F401

        return np.dtype(name)
