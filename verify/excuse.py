"""Known failures held against what happened: an expected failure is marked, an expected failure that passed fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from onnx_attest.verify.cell import Cell
from onnx_attest.verify.claims import CLAIMS
from onnx_attest.verify.findings import finding
from onnx_attest.verify.known import Known, find_known
from onnx_attest.verify.records import CellRecord, ClaimRecord, StabilityRecord


def excuse(cell: Cell, entries: Sequence[Known]) -> Cell:
    """Return the cell, marked if its failure is known, failed if a known failure did not happen."""
    record = cell.record
    known = _known(record, entries)
    if known is None or record.verdict not in ("passed", "failed", "errored"):
        return cell
    if record.verdict == "passed" and not known.always:
        return cell
    if record.verdict != "passed":
        return replace(cell, record=msgspec.structs.replace(record, known=known.issue))
    stale = finding("OA803", f"{known.issue} was expected here and did not happen: {known.note}")
    failed = msgspec.structs.replace(record, verdict="failed", reason=stale.message, findings=(stale.code,))
    return replace(cell, record=failed, findings=(stale,))


def excuse_softmax(record: StabilityRecord, entries: Sequence[Known]) -> StabilityRecord:
    """Return the record, marked if its failure is known; a softmax that is right there is no news."""
    known = _known(record, entries) if record.verdict == "failed" else None
    return record if known is None else msgspec.structs.replace(record, known=known.issue)


def excuse_claim(record: ClaimRecord, entries: Sequence[Known]) -> ClaimRecord:
    """Return the record of an experiment, marked if the runtime is known to fail whatever it runs."""
    if record.verdict not in ("failed", "errored"):
        return record
    known = find_known(entries, record.model or CLAIMS, "", record.dtype, record.runtime, None)
    return record if known is None else msgspec.structs.replace(record, known=known.issue)


def _known(record: CellRecord | StabilityRecord, entries: Sequence[Known]) -> Known | None:
    return find_known(entries, record.model, record.variant, record.dtype, record.runtime, record.case)
