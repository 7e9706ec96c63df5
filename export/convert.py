"""Variants of a file for deployment: half precision, int8, and the graph that ONNX Runtime's optimiser makes.

Well-kept libraries make them (ONNX Runtime's own converters, its quantiser, its optimiser); here they are only called, in
a process of their own, because ONNX Runtime's tools put their folder on the search path of modules.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import onnx
import onnx_ir
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact, digest, manifest_path, parts_of, write_artifact, write_whole
from onnx_attest.export.converter import KEPT, KINDS
from onnx_attest.export.observe import observe
from onnx_attest.export.strip import strip_metadata

if TYPE_CHECKING:
    from onnx_attest.models.entry import Entry

CALIBRATED = ("int8-static",)
"""Kinds that are made with inputs."""
EXPORTED = {"bf16": "bfloat16"}
"""Kinds that torch's exporter makes from the module, by the dtype: ONNX Runtime's converters write no bfloat16."""
_HALF = ("fp16",)
_LONGEST_S = 600


def convert(
    artifact: Artifact,
    kind: str,
    path: Path,
    calibration: Iterable[Mapping[str, NDArray[Any]]] = (),
    kept: Collection[str] = (),
) -> Artifact:
    """Write a variant of a file, with a manifest if the file has one, and return it.

    Args:
        artifact: the file, in float32.
        kind: one of `KINDS`.
        path: where the variant goes.
        calibration: inputs by name, for `int8-static`.
        kept: values whose nodes `int8-static` leaves in float32.

    Raises:
        UsageError: an unknown kind, no calibration inputs, a converter that fails (its own words), or gives what is no
            valid ONNX; a path that `refuse_place` refuses.
        UnwritableError: the file cannot be written.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind {kind!r}; there are {', '.join((*KINDS, *EXPORTED))}")
    refuse_place(artifact, path)
    with tempfile.TemporaryDirectory(prefix="onnx-attest-convert-") as name:
        folder = Path(name)
        count = 0
        for count, inputs in enumerate(calibration, 1):
            named: dict[str, Any] = {f"arr_{index}": array for index, array in enumerate(inputs.values())}
            np.savez(folder / f"inputs-{count}.npz", **named)
        if kind in CALIBRATED and not count:
            raise UsageError(f"{kind} is calibrated with inputs, and there are none")
        (folder / KEPT).write_bytes(msgspec.json.encode(sorted(kept)))
        model = _made(artifact, kind, folder)
    data = bytes(model.SerializeToString(deterministic=True))
    if artifact.manifest is None:
        write_whole({path: data})
        return Artifact(path, digest(data))
    given = artifact.manifest
    manifest = msgspec.structs.replace(
        given,
        variant=f"{given.variant}-{kind}",
        dtype="float16" if kind in _HALF else given.dtype,
        arithmetic="fp16-unfused" if kind in _HALF else given.arithmetic,
        sha256=digest(data),
        got=observe(model),
        # What the module and its formula compute is what the original is held against; this is held against the
        # original, and runtimes against what its own graph says.
        contract=msgspec.structs.replace(given.contract, specification=None),
        module=None,
        parameters_sha256=None,
    )
    return replace(write_artifact(data, manifest, path), module=None)


def export_anew(artifact: Artifact, kind: str, path: Path, entry: Entry) -> Artifact:
    """Write the module of a file in another format, in the form and the opset of the file, and return it.

    Args:
        artifact: the file, in float32.
        kind: one of `EXPORTED`.
        path: where the variant goes.
        entry: the file's module.

    Raises:
        UsageError: the module is not that of the file, or cannot be exported in that format; a path that `refuse_place`
            refuses.
        UnwritableError: the file cannot be written.
    """
    from onnx_attest.export.api import ExportFailure, export_entry
    from onnx_attest.models.entry import build_module, parameters_digest

    refuse_place(artifact, path)
    given = artifact.manifest
    if given is None:
        got = observe(onnx.load(artifact.path, load_external_data=False))
    else:
        got = given.got
        entry = replace(entry, contract=given.contract)
        known = given.parameters_sha256
        if known is not None and parameters_digest(build_module(entry)) != known:
            raise UsageError(f"{entry.name} has other parameters than {artifact.path.name} was exported with")
    form = "attention" if "Attention" in got.operators else "decomposed"
    with tempfile.TemporaryDirectory(prefix="onnx-attest-convert-") as name:
        (made,) = export_entry(entry, Path(name), variants=[form], opset=got.opset, dtype=EXPORTED[kind])
        if isinstance(made, ExportFailure):
            raise UsageError(f"{entry.name} cannot be exported in {EXPORTED[kind]}: {made.reason}")
        assert made.manifest is not None  # an export has one
        return replace(write_artifact(made.path.read_bytes(), made.manifest, path), module=None)


def refuse_place(artifact: Artifact, path: Path) -> None:
    """Refuse to write a variant where it would take something away from another file.

    Args:
        artifact: the file that is converted.
        path: where its variant is to go.

    Raises:
        UsageError: a part of the file itself lies there; it has another ending than .onnx, and so may have the manifest of
            another file; or it would get a manifest that describes another file.
    """
    written = (path, manifest_path(path))
    for part in parts_of(artifact):
        if any(_is_one(part, one) for one in written):
            raise UsageError(
                f"{path} is the file itself; name another one with -o"
                if _is_one(part, artifact.path)
                else f"{path} takes the place of {part}, a part of the file itself; name another one with -o"
            )
    if path.suffix != ".onnx":
        raise UsageError(f"{path} does not end in .onnx, as what is written does; name another one with -o")
    if artifact.manifest is None and manifest_path(path).exists():
        raise UsageError(
            f"{manifest_path(path)} is of another file, and would be taken for that of {path}; delete it, or name another "
            "one with -o"
        )


def _is_one(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, under whichever name."""
    try:
        return one.resolve() == other.resolve() or one.samefile(other)
    except (OSError, RuntimeError):  # one is not there; a circle of links
        return False


def _made(artifact: Artifact, kind: str, folder: Path) -> onnx.ModelProto:
    target = folder / "converted.onnx"
    command = [
        sys.executable,
        "-m",
        "onnx_attest.export.converter",
        kind,
        str(artifact.path.resolve()),
        str(target),
    ]
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command, capture_output=True, text=True, timeout=_LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"converting {artifact.path.name} to {kind} took longer than {_LONGEST_S} s"
        ) from None
    if done.returncode or not target.exists():
        last = done.stderr.strip().splitlines()[-1:] or ["without a word"]
        raise UsageError(f"{artifact.path.name} cannot be converted to {kind}: {last[0]}")
    return strip_metadata(_in_order(target))


def _in_order(path: Path) -> onnx.ModelProto:
    """Return a model with each node behind those that it needs: the converter to half precision leaves some before.

    Raises:
        UsageError: it is no valid ONNX.
    """
    try:
        model = onnx_ir.load(path)
        model.graph.sort()
        proto: onnx.ModelProto = onnx_ir.to_proto(model)
        onnx.checker.check_model(proto)
    except Exception as error:
        raise UsageError(f"the converter gave no valid ONNX: {error}") from error
    return proto
