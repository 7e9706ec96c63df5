"""What operators that only move numbers share: values, errors and variances go the same way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Array, Bounded
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    integers,
    optional,
    required,
)

Mover = Callable[[Node, Inputs, Array], Array]


def moving(move: Mover) -> Operator:
    """Return the operator that applies `move` to the value, the error and the variance of its first input."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        return [required(inputs, 0).moved(lambda array: np.asarray(move(node, inputs, array)))]

    return operator


def arranged(arrange: Callable[..., Array], *parts: Bounded) -> Bounded:
    """Return the numbers of several tensors put into one: values, errors and variances go the same way."""

    def together(name: str) -> Array | None:
        own = [getattr(part, name) for part in parts]
        if all(one is None for one in own):
            return None
        shapes = [part.value.shape for part in parts]
        sized = [np.broadcast_to(0.0 if one is None else one, s) for one, s in zip(own, shapes, strict=True)]
        return np.asarray(arrange(*sized))

    values = np.asarray(arrange(*(part.value for part in parts)))
    return Bounded(values, together("error"), variance=together("variance"))


def only(inputs: Inputs, index: int, default: int) -> int:
    """Return the only number of such an input, its default where it is not given."""
    if optional(inputs, index) is None:
        return default
    (number,) = integers(inputs, index)
    return number
