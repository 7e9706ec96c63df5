"""Matrices of weights: as heat maps with their numbers, and as graphs whose edges are as wide as their weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from onnx_attest.verify.report.pictures import svg

CELL, SIDE = 36.0, 400.0
"""Of a weight in a heat map; of a panel."""
_NODE, _RING, _WIDEST = 15.0, 140.0, 9.0
_TOP = 74.0
_DARK = 0.6
"""Of the largest weight, from which on its cell is so dark that white reads better than the colour of text."""
_TOLD = 0.2
"""Of the largest weight, from which on an edge has an arrowhead: on thinner ones it would be all that is seen."""


@dataclass(frozen=True)
class Weights:
    """A square matrix: row i is what token i gives to each.

    Attributes:
        as_graph: drawn as nodes and edges, not as a heat map.
    """

    title: str
    rows: tuple[tuple[float, ...], ...]
    as_graph: bool = False


def draw(
    name: str,
    title: str,
    description: str,
    panels: Sequence[Weights],
    columns: int = 2,
    quantity: str = "weight",
    show: Callable[[float], str] = "{:.2f}".format,
) -> str:
    """Return matrices side by side, all on one scale from 0 to their largest number, with a bar of its colours.

    Args:
        name: of the picture, see `svg.document`.
        title: its heading.
        description: what is to be seen, in words.
        panels: the matrices.
        columns: side by side.
        quantity: what the numbers are.
        show: how one is written.
    """
    largest = max(max(row) for panel in panels for row in panel.rows) or 1.0
    body = [svg.text(16, 26, title, kind="head")]
    for index, panel in enumerate(panels):
        x, y = 20 + (index % columns) * (SIDE + 20), 40 + (index // columns) * (SIDE + 30)
        drawn = _graph(panel, x, y, largest) if panel.as_graph else _heat_map(panel, x, y, largest, show)
        body += drawn
    wide = min(columns, len(panels))
    height = 40 + math.ceil(len(panels) / columns) * (SIDE + 30) + 20
    body += _bar(20 + wide * (SIDE + 20), _TOP + 40, largest, quantity, show)
    return svg.document(name, title, description, (20 + wide * (SIDE + 20) + 70, height), body)


def _heat_map(
    panel: Weights, x: float, y: float, largest: float, show: Callable[[float], str]
) -> Iterator[str]:
    count = len(panel.rows)
    left, top = x + 36, y + 50
    yield svg.text(left, y + 16, panel.title)
    yield svg.text(
        left + count * CELL / 2, top + count * CELL + 20, "token that is seen", anchor="middle", kind="small"
    )
    yield svg.text(
        x + 8, top + count * CELL / 2, "token that sees", anchor="middle", kind="small", turned=True
    )
    for i, row in enumerate(panel.rows):
        line = top + (i + 0.5) * CELL + 4
        yield svg.text(left - 8, line, str(i + 1), anchor="end", kind="small")
        yield svg.text(left + (i + 0.5) * CELL, top - 8, str(i + 1), anchor="middle", kind="small")
        for j, weight in enumerate(row):
            yield svg.rectangle(left + j * CELL, top + i * CELL, CELL, CELL, "box", weight / largest)
            if weight > 0:
                kind = "small over" if weight / largest > _DARK else "small"
                middle = left + (j + 0.5) * CELL
                yield svg.text(middle, line, show(weight), anchor="middle", kind=kind)


def _bar(
    x: float,
    y: float,
    largest: float,
    quantity: str,
    show: Callable[[float], str],
    height: float = 220.0,
    steps: int = 22,
) -> Iterator[str]:
    for step in range(steps):
        shade = (steps - step - 0.5) / steps
        yield svg.rectangle(x, y + step * height / steps, 14, height / steps, "box bar", shade)
    for share in (0.0, 0.5, 1.0):
        yield svg.text(x + 20, y + (1 - share) * height + 4, show(share * largest), kind="small")
    yield svg.text(x, y - 14, quantity, kind="small")


def _graph(panel: Weights, x: float, y: float, largest: float) -> Iterator[str]:
    count = len(panel.rows)
    across, down = x + SIDE / 2, y + 50 + CELL * 4.5
    turns = [2 * math.pi * index / count - math.pi / 2 for index in range(count)]
    places = [(across + _RING * math.cos(turn), down + _RING * math.sin(turn)) for turn in turns]
    yield svg.text(x + 36, y + 16, panel.title)
    edges = [(weight, i, j) for i, row in enumerate(panel.rows) for j, weight in enumerate(row) if weight > 0]
    for weight, i, j in sorted(edges):  # the strongest on top
        share = weight / largest
        width, opacity = max(_WIDEST * share, 0.4), 0.2 + 0.8 * share
        if i == j:
            yield svg.path(_loop(places[i], turns[i]), "c0", width, opacity)
            continue
        way, tip, turn = _arc(places[i], places[j])
        yield svg.path(way, "c0", width, opacity)
        if share > _TOLD:
            yield svg.head(*tip, turn, 8 + width, "c0", opacity)
    for index, place in enumerate(places):
        yield svg.ring(*place, _NODE)
        yield svg.text(place[0], place[1] + 4, str(index + 1), anchor="middle", kind="small")


def _arc(start: tuple[float, float], end: tuple[float, float]) -> tuple[str, tuple[float, float], float]:
    """Return a way that bends to its left, so that the two ways between two nodes are apart, its tip and its direction."""
    (x1, y1), (x2, y2) = start, end
    bend = 0.12
    x, y = (x1 + x2) / 2 - (y2 - y1) * bend, (y1 + y2) / 2 + (x2 - x1) * bend
    turn = math.atan2(y2 - y, x2 - x)
    tip = (x2 - _NODE * math.cos(turn), y2 - _NODE * math.sin(turn))
    f = svg.fixed
    return f"M{f(x1)} {f(y1)}Q{f(x)} {f(y)} {f(tip[0])} {f(tip[1])}", tip, turn


def _loop(at: tuple[float, float], turn: float) -> str:
    """Return a way from a node to itself, outside the ring."""
    far = _NODE + 34
    sides = [
        (at[0] + far * math.cos(turn + side), at[1] + far * math.sin(turn + side)) for side in (-0.55, 0.55)
    ]
    f = svg.fixed
    (a, b), (c, d) = sides
    return f"M{f(at[0])} {f(at[1])}C{f(a)} {f(b)} {f(c)} {f(d)} {f(at[0])} {f(at[1])}"
