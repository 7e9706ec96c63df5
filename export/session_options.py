"""Options of an ONNX Runtime session, by the texts that name and set them on a command line and in a bundle."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from onnx_attest.errors import UsageError

if TYPE_CHECKING:
    import onnxruntime as ort


_FILES = re.compile(r"file|path|folder|dir(?![a-z])|profil")


def of_files(keys: Iterable[str]) -> list[str]:
    """Return those options, of a session or of a provider, by which ONNX Runtime reads or writes files."""
    return [key for key in keys if _FILES.search(key)]


def set_option(options: ort.SessionOptions, key: str, value: str) -> None:
    """Set a property of SessionOptions by its Python name, or a configuration entry by its dotted one.

    Raises:
        UsageError: no such property, or a value that it does not take.
    """
    import onnxruntime

    if "." in key:
        options.add_session_config_entry(key, value)
        return
    names = [name for name in dir(options) if not name.startswith(("_", "add_", "get_", "register_"))]
    if key not in names:
        raise UsageError(
            f"--session-option: ONNX Runtime has no {key!r}; there are {', '.join(names)}, and dotted ones"
        )
    now = getattr(options, key)
    try:
        setattr(options, key, _as_the_same_kind(onnxruntime, now, value))
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"--session-option {key}={value}: {' '.join(str(error).split())}") from error


def _as_the_same_kind(onnxruntime: Any, now: Any, value: str) -> Any:
    """Return a text as what a property holds: a boolean, a number, one of an enumeration, or text."""
    if isinstance(now, bool):
        if value.lower() not in ("0", "1", "true", "false"):
            raise ValueError("give true or false")
        return value.lower() in ("1", "true")
    if isinstance(now, int) and not hasattr(now, "name"):
        return int(value)
    if hasattr(now, "name"):  # an enumeration of pybind11
        members = type(now).__members__
        if value not in members:
            raise ValueError(f"give one of {', '.join(members)}")
        return members[value]
    return value
