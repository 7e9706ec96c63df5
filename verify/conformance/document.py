"""The report as Markdown: docs/conformance.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from onnx_attest.verify.conformance.confirmed import Confirmed, stale
from onnx_attest.verify.conformance.kinds import Kind, kinds
from onnx_attest.verify.conformance.matrix import OUTCOMES, ConformanceReport, MatrixCell
from onnx_attest.verify.records import ConformanceRecord, Outcome, SmallestRecord
from onnx_attest.verify.report.formats import ratio
from onnx_attest.verify.report.tables import Table, escaped, page, to_markdown

_TITLE = "Conformance: what each runtime makes of ONNX's attention operators"
_INTRODUCTION = """\
`onnx-attest conformance -o docs` wrote this page and `conformance.json`, which has every case. The cases are those \
of ONNX's own suite (onnx {onnx}) for the operators that attention models are made of, and ours beyond it (their \
names begin with `beyond_`), each as an operator and *expanded*: with the function body that ONNX defines in the \
operator's place. The float64 oracle says what is right, with a bound for the arithmetic that the runtime declares; no \
tolerance is guessed. Every case runs in a process that a crash ends alone.

* **right**: every number is within its bound, and shapes, dtypes, NaN and infinities are where they belong.
* **wrong**: the runtime says nothing and gives something else. What to look for first.
* **refused**: it raises, at the latest when it runs; its words are below.
* **crashed**: its process died, or had to be killed.
* **inconclusive**: it ran, and the bound says nothing.

A row is what a case asks of the operator, and a case stands in as many rows as it asks for. What is not right counts \
in the rows that may be at fault: a right case that asks for some of the same, and for nothing else, clears those; \
*(n)* are cases that are not right and count in other rows. The kinds of faults are below, each with the smallest \
input found that shows it."""
_SHOWN = 12
"""Cases of a kind that are named; conformance.json has all."""
_DOCUMENTED: dict[str, str] = {
    "wrong": "Wrong",
    "crashed": "Crashed",
    "refused": "Refused",
    "inconclusive": "Inconclusive",
}


def document(report: ConformanceReport, confirmed: Sequence[Confirmed]) -> str:
    """Return the page."""
    found = kinds(report.details, confirmed)
    parts = (
        _INTRODUCTION.format(onnx=report.versions.get("onnx", "?")),
        _runtimes(report),
        "## Matrix",
        *_matrices(report),
        *(part for outcome in _DOCUMENTED for part in _kinds(outcome, found)),
        *_disagreements(report),
        *_references(report),
        *_stale(report, confirmed),
    )
    return page(_TITLE, (f"{part}\n" for part in parts if part))


def summary(report: ConformanceReport, confirmed: Sequence[Confirmed]) -> str:
    """Return what a terminal shows: the totals, the matrix, and one line for each kind of what is not right."""
    lines = [
        f"{kind.outcome}, {', '.join(kind.runtimes)}: {_title(kind)} ({_count(kind.cases, 'case')})"
        for kind in kinds(report.details, confirmed)
    ]
    return "\n\n".join(filter(None, (_runtimes(report), *_matrices(report), "\n".join(lines))))


def _runtimes(report: ConformanceReport) -> str:
    heads = ("runtime", "version", *OUTCOMES)
    rows = []
    for name in report.ran:
        totals = report.totals(name)
        rows.append((name, report.runtimes[name].version, *(str(totals[outcome]) for outcome in OUTCOMES)))
    absent = [f"`{name}` did not run: {run.skipped}" for name, run in report.runtimes.items() if run.skipped]
    absent += [f"`{name}` is left out: it {why}" for name, why in report.left_out.items()]
    processor = f"On a processor with {report.machine}." if report.machine else ""
    notes = "\n".join(f"* {escaped(line).replace(chr(92) + '`', '`')}." for line in absent)
    return "\n\n".join(filter(None, (to_markdown(Table("", heads, tuple(rows))).strip(), processor, notes)))


def _matrices(report: ConformanceReport) -> Iterator[str]:
    """Yield a table for each operator and form."""
    cells = report.cells()
    tables: dict[tuple[str, str], dict[str, dict[str, MatrixCell]]] = {}
    for cell in cells:
        rows = tables.setdefault((cell.operator, cell.form), {})
        rows.setdefault(cell.feature, {})[cell.runtime] = cell
    for operator in report.operators:
        for form in ("operator", "expanded"):
            if (operator, form) in tables:
                title = operator if form == "operator" else f"{operator}, expanded"
                yield f"### {title}\n\n" + _matrix(report, tables[operator, form])


def _matrix(report: ConformanceReport, rows: dict[str, dict[str, MatrixCell]]) -> str:
    heads = ("feature", "cases", *report.ran)
    lines = tuple(
        (
            feature,
            str(_cases(next(iter(cells.values())))),
            *(_cell(cells[name]) if name in cells else "-" for name in report.ran),
        )
        for feature, cells in rows.items()
    )
    return to_markdown(Table("", heads, lines)).strip()


def counts_of(counts: Mapping[Outcome, int]) -> str:
    """Return counts as text, the best outcome first: `11 right, 2 wrong`."""
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if outcome in counts) or "none"


def _cases(cell: MatrixCell) -> int:
    return sum(cell.counts.values()) + cell.explained


def _cell(cell: MatrixCell) -> str:
    """Return what is not right, worst first; `right`, with the number of cases that another row explains."""
    others = [(outcome, cell.counts[outcome]) for outcome in reversed(OUTCOMES[1:]) if outcome in cell.counts]
    aside = f" ({cell.explained})" if cell.explained else ""
    if not others:
        return ("right" if cell.counts else "-") + aside
    whole = "right" not in cell.counts and len(others) == 1 and not cell.explained
    return (others[0][0] if whole else ", ".join(f"{count} {outcome}" for outcome, count in others)) + aside


def _kinds(outcome: str, found: Sequence[Kind]) -> Iterator[str]:
    same = [kind for kind in found if kind.outcome == outcome]
    if not same:
        return
    yield f"## {_DOCUMENTED[outcome]}"
    if outcome == "refused":
        yield "What the runtimes say themselves, and the smallest case that makes them say it."
    for kind in same:
        yield _kind(kind)


def _kind(kind: Kind) -> str:
    named = ", ".join(f"`{case}`" for case in kind.cases[:_SHOWN])
    more = f" and {len(kind.cases) - _SHOWN} more" if len(kind.cases) > _SHOWN else ""
    first = kind.records[0]
    lines = [
        f"### {escaped(_title(kind))}",
        f"On {', '.join(kind.runtimes)}; {_count(kind.cases, 'case')}: {named}{more}.",
        _smallest(first),
        _confirmed(kind),
    ]
    return "\n\n".join(filter(None, lines))


def _title(kind: Kind) -> str:
    first = kind.records[0]
    return kind.confirmed.title if kind.confirmed else f"{first.operator}: {first.reason}"


def _confirmed(kind: Kind) -> str:
    entry = kind.confirmed
    if entry is None:
        return "Not confirmed by hand."
    issue = f" Public report: {entry.issue}." if entry.issue else ""
    return f"Confirmed on version {entry.version}: {escaped(entry.found.strip().rstrip('.'))}.{issue}"


def _smallest(record: ConformanceRecord) -> str:
    """Return the smallest input as a block of text: the nodes, the inputs, and what the runtime makes of them."""
    found = record.smallest or SmallestRecord(model="", inputs={}, reason=record.reason)
    rows = [f"{name} = {value}" for name, value in _shared(found.inputs)]
    nodes = f"opset {record.opset}, {record.case}: {found.model}" if found.model else record.case
    return "\n".join(["```", nodes, *rows, f"{record.runtime}: {found.reason}", "```"])


def _shared(inputs: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the inputs, those of the same text together."""
    names: dict[str, list[str]] = {}
    for name, text in inputs.items():
        names.setdefault(text, []).append(name)
    yield from ((", ".join(same), text) for text, same in names.items())


