"""Faults of order: what belongs to one key, head or feature is taken for another's."""

from __future__ import annotations

import functools

from onnx_attest.verify.power.fault import Fault, Inapplicable, Offer
from onnx_attest.verify.power.sites import Operator, Site
from onnx_attest.verify.power.workbench import Edge, Workbench

_FOUR = 4


def faults(bench: Workbench, site: Site) -> Offer:
    """Yield the faults of the order in one attention."""
    yield Fault("key-stale", None, "key and value keys // 2 replaced by the ones before", _stale)
    yield Fault("value-rolled", None, "values rolled by one key", _rolled_values)
    shape = bench.shape(_key(bench, site))
    if shape is None:
        yield Inapplicable("key-reshaped", "the file does not say how many axes the keys have")
    else:
        yield Fault(
            "key-reshaped",
            None,
            "keys reshaped instead of transposed",
            _reshaped,
            opens=_is_flat(bench, site),
        )
    yield from _heads(bench, site)


def _is_flat(bench: Workbench, site: Site) -> bool:
    """Whether an operator takes (batch, length, heads * size): its heads are no axis before it is taken apart."""
    return isinstance(site, Operator) and len(bench.shape(bench.read(site.edge(0))) or ()) != _FOUR


def _key(bench: Workbench, site: Site) -> str:
    return bench.read(site.edge(1) if isinstance(site, Operator) else site.key)


def _edges(site: Site) -> tuple[tuple[Edge, int], tuple[Edge, int]]:
    """Return where keys and values are read, each with the axis that counts them."""
    if isinstance(site, Operator):
        return (site.edge(1), -2), (site.edge(2), -2)
    return (site.key, -1), (site.value, -2)


def _stale(bench: Workbench, site: Site) -> None:
    for edge, axis in _edges(site):
        bench.insert(edge, functools.partial(_with_stale, bench, axis=axis))


def _with_stale(bench: Workbench, value: str, *, axis: int) -> str:
    """Return a cache whose entry j = length // 2 is that of j - 1; with one entry there is none before."""
    half = bench.op("Div", bench.axis_length(value, axis), bench.constant([2]))
    before = bench.op("Max", bench.op("Sub", half, bench.constant([1])), bench.constant([0]))
    # With one key: nothing before it, that key itself, and nothing after it.
    parts = (
        bench.part(value, 0, half, axis),
        bench.part(value, before, bench.op("Add", before, bench.constant([1])), axis),
    )
    after = bench.part(value, bench.op("Add", half, bench.constant([1])), None, axis)
    return bench.op("Concat", *parts, after, axis=axis)


def _rolled(bench: Workbench, value: str, axis: int) -> str:
    return bench.op("Concat", bench.part(value, -1, None, axis), bench.part(value, 0, -1, axis), axis=axis)


def _rolled_values(bench: Workbench, site: Site) -> None:
    _, (edge, axis) = _edges(site)
    bench.insert(edge, lambda value: _rolled(bench, value, axis))


def _reshaped(bench: Workbench, site: Site) -> None:
    """Put the numbers of the keys (keys, d), in their order, where (d, keys) is wanted."""
    (edge, _), _ = _edges(site)
    rank = len(bench.shape(bench.read(edge)) or ())

    def transposed_wrongly(keys: str) -> str:
        upright = keys if isinstance(site, Operator) else bench.swapped(keys, rank)
        flipped = bench.op("Shape", bench.swapped(upright, rank))
        wrong = bench.op("Reshape", upright, flipped)
        return bench.swapped(wrong, rank) if isinstance(site, Operator) else wrong

    bench.insert(edge, transposed_wrongly)


def _heads(bench: Workbench, site: Site) -> Offer:
    opens = _is_flat(bench, site)
    shape = bench.shape(site.output)
    kinds = ("heads-rolled", "heads-interleaved")
    if not opens and (shape is None or len(shape) != _FOUR):
        yield from (Inapplicable(kind, "the heads are not an axis of the product") for kind in kinds)
    elif not opens and shape is not None and shape[1] == 1:
        yield from (Inapplicable(kind, "there is one head") for kind in kinds)
    else:
        yield Fault(kinds[0], None, "heads rolled by one", _rolled_heads, opens=opens)
        yield Fault(kinds[1], None, "heads merged without transposing back", _interleaved, opens=opens)


def _rolled_heads(bench: Workbench, site: Site) -> None:
    bench.replace(site.output, lambda value: _rolled(bench, value, 1))


def _interleaved(bench: Workbench, site: Site) -> None:
    """Read (batch, heads, queries, size) as if it were (batch, queries, heads, size)."""

    def change(value: str) -> str:
        swapped = bench.op("Transpose", value, perm=[0, 2, 1, 3])
        wrong = bench.op("Reshape", value, bench.op("Shape", swapped))
        return bench.op("Transpose", wrong, perm=[0, 2, 1, 3])

    bench.replace(site.output, change)
