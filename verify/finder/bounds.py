"""What a value is kept between by the nodes that make it: a clip, a tanh."""

from __future__ import annotations

import math
from typing import Any

from onnx_attest.verify.finder.graph import MOVES, Scope, attribute

_FARTHEST = 12
_OPEN = (-math.inf, math.inf)


def bounds_of(scope: Scope, value: str, steps: int = 0) -> tuple[float, float]:
    """Return the least and the largest number that a value can be, hidden keys (-inf or far below) apart."""
    number = scope.number(value)
    if number is not None:
        return number, number
    node = scope.maker(value)
    if node is None or steps > _FARTHEST or value in scope.tensors or node.domain not in ("", "ai.onnx"):
        return _OPEN
    kind = node.op_type
    if kind in ("Tanh", "Sigmoid"):
        return (-1.0, 1.0) if kind == "Tanh" else (0.0, 1.0)
    if kind in MOVES:
        return bounds_of(scope, node.input[0], steps + 1)
    if kind == "Clip":
        return _clipped(scope, node, steps)
    if kind in ("Min", "Max", "Where"):
        return _chosen(scope, node, steps)
    return _scaled(scope, node, steps) if kind in ("Mul", "Div") else _OPEN


def _clipped(scope: Scope, node: Any, steps: int) -> tuple[float, float]:
    limits = [attribute(node, "min"), attribute(node, "max")]
    for index, name in enumerate(node.input[1:3]):
        limits[index] = scope.number(name) if name else None
    low, high = bounds_of(scope, node.input[0], steps + 1)
    return (
        low if limits[0] is None else max(low, limits[0]),
        high if limits[1] is None else min(high, limits[1]),
    )


def _chosen(scope: Scope, node: Any, steps: int) -> tuple[float, float]:
    if node.op_type == "Where":
        # The number of a hidden key is none of the logits.
        shown = [name for name in node.input[1:] if scope.number(name) is None]
        limits = [bounds_of(scope, name, steps + 1) for name in shown]
        return (min(low for low, _ in limits), max(high for _, high in limits)) if limits else _OPEN
    limits = [bounds_of(scope, name, steps + 1) for name in node.input]
    of = min if node.op_type == "Min" else max
    return of(low for low, _ in limits), of(high for _, high in limits)


def _scaled(scope: Scope, node: Any, steps: int) -> tuple[float, float]:
    for index, name in enumerate(node.input):
        number = scope.number(node.input[1 - index])
        if number is None or not number or (node.op_type == "Div" and index):
            continue
        ends = [
            end / number if node.op_type == "Div" else end * number
            for end in bounds_of(scope, name, steps + 1)
        ]
        return min(ends), max(ends)
    return _OPEN
