"""A verdict as a word, a shape and a colour: any one of them is enough."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from onnx_attest.verify.report.html.markup import Markup, joined, tag, trusted
from onnx_attest.verify.report.outcomes import NOT_RUN

# On a square of 16 by 16. What counts is filled, and what does not count is an outline.
_SHAPES: Mapping[str, str] = MappingProxyType(
    {
        "passed": '<circle cx="8" cy="8" r="7"/><path class="in" d="M4.5 8.2l2.4 2.6 4.6-5.2"/>',
        "failed": '<path d="M5 1h6l4 4v6l-4 4H5l-4-4V5z"/><path class="in" d="M5 5l6 6M11 5l-6 6"/>',
        "errored": '<path d="M8 1l7.5 14H.5z"/><path class="in" d="M8 5.5v5M8 12v1.2"/>',
        "inconclusive": '<path d="M8 .5L15.5 8 8 15.5.5 8z"/><path class="in" d="M6 6.4c0-2.6 4-2.6 4 0 0 1.6-2 1.6-2 3M8 11v1.2"/>',
        "skipped": '<path class="out" d="M2 8h12"/>',
        "failed (known)": '<path class="out" d="M5 1.5h6L14.5 5v6L11 14.5H5L1.5 11V5z"/><path class="out" d="M5.5 5.5l5 5M10.5 5.5l-5 5"/>',
        "errored (known)": '<path class="out" d="M8 1.8l6.6 12.4H1.4z"/><path class="out" d="M8 6v4.5M8 11.6v1"/>',
    }
)
_NAMES = MappingProxyType({word: word.replace(" (known)", "-known") for word in _SHAPES})


def shapes() -> Markup:
    """Return the shapes, to stand once in the page; `mark` refers to them."""
    drawn = (
        tag("symbol", trusted(shape), id=f"mark-{_NAMES[word]}", viewBox="0 0 16 16")
        for word, shape in _SHAPES.items()
    )
    return tag("svg", drawn, class_="shapes", width=0, height=0, aria_hidden="true")


def mark(word: str) -> Markup:
    """Return a verdict; a word that is none is text."""
    if word not in _SHAPES:
        return tag("span", "not run", class_="none") if word == NOT_RUN else joined(word)
    name = _NAMES[word]
    shape = tag("svg", tag("use", href=f"#mark-{name}"), class_="mark", aria_hidden="true")
    return tag("span", shape, word, class_=f"verdict {name}")
