"""Curves in panels side by side, on linear or logarithmic axes, with one legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from onnx_attest.verify.report.pictures import svg

WIDTH, HEIGHT = 440.0, 300.0
"""Of a panel."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 72.0, 16.0, 40.0, 48.0
_ROW = 20.0


Style = Literal["solid", "dashed", "dotted"]


@dataclass(frozen=True)
class Curve:
    """Points joined by lines.

    Attributes:
        who: what the colour stands for; "" for a curve in the colour of text.
        what: what the style stands for.
        points: (x, y); on a logarithmic axis both positive.
        style: of the line.
        marked: whether each point has a dot.
        width: of the line; None: those that come first are wider, so that they are seen under others at the same place.
        bars: the ends of each point's interval, None for one without; empty for none at all.
    """

    who: str
    what: str
    points: tuple[tuple[float, float], ...]
    style: Style = "solid"
    marked: bool = True
    width: float | None = None
    bars: tuple[tuple[float, float] | None, ...] = ()


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        ticks: places on the horizontal axis that are labelled.
        log_x, log_y: whether an axis is logarithmic.
        from_zero: whether a vertical axis that is not logarithmic starts at 0.
        binary: whether a logarithmic vertical axis is labelled at powers of 4, not of 10: for bytes.
        show: the label of a number on the vertical axis.
    """

    title: str
    across: str
    curves: tuple[Curve, ...]
    ticks: tuple[float, ...]
    log_x: bool = True
    log_y: bool = True
    from_zero: bool = True
    binary: bool = False
    show: Callable[[float], str] = "{:g}".format


@dataclass(frozen=True)
class Axis:
    """Maps numbers between two limits to places between two others."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """Return the place of a number."""
        here = _drawable(value, log=self.log)
        low, high, here = (math.log(one) if self.log else one for one in (self.low, self.high, here))
        return self.start + (here - low) / (high - low) * (self.end - self.start)


def plot(
    name: str,
    title: str,
    description: str,
    panels: Sequence[Panel],
    columns: int = 2,
    size: tuple[float, float] = (WIDTH, HEIGHT),
) -> str:
    """Return the picture; curves of the same `who` have one colour in all panels, those of the same `what` one style.

    Args:
        name: of the picture, see `svg.document`.
        title: its heading.
        description: what is to be seen, in words.
        panels: side by side, row after row.
        columns: how many side by side.
        size: width and height of a panel.
    """
    curves = [curve for panel in panels for curve in panel.curves]
    colours = {who: index for index, who in enumerate(dict.fromkeys(one.who for one in curves if one.who))}
    styles: dict[str, str] = {one.what: one.style for one in curves}
    width, height = size
    body = [svg.text(16, 26, title, kind="head")]
    for index, panel in enumerate(panels):
        corner = (index % columns) * width, 34 + (index // columns) * height
        body += _panel(panel, corner, size, colours)
    top = 34 + math.ceil(len(panels) / columns) * height + 14
    wide = min(columns, len(panels)) * width
    legend, below = _legend(colours, styles, top, wide)
    return svg.document(name, title, description, (wide, top + below), [*body, *legend])


def _colour(curve: Curve, colours: dict[str, int]) -> str:
    return f"c{colours[curve.who] % svg.COLOURS}" if curve.who else svg.INK


def _panel(
    panel: Panel, corner: tuple[float, float], size: tuple[float, float], colours: dict[str, int]
) -> list[str]:
    (x, y), (width, height) = corner, size
    points = [point for curve in panel.curves for point in curve.points]
    reached = [end for curve in panel.curves for bar in curve.bars if bar is not None for end in bar]
    ends, heights = (x + _LEFT, x + width - _RIGHT), (y + height - _BOTTOM, y + _TOP)
    across = axis([point[0] for point in points], ends, log=panel.log_x, from_zero=True, margin=0.03)
    up = axis(
        [*(point[1] for point in points), *reached],
        heights,
        log=panel.log_y,
        from_zero=panel.from_zero,
        margin=0.06,
    )
    parts = [svg.text(x + _LEFT, y + _TOP - 12, panel.title)]
    labelled = (
        _powers_of_4(up.low, up.high) if panel.binary else round_numbers(up.low, up.high, log=panel.log_y)
    )
    for tick in labelled:
        parts.append(svg.line(across.start, up.at(tick), across.end, up.at(tick), "grid"))
        parts.append(
            svg.text(across.start - 8, up.at(tick) + 4, panel.show(tick), anchor="end", kind="small")
        )
    for tick in panel.ticks:
        parts.append(svg.line(across.at(tick), up.start, across.at(tick), up.start + 5))
        parts.append(svg.text(across.at(tick), up.start + 18, f"{tick:g}", anchor="middle", kind="small"))
    parts.append(svg.line(across.start, up.start, across.end, up.start))
    parts.append(svg.line(across.start, up.start, across.start, up.end))
    parts.append(svg.text((across.start + across.end) / 2, up.start + 38, panel.across, anchor="middle"))
    for curve in panel.curves:
        colour = _colour(curve, colours)
        places = [(across.at(a), up.at(b)) for a, b in curve.points]
        rank = colours.get(curve.who, len(colours) - 1)
        wider = min(0.9 * (len(colours) - 1 - rank), 3.6) if curve.width is None else curve.width - 2
        parts.append(svg.curve(places, f"{colour} {curve.style}", 2 + wider))
        marks = [_mark(*place, rank, colour, 3 + 0.6 * max(wider, 0.0)) for place in places]
        parts += marks if curve.marked else []
        for (at, _), bar in zip(places, curve.bars, strict=False):
            parts += [] if bar is None else _bar(at, up.at(bar[0]), up.at(bar[1]), colour)
    return parts


def _bar(x: float, low: float, high: float, kind: str) -> list[str]:
    """Return an interval: a line between its ends, with a stroke across each."""
    strokes = (svg.line(x - 4, end, x + 4, end, kind) for end in (low, high))
    return [svg.line(x, low, x, high, kind), *strokes]


def _mark(x: float, y: float, index: int, colour: str, radius: float = 3.0) -> str:
    """Return a dot; a square where the colours have come round."""
    if index < svg.COLOURS:
        return svg.dot(x, y, radius, colour)
    return svg.rectangle(x - radius, y - radius, 2 * radius, 2 * radius, colour)


_LARGEST, _SMALLEST = 1e200, 1e-200
"""Numbers that have room on both sides: beyond them a margin would be infinite, or nothing."""


def _drawable(value: float, *, log: bool) -> float:
    """Return a number as near to it as an axis reaches."""
    return min(max(value, _SMALLEST if log else -_LARGEST), _LARGEST)


def axis(
    values: Sequence[float], places: tuple[float, float], *, log: bool, from_zero: bool, margin: float
) -> Axis:
    """Return an axis that has all values on it, and a margin on both sides of them."""
    values = [_drawable(value, log=log) for value in values]
    low, high = min(values), max(values)
    if log:
        room = max(math.log(high) - math.log(low), 0.1) * margin  # their ratio may be infinite
        return Axis(low * math.exp(-room), high * math.exp(room), *places, log)
    if from_zero:
        low = min(low, 0.0)
    room = next(span for span in (high - low, abs(high), 1.0) if span > _SMALLEST) * margin
    return Axis(low - (0.0 if from_zero and low == 0 else room), high + room, *places, log)


def round_numbers(low: float, high: float, *, log: bool) -> list[float]:
    """Return round numbers between two limits: powers of ten, with 2 and 5 times them if there are few; or equal steps."""
    across = math.log10(high) - math.log10(low) if log else 0.0
    if across > 1:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        factors = (1, 2, 5) if across < 2 else (1,)
        found = [float(f"{factor}e{decade}") for decade in decades for factor in factors]
    else:
        rough = (high - low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
        found = [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [tick for tick in found if low <= tick <= high]


def _powers_of_4(low: float, high: float) -> list[float]:
    exponents = range(math.ceil(math.log(low, 4)), math.floor(math.log(high, 4)) + 1)
    return [4.0**exponent for exponent in exponents]


def _legend(
    colours: dict[str, int], styles: dict[str, str], top: float, width: float
) -> tuple[list[str], float]:
    """Return the legend and its height: colours on the left, styles on the right."""
    parts = []
    for row, (who, index) in enumerate(colours.items()):
        y = top + row * _ROW
        colour = f"c{index % svg.COLOURS}"
        parts += [svg.line(24, y, 52, y, f"curve {colour}"), _mark(38, y, index, colour)]
        parts.append(svg.text(60, y + 4, who, kind="small"))
    for row, (what, style) in enumerate(styles.items()):
        y, x = top + row * _ROW, width - 190
        parts.append(svg.line(x, y, x + 34, y, f"curve ink {style}"))
        parts.append(svg.text(x + 42, y + 4, what, kind="small"))
    return parts, max(len(colours), len(styles)) * _ROW + 8
