"""Softmax, and ONNX's Attention as onnx 1.23 defines it for opset 23 to 25."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import PROFILES, Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.attention import attention, scores, softmax, with_policy
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    required,
    rows_of,
)
from onnx_attest.verify.oracle.streaming import OperandErrors, attend

_SINCE_PADDED_MASKS = 24
"""From opset 24 on a mask that is shorter than the keys is padded, of one key as well; before, one key broadcasts."""
_SINCE_ONE_AXIS = 13
"""Before opset 13, Softmax flattened all axes from `axis` (default 1) on and summed over the whole block."""

PRODUCT, CAPPED, MASKED, WEIGHTS = range(4)
"""What qk_matmul_output may show: scaled products, after softcap, after the mask, after softmax."""

_PRECISIONS = {
    onnx.TensorProto.FLOAT16: PROFILES["fp16-acc"],
    onnx.TensorProto.BFLOAT16: PROFILES["bf16-acc"],
    onnx.TensorProto.FLOAT: PROFILES["fp32"],
    onnx.TensorProto.DOUBLE: PROFILES["fp64"],
}


def _softmax(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a = required(inputs, 0)
    if node.logit_factor != 1.0:
        a = replace(a, value=a.value * node.logit_factor)
    if node.opset < _SINCE_ONE_AXIS:
        return [_softmax_of_block(node, a, arithmetic)]
    axis = node.get("axis", -1) % a.value.ndim
    if axis == a.value.ndim - 1:
        return [with_policy(softmax(a, arithmetic), node.empty_rows, arithmetic)]
    moved = softmax(a.moved(lambda array: array.swapaxes(axis, -1)), arithmetic)
    return [moved.moved(lambda array: array.swapaxes(axis, -1))]


def _softmax_of_block(node: Node, a: Bounded, arithmetic: Arithmetic) -> Bounded:
    shape, axis = a.value.shape, node.get("axis", 1) % a.value.ndim
    if axis == a.value.ndim - 1:
        # the same, with its facts in the graph's own shape
        return with_policy(softmax(a, arithmetic), node.empty_rows, arithmetic)
    rows = int(np.prod(shape[:axis], dtype=np.int64))
    flat = softmax(a.moved(lambda array: array.reshape(rows, -1)), arithmetic)
    return flat.moved(lambda array: array.reshape(shape))


def _attention(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Attention of opset 23 to 25: output, present key, present value, and what qk_matmul_output_mode shows.

    A float mask is added, a boolean one hides keys. A row without any key is 0, whatever is declared for rows that
    are masked with finite numbers: those average.
    """
    q, k, v = (required(inputs, index) for index in range(3))
    three_axes = q.value.ndim == 3
    if three_axes:
        heads, kv_heads = _head_counts(node)
        q, k, v = split_heads(q, heads), split_heads(k, kv_heads), split_heads(v, kv_heads)
    k, v = extended(optional(inputs, 4), k), extended(optional(inputs, 5), v)
    queries, q = q.value.shape[-2], rows_of(q, node.rows)
    precision = _with_softmax_in(node.get("softmax_precision"), arithmetic)
    scale = scale_of(node, q.value.shape[-1])
    mode = node.get("qk_matmul_output_mode", PRODUCT)
    if _is_streamed(node, q, k, arithmetic, precision):
        output = _streamed(node, inputs, q, k, v, arithmetic, scale, queries)
        return [merged_heads(output) if three_axes else output, k, v]
    allowed, bias = _mask(node, inputs, queries, k.value.shape[-2])
    keys, values = (repeated_heads(part, q.value.shape[1]) for part in (k, v))
    softcap = node.get("softcap", 0.0)
    output, weights = attention(
        q, keys, values, precision,
        scale=float(scale.value[0]), scale_error=float(np.max(scale.errors())),
        allowed=allowed, bias=bias, softcap=softcap, empty_rows=node.empty_rows,
    )  # fmt: skip
    _refuse_overflow(weights, arithmetic, precision)
    if node.empty_rows in ("unknown", "zero"):
        keys_there = k.value.shape[-2]
        output, weights = (_zero_where_empty(part, keys_there, allowed, bias) for part in (output, weights))
    if three_axes:
        output = merged_heads(output)
    if mode == WEIGHTS:
        return [output, k, v, weights]
    if len(node.outputs) <= WEIGHTS or not node.outputs[WEIGHTS]:
        return [output, k, v]
    shown = scores(
        q, keys, arithmetic, scale=scale,
        softcap=softcap if mode >= CAPPED else 0.0,
        bias=bias if mode >= MASKED else None,
        allowed=allowed if mode >= MASKED else None,
    )  # fmt: skip
    return [output, k, v, shown]


STREAMED_FROM = 2**23
"""Scores, of all heads together, from which on no array of them is made: then nothing is known of single weights."""


def _is_streamed(node: Node, q: Bounded, k: Bounded, arithmetic: Arithmetic, precision: Arithmetic) -> bool:
    asked = len(node.outputs) > WEIGHTS and bool(node.outputs[WEIGHTS])
    possible = not asked and precision is arithmetic and arithmetic.kernel is None
    if node.rows is not None and not possible:
        raise UnsupportedOperatorError(
            "some rows of an Attention that gives its weights, or has a softmax_precision"
        )
    return possible and (node.rows is not None or are_many(q, k))


