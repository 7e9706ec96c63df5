"""What both kinds of worker share: pipes that no library can write into, and text that fits on a line."""

from __future__ import annotations

import os
from typing import BinaryIO


def private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return the parent's two pipes, and hide them: what a library prints goes to stderr, what it reads is empty."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return requests, answers


def one_line(text: str) -> str:
    """Return the text with every run of white space, line ends included, as one space."""
    return " ".join(text.split())
