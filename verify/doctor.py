"""Which runtimes work here, and why the others do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_attest.verify.runtimes.base import Runtime

INSTALL = {
    "torch": "onnx-attest[torch]",
    "ort-cpu": "onnx-attest[cpu] or onnx-attest[cuda]",
    "ort-cpu-noopt": "onnx-attest[cpu] or onnx-attest[cuda]",
    "ort-cuda": "onnx-attest[torch,cuda]: torch's CUDA build brings the CUDA libraries",
    "onnx-reference": "comes with onnx-attest",
}


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
    """Return the state of each runtime on this machine."""
    found = []
    for runtime in runtimes:
        availability = runtime.availability()
        found.append(
            Diagnosis(
                runtime.name,
                availability.usable,
                availability.version,
                runtime.arithmetic("float32"),
                availability.reason,
                "" if availability.usable else INSTALL.get(runtime.name, ""),
            )
        )
    return found


def conflicts() -> list[str]:
    """Return what is wrong with the installation as a whole."""
    from onnx_attest.verify.runtimes.onnxruntime import installed_builds

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
    return f"not usable  {item.reason} (needs {item.install})"
