"""What another machine recorded (a GPU): told beside a run, for exactly the files that both have, and no part of its verdict.

Evidence is the records of a run there, `FOLDER/MACHINE/records.jsonl`, with no path and no name of a host in it.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    EnvironmentRecord,
    EvidenceRecord,
    encode,
    read_records,
)
from onnx_attest.verify.report.folder import RECORDS
from onnx_attest.verify.report.outcomes import ran_on_cuda, shown

FOLDER = Path("reports/evidence")


def publish(report: Path, folder: Path) -> Path:
    """Write the records of a run on a GPU where other machines' reports find them, and return the file.

    Args:
        report: a records.jsonl, or a folder that holds one.
        folder: of all evidence; the machine gets a folder in it, named after its GPU.

    Raises:
        UsageError: no records, nothing in them ran on a GPU, the GPU has no name, or the file cannot be written. What
            was there before is left as it is.
    """
    records = read_records(report)
    if not any(map(ran_on_cuda, records)):
        raise UsageError(f"{report} is no evidence: nothing in it ran on CUDA; doctor says why not")
    names = [
        name for one in records if isinstance(one, EnvironmentRecord) for name in one.gpus if _slug(name)
    ]
    if not names:
        raise UsageError(f"{report} does not say which GPU it was: nvidia-smi was not found there")
    target = folder / _slug(names[0]) / RECORDS
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{RECORDS}.", delete=False) as scratch:
            scratch.write(impersonal(encode(records)))
        Path(scratch.name).replace(target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def told(records: Iterable[AnyRecord], folder: Path) -> Iterator[EvidenceRecord]:
    """Yield, for each machine and CUDA runtime, what was recorded there of the files that these records are about.

    Raises:
        UsageError: evidence that is no records.
    """
    files = {one.sha256 for one in records if isinstance(one, ArtifactRecord) and one.sha256}
    for path in sorted(folder.glob(f"*/{RECORDS}")):
        recorded = read_records(path)
        environment = next((one for one in recorded if isinstance(one, EnvironmentRecord)), None)
        cells = [
            one
            for one in recorded
            if isinstance(one, CellRecord) and one.artifact_sha256 in files and ran_on_cuda(one)
        ]
        for runtime in dict.fromkeys(cell.runtime for cell in cells):
            own = [cell for cell in cells if cell.runtime == runtime]
            yield _told(path.parent.name, environment, runtime, own, len(files))


def _told(
    machine: str,
    environment: EnvironmentRecord | None,
    runtime: str,
    cells: Sequence[CellRecord],
    of_files: int,
) -> EvidenceRecord:
    return EvidenceRecord(
        machine=machine,
        gpus=environment.gpus if environment else (),
        recorded_at=environment.recorded_at if environment else "",
        runtime=runtime,
        runtime_version=cells[0].runtime_version,
        files=len({cell.artifact_sha256 for cell in cells}),
        of_files=of_files,
        cells=dict(sorted(Counter(map(shown, cells)).items())),
        ran_as=dict(sorted(Counter(cell.ran_as or "unknown" for cell in cells).items())),
    )


def _slug(name: str) -> str:
    """Return a GPU's name as that of a folder: `NVIDIA H200, driver 580.65` is nvidia-h200."""
    return re.sub(r"[^a-z0-9]+", "-", name.partition(",")[0].lower()).strip("-")


def impersonal(data: bytes) -> bytes:
    """Return the records without what only their machine has: a runtime's reasons may name files."""
    folders = {
        str(Path.home()): "HOME",
        str(Path.cwd()): "HERE",
        sys.prefix: "ENVIRONMENT",
        tempfile.gettempdir(): "TMP",
    }
    patterns = [
        (re.compile(rf"{re.escape(folder)}(?![\w-])"), word)  # /opt/a is no part of /opt/ab
        for folder, word in sorted(folders.items(), key=lambda item: -len(item[0]))
        if Path(folder).is_absolute() and folder.strip(os.sep)
    ]
    host = platform.node()
    # A machine may be called what a model, a dtype or a runtime is: it is looked for among other words only.
    named = re.compile(rf"(?<![\w-]){re.escape(host)}(?![\w-])") if host not in ("", "localhost") else None
    lines = [msgspec.json.decode(line) for line in data.splitlines()]
    return b"".join(msgspec.json.encode(_without(line, patterns, named)) + b"\n" for line in lines)


_OF_THE_FILE = frozenset({"node", "softmax", "worst_output"})
"""Fields that name what is in the file itself; torch's exporter names nodes like paths."""
_OF_THE_MACHINE = frozenset({"command", "configuration", "variables"})
"""Fields in which a machine's name may stand alone."""


def _without(
    value: Any, patterns: Sequence[tuple[re.Pattern[str], str]], host: re.Pattern[str] | None, field: str = ""
) -> Any:
    if isinstance(value, dict):
        return {
            key: _without(held, patterns, host, field if field in _OF_THE_MACHINE else key)
            for key, held in value.items()
        }
    if isinstance(value, list):
        return [_without(held, patterns, host, field) for held in value]
    if not isinstance(value, str) or field in _OF_THE_FILE:
        return value
    for folder, word in patterns:
        value = folder.sub(word, value)
    return host.sub("HOST", value) if host and (" " in value or field in _OF_THE_MACHINE) else value
