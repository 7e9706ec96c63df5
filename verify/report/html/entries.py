"""The matrix of exports and runtimes; each entry opens what is behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onnx_attest.verify.records import AnyRecord, CellRecord
from onnx_attest.verify.report.grouping import Subject, grouped, of_kind, subject_on_runtime
from onnx_attest.verify.report.html.marks import mark
from onnx_attest.verify.report.html.markup import Markup, joined, tag
from onnx_attest.verify.report.html.tables import scrolled
from onnx_attest.verify.report.matrix import Entries, entries
from onnx_attest.verify.report.outcomes import NOT_RUN
from onnx_attest.verify.report.reasons import EXPORT

_TITLE = "Verdict of each export on each runtime"


def matrix_of(records: Sequence[AnyRecord]) -> Markup:
    """Return the matrix; an entry is a button that opens its cells, and without a script it is a word."""
    found = entries(records)
    if not found.exports:
        return tag("p", "Nothing was verified in this run.")
    cells = of_kind(records, CellRecord)
    behind = {key: _Behind.of(held) for key, held in grouped(enumerate(cells), _key).items()}
    heading = (*Subject._fields, *((EXPORT,) if found.with_exports else ()))
    columns = (
        *(tag("th", name, scope="col", data_choice=name != "opset") for name in heading),
        *(tag("th", runtime, scope="col", data_runtime=runtime) for runtime in found.runtimes),
    )
    rows = (_row(one, verdict, found, behind) for one, verdict in found.exports.items())
    whole = tag(
        "table",
        tag("caption", _TITLE, tag("span", ": cells that passed, of all", class_="aside")),
        tag("thead", tag("tr", columns)),
        tag("tbody", rows),
        class_="data matrix",
        data_filter=True,
    )
    idle = f"Skipped everywhere, so without a column: {', '.join(found.idle)}." if found.idle else None
    return joined(scrolled(_TITLE, whole), tag("p", idle, class_="note") if idle else None)


class _Behind(NamedTuple):
    """What is behind an entry: its first cell, counted through all records of cells, and how many passed of how many.

    The page finds the others by it: a name is no key, since what cannot be printed is not printed.
    """

    first: int
    passed: int
    cells: int

    @classmethod
    def of(cls, held: Sequence[tuple[int, CellRecord]]) -> _Behind:
        return cls(held[0][0], sum(cell.verdict == "passed" for _, cell in held), len(held))


def _key(numbered: tuple[int, CellRecord]) -> tuple[Subject, str]:
    return subject_on_runtime(numbered[1])


def _row(one: Subject, export: str, found: Entries, behind: Mapping[tuple[Subject, str], _Behind]) -> Markup:
    names = (tag("th", one.model, scope="row"), *(tag("td", text) for text in one[1:]))
    own = tag("td", mark(export)) if found.with_exports else None
    about = {f"data_{name}": text for name, text in zip(Subject._fields, one, strict=True)}
    entry = (
        _entry(found.words.get((one, runtime), NOT_RUN), runtime, behind.get((one, runtime)))
        for runtime in found.runtimes
    )
    return tag("tr", names, own, entry, **about)


def _entry(word: str, runtime: str, behind: _Behind | None) -> Markup:
    if behind is None:
        return tag("td", mark(word))
    counts = tag("span", f"{behind.passed}/{behind.cells}", class_="count")
    button = tag("button", mark(word), counts, type="button", data_runtime=runtime, data_cell=behind.first)
    return tag("td", button)
