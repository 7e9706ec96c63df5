"""The records that the page makes visible on demand, as JSON that stands in it and cannot leave its element."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from onnx_attest.verify.records import (
    AnyRecord,
    CellRecord,
    FindingRecord,
    HeadroomRecord,
    Record,
    RelationRecord,
    StabilityRecord,
)
from onnx_attest.verify.report.grouping import of_kind
from onnx_attest.verify.report.html.markup import Markup, joined, tag, trusted
from onnx_attest.verify.report.html.packing import Row, pack
from onnx_attest.verify.report.outcomes import failed_gates, shown

KINDS: Mapping[str, type[Record]] = MappingProxyType(
    {
        "cell": CellRecord,
        "stability": StabilityRecord,
        "headroom": HeadroomRecord,
        "relation": RelationRecord,
        "finding": FindingRecord,
    }
)
# In JSON these stand in strings only, where they may be written like this; in HTML they could end the element.
_AS_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def data(records: Iterable[AnyRecord]) -> Markup:
    """Return one element for each kind of record, with its fields as they are, and one with what is derived of cells."""
    records = list(records)
    cells = of_kind(records, CellRecord)
    parts = {name: list(map(_plain, of_kind(records, kind))) for name, kind in KINDS.items()}
    return joined(
        _element(name, rows) for name, rows in {**parts, "judged": list(map(_judged, cells))}.items()
    )


def _plain(record: Record) -> Row:
    row: Row = msgspec.to_builtins(record)
    return row


def _judged(cell: CellRecord) -> Row:
    """Return what the other views say of a cell: so that it is worked out in one place only."""
    case = None if cell.case is None else cell.case.id
    return {"shown": shown(cell), "failed_gates": list(failed_gates(cell)), "case": case}


def _element(name: str, rows: Sequence[Row]) -> Markup:
    # msgspec writes null for what is not finite, which JSON lacks, as it does in records.jsonl.
    text = msgspec.json.encode(pack(rows)).decode().translate(_AS_ESCAPES)
    return tag("script", trusted(text), type="application/json", id=f"data-{name}")
