"""Pictures of the chapter's statements, drawn from their records alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from onnx_attest.verify.records import AnyRecord, ClaimRecord
from onnx_attest.verify.report.formats import number, seconds, shortened
from onnx_attest.verify.report.grouping import grouped, of_kind
from onnx_attest.verify.report.pictures.plot import Curve, Panel, Style, plot
from onnx_attest.verify.report.pictures.weights import Weights, draw

Records = Sequence[ClaimRecord]
_WITHOUT, _WITH = "without the scale", "with the scale"
_SAME = 0.01
"""Curves whose points are this near to each other are one line on paper."""
_LABEL = 100
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


class Picture(NamedTuple):
    """A picture and what it shows in a line."""

    alt: str
    svg: str


def pictures(records: Iterable[AnyRecord]) -> dict[int, Picture]:
    """Return the picture of each statement that has the numbers for one."""
    by_claim = grouped(of_kind(records, ClaimRecord), lambda record: record.claim)
    drawn = ((claim, draw_one(by_claim.get(claim, []))) for claim, draw_one in _DRAWN.items())
    return {claim: picture for claim, picture in drawn if picture is not None}


def file_name(claim: int) -> str:
    """Return where the picture of a statement is in the folder of the report."""
    return f"pictures/claim-{claim:02}.svg"


def _growth(records: Records) -> Picture | None:
    panels = []
    for unit, title, show, guide in (
        ("fastest_s", "time of one call", seconds, "as n^2"),
        ("peak_bytes", "memory held by one call", _bytes, "one matrix of scores"),
    ):
        curves = [
            _cost(one, unit)
            for one in records
            if unit in one.series and all(map(_positive, one.series[unit]))
        ]
        if curves:
            ticks = tuple(x for x in _places(curves) if math.log2(x).is_integer())
            is_bytes = unit == "peak_bytes"
            curves.append(_square(curves, guide, exact=is_bytes))
            panels.append(
                Panel(title, "n, number of tokens", tuple(curves), ticks, binary=is_bytes, show=show)
            )
    if not panels:
        return None
    fitted = "; ".join(
        f"{one.runtime}, {one.setting}: n^{exponent:.2f}"
        for one in records
        if (exponent := one.measured.get("exponent")) is not None
    )
    alt = "time and memory of one attention against its length, written out and fused, on each runtime"
    title = "What attention costs as the sequence grows"
    return Picture(alt, plot("claim-02", title, f"{alt}. Fitted exponents: {fitted}.", panels))


def _cost(record: ClaimRecord, unit: str) -> Curve:
    form = record.setting.partition(",")[0]
    points = tuple(zip(record.series["n"], record.series[unit], strict=True))
    return Curve(record.runtime, form, points, "dashed" if form == "fused" else "solid")


def _positive(cost: float) -> bool:
    return cost > 0


def _square(curves: Sequence[Curve], name: str, *, exact: bool) -> Curve:
    """Return what grows as n^2: 4 n^2 bytes, or through the middle of what was measured at the longest length."""
    ends = sorted({x for curve in curves for x, _ in curve.points})
    last = [math.log(y) for curve in curves for x, y in curve.points if x == ends[-1]]
    factor = 4.0 if exact else math.exp(sum(last) / len(last)) / ends[-1] ** 2
    return _guide(name, ((x, factor * x**2) for x in (ends[0], ends[-1])))


def _bytes(value: float) -> str:
    unit, size = next((unit, size) for unit, size in _UNITS if value >= size or size == 1)
    return f"{number(value / size)} {unit}"


def _variance(records: Records) -> Picture | None:
    whole = _against(records, {_WITHOUT: "variance", _WITH: "variance_scaled"})
    if not whole:
        return None
    ticks = _places(whole)
    lines = [_guide("expected", ((x, x) for x in ticks)), _guide("expected", ((x, 1.0) for x in ticks))]
    relative = _against(records, {_WITHOUT: "variance_over_d_k", _WITH: "variance_scaled"})
    sds = {one.at: one.measured.get("sd_of_the_estimate") or 0.0 for one in records if one.at is not None}
    limits = [_guide("1 +- 4 deviations", ((x, 1 + sign * 4 * sds[x]) for x in ticks)) for sign in (-1, 1)]
    panels = [
        Panel("variance of the scores", "d_k", (*whole, *lines), ticks),
        Panel(
            "the same over what is expected", "d_k", (*relative, *limits), ticks, log_y=False, from_zero=False
        ),
    ]
    alt = "variance of the scores against d_k: d_k without the scale, 1 with it"
    return Picture(alt, plot("claim-03", "What the scale does to the scores", alt, panels))


def _guide(name: str, points: Iterable[tuple[float, float]]) -> Curve:
    return Curve("", name, tuple(points), "dotted", marked=False)


def _saturation(records: Records) -> Picture | None:
    fields = ("p_max", "entropy", "jacobian_median")
    whose = _alike(records, [*fields, *(f"{field}_scaled" for field in fields)])
    panels = []
    for title, field, log in (
        ("largest weight, mean of the rows", "p_max", False),
        ("entropy in nats, mean of the rows", "entropy", False),
        ("norm of softmax's Jacobian, median row", "jacobian_median", True),
    ):
        curves = _against(records, {_WITHOUT: field, _WITH: f"{field}_scaled"}, whose)
        if curves:
            panels.append(Panel(title, "d_k", tuple(curves), _places(curves), log_y=log))
    panels += _training(records, whose)
    if not panels:
        return None
    alt = "largest weight, entropy and gradient against d_k, and a training, without the scale and with it"
    return Picture(alt, plot("claim-04", "What softmax becomes without the scale", alt, panels))


def _training(records: Records, whose: Mapping[str, str]) -> list[Panel]:
    for record in records:
        if "loss" in record.series and "loss_scaled" in record.series:
            who = whose.get(record.runtime, record.runtime)
            curves = (
                Curve(who, _WITHOUT, tuple(_steps(record.series["loss"])), marked=False),
                Curve(who, _WITH, tuple(_steps(record.series["loss_scaled"])), "dashed", marked=False),
            )
            ticks = tuple(float(step) for step in range(0, len(record.series["loss"]) + 1, 50))
            title = f"loss of a training in {record.runtime}, {record.setting.partition(', ')[2]}"
            return [Panel(title, "step", curves, ticks, log_x=False, log_y=False)]
    return []


def _steps(values: Sequence[float]) -> Iterator[tuple[float, float]]:
    return ((float(step), value) for step, value in enumerate(values))


def _overflow(records: Records) -> Picture | None:
    whose, panels = _alike(records, ("breaks_at", "predicted")), []
    for dtype, mine in grouped(records, lambda record: record.dtype).items():
        curves = _against(mine, {"breaks at": "breaks_at", "predicted": "predicted"}, whose)
        if curves:
            title = f"score at which the softmax breaks, {dtype}"
            panels.append(Panel(title, "keys with that score", tuple(curves), _places(curves), log_y=False))
    if not panels:
        return None
    alt = "score at which the softmax without the maximum breaks, against the number of keys that have it"
    return Picture(alt, plot("claim-06", "Where the naive softmax overflows", alt, panels))


def _two_inputs(records: Records) -> Picture | None:
    for record in records:
        panels = [Weights(name, _rows(values)) for name, values in record.series.items()]
        if panels:
            alt = f"the weights of two inputs, on {record.runtime}: two different matrices"
            return Picture(alt, draw("claim-09", "Two inputs, two matrices of weights", alt, panels))
    return None


def _graph(records: Records) -> Picture | None:
    with_weights = [record for record in records if "weights" in record.series]
    mine = [record for record in with_weights if record.runtime == with_weights[0].runtime]
    if not mine:
        return None
    panels = [
        Weights(f"{record.setting}, as a {kind}", _rows(record.series["weights"]), kind == "graph")
        for record in mine
        for kind in ("heat map", "graph")
    ]
    alt = f"attention weights on {mine[0].runtime} as heat maps and as graphs, without a mask and with a causal one"
    words = "; ".join(
        f"{record.setting}: {number(record.measured['nodes'])} tokens, {number(record.measured['edges'])} edges"
        for record in mine
    )
    return Picture(alt, draw("claim-11", "Weights as a heat map and as a graph", f"{alt}. {words}.", panels))


def weight_errors(records: Iterable[AnyRecord]) -> dict[str, str]:
    """Return the errors of the weights of statement 11 as heat maps, a picture for each runtime that has them.

    Each has a scale of its own: beside bfloat16 the errors of float32 would all be white.
    """
    mine = [one for one in of_kind(records, ClaimRecord) if {"weights", "exact weights"} <= set(one.series)]
    drawn = {}
    for index, (runtime, held) in enumerate(grouped(mine, lambda one: one.runtime).items()):
        panels = [Weights(one.setting, _errors_of(one)) for one in held]
        largest = max(max(map(max, panel.rows)) for panel in panels)
        title = f"|weight - exact| on {runtime}, in units of 2^-24"
        alt = f"{title}: at most {number(largest)}"
        drawn[runtime] = draw(f"weight-errors-{index}", title, alt, panels, quantity="error", show=_short)
    return drawn


def _short(value: float) -> str:
    """Return a number that fits into a cell of a heat map."""
    return f"{value:.2f}" if value < 10 else f"{value:.0f}" if value < 10_000 else f"{value:.0e}"


_UNIT = 2.0**-24
"""Of the errors that are drawn: the unit roundoff of float32, what a weight of 1 may lose by being stored."""


def _errors_of(record: ClaimRecord) -> tuple[tuple[float, ...], ...]:
    pairs = zip(record.series["weights"], record.series["exact weights"], strict=True)
    return _rows([abs(weight - exact) / _UNIT for weight, exact in pairs])


def _rows(values: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    count = math.isqrt(len(values))
    return tuple(tuple(values[row * count : (row + 1) * count]) for row in range(count))


def _against(
    records: Records, fields: Mapping[str, str], whose: Mapping[str, str] | None = None
) -> list[Curve]:
    """Return curves over `at`: two fields, solid and dashed, one pair for all runtimes that draw the same lines."""
    whose = _alike(records, tuple(fields.values())) if whose is None else whose
    points: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    drawn: dict[str, str] = {}  # the first runtime of each label
    for runtime, label in whose.items():
        drawn.setdefault(label, runtime)
    for record in records:
        who = whose.get(record.runtime, record.runtime)
        for what, field in fields.items():
            value = record.measured.get(field)
            if record.at is not None and value is not None and drawn.get(who) == record.runtime:
                points.setdefault((who, what, field), []).append((record.at, value))
    styles: Mapping[str, Style] = dict(zip(fields, ("solid", "dashed"), strict=True))
    return [Curve(who, what, tuple(sorted(mine)), styles[what]) for (who, what, _), mine in points.items()]


def _alike(records: Records, fields: Sequence[str]) -> dict[str, str]:
    """Return a label for each runtime: the names of all that draw the same lines of these fields, of any dtype."""
    lines: dict[str, dict[tuple[str, str, float], float]] = {}
    for record in records:
        for field in fields:
            value = record.measured.get(field)
            if record.at is not None and value is not None:
                lines.setdefault(record.runtime, {})[record.dtype, field, record.at] = value
    groups: list[list[str]] = []
    for runtime, mine in lines.items():
        group = next((names for names in groups if _agree(mine, lines[names[0]])), None)
        if group is None:
            groups.append(group := [])
        group.append(runtime)
    return {name: shortened(", ".join(names), _LABEL) for names in groups for name in names}


def _agree(
    mine: Mapping[tuple[str, str, float], float], other: Mapping[tuple[str, str, float], float]
) -> bool:
    return mine.keys() == other.keys() and all(
        math.isclose(value, other[place], rel_tol=_SAME) for place, value in mine.items()
    )


def _places(curves: Sequence[Curve]) -> tuple[float, ...]:
    return tuple(sorted({x for curve in curves for x, _ in curve.points}))


_DRAWN: Mapping[int, Callable[[Records], Picture | None]] = MappingProxyType(
    {2: _growth, 3: _variance, 4: _saturation, 6: _overflow, 9: _two_inputs, 11: _graph}
)
