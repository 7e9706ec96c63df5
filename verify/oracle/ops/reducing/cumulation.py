"""Sums and products of all numbers up to each one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import KAPPA, Array, Bounded, Floats, rounded
from onnx_attest.verify.oracle.ops.moves.moving import only
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    required,
    rounds,
)

Cumulation = Callable[[Bounded, Arithmetic], Bounded]
"""Of numbers along the first axis."""


def _cumulating(cumulation: Cumulation, neutral: float) -> Operator:
    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        a, axis = required(inputs, 0), only(inputs, 1, 0)
        reverse, exclusive = node.get("reverse", 0), node.get("exclusive", 0)
        if not a.is_float and rounds(a):
            raise UnsupportedOperatorError(f"{node.operator} of integers that rounding decides")

        def first(array: Array) -> Array:
            moved = np.moveaxis(array, axis, 0)
            return moved[::-1] if reverse else moved

        def back(array: Array) -> Array:
            return np.moveaxis(array[::-1] if reverse else array, 0, axis)

        result = cumulation(a.moved(first), arithmetic)
        if exclusive:
            result = _shifted(result, neutral)
        return [result.moved(back)]

    return operator


def _shifted(a: Bounded, neutral: float) -> Bounded:
    """Return the numbers one place on, and what no numbers come to in front."""

    def shifted(array: Array, front: float) -> Array:
        return np.concatenate([np.full_like(array[:1], front), array[:-1]])

    error, variance = (
        None if own is None else shifted(np.broadcast_to(own, a.value.shape), 0.0)
        for own in (a.error, a.variance)
    )
    return Bounded(shifted(a.value, neutral), error, variance=variance)


def _accumulated(of: np.ufunc, array: Array) -> Array:
    return np.asarray(of.accumulate(array, axis=0, dtype=array.dtype))


def _counts(value: Floats) -> Floats:
    """Return how many numbers there are up to each one."""
    return np.arange(1.0, len(value) + 1).reshape(-1, *(1,) * (value.ndim - 1))


def _gamma(roundings: Floats, u: float) -> Floats:
    product = roundings * u
    return np.where(product < 1, product / np.maximum(1 - product, 2.0**-53), np.inf)


def _sums(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the sums, each in any order: sum E + gamma_(n - 1) sum (|x| + E)."""
    total = partial(_accumulated, np.add)
    if not a.is_float:
        return Bounded(total(a.value))
    if arithmetic.kernel is not None:
        return rounded(total(a.value.astype(arithmetic.kernel.working)).astype(np.float64), 0.0, arithmetic)
    value, inherited = total(a.value), total(np.broadcast_to(a.errors(), a.value.shape))
    size, before = total(np.abs(a.value)) + inherited, _counts(value) - 1
    own = np.where(size > 0, _gamma(before, arithmetic.u_acc) * size + before * arithmetic.omega, 0.0)
    variance: Floats | float = 0.0
    if arithmetic.deviations:
        partial_sums = (
            total(value**2) - value**2 - a.value[:1] ** 2
        )  # those between the first number and the result
        given = total(np.broadcast_to(a.variances(), value.shape))
        variance = given + KAPPA * arithmetic.u_acc**2 * np.maximum(partial_sums, 0.0)
    result = rounded(value, inherited + own, arithmetic, variance=variance)
    error = np.where(size > 0, result.errors(), 0.0)  # a sum of zeros is zero
    return Bounded(value, error, variance=result.variance)


def _products(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the products, each in any order: prod(|x| + E) - prod|x|, and gamma_(n - 1) prod(|x| + E)."""
    total = partial(_accumulated, np.multiply)
    if not a.is_float:
        return Bounded(total(a.value))
    if arithmetic.kernel is not None:
        return rounded(total(a.value.astype(arithmetic.kernel.working)).astype(np.float64), 0.0, arithmetic)
    value, sizes = total(a.value), np.abs(a.value) + a.errors()
    reached, before = total(sizes), _counts(value) - 1
    own = _gamma(before, max(arithmetic.u, arithmetic.u_acc)) * reached
    own = own + np.where(reached > 0, before * arithmetic.omega * total(np.maximum(sizes, 1.0)), 0.0)
    variance: Floats | float = 0.0
    if arithmetic.deviations:
        relative = np.divide(a.variances(), a.value**2, out=np.zeros_like(value), where=a.value != 0)
        roundings = KAPPA * arithmetic.u_acc**2 * np.maximum(before - 1, 0.0)
        variance = value**2 * (_accumulated(np.add, relative) + roundings)
    return rounded(value, reached - np.abs(value) + own, arithmetic, variance=variance)


OPERATORS: dict[str, Operator] = {"CumSum": _cumulating(_sums, 0.0), "CumProd": _cumulating(_products, 1.0)}
