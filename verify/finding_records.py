"""From the findings of single cells to what is told: once each, with the party at fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onnx_attest.verify.blame import EXPORTER, MODULES, blamed_cells
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.records import CaseRecord, CellRecord, FindingRecord, StabilityRecord

if TYPE_CHECKING:  # a bundle is replayed without onnx, which cells need
    from onnx_attest.verify.cell import Cell, Identified

_SUMMARIES = (
    ("exporter", "OA108", "{} run the file and fail alike; torch, which runs the module, passes"),
    ("module", "OA109", "torch, which runs the module, fails with all runtimes that run the file"),
    ("optimiser", "OA601", "wrong with ONNX Runtime's graph optimisations on, right with them off"),
)
_MODULE_ALONE = (
    "torch runs the module and does not give what the file computes; all that run the file agree with it"
)


def finding_record(subject: Identified, item: Finding, **where: Any) -> FindingRecord:
    """Return a finding as a record about an artifact; `where` says runtime, case and whether it is known."""
    identity = subject.identity.fields()
    return FindingRecord(
        code=item.code, severity=item.severity, message=item.message, next_step=item.next_step, blame=item.blame,
        node=item.node, around=item.around, **({name: identity[name] for name in ("model", "variant", "opset", "dtype")} | where),
    )  # fmt: skip


def run_finding(code: str, message: str, **where: Any) -> FindingRecord:
    """Return a finding as a record about the run, or some runtime in it."""
    item = finding(code, message)
    return FindingRecord(
        code=item.code, severity=item.severity, message=item.message, next_step=item.next_step, **where
    )


def finding_records(
    subject: Identified,
    cells: Sequence[Cell],
    softmax: Sequence[tuple[StabilityRecord, list[Finding]]],
    guilty: str = "",
) -> Iterator[FindingRecord]:
    """Yield what the cells and the softmax of one artifact come to, then one finding for each party at fault.

    Args:
        subject: the artifact.
        cells: of the artifact.
        softmax: of the artifact.
        guilty: the party that is known to be at fault whatever the runtimes say, "" if none is.
    """
    blamed = blamed_cells([cell.record for cell in cells])
    told = _Grouped()
    for index, cell in enumerate(cells):
        for item in cell.findings:
            party = guilty or blamed.get(index, "") or item.blame
            told.add(cell.record.runtime, replace(item, blame=party), cell.record.case, cell.record.known)
    for record, items in softmax:
        for item in items:
            told.add(record.runtime, item, record.case, record.known)
    yield from told.records(subject)
    yield from _other_arithmetic(subject, [cell.record for cell in cells])
    for party, code, message in _SUMMARIES:
        theirs = [cells[index].record for index, name in blamed.items() if name == party and not guilty]
        names = {record.runtime for record in theirs} - {EXPORTER}
        # OA111 says it of the exporter's own cells, and all there is to say where torch and what runs the file fail.
        if names and not (party == EXPORTER and names & set(MODULES) and names - set(MODULES)):
            yield _summary(subject, code, message, party, theirs)


def _other_arithmetic(subject: Identified, cells: Sequence[CellRecord]) -> Iterator[FindingRecord]:
    """Yield a note for each runtime that computed in a tighter arithmetic than declared, in every case that tells."""
    for runtime in dict.fromkeys(cell.runtime for cell in cells):
        told = [
            cell for cell in cells if cell.runtime == runtime and cell.verdict == "passed" and cell.ran_as
        ]
        if told and all(cell.ran_as == told[0].ran_as != cell.arithmetic for cell in told):
            message = f"declared {told[0].arithmetic}, it computes as {told[0].ran_as}: its bound holds in all {len(told)} cases measured"
            yield finding_record(subject, finding("OA312", message), runtime=runtime)


def _summary(
    subject: Identified, code: str, message: str, party: str, guilty: Sequence[CellRecord]
) -> FindingRecord:
    runtimes = [name for name in dict.fromkeys(record.runtime for record in guilty) if name != EXPORTER]
    text = (
        _MODULE_ALONE if runtimes and set(runtimes) <= set(MODULES) else message.format(", ".join(runtimes))
    )
    known = guilty[0].known if all(record.known for record in guilty) else ""
    case = guilty[0].case
    item = finding(code, text, blame=party)
    return finding_record(subject, item, case=case.id if case else "", known=known)


class _Grouped:
    """Findings that say the same of several cases, told once: the first, and how many more."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str, str], tuple[Finding, str, int]] = {}

    def add(self, runtime: str, item: Finding, case: CaseRecord | None, known: str) -> None:
        key = (runtime, item.code, item.blame, known)
        first, where, count = self._groups.get(key, (item, case.id if case else "", 0))
        self._groups[key] = (first, where, count + 1)

    def records(self, subject: Identified) -> Iterator[FindingRecord]:
        for (runtime, _, _, known), (item, case, count) in self._groups.items():
            more = f" (and in {count - 1} more cases)" if count > 1 else ""
            told = replace(item, message=item.message + more)
            yield finding_record(subject, told, runtime=runtime, case=case, known=known)