def _disagreements(report: ConformanceReport) -> Iterator[str]:
    """Yield what the case's own tolerance and the bound say otherwise of."""
    passed = [one for one in report.details if one.outcome == "wrong" and one.by_tolerance == "within"]
    refused = [one for one in report.details if one.outcome == "right" and one.by_tolerance == "beyond"]
    yield "## Where the case's own tolerance says otherwise"
    yield (
        "ONNX gives each case of its suite one tolerance, whatever its dtype and its numbers. Held against it, the "
        "outputs of these cases are judged otherwise than by the bound."
    )
    yield _list("Wrong by the bound, and within the tolerance", passed)
    yield _list("Right by the bound, and beyond the tolerance", refused)


def _list(title: str, records: Sequence[ConformanceRecord]) -> str:
    by_case: dict[str, list[ConformanceRecord]] = {}
    for one in records:
        by_case.setdefault(one.case, []).append(one)
    lines = [
        f"* `{case}`, {same[0].dtype}: "
        + ", ".join(f"{one.runtime} ({ratio(one.max_err_over_tau)} of the bound)" for one in same)
        for case, same in by_case.items()
    ]
    return f"{title}: " + ("none." if not lines else "\n\n" + "\n".join(lines))


def _references(report: ConformanceReport) -> Iterator[str]:
    yield "## Who says what is right"
    rows = []
    for kind, said in _SAID.items():
        same = [line for line in report.cases if line.reference == kind]
        if same:
            lacks = ", ".join(dict.fromkeys(line.oracle_lacks for line in same if line.oracle_lacks))
            operators = ", ".join(dict.fromkeys(line.operator for line in same)) if lacks else "all"
            rows.append((kind, said, str(len(same)), operators, lacks))
    yield to_markdown(
        Table(
            "", ("reference", "is", "cases", "operators", "what the oracle lacks of the others"), tuple(rows)
        )
    ).strip()
    odds = [f"* `{line.case}`: {line.case_at_odds}" for line in report.cases if line.case_at_odds]
    if odds:
        yield "ONNX's own outputs differ from the oracle's by more than rounding in:\n\n" + "\n".join(odds)
    else:
        yield "ONNX's own expected outputs agree with the oracle in every case, within rounding."


_SAID: dict[str, str] = {
    "operator": "the oracle, by its own definition of the operator",
    "expanded": "the oracle, on the graph of ONNX's function body",
    "second-hand": "the case's own expected outputs, within the case's own tolerance",
    "none": "nobody: a case that cannot be judged",
}


def _stale(report: ConformanceReport, confirmed: Sequence[Confirmed]) -> Iterator[str]:
    gone = stale(report, confirmed)
    if gone:
        yield "## Confirmed once, and no longer so"
        yield "\n".join(f"* {kind.title} (confirmed on version {kind.version})" for kind in gone)


def _count(items: Sequence[object], what: str) -> str:
    return f"{len(items)} {what}" if len(items) == 1 else f"{len(items)} {what}s"
