"""What becomes of a softmax as its logits grow, on each runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from onnx_attest.verify.records import AnyRecord, StabilityRecord, finite
from onnx_attest.verify.report.grouping import grouped, of_kind
from onnx_attest.verify.report.pictures.plot import Curve, Panel, plot

_FIELDS: tuple[tuple[str, str, Callable[[Sequence[float]], float], bool], ...] = (
    ("weight_err_over_limit", "largest weight error over its limit", max, True),
    ("entropy_min", "smallest entropy of a row, nats", min, False),
    ("p_max", "largest weight of a row", max, False),
    ("overflow_margin", "margin before exp overflows unshifted", min, False),
)
_FEWEST = 3
"""Logit scales from which on there is something to draw."""


def stability_pictures(records: Iterable[AnyRecord]) -> dict[tuple[str, str], str]:
    """Return a picture for each model and dtype whose softmax was looked at with several scales of its logits."""
    looked = [one for one in of_kind(records, StabilityRecord) if one.case.logit_std and one.rows]
    drawn = {}
    for index, ((model, dtype), mine) in enumerate(
        grouped(looked, lambda one: (one.model, one.dtype)).items()
    ):
        mine = _alone(mine)
        scales = tuple(sorted({one.case.logit_std for one in mine if one.case.logit_std}))
        panels = [_panel(mine, scales, *field) for field in _FIELDS] if len(scales) >= _FEWEST else []
        kept = [panel for panel in panels if panel.curves]
        if kept:
            title = f"Softmax against the scale of its logits: {model}, {dtype}"
            about = (
                "the worst over all rows, cases and variants, against the standard deviation of the logits"
            )
            drawn[model, dtype] = plot(f"softmax-{index}", title, f"{title}; {about}.", kept)
    return drawn


def _alone(records: Sequence[StabilityRecord]) -> list[StabilityRecord]:
    """Return the records of the inputs that were tried with the most scales: they differ in nothing else."""
    alike = grouped(records, lambda one: (tuple(one.case.axes.items()), one.case.mask, one.case.distribution))
    return max(alike.values(), key=lambda held: len({one.case.logit_std for one in held}))


def _panel(
    records: Sequence[StabilityRecord],
    scales: tuple[float, ...],
    field: str,
    title: str,
    worst: Callable[[Sequence[float]], float],
    log: bool,
) -> Panel:
    lines: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for runtime, mine in grouped(records, lambda one: one.runtime).items():
        points = []
        for scale in scales:
            values = [finite(getattr(one, field)) for one in mine if one.case.logit_std == scale]
            known = [value for value in values if value is not None and (value > 0 or not log)]
            points += [(scale, float(worst(known)))] if known else []
        if points:
            lines.setdefault(tuple(points), []).append(runtime)
    # Only runtimes with the very same numbers share a line: the colours are those of runtimes, in all panels.
    curves = [Curve(runtime, "measured", points) for points, names in lines.items() for runtime in names]
    limit = [Curve("", "limit", tuple((scale, 1.0) for scale in scales), "dotted", marked=False)]
    return Panel(
        title,
        "standard deviation of the logits",
        (*curves, *(limit if log and curves else [])),
        scales,
        log_y=log,
    )
