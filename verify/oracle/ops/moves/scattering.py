"""Operators that put numbers to where indices say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import KAPPA, Array, Bounded, Floats
from onnx_attest.verify.oracle.ops.moves.indexing import along
from onnx_attest.verify.oracle.ops.moves.moving import arranged
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    optional,
    placing,
    required,
)

Places = tuple[Array, ...]
"""An index for each of the first axes, of shapes that fit together."""
Reduction = Callable[[Bounded, Places, Bounded, Arithmetic], Bounded]


def _scatter_elements(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    places = along(placing(inputs, 1), node.get("axis", 0))
    return [_scattered(node, inputs, places, arithmetic)]


def _scatter_nd(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    places = tuple(np.moveaxis(placing(inputs, 1), -1, 0))
    return [_scattered(node, inputs, places, arithmetic)]


def _scattered(node: Node, inputs: Inputs, places: Places, arithmetic: Arithmetic) -> Bounded:
    data, updates = required(inputs, 0), required(inputs, 2)
    reduction = node.get("reduction", "none")
    if reduction == "none":
        return _replaced(data, places, updates)
    if reduction not in _REDUCTIONS:
        raise UnsupportedOperatorError(f"{node.operator} with the reduction {reduction}")
    return _REDUCTIONS[reduction](data, places, updates, arithmetic)


def _tensor_scatter(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    past, update = required(inputs, 0), required(inputs, 1)
    axis = node.get("axis", -2) % past.value.ndim
    places: list[Array] = list(np.indices(update.value.shape, sparse=True))
    if optional(inputs, 2) is not None:
        places[axis] = places[axis] + placing(inputs, 2).reshape(-1, *(1,) * (past.value.ndim - 1))
    if node.get("mode", "linear") == "circular":
        places[axis] = places[axis] % past.value.shape[axis]
    return [_replaced(past, tuple(places), update)]


def _replaced(data: Bounded, places: Places, updates: Bounded) -> Bounded:
    """Return the data with updates in their places.

    Raises:
        UnsupportedOperatorError: two unlike updates for one place: the standard forbids it, or leaves the order open.
    """

    def put(old: Array, new: Array) -> Array:
        result = old.copy()
        result[places] = new
        if result[places].tobytes() != np.ascontiguousarray(new).tobytes():
            raise UnsupportedOperatorError("several updates of one place, without a reduction")
        return result

    return arranged(put, data, updates)


def _at(function: Any, data: Array, places: Places, updates: Any) -> Array:
    """Return the data with each of the updates applied in its place, one after another."""
    result = np.array(data)
    function.at(result, places, updates)
    return result


def _counts(data: Bounded, places: Places) -> Floats:
    return _at(np.add, np.zeros(data.value.shape), places, np.ones(()))


def _gammas(counts: Floats, u: float) -> Floats:
    """Return gamma_n for each of many n."""
    product = counts * u
    result: Floats = np.full(product.shape, np.inf)
    np.divide(product, 1.0 - product, out=result, where=product < 1.0)
    return result


def _step(a: Bounded, arithmetic: Arithmetic) -> float:
    """Return the unit roundoff of one step: the result is stored after each, as the sum is the output itself."""
    return max(arithmetic.u, arithmetic.u_s, arithmetic.u_acc) if a.is_float else 0.0


def _carried_out(
    function: Any, data: Bounded, places: Places, updates: Bounded, arithmetic: Arithmetic
) -> Bounded | None:
    """Return the result without a bound where there is none: that of whole numbers, or of a kernel."""
    kernel = arithmetic.kernel
    if data.is_float and kernel is not None:
        operands = (data.value.astype(kernel.working), updates.value.astype(kernel.working))
        return Bounded(kernel.stored(_at(function, operands[0], places, operands[1])))
    if not data.is_float and data.error is None and updates.error is None:
        return Bounded(_at(function, data.value, places, updates.value))
    return None


def _added(data: Bounded, places: Places, updates: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the sums, in whatever order: gamma_n (sum |x| + E) of n updates each."""
    simple = _carried_out(np.add, data, places, updates, arithmetic)
    if simple is not None:
        return simple
    value = _at(np.add, data.value, places, updates.value)
    counts = _counts(data, places)
    inherited = _sums(data.errors(), updates.errors(), value, places)
    sizes = _sums(np.abs(data.value), np.abs(updates.value), value, places) + inherited
    own = _gammas(counts, _step(data, arithmetic)) * sizes
    own = own + np.where(sizes > 0, counts * arithmetic.omega, 0.0) * data.is_float
    variance = None
    if arithmetic.deviations:
        squares = _sums(data.value**2, updates.value**2, value, places)
        spread = KAPPA * (arithmetic.u**2 + arithmetic.u_s**2) * (counts + 2) * (value**2 / 3 + squares / 6)
        given = _sums(data.variances(), updates.variances(), value, places)
        variance = given + np.where(counts > 0, spread, 0.0)  # see bounded.sum_variance
    return _finished(value, inherited + np.where(counts > 0, own, 0.0), variance)


