"""Sums, means, norms, products and extremes over axes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import KAPPA, Array, Bounded, Floats, exact, rounded, sum_variance
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    required,
    rounds,
)
from onnx_attest.verify.oracle.ops.pointwise.composed import in_steps
from onnx_attest.verify.oracle.ops.pointwise.elementwise import absolute
from onnx_attest.verify.oracle.ops.pointwise.functions import logarithm

Axes = tuple[int, ...]
Reduction = Callable[[Bounded, Axes, bool, Arithmetic], Bounded]


def reduced_axes(node: Node, inputs: Inputs, rank: int) -> Axes:
    """Return the axes to reduce: an attribute before opset 13 (sum) or 18 (others), an input since; all by default."""
    given = integers(inputs, 1) if optional(inputs, 1) is not None else node.get("axes", ())
    if node.get("noop_with_empty_axes", 0) and not given:
        return ()
    return tuple(axis % rank for axis in given) or tuple(range(rank))


def reducing(reduction: Reduction, *, plain: bool = False) -> Operator:
    """Return the operator of a reduction; a `plain` one over no axes leaves its operand as it is."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        a = required(inputs, 0)
        axes, keepdims = reduced_axes(node, inputs, a.value.ndim), bool(node.get("keepdims", 1))
        return [a if plain and not axes else reduction(a, axes, keepdims, arithmetic)]

    return operator


def _terms(a: Bounded, axes: Axes) -> int:
    return int(np.prod([a.value.shape[axis] for axis in axes], dtype=np.int64))


def _sum(a: Bounded, axes: Axes, keepdims: bool, arithmetic: Arithmetic) -> Bounded:
    if a.is_float:
        return bounded.total(a, axes, keepdims=keepdims, arithmetic=arithmetic)
    return Bounded(np.asarray(_surely(a).sum(axes, dtype=a.value.dtype, keepdims=keepdims)))


def _surely(a: Bounded) -> Array:
    if rounds(a):
        raise UnsupportedOperatorError("reduces integers that rounding decides")
    return a.value


def _mean(a: Bounded, axes: Axes, keepdims: bool, arithmetic: Arithmetic) -> Bounded:
    terms = _terms(a, axes)
    if not terms:
        raise UnsupportedOperatorError("the mean of no numbers, which ONNX leaves undefined")
    if a.is_float:
        total = bounded.total(a, axes, keepdims=keepdims, arithmetic=arithmetic)
        return bounded.divide(total, exact(np.array(float(terms))), arithmetic)
    total = _sum(a, axes, keepdims, arithmetic)
    if np.any(np.abs(a.value.sum(axes, dtype=np.float64, keepdims=keepdims)) > np.iinfo(a.value.dtype).max):
        raise UnsupportedOperatorError(f"ReduceMean of a sum beyond {a.value.dtype}")
    size = np.abs(total.value) // terms
    return Bounded(np.asarray(np.sign(total.value) * size, a.value.dtype))


def _l1(a: Bounded, axes: Axes, keepdims: bool, arithmetic: Arithmetic) -> Bounded:
    return _sum(absolute(a, arithmetic), axes, keepdims, arithmetic)


def _sum_square(a: Bounded, axes: Axes, keepdims: bool, arithmetic: Arithmetic) -> Bounded:
    if not a.is_float:
        return _sum(Bounded(_surely(a) * a.value), axes, keepdims, arithmetic)
    squares = bounded.multiply(a, a, in_steps(arithmetic))
    variance = squares.variance
    if (
        variance is not None
    ):  # both factors are off by the same: four times the variance, of which a product has two
        variance = variance + 2 * np.where(a.value == 0, 0.0, a.value**2 * a.variances())
    surely_zero = (a.value == 0) & (np.asarray(a.errors()) == 0)
    error = np.where(surely_zero, 0.0, squares.errors())
    return _sum(Bounded(squares.value, error, variance=variance), axes, keepdims, arithmetic)


