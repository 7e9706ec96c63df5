"""The run as Markdown for GitHub's summary of a job: github.md.

GitHub takes 1 MiB from a step, and shows nothing of what is longer. So there is a room, and what is filled first is what is
read first: verdict, matrix, findings, cells that did not pass. What is cut says how much of it there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnx_attest.verify.records import AnyRecord, ArtifactRecord, CellRecord, EnvironmentRecord, FindingRecord
from onnx_attest.verify.report import accuracy
from onnx_attest.verify.report.formats import UNKNOWN, listed, number, ratio, shortened
from onnx_attest.verify.report.grouping import grouped, of_kind, subject, subject_on_runtime, with_verdict
from onnx_attest.verify.report.headline import last_run, told
from onnx_attest.verify.report.marks import marked
from onnx_attest.verify.report.matrix import matrix
from onnx_attest.verify.report.outcomes import is_known, shown
from onnx_attest.verify.report.reasons import reasons
from onnx_attest.verify.report.summary import LINES, cuda
from onnx_attest.verify.report.tables import Column, Table, escaped, fill

LIMIT = 2**20
"""Bytes that GitHub takes from a step."""
LINE, CELL = 2000, 400
"""Characters of a paragraph, and of an entry of a table."""
_RESERVE = 1000
"""Bytes for what is said of what was left out."""
# What else GitHub takes for markup, beyond what `escaped` knows: emphasis, links, formulas, entities.
_MARKUP = str.maketrans({"_": "\\_", "~": "\\~", "[": "\\[", "$": "&#36;", "&": "&amp;"})


@dataclass(frozen=True)
class Section:
    """A list or a table under a heading.

    Attributes:
        title: "" for one that is open and has no heading.
        head: lines before the first row.
        rows: their texts, not escaped; the last ones may be left out.
        line: makes a line of a row.
        note: after them.
    """

    title: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    line: Callable[[Sequence[str]], str]
    note: str = ""

    def text(self, lines: Sequence[str], more: int) -> str:
        """Return it with these lines for its first rows, and how many there are beyond."""
        left_out = f"and {more} more, which did not fit; the records have all." if more else ""
        parts = filter(None, ("\n".join((*self.head, *lines)), left_out, self.note))
        if not self.title:
            return "\n\n".join(parts) + "\n"
        opening = f"<details>\n<summary>{self.title} ({len(self.rows)})</summary>"
        return "\n\n".join((opening, *parts, "</details>")) + "\n"

    def fitting(self, room: int) -> str:
        """Return as much of it as fits, "" if not one row does."""
        lines: list[str] = []
        room -= _size(self.text((), len(self.rows)))
        for row in self.rows:
            line = self.line(row)
            room -= _size(line) + 1
            if room < 0:
                break
            lines.append(line)
        return self.text(lines, len(self.rows) - len(lines)) if lines else ""


def github(records: Iterable[AnyRecord], room: int = LIMIT) -> str:
    """Return github.md, of at most `room` bytes of UTF-8: "" if not even the verdict fits."""
    records = list(records)
    text = _head(records)
    left_out = []
    if _size(text) > room:
        return ""
    for section in _sections(records):
        part = section.fitting(room - _RESERVE - _size(text) - 1)
        if part:
            text += f"\n{part}"
        else:
            left_out.append(section.title or "the matrix")
    said = f"\nWhat did not fit at all: {', '.join(left_out)}.\n" if left_out else ""
    return text + said if _size(text + said) <= room else text


def first_lines(text: str, room: int) -> str:
    """Return what fits of a Markdown text, an empty line before it, by whole lines, and how many were left out."""
    if not text or _size(text) + 1 <= room:
        return text and f"\n{text}"
    lines = text.splitlines()
    room -= _size(_beyond(len(lines))) + 1
    kept = []
    for line in lines:
        room -= _size(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(("", *kept, _beyond(len(lines) - len(kept)))) if kept else ""


def _beyond(count: int) -> str:
    return f"\nand {count} more lines, which did not fit.\n"


def _size(text: str) -> int:
    return len(text.encode())


def _text(text: str, length: int = CELL) -> str:
    return escaped(shortened(text, length)).translate(_MARKUP)


def _head(records: Sequence[AnyRecord]) -> str:
    said, run = told(records), last_run(records)
    lines = [f"## onnx-attest: {marked(said.verdict)}", _text("; ".join((*said.counts, said.end)), LINE)]
    if run is not None and run.reason:
        lines.append(f"Why: {_text(run.reason, LINE)}")
    if run is not None and run.required:
        lines.append(f"Required: {_text(', '.join(run.required), LINE)}.")
    title, elsewhere = cuda(records)
    lines.append("\n".join((_text(title), *(f"- {_text(line)}" for line in elsewhere[:LINES]))))
    return "\n\n".join(filter(None, lines)) + "\n"


def _sections(records: Sequence[AnyRecord]) -> Iterator[Section]:
    cells = of_kind(records, CellRecord)
    findings = of_kind(records, FindingRecord)
    unexpected = [one for one in findings if not is_known(one) and one.severity != "note"]
    not_passed = [one for one in cells if one.verdict not in ("passed", "skipped")]
    skipped = [one for one in with_verdict(records) if not is_known(one)]
    exports = reasons(of_kind(records, ArtifactRecord), ("failed", "errored", "inconclusive"))
    if with_verdict(records):
        yield _open(matrix(records))
    yield from _table("Findings", fill("", FINDINGS, accuracy.statements(unexpected)))
    counting = [one for one in not_passed if not is_known(one)]
    yield from _table("Cells that did not pass", fill("", CELLS, counting))
    told_of = [*exports, *reasons(skipped, ("errored", "inconclusive", "skipped"))]
    yield from _table(
        "Skipped, errored or inconclusive, each reason once", fill("", accuracy.NOT_RUN, told_of)
    )
    totals = grouped(cells, subject_on_runtime).values()
    yield from _environment(of_kind(records, EnvironmentRecord))
    yield from _table("Errors by export and runtime", fill("", TOTALS, totals, accuracy.TOTALS_NOTE))
    yield from _table("Known failures, which do not count", fill("", CELLS, filter(is_known, not_passed)))


def _open(table: Table) -> Section:
    return Section("", _heading(table), table.rows, _row, _text(table.note, LINE))


def _table(title: str, table: Table) -> Iterator[Section]:
    if table.rows:
        yield Section(title, _heading(table), table.rows, _row, _text(table.note, LINE))


def _heading(table: Table) -> tuple[str, ...]:
    return _row(table.columns), _row_of("-" * 3 for _ in table.columns)


def _row(texts: Iterable[str]) -> str:
    return _row_of(_text(marked(text)) for text in texts)


def _item(row: Sequence[str]) -> str:
    return f"- {_text(' '.join(row))}"


def _row_of(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _environment(environments: Sequence[EnvironmentRecord]) -> Iterator[Section]:
    for one in environments[-1:]:
        software = {"onnx-attest": one.onnx_attest, "Python": one.python, **one.packages}
        machine = {"system": one.system, "processor": one.cpu, "cores": str(one.cores)}
        yield Section("Environment", (), list((machine | software).items()), _item)


def _over_tau(cell: CellRecord) -> float | None:
    return cell.gates.get("proof", {}).get("max_err_over_tau")


def _column(name: str) -> Column[Sequence[CellRecord]]:
    return next(column for column in accuracy.TOTALS if column.name == name)


CELLS: tuple[Column[CellRecord], ...] = (
    Column("export", "model, variant, opset and dtype", lambda cell: " ".join(subject(cell))),
    Column("runtime", "what executed the file", lambda cell: cell.runtime),
    Column("case", "", lambda cell: UNKNOWN if cell.case is None else cell.case.id),
    Column("verdict", "of this cell", shown),
    Column("error/bound", "the largest", lambda cell: ratio(_over_tau(cell))),
    Column("effective bits", "what the error is worth", lambda cell: number(cell.effective_bits)),
    Column("reason", "why the verdict is what it is", lambda cell: cell.reason or UNKNOWN),
    Column("findings", "codes", lambda cell: listed(cell.findings)),
)
FINDINGS = tuple(
    column
    for column in accuracy.FINDINGS
    if column.name in ("code", "severity", "export", "runtime", "cases", "node", "message", "next step")
)
TOTALS = tuple(
    map(
        _column,
        (
            "model",
            "variant",
            "opset",
            "dtype",
            "runtime",
            "verdict",
            "cells passed/total",
            "max error/bound",
            "effective bits",
        ),
    )
)
