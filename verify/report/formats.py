"""How a value becomes text: three significant digits, a unit, and `n/a` where it is not known.

Rounding must never change what a number says: an unknown one is not 0, a ratio just above its
limit is not 1, and a share just below 1 is not 1 either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from onnx_attest.verify.records import finite

UNKNOWN = "n/a"
_UNITS = ((1.0, "s"), (1e-3, "ms"), (0.0, "us"))
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6}


def number(value: float | None) -> str:
    """Return three significant digits, whole numbers in full, `n/a` for unknown."""
    if isinstance(value, int):
        return str(value)
    known = finite(value)
    return UNKNOWN if known is None else f"{known:.3g}"


def ratio(value: float | None) -> str:
    """Return a ratio to a limit of 1; one that only rounding puts on the limit keeps its side."""
    text = number(value)
    if value is None or text != "1" or value == 1:
        return text
    return ">1" if value > 1 else "<1"


def share(value: float | None) -> str:
    """Return a part of 1; one that only rounding makes whole shows what it lacks."""
    text = number(value)
    if value is None or text != "1" or value == 1:
        return text
    return f"1 - {1 - value:.1e}" if value < 1 else f"1 + {value - 1:.1e}"


def seconds(value: float | None) -> str:
    """Return a duration in s, ms or us."""
    known = finite(value)
    if known is None:
        return UNKNOWN
    rounded = float(f"{known:.3g}")  # before the unit is chosen: 0.9996 ms is 1 ms, not 1e+03 us
    unit = next(unit for least, unit in _UNITS if rounded >= least or unit == "us")
    scaled = rounded * _PER_SECOND[unit]
    return f"{scaled:.0f} {unit}" if scaled >= 1000 else f"{scaled:.3g} {unit}"


def extreme(
    values: Iterable[float | None],
    pick: Callable[[list[float]], float],
    show: Callable[[float | None], str] = number,
) -> str:
    """Return what `pick` makes of the known values, and how many were not known if some were not."""
    all_values = list(values)
    known = [value for value in all_values if value is not None and math.isfinite(value)]
    if not known:
        return UNKNOWN
    missing = len(all_values) - len(known)
    return show(pick(known)) + (f" ({missing} {UNKNOWN})" if missing else "")


def listed(words: Iterable[str]) -> str:
    """Return the words once each, in order of first appearance, or `n/a`."""
    return ", ".join(dict.fromkeys(word for word in words if word)) or UNKNOWN


def sizes(axes: Mapping[str, int]) -> str:
    """Return the size of each axis, `batch=2, seq_len=16`."""
    return ", ".join(f"{axis}={size}" for axis, size in axes.items()) or UNKNOWN


def one_line(text: str) -> str:
    """Return the text on one line, without control characters: messages of runtimes hold both."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def shortened(text: str, length: int) -> str:
    """Return one line of at most `length` characters that shows where something was left out."""
    window = 2 * length
    # What stands far behind the cut is not looked at: a message may be megabytes long.
    while len(line := one_line(text[:window])) <= length and window < len(text):
        window *= 2
    return line if len(line) <= length else line[: length - 4].rstrip() + " ..."


def sentence(text: str, length: int) -> str:
    """Return the same with one full stop at its end, or with the mark of what was left out."""
    line = shortened(text, length)
    return line if line.endswith("...") else f"{line.rstrip('. ')}."


def printable(text: str) -> str:
    """Return the text with a mark in the place of what HTML and SVG forbid, or what turns the order of letters round."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _HARMLESS else "\ufffd" for char in text)


_HARMLESS = frozenset("\n\t\u00a0\u2009\u200c\u200d\u202f\u3000")
"""Spaces, and the joiners that some scripts need: Python does not count them as printable."""
