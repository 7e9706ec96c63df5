"""ONNX Runtime's own attention operators, domain com.microsoft: what its fusions and model builders put into a graph.

They are documented in ContribOperators.md; where that is silent, what the CPU provider of 1.31 does is what counts,
and what that leaves open as well, the unused rest of a cache for example, may be anything: its error is infinite.

A padding mask is not a mask: it adds mask_filter_value, a finite number, -10000 by default. A query whose keys are all
padding therefore attends them as if they were not, with logits that have lost digits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.attention import attention
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.attention import (
    MASKED,
    extended,
    merged_heads,
    repeated_heads,
    scale_of,
    scores,
    split_heads,
)
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    required,
)

_FILTER = -10000.0
_DECLARED = ("nan", "zero", "mean")
_BEFORE_SOFTMAX, _AFTER_SOFTMAX = 1, 2
"""What qk_output of GroupQueryAttention asks for."""


@dataclass(frozen=True, kw_only=True)
class _Attended:
    """What queries meet: keys and values (batch, kv heads, keys, size), and what is added to the scores or hides them.

    Attributes:
        padding: keys that a finite number hides, for those who ask which keys are masked.
    """

    q: Bounded
    k: Bounded
    v: Bounded
    scale: Bounded
    bias: Bounded | None = None
    allowed: NDArray[np.bool_] | None = None
    padding: NDArray[np.bool_] | None = None
    softcap: float = 0.0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return (batch, heads, queries, keys)."""
        batch, heads, queries, _ = self.q.value.shape
        return batch, heads, queries, self.k.value.shape[2]

    def outcome(self, node: Node, arithmetic: Arithmetic) -> tuple[Bounded, Bounded]:
        """Return the output (batch, heads, queries, size) and the weights."""
        heads, allowed = self.q.value.shape[1], self._allowed_under(node.empty_rows)
        output, weights = attention(
            self.q, repeated_heads(self.k, heads), repeated_heads(self.v, heads), arithmetic,
            scale=float(self.scale.value[0]), scale_error=float(np.max(self.scale.errors())),
            allowed=None if allowed is None else Bounded(allowed), bias=self.bias, softcap=self.softcap,
            empty_rows=node.empty_rows,
        )  # fmt: skip
        facts = output.attended
        if facts is None or self.padding is None:
            return output, weights
        masked = facts.masked | (self.padding & ~self._nothing_else())
        return replace(output, attended=replace(facts, masked=masked)), weights

    def scores(self, arithmetic: Arithmetic) -> Bounded:
        """Return what goes into the softmax."""
        return scores(
            self.q, repeated_heads(self.k, self.q.value.shape[1]), self.scale, arithmetic, MASKED,
            softcap=self.softcap, bias=self.bias, allowed=None if self.allowed is None else Bounded(self.allowed),
        )  # fmt: skip

    def _nothing_else(self) -> NDArray[np.bool_]:
        """Return the rows that have padding only, (batch, heads, queries, 1)."""
        hidden = np.broadcast_to(False if self.padding is None else self.padding, self.shape)
        if self.allowed is not None:
            hidden = hidden | ~self.allowed
        return np.asarray(hidden.all(-1, keepdims=True))

    def _allowed_under(self, policy: str) -> NDArray[np.bool_] | None:
        """Return the allowed keys; none in rows of padding only if there is a declared policy for such rows."""
        if self.padding is None or policy not in _DECLARED:
            return self.allowed
        something = ~self._nothing_else()
        return something if self.allowed is None else self.allowed & something

    def with_sink(self, sink: Bounded) -> _Attended:
        """Return the same with one more key, whose logit is the sink (heads or 1) and whose value is 0.

        That is what a smooth softmax is, e^l / (e^sink + sum e^l), and the centred bound holds for it as it stands.
        """
        batch, heads, queries, keys = self.shape
        k, v = (bounded.concatenated([part, _zeros_like(part, 1)], 2) for part in (self.k, self.v))
        bias = self.bias
        if bias is not None or np.any(sink.value):
            given = Bounded(np.zeros(1)) if bias is None else bias
            column = _broadcast(
                sink.moved(lambda array: array.reshape(1, -1, 1, 1)), (batch, heads, queries, 1)
            )
            bias = bounded.concatenated([_broadcast(given, self.shape), column], 3)
        allowed = self.allowed
        if allowed is not None:
            wide = np.broadcast_to(allowed, (batch, 1, queries, keys))
            allowed = np.concatenate([wide, np.ones((batch, 1, queries, 1), bool)], 3)
        return replace(self, k=k, v=v, bias=bias, allowed=allowed)


