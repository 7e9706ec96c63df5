"""Records as flat rows for CSV: `gates.proof.max_err_over_tau` is a column of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from onnx_attest.verify.records import CaseRecord, Record, finite
from onnx_attest.verify.report.tables import Value


def flat_rows(kind: type[Record], records: Sequence[Record]) -> tuple[list[str], list[dict[str, Value]]]:
    """Return the columns and the rows of records of one kind.

    The columns stand in the order of the record's fields, so that two runs differ only in what they hold. A
    field that no record fills still has its column.
    """
    columns: list[str] = []
    rows: list[dict[str, Value]] = [{} for _ in records]
    for name in kind.__struct_fields__:
        expanded = [_expand(name, getattr(record, name)) for record in records]
        columns += dict.fromkeys(column for part in expanded for column in part) or [name]
        for row, part in zip(rows, expanded, strict=True):
            row.update(part)
    return columns, rows


def _expand(name: str, value: Any) -> dict[str, Value]:
    if value is None:
        return {}
    if isinstance(value, CaseRecord):
        return {name: value.id, **_join(name, msgspec.structs.asdict(value))}
    if isinstance(value, msgspec.Struct):
        return _join(name, msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return _join(name, value)
    if isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        return {name: "; ".join(map(str, value))}
    if isinstance(value, tuple):
        return {name: _joined(value)}
    return {name: finite(value) if isinstance(value, float) else value}


def _join(name: str, parts: Mapping[str, Any]) -> dict[str, Value]:
    return {
        key: value for part, inner in parts.items() for key, value in _expand(f"{name}.{part}", inner).items()
    }


def _joined(values: Iterable[Any]) -> str:
    """Return the values separated by spaces; repr gives every digit of a float."""
    return " ".join(value if isinstance(value, str) else repr(value) for value in values)
