"""What a run came to: its verdict, its exit code and the required runtimes that did not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from onnx_attest.verify.findings import finding
from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    ClaimRecord,
    FindingRecord,
    RunRecord,
    StabilityRecord,
    Verdict,
)
from onnx_attest.verify.verdicts import exit_code, worst


def conclude(
    records: Sequence[AnyRecord], *, required: Sequence[str] = (), duration_s: float
) -> list[AnyRecord]:
    """Return the last records of a run: a finding for each required runtime that is absent, and the run itself."""
    absent = {name: reason for name in required if (reason := _absent(records, name)) is not None}
    verdict = worst(_verdicts(records))
    code = exit_code(verdict, required_absent=bool(absent))
    found = [_absent_record(name, reason) for name, reason in absent.items()]
    cells = [record for record in records if isinstance(record, CellRecord)]
    run = RunRecord(
        verdict="inconclusive" if verdict == "passed" and absent else verdict,
        reason=_reason(records, verdict, absent),
        exit_code=code,
        cells=dict(sorted(Counter(cell.verdict for cell in cells).items())),
        known=sum(bool(cell.known) for cell in cells),
        required=tuple(required),
        duration_s=duration_s,
    )
    return [*found, run]


def _verdicts(records: Iterable[AnyRecord]) -> Iterable[Verdict]:
    for record in records:
        if isinstance(record, CellRecord | StabilityRecord) and not record.known:
            yield record.verdict
        # A file that is as asked proves nothing of its numbers: it does not pass a run, but it can fail it.
        # The same holds for the chapter's statements.
        if isinstance(record, ArtifactRecord | ClaimRecord) and record.verdict != "passed":
            yield record.verdict


def _absent(records: Sequence[AnyRecord], name: str) -> str | None:
    """Return why a required runtime proved nothing of some artifact, None if it ran all of them."""
    ran: dict[str, bool] = {}
    reason = "it was not among the runtimes of this run"
    for record in records:
        if isinstance(record, CellRecord):
            mine = record.runtime == name
            did_run = mine and record.verdict in ("passed", "failed", "errored", "inconclusive")
            ran[record.artifact_sha256] = ran.get(record.artifact_sha256, False) or did_run
            if mine and record.verdict == "skipped":
                reason = record.reason
    return None if ran and all(ran.values()) else reason


def _absent_record(name: str, reason: str) -> FindingRecord:
    item = finding("OA804", f"{name} was required and did not run: {reason}")
    return FindingRecord(
        code=item.code, severity=item.severity, message=item.message, next_step=item.next_step, runtime=name
    )


def _reason(records: Sequence[AnyRecord], verdict: Verdict, absent: dict[str, str]) -> str:
    if absent and verdict in ("passed", "inconclusive"):
        return "; ".join(f"{name} was required and did not run: {reason}" for name, reason in absent.items())
    if verdict == "inconclusive":
        reasons = dict.fromkeys(
            record.reason for record in records if isinstance(record, CellRecord) and record.reason
        )
        return "; ".join(reasons) or "nothing was verified"
    return ""
