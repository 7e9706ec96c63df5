"""An export from the command line: the files, and whether each is what was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_attest.export.api import ExportFailure, export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models.entry import Entry
from onnx_attest.verify.asked_got import compare_asked_and_got
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.records import Verdict
from onnx_attest.verify.signature import read_signature
from onnx_attest.verify.verdicts import exit_code, worst


@dataclass(frozen=True)
class Exported:
    """What an export came to, one item a variant and opset."""

    items: tuple[tuple[Artifact | ExportFailure, tuple[Finding, ...]], ...]

    @property
    def verdict(self) -> Verdict:
        """Passed if every file is what was asked for."""
        return worst(_verdict(result, found) for result, found in self.items)

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return exit_code(self.verdict)

    def as_object(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "artifacts": [_item_object(result, found) for result, found in self.items],
            "findings": [_finding_object(item) for _, found in self.items for item in found],
        }

    def as_text(self) -> str:
        """Return a line a file, and one a finding."""
        return "\n".join(line for result, found in self.items for line in _lines(result, found))


def export_and_compare(
    entry: Entry, folder: Path, variants: tuple[str, ...], opset: int | None, dtype: str
) -> Exported:
    """Export an entry and hold each file against the request."""
    results = export_entry(entry, folder, variants=variants, opset=opset, dtype=dtype)
    return Exported(tuple((result, _findings(result)) for result in results))


def _findings(result: Artifact | ExportFailure) -> tuple[Finding, ...]:
    if isinstance(result, Artifact):
        return tuple(compare_asked_and_got(result, read_signature(result)))
    return () if result.skipped else (finding("OA105", result.reason, blame="exporter"),)


def _verdict(result: Artifact | ExportFailure, found: tuple[Finding, ...]) -> Verdict:
    if isinstance(result, ExportFailure):
        return "skipped" if result.skipped else "errored"
    return "failed" if any(item.severity == "error" for item in found) else "passed"


def _item_object(result: Artifact | ExportFailure, found: tuple[Finding, ...]) -> dict[str, Any]:
    common = {"verdict": _verdict(result, found), "findings": [item.code for item in found]}
    if isinstance(result, ExportFailure):
        return {**common, "variant": result.variant, "opset": result.opset, "reason": result.reason}
    assert result.manifest is not None
    return {
        **common, "path": str(result.path), "sha256": result.sha256, "variant": result.manifest.variant,
        "opset": result.manifest.got.opset,
    }  # fmt: skip


def _finding_object(item: Finding) -> dict[str, Any]:
    return vars(item) | {"severity": item.severity, "next_step": item.next_step}


def _lines(result: Artifact | ExportFailure, found: tuple[Finding, ...]) -> list[str]:
    verdict = _verdict(result, found)
    if isinstance(result, ExportFailure):
        return [f"{verdict}: {result.variant} at opset {result.opset}: {result.reason}"]
    assert result.manifest is not None
    head = (
        f"{verdict}: {result.path}, opset {result.manifest.got.opset}, {result.path.stat().st_size:,} bytes"
    )
    return [head, *(f"  {item.code} {item.severity}: {item.message}. {item.next_step}" for item in found)]
