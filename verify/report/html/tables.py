"""The tables of the other views as HTML: the same strings, with marks and links, to be sorted and filtered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from onnx_attest.verify.findings import CODES
from onnx_attest.verify.report.html.marks import mark
from onnx_attest.verify.report.html.markup import Markup, joined, link, tag, trusted
from onnx_attest.verify.report.tables import Column, Table, fill

T = TypeVar("T")
_FEW = 8
"""Rows up to which a table is not worth a filter."""
# Columns with few different words: a choice among them stands above the table.
_CHOICES = frozenset(
    ("model", "variant", "opset", "dtype", "runtime", "verdict", "severity", "code", "blame", "relation")
)


def filled(title: str, columns: Sequence[Column[T]], items: Iterable[T], note: str = "") -> Markup:
    """Return a table with one row for each item, and what its columns mean; nothing where there are no items."""
    table = fill(title, columns, items, note)
    return joined(shown(table), legend(columns)) if table.rows else Markup()


def shown(table: Table) -> Markup:
    """Return a table; where it has no rows, that there are none."""
    if not table.rows:
        return joined(_titled(table.title), tag("p", "None."))
    heading = (tag("th", name, scope="col", data_choice=name in _CHOICES) for name in table.columns)
    dress = [_DRESS.get(name, joined) for name in table.columns]
    rows = (
        tag("tr", (tag("td", dressed(text)) for dressed, text in zip(dress, row, strict=True)))
        for row in table.rows
    )
    title = table.title or "Table"
    whole = tag(
        "table",
        tag("caption", title),
        tag("thead", tag("tr", heading)),
        tag("tbody", rows),
        class_="data",
        data_filter=len(table.rows) > _FEW,
    )
    note = tag("p", table.note, class_="note") if table.note else None
    return joined(scrolled(title, whole), note)


def scrolled(label: str, content: Markup) -> Markup:
    """Return content in a box that scrolls sideways, by the keyboard too."""
    return tag("div", content, class_="scroll", tabindex=0, role="region", aria_label=label)


def figure(picture: str) -> Markup:
    """Return a picture of this package in a box that scrolls sideways."""
    return tag("figure", trusted(picture.strip()), tabindex=0)


def folded(title: str, *content: Markup | None) -> Markup:
    """Return content that is opened by its title, nothing where there is none."""
    return tag("details", tag("summary", title), *content) if any(content) else Markup()


def legend(columns: Sequence[Column[T]]) -> Markup:
    """Return what the columns mean, to be opened."""
    lines = (joined(tag("dt", column.name), tag("dd", column.meaning)) for column in columns)
    return tag("details", tag("summary", "What the columns mean"), tag("dl", lines), class_="legend")


def codes(text: str) -> Markup:
    """Return finding codes as links to what the page says of them."""
    words = [
        tag("a", word, href=f"#code-{word}") if word in CODES else joined(word) for word in text.split(", ")
    ]
    return joined(word if index == 0 else joined(", ", word) for index, word in enumerate(words))


def issue(text: str) -> Markup:
    """Return a public issue as a link."""
    return link(text, text)


def _titled(title: str) -> Markup:
    return tag("p", tag("strong", title)) if title else Markup()


_DRESS: Mapping[str, Callable[[str], Markup]] = MappingProxyType(
    {"verdict": mark, "exporter": mark, "code": codes, "findings": codes, "known": issue}
)
