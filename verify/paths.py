"""Texts that leave this machine name no folder of it."""

from __future__ import annotations

import re

_FOLDERS = re.compile(r"(?P<before>^|[=@:,;\s])(?:~|[A-Za-z]:)?[/\\](?:[^/\\=@:,;]*[/\\])*(?=[^/\\])")
"""From the root, a home or a drive up to the last part; behind the start, or what divides the parts of an argument."""


def without_folders(text: str) -> str:
    """Return a text with each path that starts at a root, a home or a drive as its last part; relative ones stay."""
    return _FOLDERS.sub(lambda match: match["before"], text)