def _l2(a: Bounded, axes: Axes, keepdims: bool, arithmetic: Arithmetic) -> Bounded:
    """Return the norm: off by the norm of the errors, half of gamma_(n + 1) and the root's rounding, relative to it.

    Squares that are flushed to zero take up to sqrt(n omega), those beyond the largest number all.
    """
    if not a.is_float:
        raise UnsupportedOperatorError("ReduceL2 of integers: rounding decides the root")

    def total(numbers: Array) -> Floats:
        return np.asarray(np.broadcast_to(numbers, a.value.shape).sum(axes, keepdims=keepdims))

    squares = total(a.value**2)
    value, terms = np.sqrt(squares), _terms(a, axes)
    if arithmetic.kernel is not None:
        steps = in_steps(arithmetic).kernel
        assert steps is not None
        return rounded(
            np.sqrt(steps.total(steps.stored(a.value**2), axes, keepdims=keepdims)), 0.0, arithmetic
        )
    inherited, u = np.sqrt(total(np.square(a.errors()))), max(arithmetic.u, arithmetic.u_s)
    reached = value + inherited
    relative = 0.5 * (gamma(terms, arithmetic.u_acc) + 2 * u) * (1 + arithmetic.u_acc) + u
    lost = terms * arithmetic.omega
    flushed = np.where(reached > 0, np.sqrt(np.square(reached) + lost) - reached, 0.0)
    overflowing = np.where(np.square(reached) > arithmetic.largest, np.inf, 0.0)
    variance: Floats | float = 0.0
    if arithmetic.deviations:
        safe = np.where(squares > 0, squares, 1.0)
        summed = sum_variance(np.ones_like(value), total(a.value**4) / safe**2, terms, arithmetic)
        variance = total(a.value**2 * a.variances()) / safe + squares * (summed / 4 + KAPPA * u * u / 4)
    return rounded(
        value, inherited + relative * reached + flushed + overflowing, arithmetic, variance=variance
    )


def _log_sum(a: Bounded, axes: Axes, keepdims: bool, arithmetic: Arithmetic) -> Bounded:
    if not a.is_float:
        raise UnsupportedOperatorError("ReduceLogSum of integers, for which there is no logarithm")
    steps = in_steps(arithmetic)
    return logarithm(bounded.total(a, axes, keepdims=keepdims, arithmetic=steps), arithmetic)


def _product(a: Bounded, axes: Axes, keepdims: bool, arithmetic: Arithmetic) -> Bounded:
    """Return the product in any order: prod(|x| + E) - prod|x|, and gamma_(n - 1) prod(|x| + E)."""

    def total(numbers: Array) -> Array:
        return np.asarray(numbers.prod(axes, dtype=numbers.dtype, keepdims=keepdims))

    if not a.is_float:
        return Bounded(total(_surely(a)))
    if arithmetic.kernel is not None:
        return rounded(total(a.value.astype(arithmetic.kernel.working)).astype(np.float64), 0.0, arithmetic)
    value, terms = total(a.value), _terms(a, axes)
    size = np.abs(a.value) + a.errors()
    reached, partial = total(size), total(np.maximum(size, 1.0))
    own = gamma(max(terms - 1, 0), max(arithmetic.u, arithmetic.u_acc)) * reached
    flushed = np.where(reached > 0, terms * arithmetic.omega * partial, 0.0)
    # In some order the product overflows, although it does not in the end.
    overflowing = np.where((partial > arithmetic.largest) & (terms > 2), np.inf, 0.0)
    error = reached - np.abs(value) + own + flushed + np.where(reached > 0, overflowing, 0.0)
    variance: Floats | float = 0.0
    if arithmetic.deviations:
        relative = np.divide(a.variances(), a.value**2, out=np.zeros_like(a.value), where=a.value != 0)
        own_variance = (
            KAPPA * arithmetic.u_acc**2 * max(terms - 2, 0)
        )  # the last rounding is counted with the result
        variance = value**2 * (relative.sum(axes, keepdims=keepdims) + own_variance)
    return rounded(value, error, arithmetic, variance=variance)


def largest(a: Bounded, axes: Axes, keepdims: bool, arithmetic: Arithmetic) -> Bounded:
    """Return the maximum; of no numbers it is the lowest number of the type."""
    return bounded.largest(a, axes, keepdims=keepdims)


def _smallest(a: Bounded, axes: Axes, keepdims: bool, arithmetic: Arithmetic) -> Bounded:
    """Return the minimum; of no numbers it is the largest number of the type."""
    if a.is_float:
        negative = bounded.largest(Bounded(-a.value, a.error, variance=a.variance), axes, keepdims=keepdims)
        return Bounded(-negative.value, negative.error, variance=negative.variance)
    if a.value.dtype == np.bool_:
        return Bounded(np.asarray(a.value.all(axes, keepdims=keepdims)))
    initial = np.iinfo(a.value.dtype).max
    return Bounded(np.asarray(_surely(a).min(axes, keepdims=keepdims, initial=initial)))


OPERATORS: dict[str, Operator] = {
    "ReduceSum": reducing(_sum, plain=True),
    "ReduceMean": reducing(_mean, plain=True),
    "ReduceL1": reducing(_l1),
    "ReduceL2": reducing(_l2),
    "ReduceSumSquare": reducing(_sum_square),
    "ReduceLogSum": reducing(_log_sum),
    "ReduceProd": reducing(_product, plain=True),
    "ReduceMax": reducing(largest, plain=True),
    "ReduceMin": reducing(_smallest, plain=True),
}