def are_many(q: Bounded, k: Bounded) -> bool:
    """Whether there are too many scores, of all heads together, to be held."""
    return bool(math.prod(q.value.shape[:-1]) * k.value.shape[-2] > STREAMED_FROM)


def _streamed(
    node: Node,
    inputs: Inputs,
    q: Bounded,
    k: Bounded,
    v: Bounded,
    arithmetic: Arithmetic,
    scale: Bounded,
    queries: int,
) -> Bounded:
    """Return the output without holding queries x keys numbers, but for a mask that is given; `queries` are all."""
    causal, window = None, None
    if optional(inputs, 6) is None:  # told by two numbers, and not by a mask
        causal, window = _as_numbers(node, inputs, queries, k.value.shape[-2])
        node = replace(
            node, attributes={**node.attributes, **dict.fromkeys(_BY_POSITION, -1), "is_causal": 0}
        )
    allowed, bias = _mask(node, inputs, queries, k.value.shape[-2])
    return streamed(
        q, k, v, arithmetic, scale=scale, bias=bias, allowed=None if allowed is None else allowed.value,
        causal=causal, window=window, softcap=node.get("softcap", 0.0),
        empty_rows="zero" if node.empty_rows == "unknown" else node.empty_rows, rows=node.rows,
    )  # fmt: skip


_BY_POSITION = ("left_window_size", "right_window_size")


def _as_numbers(node: Node, inputs: Inputs, queries: int, keys: int) -> tuple[int | None, int | None]:
    """Return what is_causal and the windows of opset 25 are as `causal` and `window` of the streaming attention."""
    past = optional(inputs, 4)
    offset = 0 if past is None else past.value.shape[2]
    left, right = (node.get(name, -1) for name in _BY_POSITION)
    if node.get("is_causal", 0):
        right = 0
    if right < 0 and left < 0:
        return None, None
    ahead = right if right >= 0 else queries + keys  # beyond every key
    return offset + ahead, left + ahead + 1 if left >= 0 else None


def streamed(
    q: Bounded,
    k: Bounded,
    v: Bounded,
    arithmetic: Arithmetic,
    *,
    scale: Bounded,
    bias: Bounded | None,
    allowed: NDArray[np.bool_] | None,
    causal: int | None,
    window: int | None,
    softcap: float,
    empty_rows: str,
    rows: NDArray[np.intp] | None,
) -> Bounded:
    """Return `attend` of operands with errors: q, bias and allowed are of the rows that are asked for."""
    seen = attend(
        q.value, k.value, v.value, arithmetic,
        scale=float(scale.value[0]), bias=None if bias is None else bias.value, allowed=allowed,
        causal=causal, window=window, softcap=softcap, empty_rows=empty_rows, rows=rows,
        errors=OperandErrors(
            q.error, k.error, v.error, None if bias is None else bias.error, float(np.max(scale.errors()))
        ),
    )  # fmt: skip
    return Bounded(seen.value, seen.bound, variance=seen.deviation**2 if arithmetic.deviations else None)


def _head_counts(node: Node) -> tuple[int, int]:
    heads, kv_heads = node.get("q_num_heads"), node.get("kv_num_heads")
    if not heads or not kv_heads:
        raise UnsupportedOperatorError("Attention of three axes without q_num_heads and kv_num_heads")
    return heads, kv_heads


def _with_softmax_in(precision: int | None, arithmetic: Arithmetic) -> Arithmetic:
    """Return the arithmetic with softmax in a shorter format, if it is one: logits are cast to it, weights come in it.

    The products get its roundings too, which only widens the bound.
    """
    if precision is None:
        return arithmetic
    if precision not in _PRECISIONS:
        raise UnsupportedOperatorError(f"Attention with softmax_precision {precision}")
    own = _PRECISIONS[precision]
    if own.u <= arithmetic.u:
        return arithmetic
    widened = {name: max(getattr(arithmetic, name), own.u) for name in ("u", "u_acc", "u_s", "u_p")}
    ranges = {name: max(getattr(arithmetic, name), getattr(own, name)) for name in ("omega", "eta")}
    return replace(arithmetic, **widened, **ranges, largest=min(arithmetic.largest, own.largest))


def _refuse_overflow(weights: Bounded, arithmetic: Arithmetic, precision: Arithmetic) -> None:
    """Refuse logits that a softmax_precision shorter than the rest cannot hold."""
    facts = weights.softmax
    if facts is not None and precision is not arithmetic and np.any(facts.logits > precision.largest):
        raise UnsupportedOperatorError(f"softmax_precision with logits beyond {precision.largest:g}")


def scale_of(node: Node, head_size: int) -> Bounded:
    """Return the scale: the attribute, or 1 / sqrt(head size), times what the graph is probed with; one number."""
    given = node.get("scale")
    scale = Bounded(np.array([head_size**-0.5])) if given is None else node.real("scale", 0.0)
    return Bounded(scale.value * node.logit_factor, scale.error)