def _zeros_like(part: Bounded, length: int) -> Bounded:
    """Return (batch, heads, length, size) zeros."""
    batch, heads, _, size = part.value.shape
    return Bounded(np.zeros((batch, heads, length, size)))


def _broadcast(a: Bounded, shape: tuple[int, ...]) -> Bounded:
    return a.moved(lambda array: np.broadcast_to(array, shape))


def _scale(node: Node, head_size: int) -> Bounded:
    """Return the scale; 0 stands for the default."""
    if node.get("scale", 0.0) != 0.0:
        return scale_of(node, head_size)
    return Bounded(np.array([head_size**-0.5 * node.logit_factor]))


def _refuse_inputs(node: Node, inputs: Inputs, names: dict[int, str]) -> None:
    for index, name in names.items():
        if optional(inputs, index) is not None:
            raise UnsupportedOperatorError(f"{node.operator} with {name}")


def _refuse_attributes(node: Node, *names: str) -> None:
    """Refuse attributes that are set to something but off."""
    for name in names:
        if node.get(name, 0) not in (0, "NONE", ""):
            raise UnsupportedOperatorError(f"{node.operator} with the attribute {name}")


def _part(a: Bounded, index: int, axis: int) -> Bounded:
    return a.moved(lambda array: np.take(array, index, axis))


# MultiHeadAttention and Attention


def _multi_head_attention(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """MultiHeadAttention: output, present key, present value, and the scores with mask and bias."""
    _refuse_inputs(node, inputs, {8: "a buffer that past and present share", 9: "cache_indirection"})
    q, k, v = _with_bias(_separate_heads(inputs, node.get("num_heads")), optional(inputs, 3), arithmetic)
    new = k.value.shape[2]
    k, v = extended(optional(inputs, 6), k), extended(optional(inputs, 7), v)
    bare = _Attended(q=q, k=k, v=v, scale=_scale(node, q.value.shape[-1]))
    attended = _masked(bare, node, optional(inputs, 4), optional(inputs, 5), new, arithmetic)
    output, _ = attended.outcome(node, arithmetic)
    outputs = [merged_heads(output), k, v]
    if len(node.outputs) > len(outputs) and node.outputs[-1]:
        outputs.append(attended.scores(arithmetic))
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
    bare: _Attended, node: Node, mask: Bounded | None, bias: Bounded | None, new: int, arithmetic: Arithmetic
) -> _Attended:
    """Return the same with attention_bias, the padding mask's filter value, and `unidirectional`; `new` keys are not past."""
    _, _, queries, keys = bare.shape
    filter_value = node.real("mask_filter_value", _FILTER)
    padding = None if mask is None else _padding(mask.value, bare.shape)
    if padding is not None:
        filters = bounded.where(Bounded(padding), filter_value, Bounded(np.zeros(1)))
        bias = filters if bias is None else bounded.add(bias, filters, arithmetic)
    allowed = None
    if node.get("unidirectional", 0):
        if new != queries:
            raise UnsupportedOperatorError(
                f"{node.operator}: unidirectional, with {new} keys for {queries} queries"
            )
        allowed = np.tril(np.ones((queries, keys), bool), keys - queries)[None, None]
    return replace(bare, bias=bias, allowed=allowed, padding=padding)


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


