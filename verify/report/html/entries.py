"""The matrix of exports and runtimes; each entry opens what is behind it."""

from __future__ import annotations

from collections.abc import Sequence

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
    cells = grouped(of_kind(records, CellRecord), subject_on_runtime)
    passed = {key: sum(cell.verdict == "passed" for cell in held) for key, held in cells.items()}
    totals = {key: (passed[key], len(held)) for key, held in cells.items()}
    heading = (*Subject._fields, *((EXPORT,) if found.with_exports else ()))
    columns = (
        *(tag("th", name, scope="col", data_choice=name != "opset") for name in heading),
        *(tag("th", runtime, scope="col", data_runtime=runtime) for runtime in found.runtimes),
    )
    rows = (_row(one, verdict, found, totals) for one, verdict in found.exports.items())
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


def _row(
    one: Subject, export: str, found: Entries, totals: dict[tuple[Subject, str], tuple[int, int]]
) -> Markup:
    names = (tag("th", one.model, scope="row"), *(tag("td", text) for text in one[1:]))
    own = tag("td", mark(export)) if found.with_exports else None
    about = {f"data_{name}": text for name, text in zip(Subject._fields, one, strict=True)}
    entry = (_entry(one, runtime, found, totals.get((one, runtime))) for runtime in found.runtimes)
    return tag("tr", names, own, entry, **about)


def _entry(one: Subject, runtime: str, found: Entries, total: tuple[int, int] | None) -> Markup:
    word = found.words.get((one, runtime), NOT_RUN)
    if word == NOT_RUN:
        return tag("td", mark(word))
    counts = tag("span", f"{total[0]}/{total[1]}", class_="count") if total else None
    return tag("td", tag("button", mark(word), counts, type="button", data_runtime=runtime))
