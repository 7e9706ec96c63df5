"""What a report says of the settings that it was made with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx_attest.verify.configuration.keys import RUNTIMES, taken_by
from onnx_attest.verify.configuration.reading import Configuration
from onnx_attest.verify.paths import without_folders


def resolved(command: str, given: Mapping[str, Any], configuration: Configuration) -> dict[str, str]:
    """Return the settings that a command ran with and that are not its defaults, as texts without a machine's folders.

    Args:
        command: its name.
        given: what it was given beyond the configuration, by the names of its parameters; it goes before.
        configuration: of its folder.
    """
    found = {}
    for key in taken_by(command):
        value = given.get(key.parameter or key.name, configuration.settings.get(key.name))
        if value is not None:
            found[key.name] = told(value)
    for name, table in configuration.runtimes.items():
        found[f"{RUNTIMES}.{name}"] = told(dict(table))
    return found


def told(value: Any) -> str:
    """Return a setting as one text: a list with commas, a table as `key=value`, no folder of this machine."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={told(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(told, value))
    return without_folders(str(value))
