"""MultiHeadAttention, and the Attention that projects its input as well: masks are padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.attention import extended, merged_heads, split_heads
from onnx_attest.verify.oracle.ops.contrib.attended import (
    Attended,
    given_scale,
    refuse_attributes,
    refuse_inputs,
)
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    UnsupportedOperatorError,
    optional,
    required,
    rows_of,
)

_FILTER = -10000.0
_SCORES = 3  # of the outputs


def multi_head_attention(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """MultiHeadAttention: output, present key, present value, and the scores with mask and bias."""
    refuse_inputs(node, inputs, {8: "a buffer that past and present share", 9: "cache_indirection"})
    q, k, v = _with_bias(_separate_heads(inputs, node.get("num_heads")), optional(inputs, 3), arithmetic)
    new = k.value.shape[2]
    k, v = extended(optional(inputs, 6), k), extended(optional(inputs, 7), v)
    bare = Attended(q=q, k=k, v=v, scale=given_scale(node, q.value.shape[-1]))
    attended = _masked(bare, node, optional(inputs, 4), optional(inputs, 5), new, arithmetic)
    shown = len(node.outputs) > _SCORES and bool(node.outputs[_SCORES])
    output, _ = attended.outcome(node, arithmetic, shown=shown)
    outputs = [merged_heads(output), k, v]
    if shown:
        outputs.append(attended.written_out().scores(arithmetic))
    return outputs


def _separate_heads(inputs: Inputs, heads: int) -> tuple[Bounded, Bounded, Bounded]:
    """Return query, key and value as (batch, heads, length, size), from any of the forms they come in."""
    query, key, value = required(inputs, 0), optional(inputs, 1), optional(inputs, 2)

    def unpacked(packed: Bounded, index: int) -> Bounded:  # (batch, length, heads, 2 or 3, size)
        return packed.moved(lambda array: array[:, :, :, index].swapaxes(1, 2))

    if query.value.ndim == 5:
        return unpacked(query, 0), unpacked(query, 1), unpacked(query, 2)
    q = split_heads(query, heads)
    if key is None:
        raise UnsupportedOperatorError("MultiHeadAttention with a query of three axes and no key")
    if key.value.ndim == 5:
        return q, unpacked(key, 0), unpacked(key, 1)
    if value is None:
        raise UnsupportedOperatorError("MultiHeadAttention with a key and no value")
    k, v = (part if part.value.ndim == 4 else split_heads(part, heads) for part in (key, value))
    return q, k, v


def _with_bias(
    parts: tuple[Bounded, Bounded, Bounded], bias: Bounded | None, arithmetic: Arithmetic
) -> tuple[Bounded, Bounded, Bounded]:
    """Return the parts, (batch, heads, length, size), with their shares of the projection's bias added."""
    if bias is None:
        return parts
    widths = [part.value.shape[1] * part.value.shape[3] for part in parts]
    if sum(widths) != bias.value.size:
        raise UnsupportedOperatorError(
            "MultiHeadAttention with a bias of another width than query, key and value"
        )
    shares = []
    for part, end in zip(parts, np.cumsum(widths), strict=True):
        shares.append(bounded.add(part, _share(bias, part.value.shape, int(end)), arithmetic))
    return shares[0], shares[1], shares[2]


def _share(bias: Bounded, shape: tuple[int, ...], end: int) -> Bounded:
    """Return what of the bias belongs to a part (batch, heads, length, size), (heads, 1, size): it stands before `end`."""
    _, heads, _, size = shape
    return bias.moved(lambda array: array[end - heads * size : end].reshape(heads, 1, size))


