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
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact, digest, write_artifact, write_whole
from onnx_attest.export.converter import KEPT, KINDS
from onnx_attest.export.observe import observe
from onnx_attest.export.strip import strip_metadata

CALIBRATED = ("int8-static",)
"""Kinds that are made with inputs."""
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
            valid ONNX.
        UnwritableError: the file cannot be written.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind {kind!r}; there are {', '.join(KINDS)}")
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
