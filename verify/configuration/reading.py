"""Where the settings are read, and the one line for what they cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_attest.errors import UsageError
from onnx_attest.export.reading import bytes_of
from onnx_attest.verify.configuration.keys import BY_NAME, RUNTIMES, no_such_key, taken_by
from onnx_attest.verify.configuration.kinds import WrongValueError
from onnx_attest.verify.configuration.toml import LARGEST, NotTomlError, shown, toml_of

OWN_FILE, PROJECT_FILE = "onnx-attest.toml", "pyproject.toml"
TOOL = "onnx-attest"
_PREFIX = f"tool.{TOOL}."


@dataclass(frozen=True)
class Configuration:
    """What a folder's configuration says.

    Attributes:
        settings: the values that it gives, by their key, as the program uses them.
        runtimes: the tables of the user's own runtimes by their name; what is in them, `runtimes.configured` checks.
        folder: that relative paths start from.
        place: what messages call the table, `pyproject.toml: tool.onnx-attest.` for example.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    runtimes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)
    place: str = ""

    def stand_in(self, command: str) -> dict[str, Any]:
        """Return what stands in for the options of a command that were not given, by the names of its parameters."""
        found = {}
        for key in taken_by(command):
            if key.option and key.stands_in and key.name in self.settings:
                value = self.settings[key.name]
                if isinstance(value, dict):  # an option that is repeated: key=value
                    value = [f"{name}={option}" for name, option in value.items()]
                found[key.parameter] = list(value) if isinstance(value, tuple) else value
        return found


def read_configuration(folder: Path | None = None) -> Configuration:
    """Return the configuration of a folder, the working directory by default: its own file, else the project's table.

    Raises:
        UsageError: it cannot be read, or has a key that there is not or a value of another kind; the message names it.
    """
    folder = folder or Path.cwd()
    if (read := parsed(folder / OWN_FILE)) is not None:
        return _own(read, folder)
    if (read := parsed(folder / PROJECT_FILE)) is not None:
        tool = _table(read, "tool", f"{PROJECT_FILE}: ")
        return _checked(_table(tool, TOOL, f"{PROJECT_FILE}: tool."), folder, f"{PROJECT_FILE}: {_PREFIX}")
    return Configuration(folder=folder)


def _own(read: dict[str, Any], folder: Path) -> Configuration:
    place = f"{OWN_FILE}: "
    # Its own file needs no prefix, and who copies a table from a pyproject.toml has one.
    if TOOL not in _table(read, "tool", place):
        return _checked(read, folder, place)
    if outside := [key for key in read if key != "tool"]:
        raise UsageError(
            f"{place}{outside[0]}: it stands outside of [tool.{TOOL}], which the file has; put it there, or leave out the prefix"
        )
    return _checked(_table(read["tool"], TOOL, f"{place}tool."), folder, place + _PREFIX)


def _checked(table: Mapping[str, Any], folder: Path, place: str) -> Configuration:
    settings = {}
    for name, value in table.items():
        if name == RUNTIMES:
            continue
        if name not in BY_NAME:
            raise UsageError(f"{place}{name}: {no_such_key(name, (*BY_NAME, RUNTIMES))}")
        try:
            settings[name] = BY_NAME[name].kind.read(value)
        except WrongValueError as error:
            raise UsageError(f"{place}{name}{error.within}: {error}") from error
    runtimes = _table(table, RUNTIMES, place)
    tables = {name: _table(runtimes, name, f"{place}{RUNTIMES}.") for name in runtimes}
    return Configuration(settings, tables, folder, place)


def parsed(path: Path, remedy: str = "") -> dict[str, Any] | None:
    """Return what a TOML file holds, None if there is none.

    Raises:
        UsageError: it cannot be read or is not TOML; `remedy` stands at the end of the line then.
    """
    try:
        return toml_of(bytes_of(path, LARGEST))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"cannot read {path.name}: {error.strerror}; make it readable, or remove it"
        ) from error
    except NotTomlError as error:
        raise UsageError(f"{path.name} is not TOML: {error}{remedy}") from error


def _table(parent: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
    value = parent.get(key, {})
    if not isinstance(value, dict):
        raise UsageError(f"{place}{key}: give a table, not {shown(value)}")
    return value
