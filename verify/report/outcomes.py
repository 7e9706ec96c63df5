"""What the verdicts of records come to when they are shown together, and which gates failed.

A failure that was expected (`known`) does not count, but is always shown as what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    ClaimRecord,
    FindingRecord,
    HeadroomRecord,
    LatencyRecord,
    StabilityRecord,
)
from onnx_attest.verify.verdicts import worst

Judged = CellRecord | StabilityRecord | HeadroomRecord
HasVerdict = Judged | LatencyRecord | ArtifactRecord
NOT_RUN = "-"
_CUDA = ("ort-cuda", "torch-cuda")
# The codes of verify/findings.py; a code never changes its meaning.
STALE = "OA803"
_GATE_OF_CODE = {
    "OA301": "proof",
    "OA302": "form",
    "OA303": "form",
    "OA310": "noise",
    "OA311": "direction",
    "OA501": "exact",
}


def is_known(record: HasVerdict | ClaimRecord | FindingRecord) -> bool:
    """Return whether the record is about a failure that `known.toml` said would come.

    An entry whose failure did *not* come is a failure of its own, which nothing excuses.
    """
    if isinstance(record, FindingRecord):
        return bool(record.known) and record.code != STALE
    if isinstance(record, LatencyRecord | ArtifactRecord):
        return False
    stale = not isinstance(record, ClaimRecord) and STALE in record.findings
    return bool(record.known) and record.verdict in ("failed", "errored") and not stale


def shown(record: HasVerdict | ClaimRecord) -> str:
    """Return the verdict of one record in words."""
    return f"{record.verdict} (known)" if is_known(record) else record.verdict


def shown_together(records: Iterable[Judged]) -> str:
    """Return the verdict of several records in words.

    A known failure is named only where nothing counts against the whole: what changes the exit code goes
    first. Nothing but skipped is skipped, and no record at all is `-`.
    """
    records = list(records)
    known = [record for record in records if is_known(record)]
    counted = [record for record in records if not is_known(record)]
    ran = [record.verdict for record in counted if record.verdict != "skipped"]
    if known and worst(["passed", *ran]) == "passed":
        return f"{worst(record.verdict for record in known)} (known)"
    if ran:
        return worst(ran)
    return "skipped" if counted else NOT_RUN


def failed_gates(cell: CellRecord) -> tuple[str, ...]:
    """Return the names of the gates that the cell did not pass, by their numbers or by its findings.

    The form gate has no number, and neither has the proof gate where the bound is 0: there the code tells.
    """
    by_number = (
        name for name, numbers in cell.gates.items() if any(_beyond(key, numbers) for key in numbers)
    )
    by_code = (_GATE_OF_CODE[code] for code in cell.findings if code in _GATE_OF_CODE)
    return tuple(dict.fromkeys((*by_number, *by_code)))


def _beyond(key: str, numbers: Mapping[str, float | None]) -> bool:
    """Return whether a number exceeds its limit: the one stored beside it, or 1 for a ratio to a bound."""
    value, limit = numbers[key], numbers.get(f"{key}_limit", 1.0 if "_over_" in key else None)
    return value is not None and limit is not None and value > limit


def ran_on_cuda(record: AnyRecord) -> bool:
    """Return whether a CUDA runtime computed something, and on the GPU as far as the session said.

    A session that asks for CUDA and quietly falls back to the CPU fails, but has not executed the CUDA path.
    """
    if not isinstance(record, CellRecord | LatencyRecord):
        return False
    if not record.runtime.startswith(_CUDA) or record.verdict not in ("passed", "failed"):
        return False
    return not record.provider_used or any("CUDA" in provider.upper() for provider in record.provider_used)
