"""A bundle: a file that was verified, with what proves it, opened only if every byte of it is what it was.

Needs neither torch nor the verifier: to load one is to check its digests and open `model.onnx` with the options that were
verified.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.export.beside import identity_of, places_in
from onnx_attest.export.checksums import LIST, TamperedError, digest_of, read_list, verified
from onnx_attest.export.decoding import decoded
from onnx_attest.export.reading import MIB, bytes_of
from onnx_attest.export.session_options import of_files, set_option

if TYPE_CHECKING:
    import onnxruntime as ort

MODEL, ABOUT, RECORDS, CARD, REPLAY = "model.onnx", "bundle.json", "records.jsonl", "CARD.md", "replay.py"
DATA, REFERENCE = "test_data_set_", "reference.npz"
SCHEMA = 1
_USUAL = "ort-cpu"
_SET = re.compile(rf"{DATA}[0-9]+")


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output: the name of each axis, or its size."""

    name: str
    dtype: str
    axes: tuple[str | int, ...]


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime that the file passed on.

    Attributes:
        version: of the runtime.
        provider: of ONNX Runtime, "" for another runtime.
        provider_options, session_options: that its session was opened with.
        optimised: whether ONNX Runtime's graph optimisations were on.
        cells: how many passed.
        effective_bits: the least of them, None where none was measured.
    """

    runtime: str
    version: str
    provider: str = ""
    provider_options: dict[str, str] = {}
    session_options: dict[str, str] = {}
    optimised: bool = True
    cells: int
    effective_bits: float | None = None


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a bundle beside its bytes.

    Attributes:
        unverified: why it is no proof of anything, "" if it is one.
        sha256: what the file is known by: of model.onnx, or, if weights lie beside it, of a list of the digests of both
            (`beside.identity_of`).
        weights: the files that weights lie in.
        against: what it was held against: `module` (its exporter is right), or else what the records call the reference:
            `graph` (its own), `specification` or `original`; "" where nothing is proven.
        arithmetic: the profile that the stored bounds were made for.
        converted_from: sha256 of the file that it was converted from, "" if that was not told.
        data: names of its sets of test data.
    """

    schema: int = SCHEMA
    model: str
    sha256: str
    weights: tuple[str, ...] = ()
    opset: int | None
    dtype: str
    against: str = ""
    arithmetic: str
    empty_rows: str
    unverified: str = ""
    converted_from: str = ""
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    verified: tuple[Verified, ...]
    data: tuple[str, ...]


_ABOUT = msgspec.json.Decoder(About)
_LARGEST_ABOUT = 64 * MIB


@dataclass(frozen=True)
class Bundle:
    """A bundle whose digests hold.

    Attributes:
        name: the digest of its list of digests, by which it is known.
    """

    folder: Path
    name: str
    about: About

    @property
    def model(self) -> Path:
        """The ONNX file."""
        return self.folder / MODEL

    def session(self, runtime: str = _USUAL, *, allow_unverified: bool = False) -> ort.InferenceSession:
        """Return a session of ONNX Runtime with the options that were verified.

        Args:
            runtime: that the file was verified on.
            allow_unverified: open it although nothing is proven about it; with ort-cpu's options, if the bundle knows none.

        Raises:
            TamperedError: the file, or weights beside it, are no more what they were when the bundle was loaded.
            UsageError: it was not verified on that runtime, there are no options to open it with on that, ONNX Runtime is
                not installed or gives another provider.
            Exception: whatever else ONNX Runtime raises when it opens the file.
        """
        known = {one.runtime: one for one in self.about.verified if one.provider}
        if self.about.unverified and not allow_unverified:
            raise UsageError(
                f"{self.folder} is not verified: {self.about.unverified}; say allow_unverified=True to open it"
            )
        if runtime not in known and not allow_unverified:
            names = ", ".join(known) or "no runtime that is ONNX Runtime"
            told = f"{self.folder} was verified on {names}, not on {runtime}; verify it there"
            if any(one.runtime == runtime for one in self.about.verified):
                told = f"{self.folder} was verified on {runtime}, and only sessions of ONNX Runtime are opened: on {names}"
            raise UsageError(told)
        if runtime not in known and runtime != _USUAL:
            raise UsageError(
                f"{self.folder} does not say how a session on {runtime} is opened; open {self.model} with ONNX Runtime itself"
            )
        self._refuse_changed()
        return _session(self.model, known.get(runtime))

    def _refuse_changed(self) -> None:
        """Refuse what became another file since the bundle was loaded, which may be long ago."""
        try:
            beside = {place: digest_of(self.folder / place) for place in self.about.weights}
            now = identity_of(digest_of(self.model), beside)
        except OSError as error:
            raise UsageError(f"cannot read {self.folder}: {error.strerror or error}") from error
        if now != self.about.sha256:
            what = " or weights beside it were" if self.about.weights else " was"
            raise TamperedError(f"{self.folder}: {MODEL}{what} changed since the bundle was loaded")


