"""What is text in a file of somebody else's, and what only says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def garbled(message: Any) -> bytes | None:
    """Return the first name in a message of protobuf that is not UTF-8, None if all are: protobuf gives its bytes."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if isinstance(value, Sequence) or hasattr(value, "__len__") else [value]:
                if (found := garbled(one)) is not None:
                    return found
        elif field.type == field.TYPE_STRING:
            for one in [value] if isinstance(value, str | bytes) else value:
                if isinstance(one, bytes):
                    return one
    return None