def _attention(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Attention of com.microsoft, which projects as well: output, and the present (2, batch, heads, total, size)."""
    _refuse_attributes(node, "do_rotary", "past_present_share_buffer")
    _refuse_inputs(node, inputs, {6: "a buffer that past and present share"})
    node.get("rotary_embedding_dim")
    q, k, v = _projected(node, inputs, arithmetic)
    past, new = optional(inputs, 4), k.value.shape[2]
    if past is not None:
        k, v = extended(_part(past, 0, 0), k), extended(_part(past, 1, 0), v)
    bare = _Attended(q=q, k=k, v=v, scale=_scale(node, q.value.shape[-1]))
    attended = _masked(bare, node, optional(inputs, 3), optional(inputs, 5), new, arithmetic)
    output, _ = attended.outcome(node, arithmetic)
    outputs = [merged_heads(output)]
    if len(node.outputs) > 1 and node.outputs[1]:
        stacked = [part.moved(lambda array: array[None]) for part in (k, v)]
        outputs.append(bounded.concatenated(stacked, 0))
    return outputs


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


# GroupQueryAttention


@dataclass(frozen=True, kw_only=True)
class _Lengths:
    """Where the queries of each sequence stand.

    Attributes:
        valid: keys of each sequence, past and new, (batch).
        start: position of its first query, (batch).
        total: of the longest.
        queries: how many, padding included.
    """

    valid: NDArray[np.int64]
    start: NDArray[np.int64]
    total: int
    queries: int

    @property
    def is_prompt(self) -> bool:
        """Whether there is no past."""
        return self.queries == self.total

    @property
    def padding(self) -> NDArray[np.bool_]:
        """Return which queries stand behind their sequence's end, (batch, queries): nothing says what they give."""
        return self.start[:, None] + np.arange(self.queries) >= self.valid[:, None]

    def allowed(self, *, causal: bool, window: int) -> NDArray[np.bool_]:
        """Return which keys each query attends, (batch, 1, queries, total): its `window` last ones, itself included."""
        position = (self.start[:, None] + np.arange(self.queries))[..., None]  # (batch, queries, 1)
        key = np.arange(self.total)
        seen = np.ones((*position.shape[:2], self.total), bool)
        if causal:
            seen &= key <= position
        if window > 0:
            seen &= key > position - window
        # A padding query keeps all keys there are, so that no row is empty.
        return ((seen | self.padding[..., None]) & (key < self.valid[:, None, None]))[:, None]


def _group_query_attention(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """GroupQueryAttention: output, present key, present value, and the scores or weights that qk_output asks for."""
    _refuse_quantized(node, inputs)
    q, k, v = _grouped_heads(inputs, node.get("num_heads"), node.get("kv_num_heads"))
    lengths = _lengths(inputs, q.value.shape[2], k.value.shape[2])
    if node.get("do_rotary", 0):
        tables = _rotary_tables(inputs, lengths)
        interleaved = bool(node.get("rotary_interleaved", 0))
        q, k = (_rotated(part, *tables, arithmetic, interleaved=interleaved) for part in (q, k))
    node.get("rotary_interleaved")
    past = optional(inputs, 3), optional(inputs, 4)
    k, v = _appended(past[0], k, lengths), _appended(past[1], v, lengths)
    allowed = lengths.allowed(causal=bool(node.get("causal", 1)), window=_window(node))
    attended = _Attended(
        q=q, k=_known_part(k, lengths), v=_known_part(v, lengths), scale=_scale(node, q.value.shape[-1]),
        bias=optional(inputs, 10), allowed=allowed, softcap=node.get("softcap", 0.0),
    )  # fmt: skip
    sink = _sink(node, inputs)
    output, weights = (attended if sink is None else attended.with_sink(sink)).outcome(node, arithmetic)
    outputs = [_unspecified(merged_heads(output), lengths.padding[..., None])]
    outputs += [_unspecified(cache, ~_is_valid(cache, lengths)) for cache in (k, v)]
    shown = node.get("qk_output", 0)
    if len(node.outputs) > len(outputs) and node.outputs[-1]:
        qk = _shown(shown, attended, weights, arithmetic)
        outputs.append(_unspecified(qk, lengths.padding[:, None, :, None]))
    return outputs


def _refuse_quantized(node: Node, inputs: Inputs) -> None:
    _refuse_attributes(node, "k_quant_type", "v_quant_type", "kv_cache_bit_width", "sliding_window_cache")
    _refuse_inputs(
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


def _lengths(inputs: Inputs, queries: int, new: int) -> _Lengths:
    """Return the lengths from seqlens_k, total lengths less 1, and total_sequence_length."""
    valid, total = np.array(integers(inputs, 5)) + 1, integers(inputs, 6)[0]
    if new != queries:
        raise UnsupportedOperatorError(f"GroupQueryAttention with {new} new keys for {queries} queries")
    start = np.zeros_like(valid) if queries == total else valid - queries
    past = optional(inputs, 3)
    if np.any(start < 0) or np.any(start > (0 if past is None else past.value.shape[2])):
        raise UnsupportedOperatorError(
            "GroupQueryAttention with lengths in seqlens_k that its past does not have"
        )
    return _Lengths(valid=valid, start=start, total=total, queries=queries)


def _window(node: Node) -> int:
    window = int(node.get("local_window_size", -1))
    if window == 0:
        raise UnsupportedOperatorError("GroupQueryAttention with a local_window_size of 0: no key is left")
    return window


def _appended(past: Bounded | None, new: Bounded, lengths: _Lengths) -> Bounded:
    """Return the cache as the operator leaves it: each sequence's past, its new tokens behind, zeros as the rest."""
    size = max(lengths.total, 0 if past is None else past.value.shape[2])
    sequences = []
    for index, start in enumerate(lengths.start):
        own = _slice(new, index)
        kept = [_slice(past, index, start)] if past is not None and start else []
        rest = _zeros_like(own, size - int(start) - lengths.queries)
        sequences.append(bounded.concatenated([*kept, own, rest], 2))
    return bounded.concatenated(sequences, 0)


def _slice(a: Bounded, index: int, end: int | None = None) -> Bounded:
    return a.moved(lambda array: array[index : index + 1, :, :end])


def _is_valid(cache: Bounded, lengths: _Lengths) -> NDArray[np.bool_]:
    """Return (batch, 1, size, 1)."""
    return (np.arange(cache.value.shape[2]) < lengths.valid[:, None])[:, None, :, None]


def _known_part(cache: Bounded, lengths: _Lengths) -> Bounded:
    """Return the keys there are, (batch, kv heads, total, size), zeros where a sequence is shorter."""
    known = bounded.where(Bounded(_is_valid(cache, lengths)), cache, Bounded(np.zeros(1)))
    return known.moved(lambda array: array[:, :, : lengths.total])


def _unspecified(a: Bounded, where: NDArray[np.bool_]) -> Bounded:
    """Return the same with an infinite error where nothing says what is there."""
    if not where.any():
        return a
    return replace(a, error=np.where(where, np.inf, np.broadcast_to(a.errors(), a.value.shape)))


def _rotary_tables(inputs: Inputs, lengths: _Lengths) -> tuple[Bounded, Bounded]:
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


def _rotated(a: Bounded, cos: Bounded, sin: Bounded, arithmetic: Arithmetic, *, interleaved: bool) -> Bounded:
    """Return (x cos - y sin, x sin + y cos): x and y are neighbours, or the two halves; numbers behind stay."""
    half = cos.value.shape[-1]
    pairs = np.arange(2 * half).reshape((half, 2) if interleaved else (2, half))
    first, second = (pairs[:, 0], pairs[:, 1]) if interleaved else (pairs[0], pairs[1])
    x, y = (a.moved(lambda array, places=places: array[..., places]) for places in (first, second))  # type: ignore[misc]

    def times(part: Bounded, table: Bounded) -> Bounded:
        return bounded.multiply(part, table, arithmetic)

    real = bounded.subtract(times(x, cos), times(y, sin), arithmetic)
    imaginary = bounded.add(times(x, sin), times(y, cos), arithmetic)
    rest = a.moved(lambda array: array[..., 2 * half :])
    places = np.argsort(np.concatenate([first, second, np.arange(2 * half, a.value.shape[-1])]))
    return bounded.concatenated([real, imaginary, rest], 3).moved(lambda array: array[..., places])


def _sink(node: Node, inputs: Inputs) -> Bounded | None:
    """Return the logit of the key that is not there: head_sink, or 0 for smooth_softmax."""
    smooth = node.get("smooth_softmax", 0) > 0
    given = optional(inputs, 11)
    return given if given is not None or not smooth else Bounded(np.zeros(1))


def _shown(mode: int, attended: _Attended, weights: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the scores, anything where a key is hidden, or the weights, without the sink's."""
    if mode == _AFTER_SOFTMAX:
        return weights.moved(lambda array: array[..., : attended.shape[3]])
    if mode != _BEFORE_SOFTMAX:
        raise UnsupportedOperatorError(f"GroupQueryAttention with a fourth output and qk_output {mode}")
    assert attended.allowed is not None
    everything = replace(attended, allowed=None).scores(arithmetic)
    known = bounded.where(Bounded(attended.allowed), everything, Bounded(np.zeros(1)))
    return _unspecified(known, ~attended.allowed)


OPERATORS: dict[str, Operator] = {
    "com.microsoft.Attention": _attention,
    "com.microsoft.MultiHeadAttention": _multi_head_attention,
    "com.microsoft.GroupQueryAttention": _group_query_attention,
}
