"""The neighbourhood of a bad node: what it takes, and what takes what it gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx_attest.verify.records import FindingRecord, Neighbour
from onnx_attest.verify.report.formats import shortened
from onnx_attest.verify.report.pictures import svg

_WIDTH, _BOX, _HEIGHT, _STEP, _TOP = 880.0, 220.0, 40.0, 64.0, 40.0
_COLUMNS = {"before": 16.0, "here": 330.0, "behind": 644.0}
_NAME, _VALUE = 30, 14


def neighbourhood(name: str, finding: FindingRecord) -> str:
    """Return the picture of a finding's node between its neighbours, "" where the file has no such node.

    Args:
        name: of the picture, unlike that of any other on the same page.
        finding: with its neighbours.
    """
    sides = {side: [one for one in finding.around if one.side == side] for side in _COLUMNS}
    if not sides["here"]:
        return ""
    rows = max(1, *(len(ones) for ones in sides.values()))
    middle = _TOP + (rows - 1) * _STEP / 2
    places = {side: _heights(len(ones), middle) for side, ones in sides.items()}
    body = [
        svg.text(_COLUMNS["before"], 20, "takes", kind="small"),
        svg.text(_COLUMNS["here"], 20, "the node", kind="small"),
        svg.text(_COLUMNS["behind"], 20, "gives to", kind="small"),
    ]
    for side, ones in sides.items():
        for one, y in zip(ones, places[side], strict=True):
            body += _edge(one, y, middle)
            body += _box(one, y)
    return svg.document(name, f"Around {finding.node}", _words(sides), (_WIDTH, _TOP + rows * _STEP), body)


def _heights(count: int, middle: float) -> list[float]:
    return [middle + (index - (count - 1) / 2) * _STEP for index in range(count)]


def _box(one: Neighbour, y: float) -> Iterator[str]:
    x = _COLUMNS[one.side]
    kind = "curve c1" if one.side == "here" else "curve ink"
    corners = [(x, y), (x + _BOX, y), (x + _BOX, y + _HEIGHT), (x, y + _HEIGHT), (x, y)]
    yield svg.curve(corners, kind, 3.0 if one.side == "here" else 1.0)
    yield svg.text(x + 10, y + 17, shortened(one.operator, _NAME))
    yield svg.text(x + 10, y + 32, shortened(one.node or one.value, _NAME), kind="small")


def _edge(one: Neighbour, y: float, middle: float) -> Iterator[str]:
    if one.side == "here":
        return
    if one.side == "before":
        x1, y1, x2, y2 = _COLUMNS["before"] + _BOX, y, _COLUMNS["here"], middle
        at, anchor = x1 + 6, "start"
    else:
        x1, y1, x2, y2 = _COLUMNS["here"] + _BOX, middle, _COLUMNS["behind"], y
        at, anchor = x2 - 10, "end"
    yield svg.line(x1, y1 + _HEIGHT / 2, x2 - 6, y2 + _HEIGHT / 2)
    yield svg.head(x2, y2 + _HEIGHT / 2, 0.0, 9, "ink", 1.0)
    if one.node:
        words = shortened(one.value, _VALUE)
        yield svg.text(at, y + _HEIGHT / 2 - 6, words, anchor=anchor, kind="small")


def _words(sides: dict[str, list[Neighbour]]) -> str:
    told = {"before": "takes", "behind": "gives to"}
    parts = [f"{told[side]} {_listed(ones)}" for side, ones in sides.items() if side in told and ones]
    here = sides["here"][0]
    return f"{here.operator} {here.node} " + "; ".join(parts)


def _listed(ones: Sequence[Neighbour]) -> str:
    return ", ".join(" ".join(filter(None, (one.operator, one.node or one.value))) for one in ones)
