"""TOML of any depth, and what a message shows of it."""

from __future__ import annotations

import reprlib
import tomllib
from typing import Any

from onnx_attest.export.reading import MIB

LARGEST = MIB
"""Bytes of a file of settings."""


_PARTS = 1000
"""For a name of n parts tomllib takes time by the square of n: half a mebibyte of dots an hour."""


class NotTomlError(ValueError):
    """It is no TOML; the message says where."""


def toml_of(data: bytes) -> dict[str, Any]:
    """Return what TOML says.

    Raises:
        NotTomlError: it is none, no UTF-8, nested too deeply, or has a number that Python does not read.
    """
    # A name stands in one line, and an equals sign ends it. No setting has as many dots in its value.
    if any(part.count(b".") > _PARTS for line in data.split(b"\n") for part in line.split(b"=")):
        raise NotTomlError(f"a name of more than {_PARTS} parts")
    try:
        read = tomllib.loads(data.decode())
        _refuse_large_numbers(read)
        return read
    except RecursionError as error:
        raise NotTomlError("it is nested too deeply") from error
    except ValueError as error:  # tomllib's, of UTF-8, and of thousands of digits
        raise NotTomlError(str(error)) from error


def _refuse_large_numbers(read: dict[str, Any]) -> None:
    """Refuse integers of more than 64 bits: TOML has none, tomllib reads hexadecimal ones of any length.

    Raises:
        ValueError: there is one.
    """
    left: list[Any] = [read]
    while left:
        value = left.pop()
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("an integer of more than 64 bits")


class _Shown(reprlib.Repr):
    """What is short stays whole, and what is nested without end ends."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, 120, 120, 60
        self.maxdict = self.maxlist = self.maxtuple = 8

    def repr_int(self, x: int, level: int) -> str:
        """Return a number; one of thousands of digits is none that Python would write."""
        return repr(x) if abs(x) < 10**40 else "a number of more than 40 digits"


shown = _Shown().repr
"""A value of a setting as a message shows it."""
