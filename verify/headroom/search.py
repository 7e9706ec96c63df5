"""The factor at which something stops to work, by running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

RESOLUTION = 2.0**-13
"""Of the factor: a hundredth of what prediction and measurement may differ by."""
_STRIDE, _LEAST = 16.0, 2.0**-40


class Found(NamedTuple):
    """What a search found.

    Attributes:
        factor: the smallest that fails, up to the resolution; None if none did.
        tried: the largest that was tried.
    """

    factor: float | None
    tried: float


def first_break(works: Callable[[float], bool], top: float) -> Found:
    """Return the factor at which `works` first fails.

    It is tried at 1 and in strides of 16 up to the largest factor, then between the last that works and the first that
    does not; what breaks at 1 already is followed down. A failure between two strides that is none at either is
    not seen.

    Args:
        works: whether it does, at a factor.
        top: the largest factor to be tried.
    """
    low, high = 0.0, min(1.0, top)
    while works(high):
        if high >= top:
            return Found(None, top)
        low, high = high, min(high * _STRIDE, top)
    tried = high
    if not low:
        low = high / _STRIDE
        while not works(low):
            if low < _LEAST:
                return Found(0.0, tried)
            low, high = low / _STRIDE, low
    while high > low * (1 + RESOLUTION):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if works(middle) else (low, middle)
    return Found(high, tried)
