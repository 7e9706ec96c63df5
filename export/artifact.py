"""An ONNX file with its manifest: what was asked of the exporter and what came out.

Requirements: reading and writing an artifact needs no torch; a manifest never holds a path or
a name of the machine it was written on; both files are written whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from onnx_attest.errors import UnwritableError, UsageError
from onnx_attest.export.beside import digests_beside, identity_of
from onnx_attest.export.bundle import refuse_within
from onnx_attest.export.decoding import decoded
from onnx_attest.export.reading import MIB, NO_FILE, bytes_of
from onnx_attest.models.contract import Contract

MANIFEST_SUFFIX = ".manifest.json"
SCHEMA = 1
LARGEST = 2**31 - 1
"""Bytes of a protobuf."""
_LARGEST_MANIFEST = 64 * MIB


class Asked(msgspec.Struct, frozen=True):
    """What the export was asked for."""

    opset: int
    variant: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: dict[str, tuple[str | int, ...]]


class Got(msgspec.Struct, frozen=True):
    """What the file holds."""

    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: dict[str, tuple[str | int | None, ...]]
    operators: dict[str, int]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an ONNX file beside its bytes.

    Attributes:
        sha256: of the ONNX file as written, after its metadata was stripped.
        dtype: the floating dtype of the graph.
        arithmetic: the profile in which a runtime is declared to compute it.
        module: import path of the module, for the `torch` runtime; None if it has none.
        parameters_sha256: digest of the module's parameters and buffers, so that a factory which builds
            other weights the next time is noticed.
        versions: of torch, onnx and onnxscript that wrote the file.
    """

    schema: int = SCHEMA
    model: str
    variant: str
    dtype: str
    arithmetic: str
    sha256: str
    contract: Contract
    asked: Asked
    got: Got
    module: str | None = None
    parameters_sha256: str | None = None
    versions: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Refuse a manifest that contradicts itself, or that this version cannot read.

        Raises:
            ValueError: another schema, or a contract of other names and axes than were asked for.
        """
        if self.schema != SCHEMA:
            raise ValueError(f"its schema is {self.schema}, this version of onnx-attest reads {SCHEMA}")
        inputs, outputs = self.contract.inputs, self.contract.outputs
        names = (tuple(spec.name for spec in inputs), tuple(spec.name for spec in outputs))
        axes = self.asked.axes
        if names != (self.asked.inputs, self.asked.outputs) or any(
            axes.get(spec.name, spec.axes) != spec.axes for spec in (*inputs, *outputs)
        ):
            raise ValueError("its contract has other names or axes than it says were asked for")


_MANIFEST = msgspec.json.Decoder(Manifest)


@dataclass(frozen=True)
class Artifact:
    """An ONNX file and, if there is one, its manifest.

    Attributes:
        sha256: what it is known by: of the file, or, if weights lie beside it, of a list of the digests of all its parts
            (`beside.identity_of`).
        beside: the sha256 of each file that its weights lie in, by the place that it names.
        module: the live PyTorch module where the export happened in this process; it is not stored.
        trusted: the manifest was written by this process, so the module it names may be imported. A manifest that was
            read is data: to run the code it names is for the user to say (`--against`).
        reference: how another process builds `module` again, as `models.resolve` takes it; "" if it cannot.
    """

    path: Path
    sha256: str
    manifest: Manifest | None = None
    module: Any = field(default=None, compare=False, repr=False)
    trusted: bool = field(default=False, compare=False)
    reference: str = field(default="", compare=False)
    beside: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """The model's name: the manifest's, else the file's."""
        # A file's name may be no UTF-8, and no record takes half a character.
        return self.manifest.model if self.manifest else without_halves(self.path.stem)


def without_halves(text: str) -> str:
    """Return a text that may come from the system with what is no character in it spelt out."""
    return text.encode(errors="backslashreplace").decode()


def digest(data: bytes) -> str:
    """Return the sha256 of the bytes, as hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def manifest_path(model_path: Path) -> Path:
    """Return where the manifest of an ONNX file lies: beside it."""
    return model_path.with_name(model_path.stem + MANIFEST_SUFFIX)


def parts_of(artifact: Artifact) -> tuple[Path, ...]:
    """Return the files that an artifact is made of: the ONNX file, its manifest if there is one, and its weights."""
    manifest = () if artifact.manifest is None else (manifest_path(artifact.path),)
    return (artifact.path, *manifest, *(artifact.path.parent / place for place in artifact.beside))


def write_artifact(model: bytes, manifest: Manifest, path: Path, module: Any = None) -> Artifact:
    """Write both files and return the artifact.

    Raises:
        UnwritableError: the folder cannot be made or written, or the disk is full; what was there is as it was.
    """
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    try:
        # The model goes last: a crash between the two leaves a manifest without a file, never the reverse.
        write_whole({manifest_path(path): encoded, path: model})
    except OSError as error:
        raise UnwritableError(
            f"cannot write {path}: {error.strerror or error}; make room, or choose another folder with -o"
        ) from error
    return Artifact(path, manifest.sha256, manifest, module, trusted=True)


def write_whole(files: Mapping[Path, bytes]) -> None:
    """Write all files or none, each by renaming a finished one over it, so that no reader sees half of it.

    Raises:
        UsageError: a path in a bundle, which is never changed.
        OSError: one of them cannot be written.
    """
    for path in files:
        refuse_within(path)
    with contextlib.ExitStack() as stack:
        staged = {path: stack.enter_context(_staged(path, data)) for path, data in files.items()}
        for path, temporary in staged.items():
            temporary.replace(path)


@contextlib.contextmanager
def _staged(path: Path, data: bytes) -> Iterator[Path]:
    """Give a finished file beside `path`, removed at the end if it is still there."""
    if path.is_dir():  # the one rename that could fail after another has been done
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:  # nobody asked for a file of that name
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).chmod(0o644)  # mkstemp makes private files; an artifact is shared
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def read_artifact(path: Path) -> Artifact:
    """Return the artifact at `path`; a missing manifest is not an error, a broken one is.

    Raises:
        UsageError: no such file, a directory, a pipe or a device, unreadable, empty, weights outside of its folder or not
            there, or a manifest that is not one.
    """
    try:
        data = bytes_of(path, LARGEST)
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a directory; give the .onnx file in it") from error
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UsageError(
                f"{path} is no ONNX file: a protobuf has at most 2 GiB; larger weights lie beside it"
            ) from error
        if error.strerror == NO_FILE:  # it is read several times, and a pipe would be waited for
            raise UsageError(f"{path} is a pipe or a device; write the model to a file first") from error
        raise UsageError(f"cannot read {path}: {error.strerror}; give the path of an .onnx file") from error
    if not data:
        raise UsageError(f"{path} is empty; export it again")
    beside = digests_beside(path, data)
    manifest = _read_manifest(manifest_path(path))
    return Artifact(path, identity_of(digest(data), beside), manifest, beside=beside)


def _read_manifest(path: Path) -> Manifest | None:
    try:
        return decoded(_MANIFEST.decode, bytes_of(path, _LARGEST_MANIFEST))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # the file's own name just fits: no manifest can lie beside it
            return None
        raise UsageError(f"cannot read {path}: {error.strerror}; delete it or export again") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is not a manifest: {error}; delete it or export again") from error
