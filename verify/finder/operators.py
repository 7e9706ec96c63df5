"""What the inputs and attributes of an attention operator are."""

from __future__ import annotations

import math
from typing import Any

from onnx_attest.verify.finder.found import Attention, Mask, Scale, Softmax
from onnx_attest.verify.finder.graph import Scope, attribute, qualified

_PACKED = ("com.microsoft.Attention", "com.microsoft.PackedAttention", "com.microsoft.QAttention",
           "com.microsoft.QOrderedAttention", "com.microsoft.LongformerAttention", "com.microsoft.DecoderMaskedSelfAttention")  # fmt: skip
"""They project one input themselves."""
_MASKS = {
    "Attention": (3,),
    "com.microsoft.Attention": (3, 5),
    "com.microsoft.QAttention": (5,),
    "com.microsoft.MultiHeadAttention": (4, 5),
    "com.microsoft.DecoderMaskedMultiHeadAttention": (3, 4),
    "com.microsoft.DecoderMaskedSelfAttention": (3, 5),
    "com.microsoft.GroupQueryAttention": (10,),
    "com.microsoft.PackedAttention": (5,),
    "com.microsoft.PackedMultiHeadAttention": (6,),
    "com.microsoft.LongformerAttention": (3,),
}
"""Where each reads a mask or a bias."""
_CAUSAL = (
    "com.microsoft.GroupQueryAttention",
    "com.microsoft.SparseAttention",
    "com.microsoft.PagedAttention",
)
"""By definition."""
_MOST_INPUTS = 16


def operator(softmax: Softmax, node: Any) -> Attention:
    """Return the attention that an operator is."""
    scope, form = softmax.scope, qualified(node)
    names = [*node.input, *[""] * _MOST_INPUTS]
    query, key, value = (names[0],) * 3 if form in _PACKED or not names[1] else names[:3]
    head_size = None if form in _PACKED else _head_size(scope, node, names)
    given = attribute(node, "scale")
    scale = given if given else (1 / math.sqrt(head_size) if head_size else None)
    masks = tuple(Mask(softmax.node, form, names[at], None) for at in _MASKS.get(form, ()) if names[at])
    causal = bool(attribute(node, "is_causal") or attribute(node, "unidirectional")) or form in _CAUSAL
    scales = (Scale(softmax.node, float(given), "logits"),) if given else ()
    return Attention(
        softmax, softmax.node, form, node.output[0], query, key, value, scale, scales, masks, head_size,
        float(attribute(node, "softcap") or 0.0), causal, guard="other",
        rotated=bool(attribute(node, "do_rotary")),
    )  # fmt: skip


def _head_size(scope: Scope, node: Any, names: list[str]) -> int | None:
    """Return the length of a query, None if it is not known.

    Queries are (batch, heads, length, d), or (batch, length, heads d); those of com.microsoft may hold keys and values
    as well, when there is no input of keys: (batch, length, heads, 3, d), or (batch, length, (heads + 2 kv_heads) d).
    """
    shape = scope.shape(names[0])
    if not shape or not isinstance(shape[-1], int) or shape[-1] <= 0:
        return None
    if len(shape) > 3:
        return shape[-1]
    heads = attribute(node, "q_num_heads") or attribute(node, "num_heads") or 0
    if not names[1]:
        heads += 2 * (attribute(node, "kv_num_heads") or heads)
    return shape[-1] // heads if heads > 0 and shape[-1] % heads == 0 else None
