"""Where the largest number is: ArgMax, ArgMin and Hardmax."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Array, Bounded
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    required,
    rounds,
)
from onnx_attest.verify.oracle.ops.reducing.log_softmax import by_rows


def first_largest(a: Bounded, *, last: bool = False) -> NDArray[np.int64]:
    """Return the place of the largest number along the last axis; of several that are equal the first, or the last.

    Raises:
        UnsupportedOperatorError: rounding decides, or a number is none.
    """
    if a.is_float and np.isnan(a.value).any():
        raise UnsupportedOperatorError("the place of the largest of numbers that are not all numbers")
    place = a.value.shape[-1] - 1 - a.value[..., ::-1].argmax(-1) if last else a.value.argmax(-1)
    if rounds(a):
        error, there = np.broadcast_to(a.errors(), a.value.shape), place[..., None]
        top, of_top = (np.take_along_axis(part, there, -1) for part in (a.value, error))
        others = np.arange(a.value.shape[-1]) != there
        close = (a.value + error >= top - of_top) & (error + of_top > 0)
        if np.any(others & close):
            raise UnsupportedOperatorError(
                "the place of the largest of numbers that are equal within rounding errors"
            )
    return np.asarray(place, np.int64)


def _place(node: Node, inputs: Inputs, *, smallest: bool) -> list[Bounded]:
    a, last = required(inputs, 0), bool(node.get("select_last_index", 0))
    axis, keepdims = node.get("axis", 0), bool(node.get("keepdims", 1))
    turned = Bounded(_reversed(a.value) if smallest else a.value, a.error)
    place = first_largest(turned.moved(lambda array: np.moveaxis(array, axis, -1)), last=last)
    return [Bounded(np.expand_dims(place, axis) if keepdims else np.asarray(place))]


def _reversed(array: Array) -> Array:
    """Return numbers in the opposite order: no integer of a type is lost, as the lowest one's negative is."""
    return -array if array.dtype.kind == "f" else np.invert(array)


def _arg_max(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return _place(node, inputs, smallest=False)


def _arg_min(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return _place(node, inputs, smallest=True)


def _hardmax(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Hardmax: 1 at the first largest number of a row, 0 elsewhere."""

    def of(rows: Bounded) -> Bounded:
        if not rows.value.size:
            return Bounded(rows.value)
        places = np.arange(rows.value.shape[-1])
        return Bounded((places == first_largest(rows)[..., None]).astype(np.float64))

    return [by_rows(node, required(inputs, 0), of)]


OPERATORS: dict[str, Operator] = {"ArgMax": _arg_max, "ArgMin": _arg_min, "Hardmax": _hardmax}
