"""What the fixture is told, from the file to the call: nearer ones go before, requirements add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

import pytest

from onnx_attest.errors import UsageError
from onnx_attest.verify.configuration import Configuration
from onnx_attest.verify.configuration.keys import PYTEST, no_such_key, taken_by
from onnx_attest.verify.configuration.kinds import WrongValueError
from onnx_attest.verify.pytest_plugin import MARKER

_CALLED = {"runtime": "runtimes"}
"""Keys that Python calls as `verify` does."""
KINDS = {_CALLED.get(key.name, key.name): key.kind for key in taken_by(PYTEST)}
OF_ONE_FILE = ("against", "input_shapes", "inputs")


class Settings(TypedDict, total=False):
    """What the fixture and its marker take beside the file's own arguments; docs/configuration.md says what each does."""

    runtimes: Iterable[str]
    require: Iterable[str]
    known: Any
    seed: int
    threads: int
    fail_fast: bool
    time_limit_s: float
    memory_limit_mib: float
    time_budget_s: float
    thorough: bool
    rows: int
    relations_only: bool
    arithmetic: str
    atol: float
    rtol: float
    session_options: Mapping[str, Any]
    custom_ops: Iterable[Any]
    allow_inconclusive: bool


def merged(
    node: pytest.Item, configuration: Configuration, options: Mapping[str, Any], call: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what holds for a call of the fixture.

    The call goes before the nearest marker, that before markers farther out, these before pytest's options, these before
    the configuration. What is required by any of them is required.

    Raises:
        UsageError: a name that there is not, or a value of another kind.
    """
    # A limit of the configuration is for all runtimes that have none of their own: `configured.limited` knows it.
    standing_in = {key.name for key in taken_by(PYTEST) if key.stands_in}
    found = {
        _CALLED.get(name, name): value
        for name, value in configuration.settings.items()
        if name in standing_in
    }
    found |= _checked(
        {name: value for name, value in options.items() if value is not None}, "pytest's option"
    )
    required = list(found.get("require", ()))
    for layer in (*_of_markers(node), _checked(call, "onnx_attest(...)")):
        found |= layer
        required += layer.get("require", ())
    return found | {"require": tuple(dict.fromkeys(required))}


def by_parameter(holds: Mapping[str, Any]) -> dict[str, Any]:
    """Return what holds as `resolved` takes it: by the names of the command line's parameters."""
    by_key = {key: holds.get(_CALLED.get(key.name, key.name)) for key in taken_by(PYTEST)}
    return {key.parameter or key.name: value for key, value in by_key.items() if value not in (None, ())}


def _of_markers(node: pytest.Item) -> list[dict[str, Any]]:
    """Return what markers say, the nearest last."""
    markers = list(node.iter_markers(MARKER))
    if any(marker.args for marker in markers):
        raise UsageError(f"@pytest.mark.{MARKER} takes settings by name: {MARKER}(seed=1)")
    return [_checked(marker.kwargs, f"@pytest.mark.{MARKER}(...)") for marker in reversed(markers)]


def _checked(given: Mapping[str, Any], place: str) -> dict[str, Any]:
    values = {}
    for name, value in given.items():
        if name in OF_ONE_FILE:
            values[name] = value
            continue
        if name not in KINDS:
            raise UsageError(f"{place}: {name}: {no_such_key(name, (*KINDS, *OF_ONE_FILE))}")
        try:
            values[name] = KINDS[name].read(value)
        except WrongValueError as error:
            raise UsageError(f"{place}: {name}{error.within}: {error}") from error
    return values
