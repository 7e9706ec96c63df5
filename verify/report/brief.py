"""A run that did not pass, in the few lines that fit a failed test: verdict, party at fault, first bad node, next step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx_attest.verify.records import AnyRecord, ArtifactRecord, FindingRecord
from onnx_attest.verify.report.formats import listed, shortened
from onnx_attest.verify.report.grouping import grouped, of_kind
from onnx_attest.verify.report.headline import headline, last_run
from onnx_attest.verify.report.outcomes import is_known

MESSAGE, FINDINGS = 240, 3
_SEVERITIES = ("error", "warning")


def brief(records: Iterable[AnyRecord]) -> str:
    """Return what a run came to and why: the findings that count, errors first, each code and runtime once."""
    records = list(records)
    run = last_run(records)
    findings = [one for one in of_kind(records, FindingRecord) if one.severity in _SEVERITIES]
    counting = sorted((one for one in findings if not is_known(one)), key=_rank)
    errors = [one for one in counting if one.severity == "error"]
    subject = listed(record.model for record in of_kind(records, ArtifactRecord))
    lines = [f"{headline(records).replace('**', '')}; {subject}"]
    if run is not None and run.reason:
        lines.append(f"why: {shortened(run.reason, MESSAGE)}")
    if blamed := [one.blame for one in errors if one.blame]:
        lines.append(f"at fault: {listed(blamed)}")
    if node := next((one.node for one in errors if one.node), ""):
        lines.append(f"first bad node: {shortened(node, MESSAGE)}")
    groups = list(grouped(counting, lambda one: (one.code, one.runtime)).values())
    for same in groups[:FINDINGS]:
        lines += _told(same)
    if len(groups) > FINDINGS:
        lines.append(f"and {len(groups) - FINDINGS} more findings")
    return "\n".join(lines)


def _rank(finding: FindingRecord) -> tuple[int, bool]:
    """Errors go first, and of them those that name a node: they are nearest to the cause."""
    return _SEVERITIES.index(finding.severity), not finding.node


def _told(same: Sequence[FindingRecord]) -> list[str]:
    first = same[0]
    where = ", ".join(filter(None, (first.runtime, first.case)))
    more = f" (and {len(same) - 1} more)" if len(same) > 1 else ""
    head = " ".join(filter(None, (first.code, where)))
    return [
        f"{head}: {shortened(first.message, MESSAGE)}{more}",
        f"  next: {shortened(first.next_step, MESSAGE)}",
    ]
