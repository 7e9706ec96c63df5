"""Faults of the scale: a factor that is off, missing, or there twice."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from onnx_attest.verify.power.expand import UnopenableError, heads_of, scale_of
from onnx_attest.verify.power.fault import FP32_RESOLUTION, Fault, Inapplicable, Offer
from onnx_attest.verify.power.sites import Operator, Site
from onnx_attest.verify.power.workbench import Edge, Workbench

SIZES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_ROUNDED_ONCE = 2 * FP32_RESOLUTION
"""Two factors that differ by the rounding of one number are the same to whoever wrote them."""
_LEAST = 4 * FP32_RESOLUTION
"""A factor that is off by less cannot be told from one that was rounded: it, its root, and the root's square."""


def faults(bench: Workbench, site: Site) -> Offer:
    """Yield the faults of the scale of one attention.

    A scale that the file holds as a number is changed there, and rounded to its dtype as a wrong one would be; else the
    logits are multiplied.
    """
    for size in SIZES:
        yield Fault(
            "scale", size, f"scale x (1 + {size:g})", _multiplied(1 + size), above_fp32=size >= _LEAST
        )
    try:
        scale = _scale(bench, site)
        size_of_head = _head_size(bench, site)
    except UnopenableError as error:
        reason = str(error)
        yield from (
            Inapplicable(kind, reason) for kind in ("scale-1/d", "scale-d+1", "scale-none", "scale-twice")
        )
        return
    if abs(scale * math.sqrt(size_of_head) - 1) < _ROUNDED_ONCE * 2:
        yield _to("scale-1/d", "1/d instead of 1/sqrt(d)", scale, 1 / size_of_head)
        yield _to("scale-d+1", "1/sqrt(d + 1) instead of 1/sqrt(d)", scale, 1 / math.sqrt(size_of_head + 1))
    else:
        reason = f"the scale is {scale:.9g}, and d is {size_of_head}: it is not 1/sqrt(d)"
        yield from (Inapplicable(kind, reason) for kind in ("scale-1/d", "scale-d+1"))
    yield _to("scale-none", "no scale", scale, 1.0)
    yield _to("scale-twice", "scale applied twice", scale, scale * scale)


def _scale(bench: Workbench, site: Site) -> float:
    if isinstance(site, Operator):
        return scale_of(bench, site)
    if site.scale is None:
        raise UnopenableError("a factor of the logits is computed")
    return site.scale


def _head_size(bench: Workbench, site: Site) -> int:
    if isinstance(site, Operator):
        return heads_of(bench, site).size
    q, k = bench.shape(bench.read(site.query)), bench.shape(bench.read(site.key))
    for size in (q[-1] if q else None, k[-2] if k else None):
        if isinstance(size, int):
            return size
    raise UnopenableError("the file does not say how large a head is")


def _to(kind: str, label: str, scale: float, wanted: float) -> Fault | Inapplicable:
    if abs(wanted / scale - 1) < _ROUNDED_ONCE:
        return Inapplicable(kind, f"the scale is {scale:.9g} as it is")
    return Fault(kind, None, label, _multiplied(wanted / scale))


def _multiplied(factor: float) -> Callable[[Workbench, Site], float]:
    """Return the change that multiplies the scale; it says by how much in truth, less 1."""

    def apply(bench: Workbench, site: Site) -> float:
        if isinstance(site, Operator):
            return _operator(bench, site, factor)
        if not site.scales:
            return _queries(bench, site.query, factor)
        node = site.scales[0]
        old = bench.constants[bench.read(node.edge)]
        exact = old.astype(np.float64)
        new = np.asarray(exact / factor if node.divides else exact * factor, old.dtype)
        bench.connect(node.edge, bench.constant(new, new.dtype))
        ratio = float((new.astype(np.float64) / exact).reshape(-1)[0])
        return (1 / ratio if node.divides else ratio) - 1

    return apply


def _operator(bench: Workbench, site: Operator, factor: float) -> float:
    try:
        old = scale_of(bench, site)
    except UnopenableError:
        return _queries(bench, site.edge(0), factor)
    new = float(np.float32(old * factor))
    bench.set_attribute(site.output, "scale", new)
    return new / old - 1


def _queries(bench: Workbench, edge: Edge, factor: float) -> float:
    """Multiply the queries: for a scale that is no number in the file."""
    stored = np.asarray(factor, bench.dtype(bench.read(edge)))
    bench.insert(edge, lambda q: bench.op("Mul", q, bench.constant(stored, stored.dtype)))
    return float(stored) - 1
