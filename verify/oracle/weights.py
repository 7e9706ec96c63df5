"""Tensors that lie beside a file: read when a node needs them, and let go, where all of them would be too much."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

LARGE = 2**30
"""Bytes beside a file from which on they are not held: float64 takes twice as much, and bounds the same again."""
_SMALL = 2**16


def beside(model: onnx.ModelProto) -> int:
    """Return how many bytes of a model's tensors lie beside its file."""
    return sum(_length(tensor) for tensor in model.graph.initializer if is_beside(tensor))


def refuse_beyond_the_end(model: onnx.ModelProto, folder: Path) -> None:
    """Refuse tensors that are said to reach beyond the file that they lie in, before one of them is read.

    Raises:
        ValueError: it names the tensor.
        OSError: there is no such file.
    """
    for tensor in model.graph.initializer:
        if is_beside(tensor):
            given = _place(tensor)
            end = int(given.get("offset", 0)) + _length(tensor)
            size = (folder / given.get("location", "")).stat().st_size
            if end > size:
                raise ValueError(f"{tensor.name} ends at byte {end} of {given['location']}, which has {size}")


def is_beside(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's numbers are in another file."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _length(tensor: onnx.TensorProto) -> int:
    return int(_place(tensor).get("length", 0))


def _place(tensor: onnx.TensorProto) -> dict[str, str]:
    """Return where the numbers of a tensor are: location, offset and length, as far as they are given."""
    return {entry.key: entry.value for entry in tensor.external_data}


class Weights:
    """The initializers of a graph; those that lie beside its file are read when they are asked for."""

    def __init__(self, graph: onnx.GraphProto, folder: Path | None) -> None:
        """Keep the graph; `folder` is where its file is, needed only for tensors beside it."""
        self._folder = folder
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.deferred = {
            name for name, tensor in self._tensors.items() if is_beside(tensor) and _length(tensor) > _SMALL
        }

    def held(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield name and numbers of all that are not deferred."""
        for name in self._tensors:
            if name not in self.deferred:
                yield name, self.read(name)

    def read(self, name: str) -> NDArray[Any]:
        """Return a tensor's numbers.

        Raises:
            ValueError: they lie beside a file, and where that is was not said; see `numbers_of`.
        """
        tensor = self._tensors[name]
        if is_beside(tensor) and self._folder is None:
            raise ValueError(f"{name} lies beside the file, which is too large to be taken apart here")
        return numbers_of(tensor, self._folder)


def numbers_of(tensor: onnx.TensorProto, folder: Path | None = None) -> NDArray[Any]:
    """Return a tensor's numbers; `folder` is where its file is, needed only for one that lies beside it.

    Raises:
        ValueError: they are not as many as it says, or of a type that there is not, which ONNX's checker lets pass
            for raw data.
    """
    try:
        array: NDArray[Any] = onnx.numpy_helper.to_array(tensor, base_dir=str(folder or ""))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{tensor.name} has the unknown type {tensor.data_type}") from error
    return array
