"""Weights that lie beside an ONNX file: where they are, and what a file is known by that has some."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onnx_attest.errors import UsageError
from onnx_attest.export.messages import inside
from onnx_attest.export.reading import opened


def identity_of(own: str, beside: Mapping[str, str]) -> str:
    """Return what a file is known by: its sha256, or one over all of its parts if weights lie beside it.

    Args:
        own: sha256 of the ONNX file.
        beside: sha256 of each file that its weights lie in, by the place that it names.

    With weights beside it, it is the sha256 of a text: a line with `own`, then a line `<sha256>  <place>` for each
    place, in the order of the places.
    """
    if not beside:
        return own
    text = "".join((f"{own}\n", *(f"{beside[place]}  {place}\n" for place in sorted(beside))))
    return hashlib.sha256(text.encode()).hexdigest()


def digests_beside(path: Path, data: bytes) -> dict[str, str]:
    """Return the sha256 of each file that the weights of an ONNX file lie in, by the place that the file names.

    Args:
        path: of the file; places are relative to its folder.
        data: what it holds. What is no ONNX file has none: whoever reads it says so.

    Raises:
        UsageError: a place outside of the folder, or one that cannot be read; it is named.
    """
    found = {}
    for place in places_in(data):
        try:
            if not (path.parent / place).resolve().is_relative_to(path.parent.resolve()):
                raise UsageError(f"{path} keeps weights in {place!r}, which is outside of its own folder")
            with opened(path.parent / place) as file:
                found[place] = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # typeshed asks for more of a reader
        except (OSError, ValueError, RuntimeError) as error:
            # ValueError: a name that no file can have; RuntimeError: a circle of links.
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{path} keeps weights in {place!r}, which cannot be read: {why}") from error
    return found


def places_in(data: bytes | mmap.mmap) -> tuple[str, ...]:
    """Return the places of weights beside it that a serialised onnx.ModelProto names, each once, in order."""
    if data.find(_WORD) < 0:  # no tensor lies elsewhere without that word, and importing ONNX takes a second
        return ()
    import onnx

    try:
        model = onnx.ModelProto.FromString(data[:])
    except Exception:  # noqa: BLE001 - protobuf's DecodeError, of whichever implementation
        return ()
    return tuple(sorted(set(map(str, _places(model)))))


_WORD = b"location"


def _places(message: Any) -> Iterator[str]:
    if message.DESCRIPTOR.name == "TensorProto":
        if message.data_location == message.EXTERNAL:
            yield from (entry.value for entry in message.external_data if entry.key == "location")
        return
    for one in inside(message):
        yield from _places(one)
