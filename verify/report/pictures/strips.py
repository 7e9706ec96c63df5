"""Numbers of many records as strips of dots, one strip for each name, on a logarithmic or a linear axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_attest.verify.report.formats import shortened
from onnx_attest.verify.report.pictures import svg
from onnx_attest.verify.report.pictures.plot import axis, round_numbers

_ROW, _LEFT, _WIDTH, _TOP, _BOTTOM = 24.0, 190.0, 880.0, 66.0, 46.0
_NAME = 28
_JITTER = (0.0, -4.0, 4.0, -2.0, 2.0, -6.0, 6.0)
"""Heights of dots at one place, so that many are more than one."""


@dataclass(frozen=True)
class Strip:
    """The numbers of one name.

    Attributes:
        good, bad: of what passed and of what did not; on a logarithmic axis those that are not positive stand at its left end.
        missing: how many have no number.
        limit: where the line is, None for none.
    """

    name: str
    good: tuple[float, ...]
    bad: tuple[float, ...]
    missing: int = 0
    limit: float | None = None


def strips(name: str, title: str, across: str, rows: Sequence[Strip], *, log: bool) -> str:
    """Return the picture: a dot for what passed, a cross for what did not, and a line where the limit is."""
    numbers = [value for row in rows for value in (*row.good, *row.bad)]
    numbers += [row.limit for row in rows if row.limit is not None]
    positive = [value for value in numbers if value > 0] if log else numbers
    floor = min(positive)
    ends = (_LEFT, _WIDTH - 120)
    scale = axis(
        [max(value, floor) if log else value for value in numbers],
        ends,
        log=log,
        from_zero=not log,
        margin=0.03,
    )
    bottom = _TOP + len(rows) * _ROW
    told = "dot: passed; cross: not passed; vertical line: limit"
    if log and any(value <= 0 for value in numbers):
        told += "; what is 0 stands at the left end"
    body = [svg.text(16, 26, title, kind="head")]
    body.append(svg.text(16, 46, told, kind="small"))
    ticks = round_numbers(scale.low, scale.high, log=log)
    for tick in ticks[:: max(1, math.ceil(len(ticks) / 10))]:
        body.append(svg.line(scale.at(tick), _TOP, scale.at(tick), bottom, "grid"))
        body.append(svg.text(scale.at(tick), bottom + 16, f"{tick:g}", anchor="middle", kind="small"))
    for index, row in enumerate(rows):
        y = _TOP + (index + 0.5) * _ROW
        body.append(svg.text(_LEFT - 12, y + 4, shortened(row.name, _NAME), anchor="end", kind="small"))
        for values, kind, drawn in ((row.good, "c0", _dots), (row.bad, "c1", _crosses)):
            places = [scale.at(max(value, floor) if log else value) for value in values]
            body += [drawn(_spread(places, y), kind)] if places else []
        if row.limit is not None:
            x = scale.at(row.limit)
            body.append(svg.line(x, y - _ROW / 2, x, y + _ROW / 2, "curve ink"))
        count = f"{len(row.good) + len(row.bad)}" + (f", {row.missing} n/a" if row.missing else "")
        body.append(svg.text(ends[1] + 10, y + 4, count, kind="small"))
    body.append(svg.text(ends[1] + 10, _TOP - 8, "cells", kind="small"))
    body.append(svg.text((ends[0] + ends[1]) / 2, bottom + 38, across, anchor="middle"))
    words = "; ".join(_said(row) for row in rows)
    return svg.document(name, title, f"{across}. {words}", (_WIDTH, bottom + _BOTTOM), body)


def _said(row: Strip) -> str:
    values = (*row.good, *row.bad)
    span = f"{min(values):.3g} to {max(values):.3g}" if values else "no number"
    return f"{row.name}: {span}, {len(row.bad)} of {len(values) + row.missing} not passed"


def _spread(places: Sequence[float], y: float) -> list[tuple[float, float]]:
    """Return places on the strip, those at one pixel one beside the other, and none twice."""
    seen: dict[int, int] = {}
    spread = []
    for x in places:
        count = seen.get(round(x), 0)
        seen[round(x)] = count + 1
        if count < len(_JITTER):
            spread.append((float(round(x)), y + _JITTER[count]))
    return spread


def _dots(places: Sequence[tuple[float, float]], kind: str) -> str:
    """Return many dots as one element: lines without length, with round ends."""
    way = "".join(f"M{svg.fixed(x)} {svg.fixed(y)}h0" for x, y in places)
    return f'<path d="{way}" class="{kind}" style="fill:none" stroke-width="4" stroke-linecap="round" stroke-opacity="0.75"/>'


def _crosses(places: Sequence[tuple[float, float]], kind: str) -> str:
    way = "".join(f"M{svg.fixed(x - 2.5)} {svg.fixed(y - 2.5)}l5 5m0 -5l-5 5" for x, y in places)
    return f'<path d="{way}" class="{kind}" style="fill:none" stroke-width="1.5"/>'
