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

import math
import shutil
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from onnx_attest.errors import UsageError
from onnx_attest.verify.runtimes.base import Runtime
from onnx_attest.verify.runtimes.isolated import Isolated, isolated
from onnx_attest.verify.workers.child import MIB, Limits, usual_limits

OWN_FILE, PROJECT_FILE = "onnx-attest.toml", "pyproject.toml"
_USUAL = "ort-cpu"
"""What an entry is a variant of if it does not say so."""
_FAMILIES = ("ort:", "openvino:")
"""How the names begin that say more than a name, see `registry.select`."""
_KEYS = ("python", "runtime", "provider_options", "session_options", "time_limit_s", "memory_limit_mib")
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

    def text(self, key: str) -> str:
        value = self.table.get(key, "")
        if not isinstance(value, str) or (key in self.table and not value):
            raise self.refuse(key, f"give a text, not {value!r}")
        return value

    def positive(self, key: str, default: float | None) -> float | None:
        if key not in self.table:
            return default
        value = self.table[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.refuse(key, f"give a number above 0, not {value!r}")
        return float(value)

    def options(self, key: str) -> dict[str, str]:
        value = self.table.get(key, {})
        if not isinstance(value, dict):
            raise self.refuse(key, f"give a table of options, not {value!r}")
        for name, option in value.items():
            if not isinstance(option, str | int | float):
                raise self.refuse(f"{key}.{name}", f"give a text, a number or a truth value, not {option!r}")
        # ONNX Runtime's options are texts, and its truth values 0 and 1.
        return {
            name: str(int(option) if isinstance(option, bool) else option) for name, option in value.items()
        }


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
    path, table, prefix = folder / OWN_FILE, None, ""
    if (read := _read(path)) is not None:
        # Its own file needs no prefix, and who copies an entry from a pyproject.toml has one.
        prefix = "tool.onnx-attest." if "onnx-attest" in _table(read, "tool", path.name) else ""
        table = read["tool"]["onnx-attest"] if prefix else read
    else:
        path = folder / PROJECT_FILE
        if (read := _read(path)) is None:
            return []
        prefix = "tool.onnx-attest."
        table = _table(_table(read, "tool", path.name), "onnx-attest", f"{path.name}: tool")
    place = f"{path.name}: {prefix}runtimes"
    runtimes = _table(table, "runtimes", f"{path.name}: {prefix}".rstrip(": ."))
    return [_Entry(name, _table(runtimes, name, place), folder, f'{place}."{name}"') for name in runtimes]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"cannot read {path.name}: {error.strerror}; make it readable, or remove it"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is not TOML: {error}") from error


def _table(parent: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
    value = parent.get(key, {}) if isinstance(parent, dict) else parent
    if not isinstance(value, dict):
        raise UsageError(f"{place}.{key}: give a table, not {value!r}")
    return value


def _made(entry: _Entry, known: Collection[str], named: Callable[[str], Runtime]) -> Isolated:
    if unknown := [key for key in entry.table if key not in _KEYS]:
        raise entry.refuse(unknown[0], f"there is no such key; there are {', '.join(_KEYS)}")
    if not entry.name:
        raise UsageError(f"{entry.place}: a runtime needs a name")
    usual = usual_limits()
    memory = entry.positive("memory_limit_mib", None)
    limits = Limits(
        entry.positive("time_limit_s", usual.time_s) or usual.time_s,
        usual.memory_bytes if memory is None else int(memory * MIB),
    )
    return isolated(_variant(entry, _base(entry, known, named)), limits, _python(entry))


def _base(entry: _Entry, known: Collection[str], named: Callable[[str], Runtime]) -> Runtime:
    name = entry.text("runtime") or (entry.name if entry.name in known else _USUAL)
    if name not in known and not name.startswith(_FAMILIES):
        raise entry.refuse("runtime", f"there is no runtime {name!r}; there are {', '.join(known)}")
    try:
        return named(name)
    except UsageError as error:
        raise entry.refuse("runtime", str(error)) from error


def _variant(entry: _Entry, base: Runtime) -> Runtime:
    changes: dict[str, Any] = {} if base.name == entry.name else {"name": entry.name}
    if getattr(base, "reference", ""):
        changes["reference"] = ""  # it is found by its own name, here in the configuration
    for key in ("provider_options", "session_options"):
        if options := entry.options(key):
            if not hasattr(base, key):
                raise entry.refuse(key, f"these are ONNX Runtime's; {base.name} has none")
            changes[key] = {**getattr(base, key), **options}
    if not changes:
        return base
    if not is_dataclass(base) or isinstance(base, type) or "name" not in {one.name for one in fields(base)}:
        raise entry.refuse("runtime", f"{base.name} has no variants")
    return replace(base, **changes)


def _python(entry: _Entry) -> str:
    """Return the interpreter as a path, "" if it is this one."""
    given = entry.text("python")
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
