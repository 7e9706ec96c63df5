"""The run on a terminal: what summary.md says, laid out for its width, with a shape and a colour for each verdict.

The lines are those of the summary, word for word; what is not a terminal gets the summary itself.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from onnx_attest.verify.records import AnyRecord
from onnx_attest.verify.report.formats import one_line
from onnx_attest.verify.report.grouping import with_verdict
from onnx_attest.verify.report.headline import told
from onnx_attest.verify.report.marks import marked
from onnx_attest.verify.report.matrix import matrix
from onnx_attest.verify.report.outcomes import NOT_RUN
from onnx_attest.verify.report.summary import EVERY_NUMBER, NO_NUMBERS, cuda, cut, environment, lists, why
from onnx_attest.verify.report.tables import Table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

# The sixteen colours that every theme of a terminal has its own shades of.
_STYLES: Mapping[str, str] = MappingProxyType(
    {
        "passed": "green",
        "failed": "bold red",
        "errored": "bold magenta",
        "inconclusive": "bold yellow",
        "skipped": "dim",
        "failed (known)": "red",
        "errored (known)": "magenta",
        "error": "bold red",
        "warning": "yellow",
        NOT_RUN: "dim",
    }
)
_BETWEEN = 2
"""Columns between two of a table."""


def terminal(records: Iterable[AnyRecord], width: int, *, colours: bool, is_written: bool = True) -> str:
    """Return the run for a terminal of `width` columns; without colours there is no control sequence in it.

    Args:
        records: of the run.
        width: of the terminal.
        colours: whether it has some.
        is_written: whether there are files of the run, which the last line names.
    """
    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        width=width,
        color_system="standard" if colours else None,
        force_terminal=colours,
        no_color=not colours,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as captured:
        for part in _parts(list(records), width, EVERY_NUMBER if is_written else NO_NUMBERS):
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _parts(records: Sequence[AnyRecord], width: int, numbers: str) -> Iterator[RenderableType]:
    from rich.text import Text

    said = told(records)
    yield Text(marked(said.verdict), _STYLES[said.verdict])
    yield Text(one_line("; ".join((*said.counts, said.end))))
    if reason := why(records):
        yield Text(f"\n{one_line(reason)}")
    if with_verdict(records):
        table = matrix(records)
        for part in _that_fit(table, width):
            yield Text("")
            yield _drawn(part)
        if table.note:
            yield Text(f"\n{one_line(table.note)}")
    cuda_title, elsewhere = cuda(records)
    for title, lines in lists(records).items():
        if lines:
            yield Text(f"\n{title}", "bold")
            yield _list(cut(lines))
    if cuda_title:
        yield Text(f"\n{cuda_title}")
        yield _list(elsewhere)
    yield Text("\n" + "\n".join(map(one_line, environment(records))), "dim")
    yield Text(f"\n{numbers}", "dim")


def _that_fit(table: Table, width: int) -> Iterator[Table]:
    """Yield the table in parts that are not wider than the terminal, each with the columns that say what a row is."""
    widths = [max(len(marked(one_line(text))) for text in column) for column in _columns(table)]
    first = next((at for at, column in enumerate(_columns(table)) if _has_verdicts(column)), len(widths))
    taken = sum(widths[:first]) + _BETWEEN * first
    part: list[int] = []
    for column in range(first, len(widths)):
        if part and taken + sum(widths[one] + _BETWEEN for one in (*part, column)) > width:
            yield _with_columns(table, [*range(first), *part])
            part = []
        part.append(column)
    yield _with_columns(table, [*range(first), *part])


def _columns(table: Table) -> list[tuple[str, ...]]:
    return list(zip(table.columns, *table.rows, strict=True))


def _has_verdicts(column: Sequence[str]) -> bool:
    return len(column) > 1 and all(text in _STYLES for text in column[1:])


def _with_columns(table: Table, chosen: Sequence[int]) -> Table:
    rows = tuple(tuple(row[column] for column in chosen) for row in table.rows)
    return Table(table.title, tuple(table.columns[column] for column in chosen), rows)


def _drawn(table: Table) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=None, padding=(0, _BETWEEN, 0, 0), header_style="bold", pad_edge=False)
    for name in table.columns:
        drawn.add_column(Text(one_line(name)), overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(one_line(marked(text)), _STYLES.get(text, "")) for text in row))
    return drawn


def _list(lines: Sequence[str]) -> RichTable:
    from rich.table import Table as RichTable

    grid = RichTable.grid(padding=(0, 1, 0, 0))
    for line in lines:
        grid.add_row("-", _line(one_line(line)))
    return grid


def _line(text: str) -> Text:
    """Return a line with the severity of a finding in its colour."""
    from rich.text import Text

    shown = Text(text, overflow="fold")
    head = text.split(", ", 1)[0].split(" ")
    if len(head) > 1 and head[1] in ("error", "warning"):
        shown.stylize(_STYLES[head[1]], 0, len(f"{head[0]} {head[1]}"))
    return shown
