"""Which runtimes work here, and why the others do not."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnx_attest.export.artifact import Artifact, read_artifact
from onnx_attest.verify.blame import MODULES
from onnx_attest.verify.runtimes.base import Runtime
from onnx_attest.verify.runtimes.ort_providers import ONE_NODE


@dataclass(frozen=True)
class Diagnosis:
    """One runtime: usable or not, its version, the reason and what to install."""

    runtime: str
    usable: bool
    version: str
    profile: str
    reason: str
    install: str


def diagnose(runtimes: Sequence[Runtime]) -> list[Diagnosis]:
    """Return the state of each runtime on this machine; one that runs files has run the smallest one there is."""
    with tempfile.TemporaryDirectory(prefix="onnx-attest-") as folder:
        path = Path(folder) / "identity.onnx"
        path.write_bytes(ONE_NODE)
        artifact = read_artifact(path)
        return [_diagnosis(runtime, artifact) for runtime in runtimes]


def _diagnosis(runtime: Runtime, artifact: Artifact) -> Diagnosis:
    found = runtime.availability()
    reason = found.reason or _trial(runtime, artifact)
    return Diagnosis(
        runtime.name, not reason, found.version, runtime.arithmetic("float32"), reason, found.install
    )


def _trial(runtime: Runtime, artifact: Artifact) -> str:
    """Return why a runtime that says it works does not run one node, "" if it does."""
    if runtime.name in MODULES:
        return ""
    try:
        given = np.array([1.5], np.float32)
        (result,) = runtime.open(artifact).run({"x": given}).values()
    except Exception as error:  # noqa: BLE001 - whatever a runtime raises is what is wrong with it
        return f"it is there, and does not run: {' '.join(str(error).split()) or type(error).__name__}"
    return "" if np.array_equal(result, given) else f"it is there, and copies 1.5 as {result}"


def conflicts() -> list[str]:
    """Return what is wrong with the installation as a whole."""
    from onnx_attest.verify.runtimes.ort_providers import installed_builds

    builds = installed_builds()
    if len(builds) < 2:
        return []
    names = " and ".join(builds)
    return [f"{names} are both installed and overwrite each other's files: uninstall both, then install one"]


def as_text(found: Sequence[Diagnosis], wrong: Sequence[str]) -> str:
    """Return a line a runtime, and one for each conflict."""
    width = max(len(item.runtime) for item in found)
    lines = [f"{item.runtime:{width}}  {_state(item)}" for item in found]
    return "\n".join([*lines, *(f"conflict: {text}" for text in wrong)])


def _state(item: Diagnosis) -> str:
    if item.usable:
        return f"usable      {item.version}, computes {item.profile}"
    return f"not usable  {item.reason}" + (f" (needs {item.install})" if item.install else "")
