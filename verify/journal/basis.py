"""What the results of a run depend on, as texts by their names: only a run of the same basis may continue another."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from onnx_attest import __version__
from onnx_attest.export.artifact import Artifact, digest
from onnx_attest.verify.environment import packages
from onnx_attest.verify.known import Known
from onnx_attest.verify.paths import without_folders
from onnx_attest.verify.runtimes.base import Runtime
from onnx_attest.verify.runtimes.isolated import Isolated

if TYPE_CHECKING:
    from onnx_attest.verify.engine import Plan

_ABOUT_THE_CALL = ("output", "jobs", "engine", "evidence", "baseline")
"""Settings that change no record."""
_PARTS = ("onnx_attest.models", "onnx_attest.export", "onnx_attest.verify")
_RUNTIME = "runtime "
_SHOWN = 12
"""Digits of a digest, as in Git."""


def basis_of_plan(plan: Plan) -> dict[str, str]:
    """Return what a plan says, but for its runtimes' versions: see `versions`."""
    found = {
        "version of onnx-attest": __version__,
        "code of onnx-attest": code_digest(),
        "version of Python": platform.python_version(),
        **{f"version of {name}": version for name, version in packages().items()},
        **dict(kv for runtime in plan.runtimes for kv in _options(runtime)),
        "seed": str(plan.seed),
        "threads": _told(plan.threads),
        "known failures": _digest_of_known(plan.known),
        "fail_fast": _told(plan.fail_fast),
        "arithmetic": _told(plan.arithmetic),
        "atol": _told(plan.atol),
        "rtol": _told(plan.rtol),
        "rows": _told(plan.rows),
        "thorough": _told(plan.thorough),
        "relations_only": _told(plan.relations_only),
        "time_budget_s": _told(plan.time_budget_s),
        "input shapes": _told(plan.axes),
        "inputs": "" if plan.inputs is None else _digest_of_arrays(plan.inputs),
        "original": "" if plan.original is None else _short(plan.original.SerializeToString(True)),
    }
    settings = {name: text for name, text in plan.configuration.items() if name not in _ABOUT_THE_CALL}
    return found | {f"setting {name}": text for name, text in settings.items() if name not in found}


def versions(runtimes: Iterable[Runtime]) -> dict[str, str]:
    """Return the version of each runtime; one that does not work here has none, and a session may still say so."""
    seen = {runtime.name: runtime.availability() for runtime in runtimes}
    return {
        f"version of {name}": f"{found.version}{'' if found.usable else ', not usable here'}"
        for name, found in seen.items()
    }


def basis_of_artifact(artifact: Artifact) -> dict[str, str]:
    """Return digests of a file, its manifest, its external data and the source of its module."""
    manifest = b"" if artifact.manifest is None else msgspec.json.encode(artifact.manifest)
    found = {"file": artifact.sha256[:_SHOWN], "manifest": _short(manifest)}
    found |= {f"external data {place}": data[:_SHOWN] for place, data in artifact.beside.items()}
    return found | ({"module": basis_of_reference(artifact.reference)} if artifact.reference else {})


def basis_of_reference(reference: str) -> str:
    """Return a module's reference as `resolve` takes it, with the digest of its file, where it is one."""
    source = Path(reference.rpartition(":")[0])
    if (
        source.suffix != ".py"
    ):  # of the catalogue or of a package: `code of onnx-attest`, or a version of its own
        return reference
    try:
        return f"{source.name}:{reference.rpartition(':')[2]} {_short(source.read_bytes())}"
    except OSError:  # whoever builds it says why
        return reference


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return in words what differs between two bases."""
    return [
        f"{name} ({_apart(name, before.get(name, ''), now.get(name, ''))})"
        for name in dict.fromkeys((*before, *now))
        if before.get(name, "") != now.get(name, "")
    ]


def _apart(name: str, before: str, now: str) -> str:
    # What a runtime is, is of interest only beside another one.
    if name.startswith(_RUNTIME) and not (before and now):
        return "was asked, now is not" if before else "is asked now, was not"
    if name.startswith(_RUNTIME):
        return "its options were others"
    return f"{before or 'none'}, now {now or 'none'}"


@cache
def code_digest() -> str:
    """Return the digest of this package's own sources, the catalogue's among them."""
    found = hashlib.sha256()
    for part in _PARTS:
        (folder,) = map(Path, import_module(part).__path__)
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".toml", ".js"):
                found.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:_SHOWN]


def _options(runtime: Runtime) -> Iterator[tuple[str, str]]:
    """Yield what a runtime is, plain data all of it. Limits are settings, or the machine's, which may be another one."""
    if isinstance(runtime, Isolated):
        yield f"interpreter of {runtime.name}", without_folders(str(runtime.process.interpreter))
        runtime = runtime.runtime
    yield f"{_RUNTIME}{runtime.name}", without_folders(repr(runtime))


def _digest_of_known(known: Iterable[Known]) -> str:
    return _short(msgspec.json.encode(tuple(known)))


def _digest_of_arrays(arrays: Mapping[str, Any]) -> str:
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:_SHOWN]


def _told(value: Any) -> str:
    return "" if value is None else str(value)


def _short(data: bytes) -> str:
    return digest(data)[:_SHOWN]
