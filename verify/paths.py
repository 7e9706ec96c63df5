"""Paths: which are one, and that texts that leave this machine name no folder of it."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDERS = re.compile(r"(?P<before>^|[=@:,;\s])(?:~|[A-Za-z]:)?[/\\](?:[^/\\=@:,;]*[/\\])*(?=[^/\\])")
"""From the root, a home or a drive up to the last part; behind the start, or what divides the parts of an argument."""


def without_folders(text: str) -> str:
    """Return a text with each path that starts at a root, a home or a drive as its last part; relative ones stay."""
    return _FOLDERS.sub(lambda match: match["before"], text)


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one place; a link that leads in a circle leads to none."""
    try:
        return one.resolve() == other.resolve()
    except (OSError, RuntimeError):  # of a circle, the one or the other by Python's version
        return False
