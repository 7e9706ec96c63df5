"""How verdicts add up, and which exit code they give (DESIGN.md section 3 and 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    ClaimRecord,
    HeadroomRecord,
    RelationRecord,
    StabilityRecord,
    Verdict,
)

_WORST_FIRST: tuple[Verdict, ...] = ("failed", "errored", "inconclusive", "passed")
VERIFIED, FAILED, USAGE, NOT_PROVEN = 0, 1, 2, 3


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a whole from those of its parts.

    Failed before errored before inconclusive before passed; parts that were skipped prove nothing,
    and where nothing else is there the whole is inconclusive.
    """
    present = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in present), "inconclusive")


def exit_code(verdict: Verdict, *, required_absent: bool = False) -> int:
    """Return 0 verified, 1 failed or errored, 3 nothing proven or a required runtime absent."""
    if verdict in ("failed", "errored"):
        return FAILED
    return VERIFIED if verdict == "passed" and not required_absent else NOT_PROVEN


def counting(
    records: Sequence[AnyRecord],
) -> Iterable[ArtifactRecord | CellRecord | StabilityRecord | HeadroomRecord | RelationRecord | ClaimRecord]:
    """Yield the records whose verdicts make that of the run."""
    # Beside cells, whose reference judged what a relation's bounds are too wide for, it need not be conclusive.
    cells = [record for record in records if isinstance(record, CellRecord)]
    beside = any(cell.verdict == "passed" for cell in cells)
    # Nor does it pass a run by itself, at a size of its own, of which the cases that were asked for were left out.
    left_out = not beside and any(cell.verdict == "skipped" and cell.case is not None for cell in cells)
    for record in records:
        if isinstance(record, CellRecord | StabilityRecord) and not record.known:
            yield record
        if isinstance(record, RelationRecord) and _counts(record, beside=beside, left_out=left_out):
            yield record
        # A file that is as asked proves nothing of its numbers: it does not pass a run, but it can fail it.
        # The same holds for a softmax alone, and for the chapter's statements.
        if (
            isinstance(record, HeadroomRecord)
            and record.verdict in ("failed", "errored")
            and not record.known
        ):
            yield record
        if isinstance(record, ArtifactRecord) and record.verdict != "passed":
            yield record
        if isinstance(record, ClaimRecord) and record.verdict in ("failed", "errored") and not record.known:
            yield record


def _counts(record: RelationRecord, *, beside: bool, left_out: bool) -> bool:
    idle = (beside and record.verdict == "inconclusive") or (left_out and record.verdict == "passed")
    return record.counts and not record.known and not idle
