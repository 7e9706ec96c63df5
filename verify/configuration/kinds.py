"""What a setting may hold: each kind takes a value of TOML or of Python, or says what it wants instead."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from onnx_attest.verify.configuration.toml import shown


class WrongValueError(ValueError):
    """A value of another kind.

    Attributes:
        within: where in the value, `.key` of a table, "" if it is the whole.
    """

    def __init__(self, wanted: str, value: Any, within: str = "") -> None:
        super().__init__(f"give {wanted}, not {shown(value)}")
        self.within = within


@dataclass(frozen=True)
class Kind:
    """One kind of value.

    Attributes:
        wanted: in words.
        taken: gives the value as the program uses it, None if it is of another kind.
    """

    wanted: str
    taken: Callable[[Any], Any]

    def read(self, value: Any) -> Any:
        """Return the value as the program uses it.

        Raises:
            WrongValueError: it is of another kind.
        """
        taken = self.taken(value)
        if taken is None:
            raise WrongValueError(self.wanted, value)
        return taken


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _path(value: Any) -> str | None:
    return _text(os.fspath(value)) if isinstance(value, str | os.PathLike) else None


def _several(one: Callable[[Any], str | None]) -> Callable[[Any], tuple[str, ...] | None]:
    def taken(value: Any) -> tuple[str, ...] | None:
        if not isinstance(value, list | tuple):
            return None
        found = [one(item) for item in value]
        return None if None in found else tuple(item for item in found if item is not None)

    return taken


def whole(least: int | None = None, most: int | None = None) -> Kind:
    """Return the kind of whole numbers between two, both included."""
    bounds = [f"of at least {least}"] if least is not None else []
    bounds += [f"of at most {most}"] if most is not None else []

    def taken(value: Any) -> int | None:
        if isinstance(value, bool) or not isinstance(value, Integral):
            return None
        number = int(value)
        inside = (least is None or number >= least) and (most is None or number <= most)
        return number if inside else None

    return Kind(" ".join(("a whole number", " and ".join(bounds))).rstrip(), taken)


def _number(accepts: Callable[[float], bool]) -> Callable[[Any], float | None]:
    def taken(value: Any) -> float | None:
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            return None
        return float(value) if accepts(float(value)) else None

    return taken


def _options(value: Any) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    for name, option in value.items():
        if not isinstance(option, str | int | float):
            raise WrongValueError("a text, a number or a truth value", option, f".{name}")
    # ONNX Runtime's options are texts, and its truth values 0 and 1.
    return {name: str(int(option) if isinstance(option, bool) else option) for name, option in value.items()}


TEXT = Kind("a text", _text)
TEXTS = Kind('a list of texts, ["...", "..."]', _several(_text))
PATH = Kind("a path, as a text", _path)
PATHS = Kind('a list of paths, ["...", "..."]', _several(_path))
POSITIVE = Kind("a number above 0", _number(lambda value: value > 0))
NOT_NEGATIVE = Kind("a number of at least 0", _number(lambda value: value >= 0))
TRUTH = Kind("true or false", lambda value: value if isinstance(value, bool) else None)
OPTIONS = Kind("a table of options", _options)
