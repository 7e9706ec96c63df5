"""Which files of a run are timed: those that somebody would ship, each variant once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.finding_records import run_finding
from onnx_attest.verify.records import AnyRecord, CellRecord, FindingRecord

_DTYPE = "float32"


def worth_timing(
    artifacts: Sequence[Artifact], records: Iterable[AnyRecord]
) -> tuple[list[Artifact], list[FindingRecord]]:
    """Return the files to time, in their order, and what says which ones are not, and why.

    Args:
        artifacts: with their manifests, the opsets of a variant in rising order.
        records: of their verification.
    """
    failing = {
        record.artifact_sha256
        for record in records
        if isinstance(record, CellRecord) and record.known == "counter-example"
    }
    timed: dict[tuple[str, str], Artifact] = {}
    left_out: dict[str, list[str]] = {}
    for artifact in artifacts:
        manifest = artifact.manifest
        key = artifact.name, manifest.variant if manifest else ""
        if manifest is not None and manifest.dtype != _DTYPE:
            why = f"files of {_DTYPE} are timed"
        elif artifact.sha256 in failing:
            why = "it is a counter-example, which fails by design"
        elif key in timed:
            why = "of a variant in several opsets the first is timed"
        else:
            timed[key] = artifact
            continue
        left_out.setdefault(why, []).append(artifact.path.name)
    return list(timed.values()), list(_told(left_out))


def _told(left_out: dict[str, list[str]]) -> Iterator[FindingRecord]:
    for why, names in left_out.items():
        yield run_finding("OA704", f"{', '.join(names)}: {why}")