def _masked(
    bare: Attended, node: Node, mask: Bounded | None, bias: Bounded | None, new: int, arithmetic: Arithmetic
) -> Attended:
    """Return the same with attention_bias, the padding mask's filter value, and `unidirectional`; `new` keys are not past.

    Its queries are all of them, those of the result the ones that the node is asked for.
    """
    _, _, queries, keys = bare.shape
    filter_value = node.real("mask_filter_value", _FILTER)
    padding = None if mask is None else _padding(mask.value, bare.shape)
    bias = None if bias is None else rows_of(bias, node.rows)
    if padding is not None:
        padding = rows_of(Bounded(padding), node.rows).value
        filters = bounded.where(Bounded(padding), filter_value, Bounded(np.zeros(1)))
        bias = filters if bias is None else bounded.add(bias, filters, arithmetic)
    causal = None
    if node.get("unidirectional", 0):
        if new != queries:
            raise UnsupportedOperatorError(
                f"{node.operator}: unidirectional, with {new} keys for {queries} queries"
            )
        causal = keys - queries
    return replace(
        bare, q=rows_of(bare.q, node.rows), bias=bias, padding=padding, causal=causal, rows=node.rows
    )


def _padding(mask: NDArray[Any], shape: tuple[int, int, int, int]) -> NDArray[np.bool_]:
    """Return which keys are padding, (batch, 1, queries or 1, keys), from any of the forms that say so.

    One axis: lengths (batch), behind which keys are padding; or ends and starts (2 batch); or lengths and, for packed
    kernels, the same once more as offsets (3 batch + 2). Two and three axes: 0 for padding.
    """
    batch, _, queries, keys = shape
    key = np.arange(keys)
    if mask.ndim == 1 and mask.size in (batch, 2 * batch, 3 * batch + 2):
        padding = key >= mask[:batch, None]
        if mask.size == 2 * batch:
            padding = padding | (key < mask[batch:, None])
        return np.asarray(padding[:, None, None])
    if mask.shape == (batch, keys):
        return np.asarray(mask <= 0)[:, None, None]
    if mask.shape == (batch, queries, keys):
        return np.asarray(mask <= 0)[:, None]
    raise UnsupportedOperatorError(f"a mask of shape {mask.shape} for {batch} sequences of {keys} keys")


def attention(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Attention of com.microsoft, which projects as well: output, and the present (2, batch, heads, total, size)."""
    refuse_attributes(node, "do_rotary", "past_present_share_buffer")
    refuse_inputs(node, inputs, {6: "a buffer that past and present share"})
    node.get("rotary_embedding_dim")
    q, k, v = _projected(node, inputs, arithmetic)
    past, new = optional(inputs, 4), k.value.shape[2]
    if past is not None:
        k, v = extended(_part(past, 0, 0), k), extended(_part(past, 1, 0), v)
    bare = Attended(q=q, k=k, v=v, scale=given_scale(node, q.value.shape[-1]))
    attended = _masked(bare, node, optional(inputs, 3), optional(inputs, 5), new, arithmetic)
    output, _ = attended.outcome(node, arithmetic)
    outputs = [merged_heads(output)]
    if len(node.outputs) > 1 and node.outputs[1]:
        stacked = [part.moved(lambda array: array[None]) for part in (k, v)]
        outputs.append(bounded.concatenated(stacked, 0))
    return outputs


def _part(a: Bounded, index: int, axis: int) -> Bounded:
    return a.moved(lambda array: np.take(array, index, axis))


def _projected(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> tuple[Bounded, Bounded, Bounded]:
    """Return query, key and value of the input's packed projection, (batch, heads, length, size)."""
    x, weights, bias = required(inputs, 0), required(inputs, 1), optional(inputs, 2)
    product = bounded.matmul(x, weights, arithmetic)
    if bias is not None:
        product = bounded.add(product, bias, arithmetic)
    width = weights.value.shape[1]
    cuts = np.cumsum(node.get("qkv_hidden_sizes") or [width // 3] * 3)[:-1]
    q, k, v = (
        product.moved(lambda array, index=index: np.split(array, cuts, -1)[index])  # type: ignore[misc]
        for index in range(3)
    )
    heads = node.get("num_heads")
    return split_heads(q, heads), split_heads(k, heads), split_heads(v, heads)
