"""Faults of the mask: what is hidden, what is seen, and by how much."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import largest_of
from onnx_attest.verify.power.alignment import Alignment, alignment, is_given, lengths, masks_of, past_length
from onnx_attest.verify.power.expand import UnopenableError, positions, refuse_mask
from onnx_attest.verify.power.fault import FP32_RESOLUTION, Fault, Inapplicable, Offer
from onnx_attest.verify.power.sites import Operator, Site, attribute
from onnx_attest.verify.power.workbench import Workbench

_CAUSES = ("causal-future", "causal-misses-last", "causal-missing", "causal-inverted", "causal-alignment")
_KINDS = (*_CAUSES, "mask-fill", "mask-ignored", "key-dropped", "key-duplicated", "traced-length")
FILLS = (-1e4, -30.0, -10.0)
_MASK, _CAUSAL = 3, "is_causal"


@dataclass(frozen=True)
class Grid:
    """Positions of queries and keys: `rows` (queries, 1), `columns` (1, keys), and how many keys there are, (1,)."""

    bench: Workbench
    rows: str
    columns: str
    queries: str
    keys: str

    def compare(self, op_type: str, columns_against: str) -> str:
        """Return a comparison of the keys' positions."""
        return self.bench.op(op_type, self.columns, columns_against)

    def shifted(self, *offsets: str | int) -> str:
        """Return the position of each query plus offsets, (queries, 1)."""
        value = self.rows
        for offset in offsets:
            value = self.bench.op(
                "Add", value, self.bench.constant([offset]) if isinstance(offset, int) else offset
            )
        return value


Choice = Callable[[Grid], str]
"""Returns which keys are meant: booleans that broadcast to (queries, keys)."""


def faults(bench: Workbench, site: Site, traced_length: int | None) -> Offer:
    """Yield the faults of the mask of one attention."""
    if isinstance(site, Operator):
        try:
            refuse_mask(bench, site)
        except UnopenableError as error:
            yield from (Inapplicable(kind, str(error)) for kind in _KINDS)
            return
    found = alignment(bench, site)
    yield from _causal(bench, site, found)
    yield from _fills(bench, site)
    yield _ignored(bench, site, found)
    yield _positional("key-dropped", "key keys // 2 hidden", hide=_middle)
    yield Fault("key-duplicated", None, "key keys // 2 counted twice", _duplicate)
    if traced_length is None:
        yield Inapplicable("traced-length", "the traced length is not known")
    else:
        yield _positional(
            "traced-length",
            f"keys from {traced_length} on ignored",
            hide=lambda grid: grid.compare("GreaterOrEqual", grid.bench.constant([traced_length])),
        )


def _middle(grid: Grid) -> str:
    half = grid.bench.op("Div", grid.keys, grid.bench.constant([2]))
    return grid.compare("Equal", half)


def _causal(bench: Workbench, site: Site, found: Alignment | str) -> Offer:
    kinds = _CAUSES
    if isinstance(found, str):
        yield from (Inapplicable(kind, found) for kind in kinds)
        return
    own = _Offset(site, found.end)

    def beyond(grid: Grid) -> str:
        return grid.compare("Greater", grid.shifted(own(grid)))

    yield _positional(
        kinds[0], "each query sees one future key", reveal=lambda g: g.compare("Equal", g.shifted(own(g), 1))
    )
    yield _positional(
        kinds[1], "each query misses its own key", hide=lambda g: g.compare("Equal", g.shifted(own(g)))
    )
    yield _positional(kinds[2], "no causal mask", reveal=beyond)
    yield _positional(
        kinds[3], "causal mask inverted", reveal=beyond, hide=lambda g: g.bench.op("Not", beyond(g))
    )
    if found.end == "square":
        yield Inapplicable(kinds[4], "there are as many queries as keys")
    elif not found.pure:
        yield Inapplicable(kinds[4], "the mask hides more than the future: both ends cannot be told apart")
    else:
        yield _realigned(kinds[4], site, found, own)


