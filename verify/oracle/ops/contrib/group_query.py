"""GroupQueryAttention: fewer heads of keys than of queries, a cache, rotary positions, a sink."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.attention import merged_heads, split_heads
from onnx_attest.verify.oracle.ops.contrib.attended import (
    Attended,
    given_scale,
    refuse_attributes,
    refuse_inputs,
)
from onnx_attest.verify.oracle.ops.contrib.sequences import (
    Lengths,
    appended,
    is_valid,
    known_part,
    lengths_of,
)
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    UnsupportedOperatorError,
    optional,
    required,
    rows_of,
)
from onnx_attest.verify.oracle.ops.rotary import rotated

_SHOWN = 3  # of the outputs
_BEFORE_SOFTMAX, _AFTER_SOFTMAX = 1, 2
"""What qk_output of GroupQueryAttention asks for."""


def group_query_attention(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """GroupQueryAttention: output, present key, present value, and the scores or weights that qk_output asks for."""
    _refuse_quantized(node, inputs)
    q, k, v = _grouped_heads(inputs, node.get("num_heads"), node.get("kv_num_heads"))
    lengths = lengths_of(inputs, q.value.shape[2], k.value.shape[2])
    if node.get("do_rotary", 0):
        tables = _rotary_tables(inputs, lengths)
        interleaved = bool(node.get("rotary_interleaved", 0))
        q, k = (rotated(part, *tables, arithmetic, interleaved=interleaved) for part in (q, k))
    node.get("rotary_interleaved")
    past = optional(inputs, 3), optional(inputs, 4)
    k, v = appended(past[0], k, lengths), appended(past[1], v, lengths)
    bias = optional(inputs, 10)
    attended = Attended(
        q=rows_of(q, node.rows), k=known_part(k, lengths), v=known_part(v, lengths),
        scale=given_scale(node, q.value.shape[-1]), bias=None if bias is None else rows_of(bias, node.rows),
        softcap=node.get("softcap", 0.0), rows=node.rows, **_hidden(node, lengths),
    )  # fmt: skip
    sink, shown = _sink(node, inputs), len(node.outputs) > _SHOWN and bool(node.outputs[_SHOWN])
    output, weights = (attended if sink is None else attended.with_sink(sink)).outcome(
        node, arithmetic, shown=shown
    )
    unasked = lengths.padding if node.rows is None else lengths.padding[:, node.rows]
    outputs = [_unspecified(merged_heads(output), unasked[..., None])]
    outputs += [_unspecified(cache, ~is_valid(cache, lengths)) for cache in (k, v)]
    mode = node.get("qk_output", 0)
    if shown:
        assert weights is not None
        qk = _shown(mode, attended.written_out(), weights, arithmetic)
        outputs.append(_unspecified(qk, lengths.padding[:, None, :, None]))
    return outputs


def _hidden(node: Node, lengths: Lengths) -> dict[str, Any]:
    """Return what position hides: as two numbers where all sequences are of one length, else as a mask."""
    causal, window, start = bool(node.get("causal", 1)), _window(node), lengths.same_start
    if start is None:
        return {"allowed": lengths.allowed(causal=causal, window=window, rows=node.rows)}
    if not causal and window < 0:
        return {}
    ahead = 0 if causal else lengths.total  # beyond every key
    return {"causal": start + ahead, "window": window + ahead if window > 0 else None}


def _refuse_quantized(node: Node, inputs: Inputs) -> None:
    refuse_attributes(node, "k_quant_type", "v_quant_type", "kv_cache_bit_width", "sliding_window_cache")
    refuse_inputs(
        node,
        inputs,
        {12: "a quantized cache", 13: "a quantized cache", 14: "q_norm_weight", 15: "k_norm_weight"},
    )
    node.get("qk_norm_epsilon")


def _grouped_heads(inputs: Inputs, heads: int, kv_heads: int) -> tuple[Bounded, Bounded, Bounded]:
    """Return query, key and value as (batch, heads or kv heads, length, size); without a key all are in the query."""
    query, key, value = required(inputs, 0), optional(inputs, 1), optional(inputs, 2)
    if key is not None and value is not None:
        return split_heads(query, heads), split_heads(key, kv_heads), split_heads(value, kv_heads)
    whole, cuts = split_heads(query, heads + 2 * kv_heads), (heads, heads + kv_heads)
    q, k, v = (
        whole.moved(lambda array, index=index: np.split(array, cuts, 1)[index])  # type: ignore[misc]
        for index in range(3)
    )
    return q, k, v


def _window(node: Node) -> int:
    window = int(node.get("local_window_size", -1))
    if window == 0:
        raise UnsupportedOperatorError("GroupQueryAttention with a local_window_size of 0: no key is left")
    return window


def _unspecified(a: Bounded, where: NDArray[np.bool_]) -> Bounded:
    """Return the same with an infinite error where nothing says what is there."""
    if not where.any():
        return a
    return replace(a, error=np.where(where, np.inf, np.broadcast_to(a.errors(), a.value.shape)))


def _rotary_tables(inputs: Inputs, lengths: Lengths) -> tuple[Bounded, Bounded]:
    """Return cosines and sines of each token's position, (batch, 1, length, rotary size / 2).

    Positions are counted on from each sequence's start unless they are given; of a first prompt's only the first is
    taken, and counted on from.
    """
    given, count = optional(inputs, 9), np.arange(lengths.queries)
    positions = lengths.start[:, None] + count
    if given is not None and lengths.is_prompt:
        positions = positions + int(given.value.reshape(-1)[0])
    elif given is not None:
        positions = given.value.astype(np.int64).reshape(positions.shape)
    cos, sin = (required(inputs, index).moved(lambda table: table[positions][:, None]) for index in (7, 8))
    return cos, sin


def _sink(node: Node, inputs: Inputs) -> Bounded | None:
    """Return the logit of the key that is not there: head_sink, or 0 for smooth_softmax."""
    smooth = node.get("smooth_softmax", 0) > 0
    given = optional(inputs, 11)
    return given if given is not None or not smooth else Bounded(np.zeros(1))


def _shown(mode: int, attended: Attended, weights: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the scores, anything where a key is hidden, or the weights, without the sink's."""
    if mode == _AFTER_SOFTMAX:
        return weights.moved(lambda array: array[..., : attended.shape[3]])
    if mode != _BEFORE_SOFTMAX:
        raise UnsupportedOperatorError(f"GroupQueryAttention with a fourth output and qk_output {mode}")
    allowed = np.ones((1, 1, 1, 1), bool) if attended.allowed is None else attended.allowed
    everything = replace(attended, allowed=None).scores(arithmetic)
    known = bounded.where(Bounded(allowed), everything, Bounded(np.zeros(1)))
    return _unspecified(known, np.broadcast_to(~allowed, known.value.shape))
