"""What of the machine, its software and the files changed between two runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx_attest.verify.compare.match import of_kind, place
from onnx_attest.verify.records import AnyRecord, ArtifactRecord, CellRecord, EnvironmentRecord, LatencyRecord
from onnx_attest.verify.report.formats import listed

Versions = dict[str, tuple[str | None, str | None]]


def versions(old: Sequence[AnyRecord], new: Sequence[AnyRecord]) -> Versions:
    """Return what has another version or value: packages, the machine, runtimes, files."""
    before, after = _environment(old), _environment(new)
    # A runtime that one run did not ask for has no other version.
    runtimes = [_runtimes(one) for one in (old, new)]
    both = [name for name in runtimes[0] if name in runtimes[1]]
    before |= {name: runtimes[0][name] for name in both}
    after |= {name: runtimes[1][name] for name in both}
    files = [_files(one) for one in (old, new)]
    same = [name for name in files[0] if name in files[1]]
    before |= {name: files[0][name] for name in same}
    after |= {name: files[1][name] for name in same}
    names = dict.fromkeys((*before, *after))
    return {
        name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    }


def _environment(records: Iterable[AnyRecord]) -> dict[str, str]:
    found = of_kind(records, EnvironmentRecord)
    if not found:
        return {}
    one = found[-1]
    machine = {
        "onnx-attest": one.onnx_attest,
        "Python": one.python,
        "system": one.system,
        "machine": one.machine,
        "processor": one.cpu,
        "instruction sets": " ".join(one.cpu_features),
        "cores": str(one.cores),
        "GPUs": ", ".join(one.gpus),
    }
    return {name: value for name, value in (machine | one.packages | one.variables).items() if value}


def _runtimes(records: Iterable[AnyRecord]) -> dict[str, str]:
    """Return the version of each runtime that said one."""
    found: dict[str, dict[str, None]] = {}
    for one in records:
        if isinstance(one, CellRecord | LatencyRecord) and one.runtime_version:
            found.setdefault(f"runtime {one.runtime}", {})[one.runtime_version] = None
    return {name: listed(versions) for name, versions in found.items()}


def _files(records: Iterable[AnyRecord]) -> dict[str, str]:
    """Return the beginning of each file's digest: what is the same file has the same."""
    found = [one for one in of_kind(records, ArtifactRecord) if one.sha256]
    return {
        " ".join(("file", *map(str, filter(None, place(one)[:4])))): (one.sha256 or "")[:12] for one in found
    }