@dataclass(frozen=True)
class _Offset:
    """How far the queries' positions are ahead of their numbers: 0, what the cache holds, or keys - queries."""

    site: Site
    end: str

    def __call__(self, grid: Grid) -> str:
        past = past_length(grid.bench, self.site) if isinstance(self.site, Operator) else ""
        if past:
            return past
        if self.end == "bottom-right":
            return grid.bench.op("Sub", grid.keys, grid.queries)
        return grid.bench.constant([0])


def _realigned(kind: str, site: Site, found: Alignment, own: _Offset) -> Fault:
    other = (
        _Offset(site, "bottom-right") if found.end == "top-left" else lambda grid: grid.bench.constant([0])
    )
    label = "aligned at the " + ("bottom right" if found.end == "top-left" else "top left")

    def beyond(grid: Grid, offset: Callable[[Grid], str]) -> str:
        return grid.compare("Greater", grid.shifted(offset(grid)))

    return _positional(kind, label, reveal=lambda g: beyond(g, own), hide=lambda g: beyond(g, other))


def _positional(kind: str, label: str, *, reveal: Choice | None = None, hide: Choice | None = None) -> Fault:
    """Return a fault that reveals hidden keys and then hides some."""

    def apply(bench: Workbench, site: Site) -> None:
        grid = _grid(bench, site)
        _change(bench, site, grid, reveal(grid) if reveal else "", hide(grid) if hide else "")

    return Fault(kind, None, label, apply)


def _grid(bench: Workbench, site: Site) -> Grid:
    queries, keys = lengths(bench, site)
    return Grid(bench, positions(bench, queries, 1), positions(bench, keys, 0), queries, keys)


def _change(bench: Workbench, site: Site, grid: Grid, reveal: str, hide: str, bias: str = "") -> None:
    """Reveal keys, then hide keys, then add a bias; each "" is left out."""
    if isinstance(site, Operator):
        _change_operator(bench, site, grid, reveal, hide, bias)
        return
    logits, masked = site.logits, site.masked
    hidden = bench.constant(-np.inf, bench.dtype(logits))

    def changed(value: str) -> str:
        unmasked = value if logits == masked else logits
        value = bench.op("Where", reveal, unmasked, value) if reveal else value
        value = bench.op("Where", hide, hidden, value) if hide else value
        return bench.op("Add", value, bias) if bias else value

    bench.replace(masked, changed)


def _change_operator(bench: Workbench, site: Operator, grid: Grid, reveal: str, hide: str, bias: str) -> None:
    """The same through the operator's own mask, which takes over from is_causal."""
    dtype = bench.dtype(bench.read(site.edge(0)))
    hidden, zero = bench.constant(-np.inf, dtype), bench.constant(0.0, dtype)
    allowed, given = _allowed(bench, site, grid)
    if not given:
        allowed = bench.op("Or", allowed, reveal) if reveal and allowed else allowed
        closed = bench.op("Not", hide) if hide else ""
        allowed = bench.op("And", allowed, closed) if allowed and closed else allowed or closed
        if bias:
            allowed = bench.op("Where", allowed, bias, hidden) if allowed else bias
        mask = allowed
    else:
        mask = bench.op("Where", allowed, given, hidden) if allowed else given
        mask = bench.op("Where", reveal, zero, mask) if reveal else mask
        mask = bench.op("Where", hide, hidden, mask) if hide else mask
        mask = bench.op("Add", mask, bias) if bias else mask
    _set_mask(bench, site, mask)


