"""Which variant to ship: of those that passed verification the fastest, by length and runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx_attest.verify.blame import MODULES
from onnx_attest.verify.records import AnyRecord, CellRecord, HeadroomRecord, RelationRecord, StabilityRecord
from onnx_attest.verify.report.formats import seconds, sizes
from onnx_attest.verify.report.grouping import grouped
from onnx_attest.verify.report.tables import Table, to_markdown
from onnx_attest.verify.report.timings import Timing
from onnx_attest.verify.samples import NO_DIFFERENCE, difference, median_of, paired

FASTEST, AS_FAST = "fastest", "no difference shown to it"
_NOTE = (
    "The median of each variant. The fastest is of those that passed every cell of this verification on that runtime, at that "
    "length, and the others of which no difference to it is shown. One that failed, or that was not verified, is never "
    "marked, however fast it is."
)
_NOT_VERIFIED = (
    "Nothing was verified in this run, so nothing is recommended: onnx-attest run verifies what it times."
)

Verified = Mapping[tuple[str, str], str]
"""`passed`, `failed` or `not verified` by the file's digest and the runtime."""


def shipping(records: Iterable[AnyRecord], found: Sequence[Timing]) -> list[str]:
    """Return the section as Markdown, nothing where no file was timed."""
    return list(map(to_markdown, shipping_tables(records, found)))


def shipping_tables(records: Iterable[AnyRecord], found: Sequence[Timing]) -> list[Table]:
    """Return the median of each variant by model, size and runtime; nothing where no file was timed."""
    files = [timing for timing in found if timing.record.latency_s and timing.record.runtime not in MODULES]
    if not files:
        return []
    verified = verified_of(records)
    forms = list(dict.fromkeys(_form(timing) for timing in files))
    rows = []
    for group in grouped(files, lambda timing: (timing.record.group, timing.record.model)).values():
        marks = marked(group, verified)
        for members in grouped(group, lambda timing: timing.record.runtime).values():
            by_form = {_form(timing): timing for timing in members}
            first = members[0].record
            cells = (_cell(by_form.get(form), verified, marks) for form in forms)
            rows.append((first.model, first.dtype, sizes(first.axes), first.runtime, *cells))
    heading = ("model", "dtype", "axes", "runtime", *forms)
    note = _NOTE if verified else _NOT_VERIFIED
    return [Table("Which variant to ship", heading, tuple(rows), note)]


def marked(group: Sequence[Timing], verified: Verified) -> dict[int, str]:
    """Return the mark of each timing of a group that has one, by its identity."""
    able = [timing for timing in group if timing.median is not None and _state(timing, verified) == "passed"]
    best = min(able, key=lambda timing: timing.median.estimate if timing.median else 0.0, default=None)
    if best is None:
        return {}
    marks = {id(best): FASTEST}
    for timing in able:
        if timing is not best:
            ratio = median_of(paired(timing.record, best.record))
            if difference(ratio, timing.floor) == NO_DIFFERENCE:
                marks[id(timing)] = AS_FAST
    return marks


def verified_of(records: Iterable[AnyRecord]) -> Verified:
    """Return what verification came to for each file on each runtime: one failure, known or not, is enough to fail."""
    found: dict[tuple[str, str], str] = {}
    for record in records:
        if not isinstance(record, CellRecord | StabilityRecord | HeadroomRecord | RelationRecord):
            continue
        key = record.artifact_sha256, record.runtime
        if record.verdict in ("failed", "errored"):
            found[key] = "failed"
        elif isinstance(record, CellRecord) and record.verdict == "passed":
            found.setdefault(key, "passed")
    return found


def _state(timing: Timing, verified: Verified) -> str:
    return verified.get((timing.record.artifact_sha256, timing.record.runtime), "not verified")


def _form(timing: Timing) -> str:
    record = timing.record
    return record.variant if record.opset is None else f"{record.variant}-{record.opset}"


def _cell(timing: Timing | None, verified: Verified, marks: Mapping[int, str]) -> str:
    if timing is None or timing.median is None:
        return ""
    state = _state(timing, verified)
    mark = marks.get(id(timing), "" if state == "passed" else state)
    return seconds(timing.median.estimate) + (f" ({mark})" if mark and verified else "")
