"""CARD.md: what somebody who is to use a bundle has to know, on one page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx_attest.export.bundle import About, Tensor, Verified
from onnx_attest.verify.conversion.cost import Cost, table
from onnx_attest.verify.records import (
    AnyRecord,
    CellRecord,
    FindingRecord,
    HeadroomRecord,
    LatencyRecord,
    Verdict,
)
from onnx_attest.verify.report.formats import seconds, sizes
from onnx_attest.verify.report.grouping import of_kind
from onnx_attest.verify.report.tables import Column, fill, page, to_markdown
from onnx_attest.verify.samples import Interval, measured, median_of

AGAINST = {
    "graph": "against its own graph alone: whether that is a module's, nobody looked",
    "specification": "against the formula of its contract, and no module",
    "original": "against the file that it was made from, and no module",
    "": "",
}
"""What a file was held against, if it was no module."""

_EMPTY = {
    "zero": "a query without any key gives 0",
    "mean": "a query without any key gives the mean of the values",
    "nan": "a query without any key gives NaN",
    "never": "a query without any key is promised never to come: do not feed one",
    "unknown": "what a query without any key gives is not declared: do not feed one",
}


def card(about: About, records: Iterable[AnyRecord], costs: Sequence[Cost] = ()) -> str:
    """Return the page, from what the bundle says of itself, the records in it, and what a conversion cost."""
    records = list(records)
    names = [one.runtime for one in about.verified]
    parts = [
        _verdict(about),
        f"sha256 of model.onnx: `{about.sha256}`; opset {about.opset}, {about.dtype}, to be computed as {about.arithmetic}.",
        to_markdown(fill("Inputs", _TENSORS, about.inputs)),
        to_markdown(fill("Outputs", _TENSORS, about.outputs)),
        f"Rows: {_EMPTY[about.empty_rows]}.",
        to_markdown(fill("Verified on", _RUNTIMES, about.verified, _NOTE)) if about.verified else "",
        _sizes([one for one in of_kind(records, CellRecord) if one.runtime in names]),
        _conversion(about, costs),
        _limits([one for one in of_kind(records, HeadroomRecord) if one.runtime in names]),
        _findings([one for one in of_kind(records, FindingRecord) if one.runtime in ("", *names)]),
        _timed(
            [
                one
                for one in of_kind(records, LatencyRecord)
                if one.runtime in names and one.latency_s and not one.twin
            ]
        ),
        _USE,
    ]
    return page(about.model, [part for part in parts if part])


def _verdict(about: About) -> str:
    if about.unverified:
        return f"**UNVERIFIED**: {about.unverified}. It was bundled by force, and proves nothing."
    against = "" if about.against == "module" else f", {AGAINST[about.against]}"
    return f"**Verified** on {', '.join(one.runtime for one in about.verified)}, and nowhere else{against}."


def _conversion(about: About, costs: Sequence[Cost]) -> str:
    """Return what the file is worth beside the one that it was made from; runtimes are held against the file itself."""
    if not about.converted_from:
        return ""
    made = (
        f"Converted from the file with the sha256 `{about.converted_from}`; what that cost, whatever runs it:"
    )
    return f"{made}\n\n{table(costs)}"


def _sizes(cells: Sequence[CellRecord]) -> str:
    proven = sorted({_axes(cell) for cell in cells if cell.verdict == "passed" and cell.case is not None})
    lacking = sorted(
        {
            _axes(cell)
            for cell in cells
            if cell.verdict in ("skipped", "inconclusive") and cell.case is not None
        }
    )
    lines = [f"Sizes proven: {'; '.join(proven) or 'none'}. All others are untested."]
    if lacking:
        lines.append(f"Sizes without a verdict on some runtime: {'; '.join(lacking)}.")
    return "\n".join(lines)


def _axes(cell: CellRecord) -> str:
    assert cell.case is not None
    return ", ".join(f"{axis}={size}" for axis, size in cell.case.axes.items()) or "the fixed one"


def _limits(found: Sequence[HeadroomRecord]) -> str:
    lines = [
        f"- {one.runtime}: {one.softmax}, {one.profile}, breaks at a logit of {one.broke_at_logit:.4g}"
        for one in found
        if one.verdict in _CONCLUSIVE and one.broke_at_logit is not None
    ]
    return "\n".join(["Softmaxes that break as logits grow:", *dict.fromkeys(lines)]) if lines else ""


_CONCLUSIVE: tuple[Verdict, ...] = ("passed", "failed")


def _findings(found: Sequence[FindingRecord]) -> str:
    lines = [f"- {one.code} {one.severity}, {one.runtime or 'the file'}: {one.message}" for one in found]
    return "\n".join(["Findings of its verification:", *dict.fromkeys(lines)]) if lines else ""


def _timed(found: Sequence[LatencyRecord]) -> str:
    table = fill(
        "Latency where it was verified",
        _TIMINGS,
        found,
        "Of a machine that is not yours: compare, do not rely on.",
    )
    return to_markdown(table) if table.rows else ""


_TENSORS: tuple[Column[Tensor], ...] = (
    Column("name", "of the tensor", lambda one: one.name),
    Column("dtype", "of its numbers", lambda one: one.dtype),
    Column("axes", "a name is a size of your choice", lambda one: ", ".join(map(str, one.axes)) or "none"),
)
_RUNTIMES: tuple[Column[Verified], ...] = (
    Column("runtime", "by its name in onnx-attest", lambda one: one.runtime),
    Column("version", "of it", lambda one: one.version),
    Column(
        "session options", "that it was opened with",
        lambda one: ", ".join(f"{key}={value}" for key, value in one.session_options.items()) or "none",
    ),
    Column("cells", "that passed", lambda one: str(one.cells)),
    Column(
        "least effective bits", "of all cells",
        lambda one: "n/a" if one.effective_bits is None else f"{one.effective_bits:.1f}",
    ),
)  # fmt: skip
_TIMINGS: tuple[Column[LatencyRecord], ...] = (
    Column("runtime", "by its name in onnx-attest", lambda one: one.runtime),
    Column("axes", "of the call", lambda one: sizes(one.axes)),
    Column("threads", "of the runtime", lambda one: str(one.threads)),
    Column("median", "of a call", lambda one: seconds(_median(one).estimate)),
    Column(
        "95 % interval",
        "of the median",
        lambda one: f"{seconds(_median(one).low)} .. {seconds(_median(one).high)}",
    ),
)


def _median(record: LatencyRecord) -> Interval:
    found = median_of(measured(record))
    assert found is not None  # it has samples
    return found


_NOTE = "Another version or another machine is another runtime: replay the bundle there."
_USE = (
    "On the target: `onnx-attest replay DIR`, or without onnx-attest `python replay.py` in this folder (NumPy and ONNX "
    "Runtime). From Python: `onnx_attest.export.bundle.load(DIR).session()`."
)
