"""Runtimes that a user configures, in `onnx-attest.toml` or under `[tool.onnx-attest]` in `pyproject.toml`.

    [tool.onnx-attest.runtimes."ort-1.24"]
    python = "../venv-ort-1.24/bin/python"     # another interpreter, with another version of the runtime
    runtime = "ort-cpu"                        # the runtime that it is a variant of
    provider_options = { use_tf32 = "1" }
    session_options = { "session.disable_prepacking" = "1" }
    time_limit_s = 60
    memory_limit_mib = 4096

The name of a runtime that there is changes that one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from onnx_attest.errors import UsageError
from onnx_attest.verify.configuration import Configuration, read_configuration
from onnx_attest.verify.configuration.keys import RUNTIME_KEYS, RUNTIMES, no_such_key
from onnx_attest.verify.configuration.kinds import WrongValueError
from onnx_attest.verify.runtimes.base import Runtime
from onnx_attest.verify.runtimes.isolated import Isolated, isolate, isolated
from onnx_attest.verify.workers.limits import MIB, Limits, usual_limits

_USUAL = "ort-cpu"
"""What an entry is a variant of if it does not say so."""
_FAMILIES = ("ort:", "openvino:")
"""How the names begin that say more than a name, see `registry.select`."""
_CACHE: dict[tuple[str, str], Isolated] = {}
"""Entries by their file's folder and text, so that asking for one twice gives one process."""


@dataclass(frozen=True)
class _Entry:
    """One table, with the place that messages call it by."""

    name: str
    table: Mapping[str, Any]
    folder: Path
    place: str

    def refuse(self, key: str, message: str) -> UsageError:
        return UsageError(f"{self.place}.{key}: {message}")

    def read(self) -> dict[str, Any]:
        """Return the values by their key."""
        kinds = {key.name: key.kind for key in RUNTIME_KEYS}
        values = {}
        for key, value in self.table.items():
            if key not in kinds:
                raise self.refuse(key, no_such_key(key, kinds))
            try:
                values[key] = kinds[key].read(value)
            except WrongValueError as error:
                raise self.refuse(key + error.within, str(error)) from error
        return values


def configured(
    known: Collection[str], named: Callable[[str], Runtime], folder: Path | None = None
) -> dict[str, Runtime]:
    """Return the configured runtimes by name; each has a process of its own.

    Args:
        known: the names of those that an entry may be a variant of, besides `ort:PROVIDER` and the like.
        named: gives a runtime by its name.
        folder: where the configuration is; the working directory by default.

    Raises:
        UsageError: it cannot be read, or an entry says something that it cannot; the message names the key.
    """
    found: dict[str, Runtime] = {}
    for entry in _entries(folder or Path.cwd()):
        key = (str(entry.folder), f"{entry.name} {entry.table}")
        if key not in _CACHE:
            _CACHE[key] = _made(entry, known, named)
        found[entry.name] = _CACHE[key]
    return found


def _entries(folder: Path) -> list[_Entry]:
    found = read_configuration(folder)
    place = f"{found.place}{RUNTIMES}"
    return [_Entry(name, table, folder, f'{place}."{name}"') for name, table in found.runtimes.items()]


def _made(entry: _Entry, known: Collection[str], named: Callable[[str], Runtime]) -> Isolated:
    values = entry.read()
    if not entry.name:
        raise UsageError(f"{entry.place}: a runtime needs a name")
    usual, memory = usual_limits(), values.get("memory_limit_mib")
    limits = Limits(
        values.get("time_limit_s", usual.time_s), usual.memory_bytes if memory is None else int(memory * MIB)
    )
    base = _base(entry, values.get("runtime", ""), known, named)
    return isolated(_variant(entry, values, base), limits, _python(entry, values.get("python", "")))


def _base(entry: _Entry, given: str, known: Collection[str], named: Callable[[str], Runtime]) -> Runtime:
    name = given or (entry.name if entry.name in known else _USUAL)
    if name not in known and not name.startswith(_FAMILIES):
        raise entry.refuse("runtime", f"there is no runtime {name!r}; there are {', '.join(known)}")
    try:
        return named(name)
    except UsageError as error:
        raise entry.refuse("runtime", str(error)) from error


def _variant(entry: _Entry, values: Mapping[str, Any], base: Runtime) -> Runtime:
    changes: dict[str, Any] = {} if base.name == entry.name else {"name": entry.name}
    if getattr(base, "reference", ""):
        changes["reference"] = ""  # it is found by its own name, here in the configuration
    for key in ("provider_options", "session_options"):
        if options := values.get(key):
            if not hasattr(base, key):
                raise entry.refuse(key, f"these are ONNX Runtime's; {base.name} has none")
            changes[key] = {**getattr(base, key), **options}
    if not changes:
        return base
    if not is_dataclass(base) or isinstance(base, type) or "name" not in {one.name for one in fields(base)}:
        raise entry.refuse("runtime", f"{base.name} has no variants")
    return replace(base, **changes)


def _python(entry: _Entry, given: str) -> str:
    """Return the interpreter as a path, "" if it is this one."""
    if not given:
        return ""
    path = Path(given).expanduser()
    if len(path.parts) == 1 and not (entry.folder / path).exists():  # a command, as in a shell
        found = shutil.which(given)
    else:
        found = shutil.which(entry.folder / path)
    if found is None:
        raise entry.refuse("python", f"there is no program {given}; give the path of a Python interpreter")
    return found


def limited(
    runtimes: Iterable[Runtime], settings: Configuration, *, time_s: float | None, memory_bytes: int | None
) -> tuple[Runtime, ...]:
    """Return the runtimes, each in a process of its own, with the limits that hold for it.

    What is asked for here goes before a runtime's own limit, and that before the configuration's for all of them.
    """
    general = general_limits(settings)
    found: list[Runtime] = []
    for runtime in runtimes:
        own = settings.runtimes.get(runtime.name, {})
        found += isolate(
            (runtime,),
            time_s=time_s or (None if "time_limit_s" in own else general["time_s"]),
            memory_bytes=memory_bytes or (None if "memory_limit_mib" in own else general["memory_bytes"]),
        )
    return tuple(found)


def general_limits(settings: Configuration) -> dict[str, Any]:
    """Return the configuration's limits for all runtimes, as `isolate` and `usual_limits` take them."""
    memory = settings.settings.get("memory_limit_mib")
    return {
        "time_s": settings.settings.get("time_limit_s"),
        "memory_bytes": None if memory is None else int(memory * MIB),
    }
