"""The head of the page: the verdict first, then why, and what it does not cover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx_attest.verify.blame import EXPORTER, MODULES
from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    EnvironmentRecord,
    EvidenceRecord,
)
from onnx_attest.verify.report.grouping import of_kind
from onnx_attest.verify.report.headline import last_run, told
from onnx_attest.verify.report.html.marks import mark
from onnx_attest.verify.report.html.markup import Markup, joined, tag
from onnx_attest.verify.report.html.tables import filled
from onnx_attest.verify.report.outcomes import ran_on_cuda
from onnx_attest.verify.report.summary import CUDA_NEVER
from onnx_attest.verify.report.tables import Column


def overview(records: Sequence[AnyRecord]) -> Markup:
    """Return the verdict with its counts, the run's reason, what was required, and which files it is about."""
    said = told(records)
    run = last_run(records)
    required = f"Required: {', '.join(run.required)}." if run is not None and run.required else ""
    lines = (
        tag("p", "Why: ", run.reason) if run is not None and run.reason else None,
        tag("ul", (tag("li", count) for count in said.counts)),
        tag("p", said.end[:1].upper() + said.end[1:], ". ", required),
    )
    verdict = tag("p", mark(said.verdict), class_="verdict-line")
    return tag("div", verdict, *lines, _files(records), *_runs(records), class_="overview")


def _files(records: Sequence[AnyRecord]) -> Markup | None:
    """Return the files that the verdict is about, each with what it was held against; of many the first few."""
    read = [one for one in of_kind(records, ArtifactRecord) if one.sha256]
    ran = (one for one in of_kind(records, CellRecord) if one.verdict not in ("skipped", "errored"))
    judged = {one.artifact_sha256 for one in ran if one.runtime in (EXPORTER, *MODULES)}
    if not read:
        return None
    told = [tag("li", _file(one, with_module=one.sha256 in judged)) for one in read[:_FEW]]
    more = tag("li", f"and {len(read) - _FEW} more files, see exports.csv") if len(read) > _FEW else None
    return joined(
        tag("p", "About:" if len(read) == 1 else f"About {len(read)} files:"), tag("ul", told, more)
    )


def _file(one: ArtifactRecord, *, with_module: bool) -> Markup:
    size = "" if one.size_bytes is None else f", {one.size_bytes:,} bytes"
    digest = tag("abbr", (one.sha256 or "")[:_DIGITS], title=one.sha256)
    against = ["the module that it was exported from"] if with_module else []
    against += [_AGAINST[one.reference]] if one.reference in _AGAINST else []
    held = f"; held against {' and '.join(against)}" if against else ""
    what = " ".join(filter(None, (one.model, one.variant)))
    return joined(f"{what}, opset {one.opset}, {one.dtype}{size}, sha256 ", digest, held)


def _runs(records: Sequence[AnyRecord]) -> Iterator[Markup]:
    """Yield when, by which version and by which command it was recorded, once each."""
    for one in dict.fromkeys(
        (one.recorded_at, one.onnx_attest, " ".join(one.command))
        for one in of_kind(records, EnvironmentRecord)
    ):
        when, version, command = one
        yield tag("p", f"Recorded at {when} by onnx-attest {version}: ", tag("code", command), class_="note")


_AGAINST = {
    "graph": "its own graph in float64",
    "specification": "the formula of its contract in float64",
    "original": "the file that it was made from, in float64",
}
_FEW, _DIGITS = 6, 12


def cuda(records: Sequence[AnyRecord]) -> Markup:
    """Return what is known of the CUDA path where this run did not take it."""
    if any(map(ran_on_cuda, records)):
        return Markup()
    evidence = of_kind(records, EvidenceRecord)
    if not evidence:
        return tag("p", CUDA_NEVER)
    title = "CUDA was not executed in this run. Recorded elsewhere, and no part of this verdict"
    return filled(title, EVIDENCE, evidence)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts.items())


EVIDENCE: tuple[Column[EvidenceRecord], ...] = (
    Column("runtime", "that ran there", lambda one: f"{one.runtime} {one.runtime_version}"),
    Column("machine", "where it ran", lambda one: "; ".join(one.gpus) or one.machine),
    Column("recorded at", "the day", lambda one: one.recorded_at),
    Column("files", "of this run's files, by their digests", lambda one: f"{one.files} of {one.of_files}"),
    Column("cells", "how many of each verdict", lambda one: _counts(one.cells)),
    Column("ran as", "how many cells showed which arithmetic", lambda one: _counts(one.ran_as)),
)
