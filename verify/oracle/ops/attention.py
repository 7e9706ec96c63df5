"""Softmax, and ONNX's Attention as onnx 1.23 defines it for opset 23 and 24."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.attention import attention, softmax, with_policy
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    optional,
    required,
)

_SINCE_ONE_AXIS = 13
"""Before opset 13, Softmax flattened all axes from `axis` (default 1) on and summed over the whole block."""

_WEIGHTS_AFTER_SOFTMAX = 3


def _softmax(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a = required(inputs, 0)
    if node.logit_factor != 1.0:
        a = replace(a, value=a.value * node.logit_factor)
    if node.opset < _SINCE_ONE_AXIS:
        return [_softmax_of_block(node, a, arithmetic)]
    axis = node.get("axis", -1) % a.value.ndim
    if axis == a.value.ndim - 1:
        return [with_policy(softmax(a, arithmetic), node.empty_rows, arithmetic)]
    moved = softmax(_swapped(a, axis), arithmetic)
    return [_swapped(Bounded(moved.value, moved.error), axis)]


def _softmax_of_block(node: Node, a: Bounded, arithmetic: Arithmetic) -> Bounded:
    shape, axis = a.value.shape, node.get("axis", 1) % a.value.ndim
    rows = int(np.prod(shape[:axis], dtype=np.int64))
    error = None if a.error is None else np.broadcast_to(a.error, shape).reshape(rows, -1)
    flat = softmax(Bounded(a.value.reshape(rows, -1), error), arithmetic)
    if axis == a.value.ndim - 1:
        # the same, with its facts in the graph's own shape
        return with_policy(softmax(a, arithmetic), node.empty_rows, arithmetic)
    return Bounded(flat.value.reshape(shape), flat.errors().reshape(shape))  # type: ignore[union-attr]


def _swapped(a: Bounded, axis: int) -> Bounded:
    error = None if a.error is None else np.broadcast_to(a.error, a.value.shape).swapaxes(axis, -1)
    return Bounded(a.value.swapaxes(axis, -1), error)


def _attention(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    _refuse_what_is_missing(node, inputs)
    q, k, v = (required(inputs, index) for index in range(3))
    three_axes = q.value.ndim == 3
    heads, kv_heads = node.get("q_num_heads"), node.get("kv_num_heads")
    if three_axes:
        q, k, v = _heads(q, heads), _heads(k, kv_heads), _heads(v, kv_heads)
    past = optional(inputs, 4)
    k, v = _after(past, k), _after(optional(inputs, 5), v)
    groups = q.value.shape[1] // k.value.shape[1]
    scale, scale_error = q.value.shape[-1] ** -0.5, 0.0
    if node.get("scale") is not None:
        given = node.real("scale", scale)
        scale, scale_error = float(given.value[0]), float(np.max(given.errors()))
    allowed, bias = _mask(node, inputs, q, k, 0 if past is None else past.value.shape[2])
    output, weights = attention(
        q, _repeated(k, groups), _repeated(v, groups), arithmetic,
        scale=scale * node.logit_factor, scale_error=scale_error, allowed=allowed, bias=bias,
        softcap=node.get("softcap", 0.0), empty_rows="zero" if node.empty_rows == "unknown" else node.empty_rows,
    )  # fmt: skip
    merged = _merged(output) if three_axes else output
    return [Bounded(merged.value, merged.error, attended=output.attended), k, v, weights]


def _refuse_what_is_missing(node: Node, inputs: Inputs) -> None:
    if optional(inputs, 6) is not None:
        raise UnsupportedOperatorError("Attention with nonpad_kv_seqlen")
    precision = node.get("softmax_precision", onnx.TensorProto.FLOAT)
    if precision not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):  # double only rounds less
        raise UnsupportedOperatorError(f"Attention with softmax_precision {precision}")
    mode = node.get("qk_matmul_output_mode", 0)
    if len(node.outputs) > _WEIGHTS_AFTER_SOFTMAX and mode != _WEIGHTS_AFTER_SOFTMAX:
        raise UnsupportedOperatorError(f"Attention with qk_matmul_output_mode {mode}")


def _after(past: Bounded | None, new: Bounded) -> Bounded:
    """Return the cache (batch, heads, past + new, size) with the new tokens behind it."""
    if past is None:
        return new
    value = np.concatenate((past.value, new.value), axis=2)
    if past.error is None and new.error is None:
        return Bounded(value)
    errors = [np.broadcast_to(part.errors(), part.value.shape) for part in (past, new)]
    return Bounded(value, np.concatenate(errors, axis=2))


def _mask(
    node: Node, inputs: Inputs, q: Bounded, k: Bounded, past: int
) -> tuple[Bounded | None, Bounded | None]:
    """Return which keys each query may attend and what is added to its scores, None for all and nothing.

    Causal is aligned so that query i stands at position past + i: top left without a past.
    """
    mask, queries, keys = optional(inputs, 3), q.value.shape[-2], k.value.shape[-2]
    allowed = bias = None
    if mask is not None and mask.is_float:
        bias = Bounded(_padded(mask.value, keys, -np.inf), mask.error)
    elif mask is not None:
        allowed = _padded(mask.value, keys, False)
    if node.get("is_causal", 0):
        causal = np.tril(np.ones((queries, keys), bool), past)
        allowed = causal if allowed is None else allowed & causal
    return None if allowed is None else Bounded(allowed), bias


def _padded(mask: NDArray[Any], keys: int, hidden: float) -> NDArray[Any]:
    """Return a mask that may be shorter than the keys, the rest hidden; one key broadcasts instead."""
    missing = keys - mask.shape[-1]
    if missing <= 0 or mask.shape[-1] == 1:
        return mask
    return np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=hidden)


def _heads(a: Bounded, heads: int) -> Bounded:
    """Return (batch, heads, length, size) from (batch, length, heads * size)."""

    def split(array: NDArray[Any]) -> NDArray[Any]:
        batch, length, width = array.shape
        return array.reshape(batch, length, heads, width // heads).swapaxes(1, 2)

    return Bounded(split(a.value), None if a.error is None else split(a.error))


def _merged(a: Bounded) -> Bounded:
    """Return (batch, length, heads * size) from (batch, heads, length, size)."""

    def merge(array: NDArray[Any]) -> NDArray[Any]:
        batch, heads, length, size = array.shape
        return array.swapaxes(1, 2).reshape(batch, length, heads * size)

    return Bounded(merge(a.value), None if a.error is None else merge(a.error))


def _repeated(a: Bounded, groups: int) -> Bounded:
    if groups == 1:
        return a
    error = None if a.error is None else a.error.repeat(groups, axis=1)
    return Bounded(a.value.repeat(groups, axis=1), error)


OPERATORS: dict[str, Operator] = {"Softmax": _softmax, "Attention": _attention}
