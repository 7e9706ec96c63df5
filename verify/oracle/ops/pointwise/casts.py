"""Casts: to a shorter format numbers round, to integers they are cut off."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Array, Bounded
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    required,
    rounds,
)


def _cast(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    to = node.get("to")
    kind = onnx.TensorProto.DataType.Value(to) if isinstance(to, str) else to  # a name before opset 6
    return [_cast_to(node, required(inputs, 0), kind)]


def _cast_like(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    kind = node.type_of(node.inputs[1])
    like = required(inputs, 1)
    if not kind and not like.is_float:  # floats are float64 here whatever they are in the file
        kind = onnx.helper.np_dtype_to_tensor_dtype(like.value.dtype)
    if not kind:
        raise UnsupportedOperatorError("CastLike to a type that is not known")
    return [_cast_to(node, required(inputs, 0), kind)]


def _cast_to(node: Node, a: Bounded, kind: int) -> Bounded:
    for irrelevant in ("saturate", "round_mode"):  # of eight-bit floats only, which are refused
        node.get(irrelevant)
    target = onnx.helper.tensor_dtype_to_np_dtype(kind)
    if bounded.is_floating(target):
        return _to_float(a, target)
    if np.dtype(target).kind not in "iub":
        raise UnsupportedOperatorError(f"Cast to {np.dtype(target).name}")
    if target == np.bool_:
        return _to_bool(a)
    return _to_integer(a, target) if a.is_float else _between_integers(a, target)


def _to_float(a: Bounded, target: Any) -> Bounded:
    """Return the number rounded to the format: exactly so if it was exact, else with one more rounding.

    A mask's -inf stays what it is, and so does a rounded number beyond the format: an overflow inside is the runtime's.
    """
    with np.errstate(over="ignore"):
        stored = a.value.astype(target).astype(np.float64)
    if a.error is None:
        return Bounded(stored)
    value, kind = a.value.astype(np.float64), ml_dtypes.finfo(target)
    error = np.broadcast_to(a.error, value.shape)
    rounding = float(kind.eps) / 2 * (np.abs(value) + error) + float(kind.smallest_subnormal)
    kept = np.where(np.isfinite(value) & (np.abs(value) + error > 0), error + rounding, 0.0)  # 0 stays 0
    variance = None
    if a.variance is not None:
        own = bounded.KAPPA * (float(kind.eps) / 2 * value) ** 2
        variance = np.where(np.isfinite(value), a.variance + own, 0.0)
    return Bounded(value, kept, a.magnitude, a.softmax, variance=variance)


def _to_integer(a: Bounded, target: Any) -> Bounded:
    """Return the number cut off: off by what rounding decides, and by anything where the type does not have it.

    There ONNX says nothing: an exporter casts what it does not use, the logarithm of 0 for example, and chooses later.
    """
    error = np.broadcast_to(a.errors(), a.value.shape)
    ends = [np.trunc(a.value + sign * error) for sign in (1.0, -1.0)]
    known = np.logical_and.reduce([_is_in(end, target) for end in ends])
    value = np.trunc(np.where(known, a.value, 0.0))
    off = np.where(known, np.maximum(np.abs(ends[0] - value), np.abs(ends[1] - value)), np.inf)
    return Bounded(value.astype(target), off if off.any() else None)


def _is_in(value: Array, target: Any) -> Array:
    known = np.iinfo(target)
    # 2^63 - 1 is no float64: the first number that is too large is compared with.
    return np.asarray((value >= float(known.min)) & (value < float(known.max // 2 + 1) * 2))


def _refuse_beyond(value: Array, target: Any) -> None:
    if not np.all(_is_in(value, target)):
        raise UnsupportedOperatorError(f"Cast to {np.dtype(target).name} of a number beyond it")


def _between_integers(a: Bounded, target: Any) -> Bounded:
    """Return an integer without the bits that the type does not have; one that may be off stays so."""
    if not rounds(a):
        return Bounded(a.value.astype(target))
    for sign in (1.0, -1.0):
        _refuse_beyond(a.value + sign * a.errors(), target)
    return Bounded(a.value.astype(target), a.error, variance=a.variance)


def _to_bool(a: Bounded) -> Bounded:
    error = np.asarray(a.errors())
    if np.any((error > 0) & (np.abs(a.value) <= error)):
        raise UnsupportedOperatorError("Cast to bool of a number that is zero within its rounding error")
    return Bounded(a.value.astype(np.bool_))


OPERATORS: dict[str, Operator] = {"Cast": _cast, "CastLike": _cast_like}
