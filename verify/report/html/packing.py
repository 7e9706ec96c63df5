"""Many records of one kind in little text: by columns, each value that comes again written once.

A column of n values is one of

* `{"all": value}`: n times the same;
* `{"of": [...], "at": [...]}`: each value once, and for each row which;
* `{"rows": [...]}`: one after another;
* `{"shapes": column, "parts": {key: column}}`: objects; `shapes` holds the keys of each row, and the column of a key has a
  value for each row that has it.

Nothing is rounded: what is unpacked, here or in the page, is what was packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

Column = dict[str, Any]
Row = dict[str, Any]


def pack(rows: Sequence[Row]) -> Row:
    """Return objects with the same keys as `{"count": n, "columns": {key: column}}`."""
    keys = list(rows[0]) if rows else []
    return {"count": len(rows), "columns": {key: _column([row[key] for row in rows]) for key in keys}}


def unpack(packed: Row) -> list[Row]:
    """Return what was packed; the page has the same in JavaScript."""
    count = packed["count"]
    columns = {key: _values(column, count) for key, column in packed["columns"].items()}
    return [{key: values[row] for key, values in columns.items()} for row in range(count)]


def _column(values: list[Any]) -> Column:
    texts = [msgspec.json.encode(value) for value in values]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    if len(places) == 1:
        return {"all": values[0]}
    if len(places) <= len(values) // 4:
        return _once(values, texts, places)
    if all(isinstance(value, dict) for value in values):
        return _objects(values)
    return _once(values, texts, places) if len(places) <= len(values) // 2 else {"rows": values}


def _once(values: list[Any], texts: list[bytes], places: dict[bytes, int]) -> Column:
    first = dict(zip(reversed(texts), reversed(values), strict=True))
    return {"of": [first[text] for text in places], "at": [places[text] for text in texts]}


def _objects(values: list[Row]) -> Column:
    keys = dict.fromkeys(key for value in values for key in value)
    parts = {key: _column([value[key] for value in values if key in value]) for key in keys}
    return {"shapes": _column([list(value) for value in values]), "parts": parts}


def _values(column: Column, count: int) -> list[Any]:
    if "all" in column:
        return [column["all"]] * count
    if "of" in column:
        return [column["of"][place] for place in column["at"]]
    if "rows" in column:
        return list(column["rows"])
    shapes = _values(column["shapes"], count)
    found: list[Row] = [{} for _ in shapes]
    for key, part in column["parts"].items():
        having = [row for row, shape in enumerate(shapes) if key in shape]
        for row, value in zip(having, _values(part, len(having)), strict=True):
            found[row][key] = value
    return [{key: row[key] for key in shape} for row, shape in zip(found, shapes, strict=True)]
