"""Softmax, and ONNX's Attention as onnx 1.23 defines it for opset 23 and 24."""

from __future__ import annotations

import numpy as np
import onnx

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.attention import attention, softmax
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
    if node.opset < _SINCE_ONE_AXIS:
        return [_softmax_of_block(a, node.get("axis", 1), arithmetic)]
    axis = node.get("axis", -1) % a.value.ndim
    if axis == a.value.ndim - 1:
        return [softmax(a, arithmetic)]
    moved = softmax(_swapped(a, axis), arithmetic)
    return [_swapped(Bounded(moved.value, moved.error), axis)]


def _softmax_of_block(a: Bounded, axis: int, arithmetic: Arithmetic) -> Bounded:
    shape, axis = a.value.shape, axis % a.value.ndim
    rows = int(np.prod(shape[:axis], dtype=np.int64))
    error = None if a.error is None else np.broadcast_to(a.error, shape).reshape(rows, -1)
    flat = softmax(Bounded(a.value.reshape(rows, -1), error), arithmetic)
    if axis == a.value.ndim - 1:
        return softmax(a, arithmetic)  # the same, with its facts in the graph's own shape
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
    groups = q.value.shape[1] // k.value.shape[1]
    scale = node.get("scale") or q.value.shape[-1] ** -0.5
    output, weights = attention(
        q, _repeated(k, groups), _repeated(v, groups), arithmetic,
        scale=scale, allowed=_allowed(node, inputs, q, k),
    )  # fmt: skip
    results = [_merged(output) if three_axes else output]
    if len(node.outputs) > _WEIGHTS_AFTER_SOFTMAX:
        results += [k, v, weights]  # present key and value are the inputs: there is no past
    # The weights go along unasked, so that the softmax inside can be looked at.
    return [Bounded(results[0].value, results[0].error, softmax=weights.softmax), *results[1:]]


def _refuse_what_is_missing(node: Node, inputs: Inputs) -> None:
    if node.get("softcap", 0.0):
        raise UnsupportedOperatorError("Attention with softcap")
    if any(optional(inputs, index) is not None for index in (4, 5, 6)):
        raise UnsupportedOperatorError("Attention with past keys or nonpad_kv_seqlen")
    precision = node.get("softmax_precision", onnx.TensorProto.FLOAT)
    if precision not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):  # double only rounds less
        raise UnsupportedOperatorError(f"Attention with softmax_precision {precision}")
    mode = node.get("qk_matmul_output_mode", 0)
    if len(node.outputs) > _WEIGHTS_AFTER_SOFTMAX and mode != _WEIGHTS_AFTER_SOFTMAX:
        raise UnsupportedOperatorError(f"Attention with qk_matmul_output_mode {mode}")


def _allowed(node: Node, inputs: Inputs, q: Bounded, k: Bounded) -> Bounded | None:
    """Return which keys each query may attend, None for all; top-left aligned where causal without a past."""
    mask = optional(inputs, 3)
    if mask is not None and mask.is_float:
        raise UnsupportedOperatorError("Attention with an additive mask")
    allowed = None if mask is None else _padded(mask.value, k.value.shape[-2])
    if node.get("is_causal", 0):
        lower = np.tril(np.ones((q.value.shape[-2], k.value.shape[-2]), bool))
        allowed = lower if allowed is None else allowed & lower
    return None if allowed is None else Bounded(allowed)


def _padded(mask: np.ndarray, keys: int) -> np.ndarray:
    """Return a mask that may be shorter than the keys, the rest hidden."""
    missing = keys - mask.shape[-1]
    return (
        np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)]) if missing and mask.shape[-1] != 1 else mask
    )


def _heads(a: Bounded, heads: int) -> Bounded:
    """Return (batch, heads, length, size) from (batch, length, heads * size)."""

    def split(array: np.ndarray) -> np.ndarray:
        batch, length, width = array.shape
        return array.reshape(batch, length, heads, width // heads).swapaxes(1, 2)

    return Bounded(split(a.value), None if a.error is None else split(a.error))


def _merged(a: Bounded) -> Bounded:
    """Return (batch, length, heads * size) from (batch, heads, length, size)."""

    def merge(array: np.ndarray) -> np.ndarray:
        batch, heads, length, size = array.shape
        return array.swapaxes(1, 2).reshape(batch, length, heads * size)

    return Bounded(merge(a.value), None if a.error is None else merge(a.error))


def _repeated(a: Bounded, groups: int) -> Bounded:
    if groups == 1:
        return a
    error = None if a.error is None else a.error.repeat(groups, axis=1)
    return Bounded(a.value.repeat(groups, axis=1), error)


OPERATORS: dict[str, Operator] = {"Softmax": _softmax, "Attention": _attention}
