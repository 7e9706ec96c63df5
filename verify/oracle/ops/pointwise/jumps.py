"""Operators that jump: Floor, Ceil, Round and Sign. A jump within the error of a number is an error of the result."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Array, Bounded, Floats
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, required
from onnx_attest.verify.oracle.ops.pointwise.error_function import erf
from onnx_attest.verify.oracle.ops.pointwise.limits import monotone


def crossing(distance: Floats, a: Bounded) -> Floats:
    """Return the probability that a number with a variance is on the other side of what is so far away from it."""
    given = np.broadcast_to(a.variances(), distance.shape)
    deviations = np.divide(
        distance, np.sqrt(2 * given), out=np.full(distance.shape, math.inf), where=given > 0
    )
    return np.asarray(0.5 * (1 - erf(deviations)))


def _jumping(step: Callable[[Array], Array], distance: Callable[[Floats], Floats]) -> Operator:
    """Return the operator of a rising step function; `distance` is how far a number is from the nearest step."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        node.get("consumed_inputs")  # of opset 1, about memory
        a = required(inputs, 0)
        value = np.asarray(step(a.value))
        error, variance = monotone(step, [a], value), None
        if error is not None and a.variance is not None:
            variance = np.where(error > 0, crossing(np.asarray(distance(a.value)), a) * error**2, 0.0)
        return [Bounded(value, error, variance=variance)]

    return operator


def _to_whole(x: Floats) -> Floats:
    return np.asarray(np.abs(x - np.rint(x)))


OPERATORS: dict[str, Operator] = {
    "Floor": _jumping(np.floor, _to_whole),
    "Ceil": _jumping(np.ceil, _to_whole),
    "Round": _jumping(np.rint, lambda x: 0.5 - _to_whole(x)),
    "Sign": _jumping(np.sign, np.abs),
}
