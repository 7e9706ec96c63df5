"""Elementwise operators, comparisons and casts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    required,
    tensors,
)


def _binary(
    real: Callable[[Bounded, Bounded, Arithmetic], Bounded], integer: Callable[[Any, Any], Any]
) -> Operator:
    """Return the operator that is `real` on floats and `integer`, exact, on integers."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        a, b = required(inputs, 0), required(inputs, 1)
        if a.is_float:
            return [real(a, b, arithmetic)]
        return [Bounded(np.asarray(integer(a.value, b.value)))]

    return operator


def _truncated_quotient(a: Any, b: Any) -> Any:
    # ONNX divides integers like C: towards zero.
    return (np.abs(a) // np.abs(b)) * np.sign(a) * np.sign(b)


def _unary(function: Callable[[Bounded, Arithmetic], Bounded]) -> Operator:
    return lambda node, inputs, arithmetic: [function(required(inputs, 0), arithmetic)]


def _comparison(compare: Callable[[Any, Any], Any]) -> Operator:
    """Return a comparison; on floats it is only defined where rounding cannot decide it."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        a, b = required(inputs, 0), required(inputs, 1)
        uncertain = np.asarray(a.errors() + b.errors())
        if uncertain.any() and np.any((uncertain > 0) & (np.abs(a.value - b.value) <= uncertain)):
            raise UnsupportedOperatorError("compares numbers that are equal within their rounding errors")
        return [Bounded(np.asarray(compare(a.value, b.value)))]

    return operator


def _logical(function: Callable[..., Any]) -> Operator:
    return lambda node, inputs, arithmetic: [
        Bounded(np.asarray(function(*(part.value for part in tensors(inputs)))))
    ]


def _extreme(choose: Callable[[Any, Any], Any]) -> Operator:
    """Return Max or Min of any number of inputs: off by no more than the worst of them."""

    def operator(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        parts = tensors(inputs)
        value = functools.reduce(choose, (part.value for part in parts))
        errors = [np.asarray(part.errors()) for part in parts]
        if not any(error.any() for error in errors):
            return [Bounded(value)]
        variance = None
        if any(part.variance is not None for part in parts):
            own = [np.where(part.value == value, part.variances(), 0.0) for part in parts]
            variance = np.broadcast_to(functools.reduce(np.maximum, own), value.shape)
        error = np.broadcast_to(functools.reduce(np.maximum, errors), value.shape)
        return [Bounded(value, error, variance=variance)]

    return operator


def _mod(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a, b = required(inputs, 0), required(inputs, 1)
    if a.is_float:
        raise UnsupportedOperatorError("Mod of floats: it jumps where rounding decides")
    return [Bounded(np.asarray((np.fmod if node.get("fmod", 0) else np.mod)(a.value, b.value)))]


def _is_nan(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return [Bounded(np.isnan(required(inputs, 0).value))]


def _negate(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    return Bounded(-a.value, a.error, variance=a.variance)


def _absolute(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    return Bounded(np.abs(a.value), a.error, variance=a.variance)


def _where(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    return [bounded.where(required(inputs, 0), required(inputs, 1), required(inputs, 2))]


def _cast(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a = required(inputs, 0)
    target = onnx.helper.tensor_dtype_to_np_dtype(node.get("to"))
    node.get("saturate")  # of eight-bit floats only, which are refused
    if not bounded.is_floating(target):
        return [_cast_to_integer(a, target)]
    return [_cast_to_float(a, target)]


def _cast_to_float(a: Bounded, target: Any) -> Bounded:
    """Return the number rounded to the format: exactly so if it was exact, else with one more rounding.

    A mask's -inf and the numbers beyond the format, which become infinite, stay what they are.
    """
    value = a.value.astype(np.float64)
    with np.errstate(over="ignore"):
        stored = value.astype(target).astype(np.float64)
    if a.error is None:
        return Bounded(stored)
    error = np.broadcast_to(a.error, value.shape)
    rounding = float(ml_dtypes.finfo(target).eps) / 2 * (np.abs(value) + error) + float(
        ml_dtypes.finfo(target).smallest_subnormal
    )
    kept = np.where(np.isfinite(value) & (np.abs(value) + error > 0), error + rounding, 0.0)  # 0 stays 0
    variance = None
    if a.variance is not None:
        own = bounded.KAPPA * (float(ml_dtypes.finfo(target).eps) / 2 * value) ** 2
        variance = np.where(np.isfinite(value), a.variance + own, 0.0)
    return Bounded(value, kept, a.magnitude, a.softmax, variance=variance)


def _cast_to_integer(a: Bounded, target: Any) -> Bounded:
    if a.is_float and np.any(np.asarray(a.errors()) > 0):
        raise UnsupportedOperatorError(f"Cast of a rounded number to {np.dtype(target).name}")
    if np.dtype(target).itemsize < 1 or np.dtype(target).kind not in "iub":
        raise UnsupportedOperatorError(f"Cast to {np.dtype(target).name}")
    return Bounded(a.value.astype(target))


OPERATORS: dict[str, Operator] = {
    "Add": _binary(bounded.add, np.add),
    "Sub": _binary(bounded.subtract, np.subtract),
    "Mul": _binary(bounded.multiply, np.multiply),
    "Div": _binary(bounded.divide, _truncated_quotient),
    "Mod": _mod,
    "Exp": _unary(bounded.exponential),
    "Sqrt": _unary(bounded.root),
    "Neg": _unary(_negate),
    "Abs": _unary(_absolute),
    "Equal": _comparison(np.equal),
    "Less": _comparison(np.less),
    "LessOrEqual": _comparison(np.less_equal),
    "Greater": _comparison(np.greater),
    "GreaterOrEqual": _comparison(np.greater_equal),
    "And": _logical(np.logical_and),
    "Or": _logical(np.logical_or),
    "Not": _logical(np.logical_not),
    "IsNaN": _is_nan,
    "Max": _extreme(np.maximum),
    "Min": _extreme(np.minimum),
    "Where": _where,
    "Cast": _cast,
}
