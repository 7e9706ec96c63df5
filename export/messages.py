"""Messages of protobuf that somebody else wrote, walked without knowing their types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def inside(message: Any) -> Iterator[Any]:
    """Yield the messages that a message's own fields hold."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            yield from value if isinstance(value, Sequence) or hasattr(value, "__len__") else (value,)


def garbled(message: Any) -> bytes | None:
    """Return a name in a message, or in those inside of it, that is not UTF-8, None if all are: protobuf gives its bytes."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            for one in (value,) if isinstance(value, str | bytes) else value:
                if isinstance(one, bytes):
                    return one
    return next((found for one in inside(message) if (found := garbled(one)) is not None), None)
