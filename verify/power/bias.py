"""The fault of a projection that lost its bias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from onnx_attest.verify.power.fault import Fault, Inapplicable, Offer
from onnx_attest.verify.power.sites import Operator, Site
from onnx_attest.verify.power.workbench import Edge, Workbench

_CLASS = "bias-dropped"


@dataclass(frozen=True)
class _Projection:
    """A linear map: where its bias is read, and what it projects for this attention."""

    edge: Edge
    what: str


def faults(bench: Workbench, site: Site) -> Offer:
    """Yield a fault for the projection of the queries, of the values, and of the output, if they have a bias.

    That of the keys adds the same to all logits of a row, which the softmax takes away again.
    """
    found: dict[str, _Projection] = {}
    zeros = False
    for what, value in _operands(bench, site):
        projection = _upwards(bench, value, what)
        if projection is not None:
            zeros = zeros or not _has_effect(bench, projection)
            found.setdefault(projection.edge.node, projection)
    if (projection := _downwards(bench, site.output)) is not None:
        zeros = zeros or not _has_effect(bench, projection)
        found.setdefault(projection.edge.node, projection)
    effective = [projection for projection in found.values() if _has_effect(bench, projection)]
    for projection in effective:
        yield _dropped(projection)
    if not effective:
        yield Inapplicable(_CLASS, "every bias is zero" if zeros else "there is no projection with a bias")


def _operands(bench: Workbench, site: Site) -> Iterator[tuple[str, str]]:
    query, value = (site.edge(0), site.edge(2)) if isinstance(site, Operator) else (site.query, site.value)
    yield "query", bench.read(query)
    yield "value", bench.read(value)


def _projection(bench: Workbench, node: onnx.NodeProto, what: str) -> _Projection | None:
    """Return the linear map that ends in a node: MatMul and Add, or Gemm with its third input."""
    if node.op_type == "Gemm" and len(node.input) > 2 and node.input[2] in bench.constants:
        return _Projection(Edge(node.output[0], 2), what)
    if node.op_type != "Add":
        return None
    for index in (0, 1):
        product = bench.producer(node.input[1 - index])
        bias = bench.constants.get(node.input[index])
        if bias is not None and bias.ndim == 1 and product is not None and product.op_type == "MatMul":
            return _Projection(Edge(node.output[0], index), what)
    return None


def _upwards(bench: Workbench, value: str, what: str) -> _Projection | None:
    """Return the nearest projection before a value."""
    waiting, seen = [value], set[str]()
    while waiting:
        name = waiting.pop(0)
        node = bench.producer(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if (found := _projection(bench, node, what)) is not None:
            return found
        if node.op_type in ("MatMul", "Softmax", "Attention", "Shape"):
            continue  # a projection without bias, or another attention
        waiting += node.input
    return None


def _downwards(bench: Workbench, value: str) -> _Projection | None:
    """Return the nearest projection after a value."""
    waiting, seen = [value], set[str]()
    while waiting:
        name = waiting.pop(0)
        for node in bench.consumers(name):
            if node.output[0] in seen or node.op_type in ("Shape", "LayerNormalization"):
                continue
            seen.add(node.output[0])
            if (found := _projection(bench, node, "output")) is not None:
                return found
            waiting += node.output
    return None


def _has_effect(bench: Workbench, projection: _Projection) -> bool:
    return bool(np.any(bench.constants[bench.read(projection.edge)]))


def _dropped(projection: _Projection) -> Fault:
    def apply(bench: Workbench, site: Site) -> None:
        bias = bench.constants[bench.read(projection.edge)]
        # Zeros of its shape keep the graph's form.
        bench.connect(projection.edge, bench.constant(np.zeros_like(bias), bias.dtype))

    return Fault(_CLASS, None, f"{projection.what} projection without its bias", apply)