def _mask(node: Node, inputs: Inputs, queries: int, keys: int) -> tuple[Bounded | None, Bounded | None]:
    """Return which keys each query may attend and what is added to its scores, None for all and nothing.

    Of `queries` in all, those that the node is asked for.
    """
    mask, padded_to = optional(inputs, 3), keys if node.opset >= _SINCE_PADDED_MASKS else 0
    conditions = list(_positions_allowed(node, inputs, queries, keys))
    if mask is not None and mask.value.dtype == np.bool_:
        conditions.append(_padded(rows_of(mask, node.rows).value, padded_to, hidden=False))
    elif mask is not None and not mask.is_float:
        raise UnsupportedOperatorError("Attention with a mask of integers, to which ONNX gives no meaning")
    allowed = Bounded(functools.reduce(np.logical_and, conditions)) if conditions else None
    if mask is None or not mask.is_float:
        return allowed, None
    mask = rows_of(mask, node.rows)
    error, variance = (
        None if own is None else _padded(np.broadcast_to(own, mask.value.shape), padded_to, hidden=0.0)
        for own in (mask.error, mask.variance)
    )
    return allowed, Bounded(_padded(mask.value, padded_to, hidden=-np.inf), error, variance=variance)


def _positions_allowed(node: Node, inputs: Inputs, queries: int, keys: int) -> Iterable[NDArray[np.bool_]]:
    """Yield what is_causal, the windows of opset 25 and nonpad_kv_seqlen allow.

    Query i stands at position offset + i: behind the past, or, in a cache kept outside, at the end of what is valid
    of it; top left without either.
    """
    past, lengths = optional(inputs, 4), _valid_lengths(inputs)
    offset: Any = 0 if past is None else past.value.shape[2]
    if lengths is not None:
        offset = lengths - queries
    standing = np.arange(queries) if node.rows is None else node.rows
    position, key = standing[:, None] + offset, np.arange(keys)
    left, right = node.get("left_window_size", -1), node.get("right_window_size", -1)
    if node.get("is_causal", 0):
        yield key <= position
    if right >= 0:
        yield key <= position + right
    if left >= 0:
        yield key >= position - left
    if lengths is not None:
        yield np.broadcast_to(key < lengths, (len(lengths), 1, 1, keys))


def _valid_lengths(inputs: Inputs) -> NDArray[Any] | None:
    """Return nonpad_kv_seqlen (opset 24) as (batch, 1, 1, 1)."""
    if optional(inputs, 6) is None:
        return None
    if optional(inputs, 4) is not None or optional(inputs, 5) is not None:
        raise UnsupportedOperatorError("Attention with both a past and nonpad_kv_seqlen")
    return np.array(integers(inputs, 6)).reshape(-1, 1, 1, 1)


def _padded(mask: NDArray[Any], keys: int, *, hidden: float) -> NDArray[Any]:
    """Return a mask that may be shorter than the keys, the rest hidden."""
    missing = keys - mask.shape[-1]
    if missing <= 0:
        return mask
    return np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=hidden)


def _zero_where_empty(part: Bounded, keys: int, allowed: Bounded | None, bias: Bounded | None) -> Bounded:
    """Return the output, or the weights, with 0 in the rows that have no key at all: all, where there are none."""
    hidden: Any = np.zeros((1, 1, 1, keys), bool)
    if allowed is not None:
        hidden = hidden | ~allowed.value
    if bias is not None:
        hidden = hidden | np.isneginf(bias.value)
    empty = hidden.all(-1, keepdims=True)
    if not empty.any():
        return part
    zeroed = bounded.where(Bounded(empty), Bounded(np.zeros(1)), part)
    softmax_facts, attended = (
        None if facts is None else facts.without_nan() for facts in (part.softmax, part.attended)
    )
    return replace(zeroed, softmax=softmax_facts, attended=attended)


def extended(past: Bounded | None, new: Bounded) -> Bounded:
    """Return the cache (batch, heads, past + new, size) with the new tokens behind it."""
    return new if past is None else bounded.concatenated([past, new], 2)


def split_heads(a: Bounded, heads: int) -> Bounded:
    """Return (batch, heads, length, size) from (batch, length, heads * size)."""
    batch, length, width = a.value.shape
    return a.moved(lambda array: array.reshape(batch, length, heads, width // heads).swapaxes(1, 2))


def merged_heads(a: Bounded) -> Bounded:
    """Return (batch, length, heads * size) from (batch, heads, length, size), and what is known of its weights."""
    batch, heads, length, size = a.value.shape
    merged = a.moved(lambda array: array.swapaxes(1, 2).reshape(batch, length, heads * size))
    return replace(merged, attended=a.attended)


def repeated_heads(a: Bounded, heads: int) -> Bounded:
    """Return (batch, heads, length, size): each of fewer heads serves a group of neighbours."""
    groups = heads // a.value.shape[1]
    return a if groups == 1 else a.moved(lambda array: array.repeat(groups, axis=1))


OPERATORS: dict[str, Operator] = {"Softmax": _softmax, "Attention": _attention}
