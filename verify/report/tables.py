"""Tables of finished strings, and the two ways they are written: Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tabulate import tabulate

from onnx_attest.verify.report.formats import one_line

T = TypeVar("T")
Value = str | int | float | None

# What Markdown, and GitHub's tables in it, would take for markup in a message.
_MARKUP = str.maketrans({char: f"\\{char}" for char in "\\`|*<"})


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table.

    Attributes:
        name: the heading.
        meaning: one line for the legend and for docs/reports.md.
        show: the text of one item in this column.
    """

    name: str
    meaning: str
    show: Callable[[T], str]


@dataclass(frozen=True)
class Table:
    """A table of strings that are rounded and have their units, but are not escaped."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def fill(title: str, columns: Sequence[Column[T]], items: Iterable[T], note: str = "") -> Table:
    """Return the table with one row for each item."""
    rows = tuple(tuple(column.show(item) for column in columns) for item in items)
    return Table(title, tuple(column.name for column in columns), rows, note)


def legend(columns: Iterable[Column[T]]) -> str:
    """Return what each column means, a line of Markdown for each."""
    return "\n".join(f"- {escaped(column.name)}: {escaped(column.meaning)}" for column in columns)


def escaped(text: str) -> str:
    """Return the text on one line, so that Markdown shows it as it is and no cell ends early."""
    return one_line(text).translate(_MARKUP)


def to_markdown(table: Table) -> str:
    """Return the table as Markdown: heading (if there is a title), rows, note; an empty one says `None.`."""
    parts = (f"## {escaped(table.title)}" if table.title else "", _grid(table), escaped(table.note))
    return "\n\n".join(part for part in parts if part) + "\n"


def _grid(table: Table) -> str:
    if not table.rows:
        return "None."
    lines = [[escaped(text) for text in line] for line in (table.columns, *table.rows)]
    # Without disable_numparse tabulate reads the strings as numbers: opset "1.10" becomes 1.1.
    # It pads what it is given as headers by two columns each, which would push the summary off the screen:
    # so the heading goes in as a row, and changes places with the rule above it.
    rule, heading, *rows = tabulate(lines, tablefmt="github", disable_numparse=True).split("\n")
    return "\n".join((heading, rule, *rows))


def to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Value]]) -> str:
    """Return CSV with unrounded numbers; a value that is not known is an empty field."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval=None, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def page(title: str, parts: Iterable[str]) -> str:
    """Return a Markdown page of the parts."""
    return "\n".join((f"# {title}\n", *(f"{part.rstrip()}\n" for part in parts)))
