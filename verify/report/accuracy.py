"""What was computed, held against the float64 oracle: accuracy.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.records import AnyRecord, ArtifactRecord, CellRecord, FindingRecord
from onnx_attest.verify.report.formats import UNKNOWN, extreme, listed, ratio
from onnx_attest.verify.report.grouping import grouped, of_kind, subject, subject_on_runtime
from onnx_attest.verify.report.outcomes import failed_gates, shown, shown_together
from onnx_attest.verify.report.reasons import Reason, reasons
from onnx_attest.verify.report.tables import Column, fill, page, to_markdown

Cells = Sequence[CellRecord]
Findings = Sequence[FindingRecord]


def accuracy(records: Iterable[AnyRecord]) -> str:
    """Return accuracy.md: the totals, then each cell that did not pass, then reasons and findings."""
    records = list(records)
    cells = of_kind(records, CellRecord)
    totals = grouped(cells, subject_on_runtime).values()
    not_passed = [cell for cell in cells if cell.verdict not in ("passed", "skipped")]
    tables = (
        fill("By export and runtime", TOTALS, totals, TOTALS_NOTE),
        fill("Cells that did not pass", NOT_PASSED, not_passed),
        fill("Skipped, errored, not exported", NOT_RUN, not_run(records)),
        fill("Findings", FINDINGS, statements(of_kind(records, FindingRecord))),
    )
    return page("Accuracy", map(to_markdown, tables))


def statements(findings: Iterable[FindingRecord]) -> list[list[FindingRecord]]:
    """Return findings that say the same of several cases together."""
    return list(grouped(findings, _statement).values())


def not_run(records: Sequence[AnyRecord]) -> list[Reason]:
    """Return why exports and cells were not made or not run, each reason once."""
    exports = reasons(of_kind(records, ArtifactRecord), ("skipped", "errored", "failed", "inconclusive"))
    return exports + reasons(of_kind(records, CellRecord), ("skipped", "errored"))


def _ran(cells: Cells) -> list[CellRecord]:
    return [cell for cell in cells if cell.verdict not in ("skipped", "errored")]


def _over_tau(cell: CellRecord) -> float | None:
    return cell.gates.get("proof", {}).get("max_err_over_tau")


def _fewest_bits(cells: Cells) -> str:
    known = [cell for cell in _ran(cells) if cell.effective_bits is not None and cell.arithmetic in PROFILES]
    if not known:
        return UNKNOWN
    worst = min(known, key=lambda cell: cell.effective_bits or 0.0)
    p, bits = PROFILES[worst.arithmetic].bits, worst.effective_bits or 0.0
    return f"at least {p}" if bits >= p else f"{bits:.1f}"


def _worst_case(cells: Cells) -> str:
    ran = [cell for cell in _ran(cells) if cell.case is not None]
    if not ran:
        return UNKNOWN
    return _case(max(ran, key=_badness))


def _badness(cell: CellRecord) -> tuple[bool, float]:
    """Order cells; a failed one without a number (NaN, a wrong shape) is worse than any number."""
    over_tau = _over_tau(cell)
    return cell.verdict == "failed" and over_tau is None, -1.0 if over_tau is None else over_tau


def _case(cell: CellRecord) -> str:
    return UNKNOWN if cell.case is None else cell.case.id


def _worst_element(cell: CellRecord) -> str:
    if not cell.worst_output:
        return UNKNOWN
    index = ", ".join(map(str, cell.worst_index))
    actual, expected = cell.worst_actual or UNKNOWN, cell.worst_expected or UNKNOWN
    return f"{cell.worst_output}[{index}]: actual {actual}, expected {expected}"


def _exports(reason: Reason) -> str:
    """Return what the reason holds for; the first table has a row for each anyway."""
    if len(reason.subjects) <= 3:
        return listed(" ".join(export) for export in reason.subjects)
    return f"{len(reason.subjects)} of {listed(export.model for export in reason.subjects)}"


def _statement(finding: FindingRecord) -> tuple[str, ...]:
    about = (finding.model, finding.variant, str(finding.opset), finding.dtype, finding.runtime)
    return finding.code, finding.message, finding.next_step, finding.known, *about


def _about(finding: FindingRecord) -> str:
    opset = "" if finding.opset is None else str(finding.opset)
    return " ".join(filter(None, (finding.model, finding.variant, opset, finding.dtype))) or UNKNOWN


TOTALS_NOTE = (
    "An error/bound of at most 1 is explained by rounding in the declared arithmetic; above 1 is a proven defect. "
    "'(2 n/a)' after a number: two cells that ran have none; the next table says why."
)
TOTALS: tuple[Column[Cells], ...] = (
    Column("model", "name of the module", lambda cells: cells[0].model),
    Column("variant", "form of the graph", lambda cells: cells[0].variant),
    Column("opset", "opset of the file", lambda cells: subject(cells[0]).opset),
    Column("dtype", "floating dtype of the graph", lambda cells: cells[0].dtype),
    Column("runtime", "what executed the file", lambda cells: cells[0].runtime),
    Column("verdict", "of all cells together; known failures do not count but are named", shown_together),
    Column(
        "cells passed/total",
        "cells that passed, of all cells with those skipped or errored",
        lambda cells: f"{sum(cell.verdict == 'passed' for cell in cells)}/{len(cells)}",
    ),
    Column(
        "max error/bound",
        "largest |actual - expected| over the derived bound of that element: at most 1 is allowed; of a graph that is judged "
        "in pieces the largest of all pieces, each from the runtime's own values before it",
        lambda cells: extreme(map(_over_tau, _ran(cells)), max, ratio),
    ),
    Column(
        "effective bits",
        "p - log2(RMS z), the fewest of all cells: what the error is worth in the bits of the declared format; "
        "'at least p' says that the runtime computes in more",
        _fewest_bits,
    ),
    Column(
        "ran as",
        "the tightest arithmetic whose bound holds and whose noise it is; n/a where none is, or no cell was measured",
        lambda cells: listed(cell.ran_as or UNKNOWN for cell in _ran(cells) if "noise" in cell.gates),
    ),
    Column(
        "max_abs_diff",
        "largest |actual - expected| over all outputs and cells",
        lambda cells: extreme((cell.max_abs_err for cell in _ran(cells)), max),
    ),
    Column(
        "max_rel_diff",
        "largest |actual - expected| / |expected| over all outputs and cells",
        lambda cells: extreme((cell.max_rel_err for cell in _ran(cells)), max),
    ),
    Column(
        "worst case",
        "case with the largest error/bound; a failed case without a number goes first",
        _worst_case,
    ),
    Column(
        "provider used",
        "what the runtime says it ran on, not what was asked for",
        lambda cells: listed(provider for cell in cells for provider in cell.provider_used),
    ),
)
NOT_PASSED: tuple[Column[CellRecord], ...] = (
    Column("model", "name of the module", lambda cell: cell.model),
    Column("variant", "form of the graph", lambda cell: cell.variant),
    Column("opset", "opset of the file", lambda cell: subject(cell).opset),
    Column("dtype", "floating dtype of the graph", lambda cell: cell.dtype),
    Column("runtime", "what executed the file", lambda cell: cell.runtime),
    Column("case", "name of the case, its sizes, mask and logit deviation", _case),
    Column("verdict", "of this cell", shown),
    Column(
        "gates failed",
        "gates that it did not pass, by their numbers or by its findings",
        lambda cell: listed(failed_gates(cell)),
    ),
    Column("worst element", "output[index] where error/bound is largest, and both values", _worst_element),
    Column("reason", "why the verdict is what it is", lambda cell: cell.reason or UNKNOWN),
    Column("findings", "codes; `onnx-attest explain CODE` tells more", lambda cell: listed(cell.findings)),
)
NOT_RUN: tuple[Column[Reason], ...] = (
    Column("verdict", "skipped (not run) or errored (raised, crashed, hung)", lambda reason: reason.verdict),
    Column("runtime", "what said so; `export` where there is no file to run", lambda reason: reason.runtime),
    Column("exports", "what it holds for: model, variant, opset, dtype", _exports),
    Column("records", "number of cells or exports", lambda reason: str(reason.records)),
    Column("reason", "in the words of the runtime or the exporter", lambda reason: reason.text),
)
FINDINGS: tuple[Column[Findings], ...] = (
    Column("code", "what kind of statement; the code never changes its meaning", lambda same: same[0].code),
    Column("severity", "error, warning or note", lambda same: same[0].severity),
    Column("export", "model, variant, opset and dtype that it is about", lambda same: _about(same[0])),
    Column("runtime", "runtime that it is about", lambda same: same[0].runtime or UNKNOWN),
    Column("cases", "cases in which it was found", lambda same: listed(finding.case for finding in same)),
    Column("blame", "the party at fault", lambda same: listed(finding.blame for finding in same)),
    Column("node", "first bad node", lambda same: listed(finding.node for finding in same)),
    Column(
        "known", "public issue, or counter-example, if it was expected", lambda same: same[0].known or UNKNOWN
    ),
    Column("message", "the statement with its evidence", lambda same: same[0].message),
    Column("next step", "what to do", lambda same: same[0].next_step),
)
