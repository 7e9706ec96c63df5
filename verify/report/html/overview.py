"""The head of the page: the verdict first, then why, and what it does not cover."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_attest.verify.records import AnyRecord, EvidenceRecord
from onnx_attest.verify.report.grouping import of_kind
from onnx_attest.verify.report.headline import last_run, told
from onnx_attest.verify.report.html.marks import mark
from onnx_attest.verify.report.html.markup import Markup, tag
from onnx_attest.verify.report.html.tables import filled
from onnx_attest.verify.report.outcomes import ran_on_cuda
from onnx_attest.verify.report.tables import Column


def overview(records: Sequence[AnyRecord]) -> Markup:
    """Return the verdict with its counts, the run's reason, what was required, and what is said of CUDA."""
    said = told(records)
    run = last_run(records)
    required = f"Required: {', '.join(run.required)}." if run is not None and run.required else ""
    lines = (
        tag("p", "Why: ", run.reason) if run is not None and run.reason else None,
        tag("ul", (tag("li", count) for count in said.counts)),
        tag("p", said.end[:1].upper() + said.end[1:], ". ", required),
    )
    return tag("div", tag("p", mark(said.verdict), class_="verdict-line"), *lines, class_="overview")


def cuda(records: Sequence[AnyRecord]) -> Markup:
    """Return what is known of the CUDA path where this run did not take it."""
    if any(map(ran_on_cuda, records)):
        return Markup()
    evidence = of_kind(records, EvidenceRecord)
    if not evidence:
        return tag(
            "p", "The CUDA path has never been executed in this run: nothing here says anything about a GPU."
        )
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
