"""The shards of a run put together: the records of the whole run, from the journals in the shards' reports."""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.export.decoding import decoded
from onnx_attest.verify import engine
from onnx_attest.verify.blame import EXPORTER
from onnx_attest.verify.cell import Identity
from onnx_attest.verify.environment import machine_of
from onnx_attest.verify.evidence import told
from onnx_attest.verify.findings import Finding
from onnx_attest.verify.gathered import Gathered, tell
from onnx_attest.verify.journal.basis import differences
from onnx_attest.verify.journal.lines import ENVIRONMENT, FILE, Header, read_units
from onnx_attest.verify.journal.shard import Shard
from onnx_attest.verify.journal.workplace import workplace
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import AnyRecord, ArtifactRecord, EnvironmentRecord, RunRecord, read_records
from onnx_attest.verify.report.folder import ARTIFACTS, write_reports

LATENCY, COSTS = "latency", "costs"
"""What comes after the tasks of a run, as the journal calls it."""
_NAMED = 3


@dataclass(frozen=True, eq=False)
class _Part:
    """The journal of one shard."""

    folder: Path
    header: Header
    units: Mapping[str, msgspec.Raw]

    @property
    def shard(self) -> Shard:
        return Shard.parsed(self.header.shard)

    def has(self, name: str) -> bool:
        return name in self.units

    def get(self, name: str, kind: Any) -> Any:
        try:
            return decoded(msgspec.json.Decoder(kind).decode, self.units[name])
        except (KeyError, msgspec.DecodeError) as error:
            raise UsageError(
                f"{self.folder / FILE} has no {name} of this version: {error}; run that shard again"
            ) from error


@dataclass(frozen=True)
class _Subject:
    identity: Identity


def merge(folders: Sequence[Path], output: Path, evidence: Path) -> list[AnyRecord]:
    """Write the report of a whole run from those of its shards, and return its records.

    Args:
        folders: of the shards' reports.
        output: of the whole run's report.
        evidence: folder of what other machines recorded.

    Raises:
        UsageError: a folder is no report of a shard; the shards are of different runs, or one is missing, given twice or
            not finished; the report cannot be written.
    """
    parts = _in_order([_read(folder) for folder in folders])
    records = _environments(parts)
    records += _of_run(parts) if parts[0].header.command == "run" else _of_verify(parts)
    records += told(records, evidence)
    duration_s = sum(_duration_s(part.folder) for part in parts)
    records += conclude(records, required=parts[0].header.required, duration_s=duration_s)
    with workplace(output) as place:
        artifacts = place.scratch / ARTIFACTS
        given = [part.folder / ARTIFACTS for part in parts if (part.folder / ARTIFACTS).is_dir()]
        try:
            for folder in given:
                _refuse_links(folder)
                shutil.copytree(folder, artifacts, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            raise UsageError(f"cannot copy the exported files to {output}: {error}") from error
        write_reports(records, output, artifacts if given else None)
    return records


def _refuse_links(folder: Path) -> None:
    """Refuse what is no file: through a link of one shard, the files of another would be written elsewhere.

    Raises:
        UsageError: it names the first.
    """
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            mode = Path(root, name).lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UsageError(f"{Path(root, name)} is a link or no file at all; no run leaves one")


def _read(folder: Path) -> _Part:
    header, units = read_units(folder / FILE)
    if not header.shard:
        raise UsageError(f"{folder} is no shard of a run, which --shard makes; it needs no merging")
    return _Part(folder, header, units)


def _in_order(parts: list[_Part]) -> list[_Part]:
    """Return the parts in the order of their numbers.

    Raises:
        UsageError: they are not all the parts of one run, or some unit is in none of them.
    """
    first = parts[0]
    for part in parts[1:]:
        mine, others = part.header.texts(), first.header.texts()
        if apart := differences(others | {"shard": ""}, mine | {"shard": ""}):
            raise UsageError(
                f"{first.folder} and {part.folder} are of different runs: another {'; '.join(apart[:_NAMED])}"
            )
    numbers = Counter(part.shard.number for part in parts)
    of = {part.shard.of for part in parts}
    if len(of) > 1:
        raise UsageError(
            f"the shards are of splits in {' and '.join(map(str, sorted(of)))}; give those of one"
        )
    if twice := [number for number, count in numbers.items() if count > 1]:
        raise UsageError(f"shard {Shard(twice[0], *of)} is given twice")
    if missing := [str(Shard(number, *of)) for number in range(1, max(of) + 1) if number not in numbers]:
        raise UsageError(f"shard {', '.join(missing)} of the run is missing")
    lacking = [name for name in first.header.units if not any(part.has(name) for part in parts)]
    if lacking:
        raise UsageError(
            f"{', '.join(lacking[:_NAMED])} of the run is not finished in any shard ({len(lacking)} in all): go on with "
            "--resume there"
        )
    return sorted(parts, key=lambda part: part.shard.number)


def _environments(parts: Iterable[_Part]) -> list[AnyRecord]:
    """Return where the shards ran, each machine once."""
    seen: dict[bytes, EnvironmentRecord] = {}
    for part in parts:
        for name in part.units:
            if name.startswith(f"{ENVIRONMENT} "):
                record = part.get(name, EnvironmentRecord)
                seen.setdefault(msgspec.json.encode(machine_of(record)), record)
    return list(seen.values())


def _of_run(parts: Sequence[_Part]) -> list[AnyRecord]:
    records: list[AnyRecord] = []
    for name in parts[0].header.units:
        records += _holder(parts, name).get(name, list[AnyRecord])
    if parts[0].has(LATENCY):  # why nothing is timed, which each says
        records += parts[0].get(LATENCY, list[AnyRecord])
    for part in parts:
        if part.has(COSTS):
            records += part.get(COSTS, list[AnyRecord])
    return records


def _of_verify(parts: Sequence[_Part]) -> Iterator[AnyRecord]:
    first, header = parts[0], parts[0].header
    about_file: list[AnyRecord] = first.get(engine.FILE, list[AnyRecord])
    yield from about_file
    yield from first.get(engine.ELSEWHERE, list[AnyRecord])
    (artifact,) = (record for record in about_file if isinstance(record, ArtifactRecord))
    assert artifact.sha256 is not None  # it was read
    identity = Identity(artifact.model, artifact.variant, artifact.opset, artifact.dtype, artifact.sha256)
    cases = [first.get(engine.ABSENT, Gathered)]
    cases += [_holder(parts, name).get(name, Gathered) for name in header.units]
    yield from tell(
        _Subject(identity), cases, (EXPORTER, *header.runtimes), first.get(engine.NOTES, list[Finding])
    )
    for name in engine.AFTER:
        if first.has(name):
            yield from first.get(name, list[AnyRecord])


def _holder(parts: Iterable[_Part], name: str) -> _Part:
    return next(part for part in parts if part.has(name))


def _duration_s(folder: Path) -> float:
    last = read_records(folder)[-1]
    return last.duration_s if isinstance(last, RunRecord) else 0.0