def load(folder: str | Path) -> Bundle:
    """Return a bundle, once every byte of it is what its list of digests says.

    Raises:
        TamperedError: a file is changed, missing or not in the list; it is named.
        UsageError: it is no bundle, or one of another version.
    """
    folder = Path(folder)
    name = verified(folder)
    try:
        about = decoded(_ABOUT.decode, bytes_of(folder / ABOUT, _LARGEST_ABOUT))
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{folder} is no bundle of onnx-attest: {ABOUT}: {_one_line(error)}") from error
    if about.schema != SCHEMA:
        raise UsageError(f"{folder} is a bundle of another version than {SCHEMA}, which this version reads")
    if not (folder / MODEL).is_file():
        raise TamperedError(f"{folder}: {MODEL} is not there")
    digests = read_list((folder / LIST).read_bytes())
    if strange := [one for one in about.weights if one not in digests]:
        raise TamperedError(f"{folder}: {ABOUT} names weights in {strange[0]!r}, which is not in {LIST}")
    if identity_of(digests[MODEL], {one: digests[one] for one in about.weights}) != about.sha256:
        what = " or its weights" if about.weights else ""
        raise TamperedError(f"{folder}: {ABOUT} is about another file than {MODEL}{what}")
    if strange := [one for one in about.data if not _SET.fullmatch(one)]:
        raise TamperedError(f"{folder}: {ABOUT} names {strange[0]!r}, which is no set of test data")
    for one in about.verified:
        if strange := of_files((*one.session_options, *one.provider_options)):
            raise UsageError(
                f"{folder}: {ABOUT} opens {one.runtime} with {strange[0]}, a file of some machine"
            )
    _refuse_weights_elsewhere(folder, about.weights)
    return Bundle(folder, name, about)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def refuse_within(path: Path) -> None:
    """Refuse to write into a bundle, which would be one no more.

    Args:
        path: that is to be written, or made.

    Raises:
        UsageError: it, or a folder that it is in, is a bundle.
    """
    # Unlike Path.resolve it takes links in a circle, which are replaced: what counts is where they lie.
    end = Path(os.path.realpath(path))
    for folder in (end, *end.parents):
        if (folder / LIST).is_file() and (folder / ABOUT).is_file():
            raise UsageError(
                f"{path} is inside of the bundle {folder}, which is never changed: choose another place with -o"
            )


def _refuse_weights_elsewhere(folder: Path, known: Sequence[str]) -> None:
    """Refuse a file whose weights are not those that the bundle says.

    Raises:
        TamperedError: it names a place of weights that the bundle does not.
    """
    path = folder / MODEL
    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for place in places_in(data):
            if place not in known:
                raise TamperedError(f"{folder}: {MODEL} keeps weights in {place!r}, which is not in {ABOUT}")


def _session(model: Path, verified_as: Verified | None) -> ort.InferenceSession:
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(f"{model} is opened with ONNX Runtime: {error}; install onnx-attest[cpu]") from error

    options = onnxruntime.SessionOptions()
    provider, provider_options = "CPUExecutionProvider", dict[str, str]()
    if verified_as is not None:
        provider, provider_options = verified_as.provider, verified_as.provider_options
        for key, value in verified_as.session_options.items():
            set_option(options, key, value)
        if not verified_as.optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Else a run that fails on a device is repeated on the CPU, with a print.
    more: dict[str, Any] = {"enable_fallback": 0}
    session = onnxruntime.InferenceSession(
        str(model), options, providers=[(provider, provider_options)], **more
    )
    if session.get_providers()[0] != provider:
        raise UsageError(
            f"{model} was asked to run on {provider}, and runs on {', '.join(session.get_providers())}"
        )
    return session
