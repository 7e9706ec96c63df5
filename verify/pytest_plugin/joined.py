"""One report of all verifications of a session: each process writes its parts, the first one joins them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from onnx_attest.export.artifact import write_whole
from onnx_attest.verify.paths import without_folders
from onnx_attest.verify.records import (
    AnyRecord,
    CellRecord,
    EnvironmentRecord,
    RunRecord,
    encode,
    read_records,
)
from onnx_attest.verify.report import write_reports
from onnx_attest.verify.report.headline import headline
from onnx_attest.verify.verdicts import exit_code, worst

_OR = " or "
"""Between the values of a setting that tests have given differently."""


def write_part(path: Path, records: Iterable[AnyRecord]) -> None:
    """Write the records of one verification, whole: the process may end at any time."""
    write_whole({path: encode(records)})


def write_joined(parts: Path, folder: Path, command: Sequence[str]) -> str:
    """Write the report of all parts and return a line about it.

    Args:
        parts: the folder of the parts, whose names are in the order of the tests.
        folder: of the report.
        command: how the session was called.

    Raises:
        UsageError: the folder cannot be written; what was there is as it was.
    """
    found = [read_records(path) for path in sorted(parts.glob("*.jsonl"))]
    if not found:
        return f"no test verified anything: no report is written to {folder.name}"
    records = joined(found, command)
    write_reports(records, folder)
    return f"report in {folder.name}: {headline(records).replace('**', '')}"


def joined(parts: Sequence[Sequence[AnyRecord]], command: Sequence[str]) -> list[AnyRecord]:
    """Return the records of several verifications as those of one run, what is in two of them once.

    A verification in which no runtime ran says nothing beside others: its test was skipped.
    """
    records = [record for part in parts for record in part]
    environments = [record for record in records if isinstance(record, EnvironmentRecord)]
    others = [record for record in records if not isinstance(record, EnvironmentRecord | RunRecord)]
    once = list({encode([record]): record for record in others}.values())
    return [*_environments(environments, command), *once, _run(parts, once)]


def _environments(records: Sequence[EnvironmentRecord], command: Sequence[str]) -> list[EnvironmentRecord]:
    """Return one record a machine: which runtimes work there is known from all of its verifications."""
    machines: dict[bytes, EnvironmentRecord] = {}
    for record in records:
        told = tuple(map(without_folders, command))
        key = encode([msgspec.structs.replace(record, runtimes={}, configuration={}, command=told)])
        before = machines.get(key)
        machines[key] = msgspec.structs.replace(
            record,
            command=told,
            runtimes={**(before.runtimes if before else {}), **record.runtimes},
            configuration=_either(before.configuration if before else {}, record.configuration),
        )
    return list(machines.values())


def _either(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """Return the settings of both; one that tests have set differently has both values."""
    found = dict(before)
    for name, value in now.items():
        seen = found.get(name, value).split(_OR)
        found[name] = _OR.join(dict.fromkeys((*seen, value)))
    return found


def _run(parts: Sequence[Sequence[AnyRecord]], records: Sequence[AnyRecord]) -> RunRecord:
    runs = [(record, part) for part in parts for record in part if isinstance(record, RunRecord)]
    counting = [record for record, part in runs if record.required or not _ran_nothing(part)]
    cells = [record for record in records if isinstance(record, CellRecord)]
    verdict = worst(record.verdict for record in counting)
    reasons = dict.fromkeys(
        record.reason for record, _ in runs if record.verdict == verdict and record.reason
    )
    return RunRecord(
        verdict=verdict,
        reason="; ".join(reasons),
        exit_code=exit_code(verdict),
        part="; ".join(dict.fromkeys(record.part for record, _ in runs if record.part)),
        cells=dict(sorted(Counter(cell.verdict for cell in cells).items())),
        known=sum(bool(cell.known) for cell in cells),
        required=tuple(dict.fromkeys(name for record, _ in runs for name in record.required)),
        duration_s=sum(record.duration_s for record, _ in runs),
    )


def _ran_nothing(records: Sequence[AnyRecord]) -> bool:
    cells = [record for record in records if isinstance(record, CellRecord)]
    return bool(cells) and all(cell.verdict == "skipped" and cell.case is None for cell in cells)
