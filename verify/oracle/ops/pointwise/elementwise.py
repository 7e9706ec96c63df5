"""Arithmetic of two or more operands, element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Array, Bounded, exact, rounded
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    required,
    rounds,
    tensors,
)
from onnx_attest.verify.oracle.ops.pointwise.broadcasting import operands
from onnx_attest.verify.oracle.ops.pointwise.composed import in_steps
from onnx_attest.verify.oracle.ops.pointwise.curves import unary


def _binary(
    real: Callable[[Bounded, Bounded, Arithmetic], Bounded], integer: Callable[[Bounded, Bounded], Bounded]
) -> Operator:
    """Return the operator that is `real` on floats and `integer`, which wraps around, on integers."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        a, b = operands(node, inputs)
        return [real(a, b, arithmetic) if a.is_float else integer(a, b)]

    return operator


def _wrapping(
    combine: Callable[[Any, Any], Any], *, linear: bool = False
) -> Callable[[Bounded, Bounded], Bounded]:
    """Return an operation on integers; codes that may be off have errors that only a sum keeps as they are."""

    def operation(a: Bounded, b: Bounded) -> Bounded:
        uncertain = rounds(a) or rounds(b)
        if uncertain and not linear:
            raise UnsupportedOperatorError("a product of integers that rounding decides")
        value = np.asarray(combine(a.value, b.value))
        return Bounded(value, np.broadcast_to(a.errors() + b.errors(), value.shape) if uncertain else None)

    return operation


def _quotient(a: Array, b: Array) -> Array:
    """Return the quotient of integers as C has it: towards zero."""
    if np.any(b == 0):
        raise UnsupportedOperatorError("divides integers by zero")
    floor = np.floor_divide(a, b)
    cut = (floor * b != a) & ((a < 0) != (b < 0))
    return np.asarray(floor + cut.astype(floor.dtype))


def _negative(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    return Bounded(-a.value, a.error, variance=a.variance)


def absolute(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return |a|."""
    return Bounded(np.abs(a.value), a.error, variance=a.variance)


def _where(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return [bounded.where(required(inputs, 0), required(inputs, 1), required(inputs, 2))]


def _summed(parts: list[Bounded], arithmetic: Arithmetic) -> Bounded:
    """Return the sum of tensors in any order: sum E + gamma_(n - 1) sum (|x| + E)."""
    steps = in_steps(arithmetic)
    result = functools.reduce(lambda a, b: bounded.add(a, b, steps), parts)
    if len(parts) <= 2 or arithmetic.kernel is not None:
        return result
    inherited = functools.reduce(np.add, (np.asarray(part.errors()) for part in parts))
    size = functools.reduce(np.add, (np.abs(part.value) for part in parts)) + inherited
    roundings = len(parts) - 1
    error = inherited + gamma(roundings, steps.u) * size + roundings * steps.omega
    error = np.where(np.isfinite(result.value), error, 0.0)
    return Bounded(result.value, error, variance=result.variance)


def _sum(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    node.get("consumed_inputs")
    return [_summed(tensors(inputs), arithmetic)]


def _mean(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    node.get("consumed_inputs")
    parts = tensors(inputs)
    return [bounded.divide(_summed(parts, arithmetic), exact(np.array(float(len(parts)))), arithmetic)]


def _mod(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a, b = required(inputs, 0), required(inputs, 1)
    truncated = bool(node.get("fmod", 0))
    function = np.fmod if truncated else np.mod
    if a.is_float:
        if not truncated and node.opset < _SINCE_FLOORED_FLOATS:
            raise UnsupportedOperatorError(
                "Mod of floats without fmod, to which ONNX gave no meaning before opset 28"
            )
        return [_real_remainder(a, b, arithmetic, truncated=truncated)]
    if rounds(a) or rounds(b) or np.any(b.value == 0):
        raise UnsupportedOperatorError("Mod by zero, or of integers that rounding decides")
    return [Bounded(np.asarray(function(a.value, b.value)))]


def _real_remainder(a: Bounded, b: Bounded, arithmetic: Arithmetic, *, truncated: bool) -> Bounded:
    """Return a - n b, n = trunc(a / b) or floor(a / b): off by E_a + |n| E_b while n is sure, else by a whole b.

    C's fmod is exact. Of a - floor(a / b) b the product and the difference are rounded.
    """
    value = np.asarray((np.fmod if truncated else np.mod)(a.value, b.value))
    if arithmetic.kernel is not None:
        return rounded(value, 0.0, arithmetic)
    ea, eb = np.asarray(a.errors()), np.asarray(b.errors())
    size = np.abs(b.value)
    if np.any((eb > 0) & (size <= eb)):
        raise UnsupportedOperatorError("Mod by a number that is zero within its rounding error")
    whole = np.trunc if truncated else np.floor
    quotients = [
        whole((a.value + s * ea) / (b.value + t * eb)) for s in (-1.0, 1.0) for t in (-1.0, 1.0)
    ]  # a quotient is monotone in both: its ends are among these
    n = whole(a.value / b.value)
    sure = np.logical_and.reduce([quotient == n for quotient in quotients]) | ((ea == 0) & (eb == 0))
    inherited = np.where(sure, ea + np.where(eb > 0, np.abs(n) * eb, 0.0), size + eb + np.abs(value))
    variance = a.variances() + np.where(eb > 0, n * n * b.variances(), 0.0)
    variance = np.where(sure, variance, size**2 / 4)  # about half of the time a whole b off, at the most
    if truncated:
        error = np.where(np.isfinite(value), inherited, 0.0)
        return Bounded(value, error, variance=variance if arithmetic.deviations else None)
    u = max(arithmetic.u, arithmetic.u_s)
    own = np.where(np.isfinite(size), u * (np.abs(a.value) + ea + size + eb), 0.0)
    return rounded(value, inherited + own, arithmetic, variance=variance)


_SINCE_FLOORED_FLOATS = 28
"""Before opset 28, floats had C's remainder only."""

OPERATORS: dict[str, Operator] = {
    "Add": _binary(bounded.add, _wrapping(np.add, linear=True)),
    "Sub": _binary(bounded.subtract, _wrapping(np.subtract, linear=True)),
    "Mul": _binary(bounded.multiply, _wrapping(np.multiply)),
    "Div": _binary(bounded.divide, _wrapping(_quotient)),
    "Mod": _mod,
    "Sum": _sum,
    "Mean": _mean,
    "Neg": unary(_negative),
    "Abs": unary(absolute),
    "Where": _where,
}
