"""JSON that somebody else wrote: whatever is wrong with it is one kind of error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    """Return what JSON says.

    Args:
        decode: of msgspec.
        data: the JSON.

    Raises:
        msgspec.DecodeError: it is no JSON, nested too deeply, or not of the kind that is decoded.
    """
    try:
        return decode(data)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error
    except ValueError as error:  # no UTF-8; a number of thousands of digits
        raise msgspec.DecodeError(str(error)) from error
