"""What a run came to: its verdict, its exit code and the required runtimes that did not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from onnx_attest.verify.finding_records import run_finding
from onnx_attest.verify.interruption import code_of
from onnx_attest.verify.records import (
    AnyRecord,
    CellRecord,
    FindingRecord,
    RelationRecord,
    RunRecord,
    Verdict,
)
from onnx_attest.verify.verdicts import counting, exit_code, worst


def conclude(
    records: Sequence[AnyRecord],
    *,
    required: Sequence[str] = (),
    duration_s: float,
    part: str = "",
    interruption: BaseException | None = None,
) -> list[AnyRecord]:
    """Return the last records of a run: a finding for each required runtime that is absent, and the run itself.

    Args:
        records: all others.
        required: runtimes without which nothing is proven.
        duration_s: of the run.
        part: what of a whole run this is, in words; "" for all of it.
        interruption: what ended the run before its end: then it has not passed.
    """
    absent = {name: reason for name in required if (reason := _absent(records, name)) is not None}
    partly = {name: where for name in required if name not in absent and (where := elsewhere(records, name))}
    verdict = worst(record.verdict for record in counting(records))
    code = exit_code(verdict, required_absent=bool(absent or partly))
    missing = {name: f"{name} was required and did not run: {reason}" for name, reason in absent.items()}
    mixed = {name: f"{name} was required and ran in part only: {where}" for name, where in partly.items()}
    found = [run_finding("OA804", text, runtime=name) for name, text in missing.items()]
    found += [run_finding("OA205", text, runtime=name) for name, text in mixed.items()]
    cells = [record for record in records if isinstance(record, CellRecord)]
    proven = not (absent or partly or interruption is not None)
    run = RunRecord(
        verdict="inconclusive" if verdict == "passed" and not proven else verdict,
        reason="; ".join(filter(None, (part, _reason(records, verdict, {**missing, **mixed})))),
        exit_code=code if interruption is None else code_of(interruption),
        part=part,
        cells=dict(sorted(Counter(cell.verdict for cell in cells).items())),
        known=sum(bool(cell.known) for cell in cells),
        required=tuple(required),
        duration_s=duration_s,
    )
    return [*found, run]


def _absent(records: Sequence[AnyRecord], name: str) -> str | None:
    """Return why a required runtime proved nothing of some artifact, None if it ran all of them."""
    ran: dict[str, bool] = {}
    reason = "it was not among the runtimes of this run"
    for record in records:
        if isinstance(record, CellRecord | RelationRecord):
            mine = record.runtime == name
            did_run = mine and record.verdict in ("passed", "failed", "errored", "inconclusive")
            ran[record.artifact_sha256] = ran.get(record.artifact_sha256, False) or did_run
            if mine and record.verdict == "skipped":
                reason = record.reason
    return None if ran and all(ran.values()) else reason


def elsewhere(records: Sequence[AnyRecord], name: str) -> str:
    """Return what floating-point work of a runtime another provider did, "" if none is known."""
    found = (record for record in records if isinstance(record, FindingRecord) and record.runtime == name)
    return next((record.message for record in found if record.code == "OA204"), "")


def _reason(records: Sequence[AnyRecord], verdict: Verdict, lacking: dict[str, str]) -> str:
    if lacking and verdict in ("passed", "inconclusive"):
        return "; ".join(lacking.values())
    if verdict == "inconclusive":
        reasons = dict.fromkeys(
            record.reason
            for record in records
            if isinstance(record, CellRecord | RelationRecord)
            and record.verdict != "passed"
            and record.reason
        )
        return "; ".join(reasons) or "nothing was verified"
    return ""