def _sums(data: Any, updates: Any, like: Array, places: Places) -> Floats:
    return np.asarray(_at(np.add, np.broadcast_to(np.asarray(data, np.float64), like.shape), places, updates))


def _multiplied(data: Bounded, places: Places, updates: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the products, in whatever order: (1 + gamma_n) prod (|x| + E) - prod |x| of n updates each.

    A partial product may be flushed, and is then multiplied with what remains.
    """
    simple = _carried_out(np.multiply, data, places, updates, arithmetic)
    if simple is not None:
        return simple
    value = _at(np.multiply, data.value, places, updates.value)
    counts = _counts(data, places)
    given = np.broadcast_to(np.asarray(data.errors()), value.shape)
    parts = [np.abs(part.value).astype(np.float64) for part in (data, updates)]
    reached = [part + own.errors() for part, own in zip(parts, (data, updates), strict=True)]
    most, plain = (
        _at(np.multiply, reached[0], places, reached[1]),
        _at(np.multiply, parts[0], places, parts[1]),
    )
    flushed = counts * arithmetic.omega * data.is_float
    flushed = flushed * _at(np.multiply, np.maximum(reached[0], 1), places, np.maximum(reached[1], 1))
    with np.errstate(invalid="ignore", over="ignore"):
        own = most - plain + _gammas(counts, _step(data, arithmetic)) * most
    own = own + np.where(most > 0, flushed, 0.0)
    variance = None
    if arithmetic.deviations:
        relative = _sums(_relative(data), _relative(updates), value, places)
        spread = (relative + KAPPA * (arithmetic.u**2 + arithmetic.u_s**2) * counts) * value**2
        variance = np.where(counts > 0, spread, np.broadcast_to(data.variances(), value.shape))
    return _finished(value, np.where(counts > 0, own, given), variance)


def _relative(a: Bounded) -> Floats:
    squares = a.value.astype(np.float64) ** 2
    given = np.broadcast_to(np.asarray(a.variances()), squares.shape)
    result: Floats = np.zeros(squares.shape)
    np.divide(given, squares, out=result, where=squares > 0)
    return result


def _extreme(function: Any) -> Reduction:
    """Return max or min, which is off by no more than the worst of what it chooses from."""

    def reduce(data: Bounded, places: Places, updates: Bounded, arithmetic: Arithmetic) -> Bounded:
        value = _at(function, data.value, places, updates.value)
        if data.error is None and updates.error is None:
            return Bounded(value)
        error = np.broadcast_to(np.asarray(data.errors()), value.shape)
        error = _at(np.maximum, error, places, updates.errors())
        variance = None
        if arithmetic.deviations:
            chosen = np.where(data.value == value, data.variances(), 0.0)
            others = np.where(updates.value == value[places], updates.variances(), 0.0)
            variance = _at(np.maximum, chosen, places, others)
        return _finished(value, error, variance)

    return reduce


def _finished(value: Array, error: Floats, variance: Floats | None) -> Bounded:
    """Return the result with no error where it is infinite or NaN, and an infinite one where it is not known."""
    known = np.where(np.isnan(error), np.inf, error)
    kept = np.where(np.isfinite(value), known, 0.0)
    if variance is not None:
        variance = np.where(np.isfinite(value) & np.isfinite(variance), variance, 0.0)
    return Bounded(value, kept, variance=variance)


_REDUCTIONS: dict[str, Reduction] = {
    "add": _added,
    "mul": _multiplied,
    "max": _extreme(np.maximum),
    "min": _extreme(np.minimum),
}

OPERATORS: dict[str, Operator] = {
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
}
