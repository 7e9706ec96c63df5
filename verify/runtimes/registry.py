"""The table of runtimes: entry points of the group `onnx_attest.runtimes`, the built-in ones included.

Entry points are read once a process, and a runtime's module is imported when it is first asked for; which imports no
third-party runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from onnx_attest.errors import UsageError
from onnx_attest.verify.runtimes.base import Runtime
from onnx_attest.verify.runtimes.broken import BrokenRuntime
from onnx_attest.verify.runtimes.configured import configured
from onnx_attest.verify.runtimes.isolated import Isolated
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime, provider, refuse_unknown_options
from onnx_attest.verify.runtimes.openvino import device

GROUP = "onnx_attest.runtimes"
_OURS = "onnx-attest"
ORDER = (
    "torch",
    "torch-compile",
    "torch-cuda",
    "ort-cpu",
    "ort-cpu-noopt",
    "ort-cuda",
    "ort-cuda-tf32",
    "ort-nxrt",
    "openvino-cpu",
    "openvino-cpu-default",
    "ort-node",
    "ort-web",
    "ort-web-node",
    "onnx-reference",
)
"""The columns of the reports; runtimes of other distributions come after these, by name."""


def registered() -> tuple[Runtime, ...]:
    """Return every runtime that an installed distribution registers; one that cannot be loaded says so itself.

    Raises:
        UsageError: there is none at all, because this package was not installed but only put on the path.
    """
    if not _points():
        raise UsageError("no runtime is registered: install onnx-attest again (python -m pip install .)")
    return tuple(_runtime(name) for name in _points())


def select(names: tuple[str, ...] = (), folder: Path | None = None) -> tuple[Runtime, ...]:
    """Return the runtimes of these names in the order given, all that are registered if none is named.

    Besides the registered ones there are `ort:PROVIDER[@LIBRARY][,key=value...]`, any provider of ONNX Runtime, and
    `openvino:DEVICE[,key=value...]`, any device of OpenVINO.

    Those that the user configured in `folder`, the working directory by default, are among them; they have a process of
    their own, see `configured`.

    Raises:
        UsageError: an unknown name; the message lists those there are. Or a configuration that cannot be.
    """
    own = configured(_points(), _named, folder)
    known = dict.fromkeys((*_points(), *own))
    unknown = [name for name in names if name not in known and not name.startswith(tuple(_FAMILIES))]
    if unknown:
        listed = ", ".join((*known, *_FAMILIES.values()))
        raise UsageError(f"unknown runtime {', '.join(unknown)}; there are {listed}")
    if names:
        return tuple(own[name] if name in own else _named(name) for name in dict.fromkeys(names))
    return tuple(({one.name: one for one in registered()} | own).values())


def reference_of(runtime: Runtime) -> str:
    """Return what `select` takes to give this runtime again, in another process: its name, or what it was made from."""
    return getattr(runtime, "reference", "") or runtime.name


_FAMILIES = {"ort:": "ort:PROVIDER[@LIBRARY]", "openvino:": "openvino:DEVICE"}


def _named(name: str) -> Runtime:
    if name.startswith("ort:"):
        return provider(name)
    return device(name) if name.startswith("openvino:") else _runtime(name)


@cache
def _points() -> Mapping[str, EntryPoint]:
    """Return the entry points by name, in the order of the reports; of two of one name, the built-in or first one."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=_rank):
        name = point.name if point.name not in found else f"{point.name} of {_distribution(point)}"
        found.setdefault(name, point)
    return found


def _rank(point: EntryPoint) -> tuple[bool, int, str, str]:
    place = ORDER.index(point.name) if point.name in ORDER else len(ORDER)
    distribution = _distribution(point)
    return distribution != _OURS, place, point.name, distribution


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown distribution"


@cache
def _runtime(name: str) -> Runtime:
    """Return the runtime that an entry point gives, or what stands in its place if it gives none."""
    point = _points()[name]
    where = f"the entry point {point.value} of {_distribution(point)}"
    if point.name != name:
        return BrokenRuntime(name, f"{where} has the name of another runtime, {point.name}")
    try:
        given: Any = point.load()
        if isinstance(given, type) or not isinstance(given, Runtime):
            given = given()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever somebody's module raises
        return BrokenRuntime(name, f"{where} raised {type(error).__name__}: {' '.join(str(error).split())}")
    if not isinstance(given, Runtime):
        return BrokenRuntime(name, f"{where} gives {type(given).__name__}, which is no Runtime")
    if given.name != name:
        return BrokenRuntime(name, f"{where} gives a runtime that calls itself {given.name!r}")
    return given


def with_session(
    runtimes: Sequence[Runtime], options: Mapping[str, str], libraries: Sequence[str]
) -> tuple[Runtime, ...]:
    """Return the runtimes with the session options and custom operators of the session that a user really runs.

    Raises:
        UsageError: an option or a library, and no runtime that is ONNX Runtime to take it; an unknown option; a library
            that does not exist.
    """
    if not options and not libraries:
        return tuple(runtimes)
    if not any(isinstance(adapter_of(runtime), OrtRuntime) for runtime in runtimes):
        raise UsageError(
            "--session-option and --custom-ops are ONNX Runtime's; none of the runtimes named is"
        )
    refuse_unknown_options(options)
    if missing := [name for name in libraries if not Path(name).is_file()]:
        raise UsageError(f"--custom-ops: there is no file {missing[0]}; give the path of a shared library")
    return tuple(_with_session(runtime, options, libraries) for runtime in runtimes)


def adapter_of(runtime: Runtime) -> Runtime:
    """Return the runtime itself, without the process that it may have."""
    return runtime.runtime if isinstance(runtime, Isolated) else runtime


def _with_session(runtime: Runtime, options: Mapping[str, str], libraries: Sequence[str]) -> Runtime:
    adapter = adapter_of(runtime)
    if not isinstance(adapter, OrtRuntime):
        return runtime
    changed = replace(
        adapter,
        session_options={**adapter.session_options, **options},
        custom_operators=(*adapter.custom_operators, *libraries),
    )
    return replace(runtime, runtime=changed) if isinstance(runtime, Isolated) else changed
