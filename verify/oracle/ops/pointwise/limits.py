"""Operators that keep numbers within limits, or choose among them: the largest, the smallest, what is in an interval."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Array, Bounded, Floats, exact, is_floating
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    optional,
    required,
    tensors,
)

_SINCE_INPUTS = 11
"""From opset 11 on the limits of Clip are inputs; before, attributes."""
_LOWEST, _LARGEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)
"""Their defaults as attributes, for every type."""


def monotone(choose: Callable[..., Array], parts: Sequence[Bounded], value: Array) -> Floats | None:
    """Return the error of a function that rises with each operand: it is farthest off where all are, one way."""
    if all(part.error is None for part in parts):
        return None
    ends = [
        choose(*(np.asarray(part.value + sign * part.errors(), np.float64) for part in parts))
        for sign in (1.0, -1.0)
    ]
    known = np.isfinite(value)
    error = np.maximum(
        *(np.abs(np.subtract(end, value, where=known, out=np.zeros(value.shape))) for end in ends)
    )
    return np.asarray(error)


def chosen(choose: Callable[..., Array], *parts: Bounded) -> Bounded:
    """Return the one of the operands that a rising function chooses, with its variance."""
    value = np.asarray(choose(*(part.value for part in parts)))
    variance = None
    if any(part.variance is not None for part in parts):
        own = [np.where(part.value == value, part.variances(), 0.0) for part in parts]
        variance = np.broadcast_to(functools.reduce(np.maximum, own), value.shape)
    return Bounded(value, monotone(choose, parts, value), variance=variance)


def clipped(a: Bounded, low: Bounded | None, high: Bounded | None) -> Bounded:
    """Return a within limits; the upper one where they cross. A number that surely is beyond one has its error only."""
    limits = [limit for limit in (low, high) if limit is not None]
    chooses = [choose for choose, limit in ((np.maximum, low), (np.minimum, high)) if limit is not None]

    def choose(*numbers: Array) -> Array:
        value = numbers[0]
        for limit, own in zip(numbers[1:], chooses, strict=True):
            value = own(value, limit)
        return value

    return chosen(choose, a, *limits)


def _extreme(choose: Callable[[Any, Any], Any]) -> Operator:
    """Return Max or Min of any number of inputs."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        node.get("consumed_inputs")
        return [chosen(lambda *numbers: functools.reduce(choose, numbers), *tensors(inputs))]

    return operator


def _clip(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a = required(inputs, 0)
    if node.opset < _SINCE_INPUTS:
        node.get("consumed_inputs")
        return [clipped(a, node.real("min", _LOWEST), node.real("max", _LARGEST))]
    low, high = optional(inputs, 1), optional(inputs, 2)
    return [clipped(a, _given(low, node, a, np.isneginf, "min"), _given(high, node, a, np.isposinf, "max"))]


def _given(
    limit: Bounded | None, node: Node, a: Bounded, infinite: Callable[[Array], Array], which: str
) -> Bounded | None:
    """Return a limit; one that is not given is the last number of the type, which only infinities are beyond."""
    if limit is not None:
        return limit.moved(lambda array: array.reshape(()))
    if not a.is_float or not infinite(a.value).any():
        return None
    kind = node.type_of(node.inputs[0])
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind) if kind else None
    if dtype is None or not is_floating(dtype):
        raise UnsupportedOperatorError(f"Clip of infinities of a type that is not known, without {which}")
    return exact(np.array(float(getattr(ml_dtypes.finfo(dtype), which))))


OPERATORS: dict[str, Operator] = {
    "Max": _extreme(np.maximum),
    "Min": _extreme(np.minimum),
    "Clip": _clip,
}
