"""What injected faults the gates caught: power.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx_attest.verify.power.score import lines
from onnx_attest.verify.records import CORRECT, AnyRecord, PowerRecord, RunRecord
from onnx_attest.verify.report.formats import UNKNOWN, listed, number
from onnx_attest.verify.report.grouping import grouped, of_kind
from onnx_attest.verify.report.tables import Column, escaped, fill, page, to_markdown

NONE = "No faults were injected in this run: `onnx-attest power FILE.onnx` does."
NOTE = (
    "A case is manifest if the fault changes its exact outputs by more than u|o| in the root mean square; the others "
    "cannot show it."
)


def power(records: Iterable[AnyRecord]) -> str:
    """Return power.md: for each file and runtime the figures, the faults, and what survived."""
    records = list(records)
    groups = grouped(
        of_kind(records, PowerRecord), lambda r: (r.model, r.variant, r.opset, r.dtype, r.runtime)
    )
    parts = [part for group in groups.values() for part in _of_file(group)]
    runs = of_kind(records, RunRecord) if parts else []
    ended = [f"**{run.verdict}**" + (f": {escaped(run.reason)}" if run.reason else "") for run in runs[-1:]]
    return page("Injected faults", [*ended, *parts] or [NONE])


def _of_file(records: Sequence[PowerRecord]) -> Iterable[str]:
    first = records[0]
    yield f"## {escaped(f'{first.model} {first.variant} {first.opset} {first.dtype} on {first.runtime} ({first.arithmetic})')}"
    yield "\n".join(f"- {escaped(line)}" for line in lines(records))
    ran = [record for record in records if record.cases]
    yield to_markdown(fill("", FAULTS, ran, NOTE))
    survived = [record for record in ran if record.survivors]
    if survived:
        yield to_markdown(fill("", SURVIVORS, survived))
    if missing := [record for record in records if not record.cases]:
        yield to_markdown(fill("", NOT_TRIED, missing))


FAULTS: tuple[Column[PowerRecord], ...] = (
    Column("fault", "class of the fault; none is a correct rewriting", lambda r: r.fault),
    Column("what", "what was done to the graph", lambda r: r.label),
    Column("node", "the attention that it was done to", lambda r: r.node or "all"),
    Column("caught", "manifest cases in which a gate found something, of all manifest ones", lambda r: f"{r.killed}/{r.cases if r.fault == CORRECT else r.manifest}"),
    Column("found by", "finding codes, and in how many cases", lambda r: listed(f"{code} {count}" for code, count in r.found_by.items())),
    Column("same bits", "cases in which the runtime gave the very bits it gives without the fault: no effect, or its optimiser took it out", lambda r: str(r.undone)),
)  # fmt: skip
SURVIVORS: tuple[Column[PowerRecord], ...] = (
    Column("survived", "what was done to the graph", lambda r: r.label),
    Column("largest effect", "of those that survived, over the worst error of correct implementations", lambda r: number(r.strongest_survivor)),
    Column("cases", "in which nothing was found", lambda r: listed(r.survivors)),
)  # fmt: skip
NOT_TRIED: tuple[Column[PowerRecord], ...] = (
    Column("not tried", "class of the fault", lambda r: r.fault),
    Column(
        "reason", "why this file cannot have it, or the runtime did not run it", lambda r: r.reason or UNKNOWN
    ),
)
