"""The bundle of a verified file: written whole or not at all, and the same bytes from the same file, records and data."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import msgspec

from onnx_attest.errors import UnwritableError, UsageError
from onnx_attest.export.artifact import Artifact, manifest_path
from onnx_attest.export.bundle import (
    ABOUT,
    CARD,
    DATA,
    MODEL,
    RECORDS,
    REPLAY,
    About,
    Bundle,
    Tensor,
    Verified,
    load,
    refuse_within,
)
from onnx_attest.export.checksums import LIST, TamperedError, digest_of, is_coverable, list_of
from onnx_attest.verify.conversion.cost import costs
from onnx_attest.verify.deploy.card import card
from onnx_attest.verify.deploy.proof import NotProvenError, about, held_against, proven
from onnx_attest.verify.deploy.testdata import declared, files_of, sets_of
from onnx_attest.verify.evidence import impersonal
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.records import AnyRecord, encode
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime
from onnx_attest.verify.runtimes.registry import adapter_of, select
from onnx_attest.verify.signature import Signature, read_signature

_OURS = (ABOUT, CARD, LIST, RECORDS, REPLAY)


def deploy(
    artifact: Artifact,
    records: Sequence[AnyRecord],
    folder: Path,
    *,
    required: Sequence[str] = ("ort-cpu",),
    force: bool = False,
    seed: int = 0,
    original: Artifact | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> Bundle:
    """Write a bundle, and return it as it was read again.

    Args:
        artifact: the file.
        records: of its verification.
        folder: of the bundle; it is not there yet.
        required: runtimes that the file has to have passed on.
        force: write it although nothing is proven; it says so for ever.
        seed: of the test data.
        original: that the file was converted from; the card then says what that cost.
        on_step: told what comes next.

    Raises:
        NotProvenError: the records do not prove these bytes on the required runtimes.
        UsageError: the folder is there, the file keeps weights outside its own folder, or the oracle cannot say what the
            outputs should be.
        UnwritableError: the folder cannot be written.
    """
    if folder.exists():
        raise UsageError(
            f"{folder} is there already; a bundle is never changed: choose another folder with -o"
        )
    refuse_within(folder)
    signature = read_signature(artifact)
    try:
        verified = proven(artifact.sha256, records, required, declared(signature), _described)
        unverified = ""
    except NotProvenError as error:
        if not force:
            raise
        verified, unverified = [], str(error)
    on_step("evaluating the test data")
    built = _built(artifact, signature, list(records), verified, unverified, seed, original)
    on_step("writing the bundle")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            new = scratch / "new"
            _write(new, built, _weights(artifact))
            made = _read_again(new, artifact)
            new.replace(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise UnwritableError(
            f"cannot write {folder}: {error.strerror or error}; nothing was written"
        ) from error
    return replace(made, folder=folder)


def _read_again(folder: Path, artifact: Artifact) -> Bundle:
    """Return what was written, held against its own digests.

    Raises:
        UsageError: the file became another one meanwhile.
    """
    try:
        return load(folder)
    except TamperedError as error:
        raise UsageError(f"{artifact.path} was changed while it was bundled: {error}") from error


def _described(name: str) -> dict[str, object]:
    """Return the provider and its options of a runtime, if it is ONNX Runtime; {} if it is not known here."""
    try:
        (runtime,) = select((name,))
    except UsageError:  # one of another machine's configuration: its records say all the same that it passed
        return {}
    runtime = adapter_of(runtime)
    if not isinstance(runtime, OrtRuntime) or runtime.library:
        return {}
    return {
        "provider": runtime.provider,
        "provider_options": dict(runtime.provider_options),
        "optimised": runtime.optimise,
    }


def _built(
    artifact: Artifact,
    signature: Signature,
    records: Sequence[AnyRecord],
    verified: Sequence[Verified],
    unverified: str,
    seed: int,
    original: Artifact | None,
) -> dict[str, bytes]:
    """Return the files of a bundle but for the model, its weights and the list of digests."""
    built: dict[str, bytes] = {}
    data = []
    try:
        for index, one in enumerate(sets_of(signature, seed)):
            data.append(f"{DATA}{index}")
            texts = files_of(one, signature.dtypes, declared(signature))
            built |= {f"{data[-1]}/{name}": text for name, text in texts.items()}
    except UnsupportedOperatorError as error:
        raise UsageError(
            f"there is no exact result to put beside {artifact.path.name}: {error}; onnx-attest explain OA802"
        ) from error
    mine = about(artifact.sha256, records)
    told = About(
        model=artifact.name,
        sha256=artifact.sha256,
        weights=tuple(sorted(artifact.beside)),
        opset=signature.got.opset,
        dtype=signature.floating.name,
        against="" if unverified else held_against(mine),
        arithmetic=declared(signature),
        empty_rows=signature.contract.empty_rows,
        unverified=unverified,
        converted_from="" if original is None else original.sha256,
        inputs=tuple(
            Tensor(name=one.name, dtype=_dtype(one.dtype, signature), axes=one.axes)
            for one in signature.contract.inputs
        ),
        outputs=tuple(
            Tensor(name=one.name, dtype=signature.dtypes[one.name].name, axes=one.axes)
            for one in signature.contract.outputs
        ),
        verified=tuple(verified),
        data=tuple(data),
    )
    built[ABOUT] = msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n"
    built[RECORDS] = impersonal(encode(mine))
    cost = [] if original is None else list(costs(read_signature(original), signature, seed))
    built[CARD] = card(told, mine, cost).encode()
    built[REPLAY] = files("onnx_attest.verify.deploy").joinpath("standalone.py").read_bytes()
    beside = manifest_path(artifact.path)
    if beside.is_file():
        built[manifest_path(Path(MODEL)).name] = beside.read_bytes()
    return built


def _dtype(kind: str, signature: Signature) -> str:
    return signature.floating.name if kind == "float" else kind


def _weights(artifact: Artifact) -> dict[str, Path]:
    """Return the files of a model by their names in a bundle: itself, and those that its weights lie in.

    Raises:
        UsageError: weights under a name that a bundle has for something else.
    """
    taken = {*map(str.casefold, (MODEL, manifest_path(Path(MODEL)).name, *_OURS))}
    for name in artifact.beside:
        # Where a folder is copied to, names may differ in more than their case or be the same.
        first = name.casefold().partition("/")[0]
        if (
            not is_coverable(name)
            or first in taken
            or first.startswith(DATA)
            or _is_another(name, artifact.beside)
        ):
            raise UsageError(
                f"{artifact.path.name} keeps weights in {name!r}, a name that no bundle takes; save it anew"
            )
    return {MODEL: artifact.path} | {name: artifact.path.parent / name for name in artifact.beside}


def _is_another(name: str, names: Iterable[str]) -> bool:
    return any(other != name and other.casefold() == name.casefold() for other in names)


def _write(folder: Path, built: dict[str, bytes], copied: dict[str, Path]) -> None:
    for name, data in built.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    for name, source in copied.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / name)
    digests = {name: digest_of(folder / name) for name in (*built, *copied)}
    (folder / LIST).write_bytes(list_of(digests))
    folder.chmod(0o755)
