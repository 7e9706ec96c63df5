"""What records prove about exactly these bytes, runtime by runtime; or why they prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from onnx_attest.errors import UsageError
from onnx_attest.export.bundle import Verified
from onnx_attest.export.session_options import of_files
from onnx_attest.verify.arithmetic import profile
from onnx_attest.verify.blame import EXPORTER
from onnx_attest.verify.outcome import elsewhere
from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    EnvironmentRecord,
    FindingRecord,
    HeadroomRecord,
    LatencyRecord,
    RelationRecord,
    RunRecord,
    StabilityRecord,
)
from onnx_attest.verify.runtimes.onnxruntime import CUSTOM_OPERATORS

Judged = CellRecord | StabilityRecord | HeadroomRecord | RelationRecord


class NotProvenError(UsageError):
    """Nothing proves that the file is right where it is to be used; the message says what lacks."""


def about(sha256: str, records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """Return the records that are about the file of a digest: itself, what was judged of it, its findings and where."""
    records = list(records)
    own = [one for one in records if isinstance(one, ArtifactRecord) and one.sha256 == sha256]
    names = {(one.model, one.variant, one.opset, one.dtype) for one in own}
    return [one for one in records if names and _is_about(one, sha256, names)]


def _is_about(record: AnyRecord, sha256: str, names: Container[tuple[object, ...]]) -> bool:
    if isinstance(record, ArtifactRecord):
        return record.sha256 == sha256
    if isinstance(record, Judged | LatencyRecord):
        return record.artifact_sha256 == sha256
    if isinstance(record, FindingRecord):
        return (record.model, record.variant, record.opset, record.dtype) in names
    return isinstance(record, EnvironmentRecord)


def proven(
    sha256: str,
    records: Iterable[AnyRecord],
    required: Sequence[str],
    arithmetic: str,
    described: Callable[[str], dict[str, object]],
) -> list[Verified]:
    """Return the runtimes that the file of a digest passed on, those that are required first.

    Args:
        sha256: of the file.
        records: of its verification.
        required: runtimes without which it is not proven.
        arithmetic: that the bundle's bounds are for; a runtime that passed in fewer bits passes them nowhere.
        described: gives what else a bundle says of a runtime: its provider and options.

    Their session options are those that the records were made with, whatever a runtime of that name has here.

    Raises:
        NotProvenError: no record of these bytes, the run did not come to its end, the file itself or the exporter failed,
            or a required runtime did not pass, or not with all of its work.
    """
    records = list(records)
    mine = about(sha256, records)
    own = [one for one in mine if isinstance(one, ArtifactRecord)]
    if not own:
        raise NotProvenError(
            f"no record is about these bytes (sha256 {sha256[:12]}...): verify this very file, or give the records of it"
        )
    if wrong := _why_not_whole(records):
        raise NotProvenError(wrong)
    for one in own:
        if one.verdict != "passed":
            raise NotProvenError(f"the file itself {one.verdict}: {one.reason}")
    judged = [one for one in mine if isinstance(one, Judged)]
    if wrong := _why_not(EXPORTER, judged):
        raise NotProvenError(f"the exporter {wrong}")
    names = [
        *dict.fromkeys(required),
        *dict.fromkeys(one.runtime for one in judged if one.runtime not in (EXPORTER, *required)),
    ]
    found = []
    for name in names:
        cells = [one for one in judged if isinstance(one, CellRecord) and one.runtime == name]
        passed = [one for one in cells if one.verdict == "passed"]
        why = _why_not(name, judged) or ("" if passed else _absent(cells)) or _elsewhere(name, mine)
        why = why or _in_fewer_bits(passed, arithmetic) or _why_not_again(passed)
        if why and name in required:
            raise NotProvenError(f"{name} {why}")
        if why:
            continue
        bits = [one.effective_bits for one in passed if one.effective_bits is not None]
        found.append(
            Verified(
                runtime=name,
                version=", ".join(dict.fromkeys(one.runtime_version for one in passed)),
                cells=len(passed),
                effective_bits=min(bits, default=None),
                **described(name) | {"session_options": passed[0].session_options},  # type: ignore[arg-type]
            )
        )
    if not found:
        raise NotProvenError("no runtime passed")
    return found


def held_against(records: Sequence[AnyRecord]) -> str:
    """Return what a file was held against, from the records that are about it: see `About.against`."""
    if any(
        isinstance(one, CellRecord) and one.runtime == EXPORTER and one.verdict == "passed" for one in records
    ):
        return "module"
    return next((one.reference for one in records if isinstance(one, ArtifactRecord)), "")


def _why_not_whole(records: Sequence[AnyRecord]) -> str:
    """Return what of a run is missing: what is not there may have failed."""
    ends = [one for one in records if isinstance(one, RunRecord)]
    if not ends:
        return "the records have no end: the run was killed, or they were cut; resume it"
    return next((f"the records are not of a whole run: {one.part}" for one in ends if one.part), "")


def _elsewhere(name: str, records: Sequence[AnyRecord]) -> str:
    where = elsewhere(records, name)
    return where and f"ran in part only: {where}"


def _why_not(name: str, judged: Sequence[Judged]) -> str:
    """Return what a runtime did wrong, known or not: what is expected to fail is not to be deployed either."""
    for one in judged:
        idle = isinstance(one, RelationRecord) and not one.counts
        if one.runtime == name and one.verdict in ("failed", "errored") and not idle:
            return f"{one.verdict} on {one.case.id if one.case else 'all cases'}: {one.reason}"
    return ""


def _in_fewer_bits(passed: Sequence[CellRecord], arithmetic: str) -> str:
    """Return in which arithmetic a runtime was looked at, if that has fewer bits than what the file is bundled for."""
    wanted = profile(arithmetic)
    for name in dict.fromkeys(one.arithmetic for one in passed):
        if profile(name).bits < wanted.bits:
            return f"passed as {name}, {profile(name).bits} bits, and a bundle of this file is for {arithmetic}, {wanted.bits}"
    return ""


def _why_not_again(passed: Sequence[CellRecord]) -> str:
    """Return why nobody else can open the session that these passed in."""
    if any(one.session_options != passed[0].session_options for one in passed):
        return "passed with other session options from case to case: verify it with those that it is to have"
    if strange := of_files(passed[0].session_options):
        return f"passed with {strange[0]}, which names a file of that machine, and no bundle does"
    if libraries := passed[0].session.get(CUSTOM_OPERATORS):
        return f"passed with the operators of {libraries}, which no bundle holds"
    return ""


def _absent(cells: Sequence[CellRecord]) -> str:
    reasons = dict.fromkeys(one.reason for one in cells if one.reason)
    return f"passed in no case: {'; '.join(reasons) or 'it was not run'}"
