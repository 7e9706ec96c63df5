"""Time against length on logarithmic axes, with intervals and the fitted slopes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from onnx_attest.verify.records import AnyRecord
from onnx_attest.verify.report.formats import seconds
from onnx_attest.verify.report.grouping import grouped
from onnx_attest.verify.report.pictures.plot import Curve, Panel, plot
from onnx_attest.verify.report.timings import Timing, by_size, rounds_at, timings
from onnx_attest.verify.samples import Power, exponent

_SIZE = (640.0, 460.0)
"""Of a panel: many lines cross in it."""


def latency_pictures(records: Iterable[AnyRecord]) -> dict[tuple[str, str], str]:
    """Return a picture for each model and dtype that was timed at two lengths or more: a panel for each variant."""
    lines = [list(members) for members in by_size(timings(records)).values()]
    drawn = {}
    for index, ((model, dtype), mine) in enumerate(
        grouped(lines, lambda line: (line[0].record.model, line[0].record.dtype)).items()
    ):
        panels = [panel for form, held in grouped(mine, _form).items() if (panel := _panel(form, held))]
        if panels:
            title = f"Time of a call against the length: {model}, {dtype}"
            said = "; ".join(words for line in mine if (words := _said(line)))
            description = f"Medians with their 95 % intervals. Fitted slopes: {said}."
            drawn[model, dtype] = plot(f"latency-{index}", title, description, panels, size=_SIZE)
    return drawn


def _form(line: Sequence[Timing]) -> str:
    record = line[0].record
    return record.variant if record.opset is None else f"{record.variant}, opset {record.opset}"


def _panel(form: str, lines: Sequence[Sequence[Timing]]) -> Panel | None:
    curves = [curve for line in lines for curve in _curves(line)]
    ticks = tuple(sorted({x for curve in curves for x, _ in curve.points}))
    if len(ticks) < 2:
        return None
    return Panel(form, "length (largest axis)", tuple(curves), ticks, show=seconds)


def _curves(line: Sequence[Timing]) -> list[Curve]:
    """Return the medians of one runtime with their intervals, and its fitted slope where there is one."""
    runtime = line[0].record.runtime
    found = []
    for timing in line:
        if timing.median is not None and timing.record.axes:
            length = float(max(timing.record.axes.values()))
            known = timing.median.low is not None and timing.median.high is not None
            ends = (timing.median.low or 0.0, timing.median.high or 0.0) if known else None
            found.append(((length, timing.median.estimate), ends))
    found.sort(key=lambda one: one[0])
    points = tuple(point for point, _ in found)
    if not points:
        return []
    curve = Curve(runtime, "median, 95 % interval", points, width=1.5, bars=tuple(ends for _, ends in found))
    power = _fitted(line)
    return [curve] if power is None else [curve, _slope(runtime, points, power.exponent.estimate)]


def _slope(runtime: str, points: Sequence[tuple[float, float]], estimate: float) -> Curve:
    """Return the fitted line: it goes through the mean of the logarithms, as least squares does."""
    centre_x, centre_y = (sum(map(math.log, values)) / len(points) for values in zip(*points, strict=True))
    ends = (points[0][0], points[-1][0])
    fitted = tuple((x, math.exp(centre_y + estimate * (math.log(x) - centre_x))) for x in ends)
    return Curve(runtime, "fitted slope", fitted, "dotted", marked=False, width=1.0)


def _fitted(line: Sequence[Timing]) -> Power | None:
    return exponent([point for timing in line if (point := rounds_at(timing)) is not None])


def _said(line: Sequence[Timing]) -> str:
    power = _fitted(line)
    if power is None:
        return ""
    slope = power.exponent
    ends = "" if slope.low is None or slope.high is None else f" ({slope.low:.2f} to {slope.high:.2f})"
    return f"{line[0].record.runtime} {_form(line)} n^{slope.estimate:.2f}{ends}"
