"""Why something was not run, broke off or proved nothing: each reason of a runtime once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx_attest.verify.records import ArtifactRecord, Verdict
from onnx_attest.verify.report.grouping import Subject, grouped, subject
from onnx_attest.verify.report.outcomes import HasVerdict, shown

EXPORT = "export"
NO_REASON = "no reason was recorded"


@dataclass(frozen=True)
class Reason:
    """One reason and what it holds for; `runtime` is `export` where there is no file to run."""

    verdict: str
    runtime: str
    text: str
    subjects: tuple[Subject, ...]
    records: int


def reasons(records: Iterable[HasVerdict], verdicts: tuple[Verdict, ...]) -> list[Reason]:
    """Return the reasons of the records with one of these verdicts.

    Known failures are included under their own word, `errored (known)`.
    """
    groups = grouped((record for record in records if record.verdict in verdicts), _key)
    return [
        Reason(*key, subjects=tuple(dict.fromkeys(map(subject, group))), records=len(group))
        for key, group in groups.items()
    ]


def _key(record: HasVerdict) -> tuple[str, str, str]:
    runtime = EXPORT if isinstance(record, ArtifactRecord) else record.runtime
    return shown(record), runtime, record.reason or NO_REASON