def _allowed(bench: Workbench, site: Operator, grid: Grid) -> tuple[str, str]:
    """Return which keys an operator allows, "" for all, and the floating mask it is given, "" for none."""
    mask = bench.read(site.edge(_MASK))
    node = bench.producer(site.output)
    assert node is not None
    allowed = ""
    if attribute(node, _CAUSAL, 0):
        past = past_length(bench, site)
        allowed = grid.compare("LessOrEqual", grid.shifted(past) if past else grid.rows)
    if not mask or not bench.is_boolean(mask):
        return allowed, mask
    return (bench.op("And", mask, allowed) if allowed else mask), ""


def _set_mask(bench: Workbench, site: Operator, mask: str) -> None:
    """Give an operator a mask of at least two axes, which replaces its own and is_causal."""
    queries, keys = lengths(bench, site)
    wide = bench.op("Concat", queries, keys, axis=0)
    if mask:
        mask = bench.op("Expand", mask, wide)  # the operator wants every query's row
    bench.connect(site.edge(_MASK), mask)
    bench.set_attribute(site.output, _CAUSAL, None)


def _duplicate(bench: Workbench, site: Site) -> None:
    """A key that is there twice has twice the weight before the sum: its logit is larger by log 2."""
    grid = _grid(bench, site)
    first = bench.read(site.edge(0)) if isinstance(site, Operator) else site.logits
    twice, once = (bench.constant(number, bench.dtype(first)) for number in (np.log(2.0), 0.0))
    _change(bench, site, grid, "", "", bench.op("Where", _middle(grid), twice, once))


def _fills(bench: Workbench, site: Site) -> Offer:
    if not masks_of(bench, site) and not _is_causal(bench, site):
        yield Inapplicable("mask-fill", "there is no mask")
        return
    for number in FILLS:
        seen = math.exp(number) > FP32_RESOLUTION  # beside a logit of 0
        yield Fault("mask-fill", number, f"{number:g} instead of -inf", _filler(number), above_fp32=seen)


def _is_causal(bench: Workbench, site: Site) -> bool:
    node = bench.producer(site.output)
    return isinstance(site, Operator) and node is not None and bool(attribute(node, _CAUSAL, 0))


def _filler(number: float) -> Callable[[Workbench, Site], None]:
    def apply(bench: Workbench, site: Site) -> None:
        if isinstance(site, Operator):
            _fill_operator(bench, site, number)
            return
        fill = bench.constant(number, bench.dtype(site.logits))
        for mask in site.masks:
            if mask.condition:
                bench.connect(mask.edge, fill)
            else:
                bench.insert(mask.edge, lambda bias: _filled(bench, bias, fill))

    return apply


def _filled(bench: Workbench, bias: str, fill: str) -> str:
    """Return a floating mask with a number where it hides keys: below half of what its dtype holds."""
    dtype: Any = bench.dtype(bias)
    hides = bench.op("Less", bias, bench.constant(-largest_of(dtype) / 2, dtype))
    return bench.op("Where", hides, fill, bias)


def _fill_operator(bench: Workbench, site: Operator, number: float) -> None:
    dtype = bench.dtype(bench.read(site.edge(0)))
    fill, zero = bench.constant(number, dtype), bench.constant(0.0, dtype)
    allowed, given = _allowed(bench, site, _grid(bench, site))
    bias = _filled(bench, given, fill) if given else zero
    _set_mask(bench, site, bench.op("Where", allowed, bias, fill) if allowed else bias)


def _ignored(bench: Workbench, site: Site, found: Alignment | str) -> Fault | Inapplicable:
    masks = masks_of(bench, site)
    if not masks:
        return Inapplicable("mask-ignored", "there is no mask that could be left out")
    if isinstance(found, Alignment) and found.pure and not any(is_given(bench, mask) for mask in masks):
        return Inapplicable("mask-ignored", "the mask is causal and nothing else: see causal-missing")

    def apply(bench: Workbench, site: Site) -> None:
        if isinstance(site, Operator):
            bench.connect(site.edge(_MASK), "")
        else:
            logits = site.logits
            bench.replace(site.masked, lambda _: logits)

    return Fault("mask-ignored", None, "no mask", apply)
