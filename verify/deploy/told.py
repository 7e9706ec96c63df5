"""What a replay found on each runtime, for people: where its nodes ran, in how many bits, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_attest.verify.records import AnyRecord, CellRecord, LatencyRecord
from onnx_attest.verify.report.formats import number, seconds
from onnx_attest.verify.report.grouping import of_kind
from onnx_attest.verify.report.tables import Column, fill, to_markdown
from onnx_attest.verify.samples import measured, median_of


@dataclass(frozen=True)
class _Seen:
    """One runtime: its cells, and its timings if there are any."""

    runtime: str
    cells: Sequence[CellRecord]
    timed: LatencyRecord | None


def told(records: Sequence[AnyRecord]) -> str:
    """Return a table with a line for each runtime of a replay, as Markdown."""
    cells = of_kind(records, CellRecord)
    timed = {one.runtime: one for one in of_kind(records, LatencyRecord) if not one.twin}
    seen = [
        _Seen(name, [one for one in cells if one.runtime == name], timed.get(name))
        for name in dict.fromkeys(one.runtime for one in cells)
    ]
    return to_markdown(fill("On this machine", _COLUMNS, seen))


def _nodes(one: _Seen) -> str:
    found = {name: count for cell in one.cells for name, count in cell.nodes_by_provider.items()}
    return ", ".join(f"{count} on {name}" for name, count in found.items()) or "not told"


def _least(one: _Seen) -> str:
    bits = [cell.effective_bits for cell in one.cells if cell.effective_bits is not None]
    return f"{min(bits):.1f}" if bits else "n/a"


def _worst(one: _Seen) -> str:
    ratios = [cell.gates.get("proof", {}).get("max_err_over_tau") for cell in one.cells]
    known = [ratio for ratio in ratios if ratio is not None]
    return number(max(known)) if known else "n/a"


def _median(one: _Seen) -> str:
    found = None if one.timed is None or not one.timed.latency_s else median_of(measured(one.timed))
    return "not measured" if found is None else seconds(found.estimate)


_COLUMNS: tuple[Column[_Seen], ...] = (
    Column("runtime", "by its name in onnx-attest", lambda one: one.runtime),
    Column(
        "passed",
        "sets of test data",
        lambda one: f"{sum(cell.verdict == 'passed' for cell in one.cells)} of {len(one.cells)}",
    ),
    Column("nodes", "where they ran", _nodes),
    Column("least effective bits", "of all sets", _least),
    Column("largest error/bound, end to end", "of all sets", _worst),
    Column("call", "median", _median),
)
