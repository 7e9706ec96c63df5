"""A verdict as a word and a shape, where there is only text: either of them is enough, and no colour is needed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SHAPES: Mapping[str, str] = MappingProxyType(
    {
        "passed": "●",
        "failed": "✖",
        "errored": "▲",
        "inconclusive": "◆",
        "skipped": "–",  # noqa: RUF001
        "failed (known)": "✕",
        "errored (known)": "△",
    }
)
"""What counts is filled or heavy, what does not count is not."""


def marked(word: str) -> str:
    """Return a verdict with its shape; what is no verdict is the word alone."""
    return f"{SHAPES[word]} {word}" if word in SHAPES else word
