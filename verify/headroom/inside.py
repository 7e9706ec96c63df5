"""A softmax inside an attention operator: the operator alone, with V = 1, so that its output is the sum of the weights.

One query a row, of the one direction in which all keys lie: its product with a key is one product, and exact up to its
rounding. What masks is left out. Operators that ask for as many queries as there are keys are given the same one for all,
and the last is read, which sees every key however they are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.verify.finder.graph import attribute, qualified
from onnx_attest.verify.runtimes.base import Tensors

Floats = NDArray[np.float64]
HEAD = 8
"""The size of a head."""
_DROPPED = (
    "is_causal", "qk_matmul_output_mode", "unidirectional", "qkv_hidden_sizes",
    "do_rotary", "rotary_interleaved", "rotary_embedding_dim", "local_window_size", "qk_output", "past_present_share_buffer",
)  # fmt: skip
"""Of an attention: what masks or turns, and what asks for more outputs."""
_HOW_PACKED = ("q_num_heads", "kv_num_heads")
"""Of ONNX's own attention, where its inputs have three axes."""
_SINK = 11
"""Of GroupQueryAttention's inputs; no other operator has as many."""
_Feed = Callable[[Floats, Floats], Tensors]
"""From the length of each row's query (rows,) and its keys (rows, keys), all along one direction."""


@dataclass(frozen=True)
class Given:
    """Axes and dtype of an input."""

    axes: tuple[str | int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Alone:
    """An attention operator that is fed with rows of logits.

    Attributes:
        node: without outputs.
        inputs: of the graph, by name.
        more_outputs: after the first, which the operator does not do without.
    """

    node: onnx.NodeProto
    inputs: Mapping[str, Given]
    feed: _Feed
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    more_outputs: int = 0


def standing_alone(node: onnx.NodeProto, dtype: np.dtype[Any]) -> Alone | None:
    """Return an attention operator alone, None if it is of a kind that is not taken apart.

    Args:
        node: of the file.
        dtype: of its queries.
    """
    if attribute(node, "smooth_softmax") or (len(node.input) > _SINK and node.input[_SINK]):
        return None  # a sink has a part of the weights: the others do not sum to one
    make = _ALONE.get(qualified(node))
    return None if make is None else make(node, dtype)


def last_query(outputs: NDArray[Any]) -> Floats:
    """Return one number a row, (rows,), of outputs (rows, ..., queries, anything) that are the same along all else."""
    return np.asarray(outputs.astype(np.float64).reshape(len(outputs), -1)[:, -1])


def _four_axes(node: onnx.NodeProto, dtype: np.dtype[Any]) -> Alone:
    def feed(length: Floats, keys: Floats) -> Tensors:
        Q, K = _one_query(length, keys)
        return _typed({"Q": Q[:, None], "K": K[:, None], "V": np.ones_like(K)[:, None]}, dtype)

    inputs = {name: Given(("rows", "heads", f"{name}_length", HEAD), dtype) for name in "QKV"}
    copy = _like(node, "Q", "K", "V")
    for one in [one for one in copy.attribute if one.name in _HOW_PACKED]:
        copy.attribute.remove(one)
    return Alone(copy, inputs, feed)


def _packed(node: onnx.NodeProto, dtype: np.dtype[Any]) -> Alone:
    heads = int(attribute(node, "num_heads") or 1)

    def feed(length: Floats, keys: Floats) -> Tensors:
        Q, K = _one_query(length, keys)
        return _typed(
            {"Q": _tiled(Q, heads), "K": _tiled(K, heads), "V": _tiled(np.ones_like(K), heads)}, dtype
        )

    inputs = {name: Given(("rows", f"{name}_length", heads * HEAD), dtype) for name in "QKV"}
    return Alone(_like(node, "Q", "K", "V"), inputs, feed)


def _projecting(node: onnx.NodeProto, dtype: np.dtype[Any]) -> Alone:
    """Return com.microsoft.Attention with the identity as its weights: tokens are q, k and v side by side."""
    heads = int(attribute(node, "num_heads") or 1)
    width = 3 * heads * HEAD

    def feed(length: Floats, keys: Floats) -> Tensors:
        Q, K = _one_query(length, keys)
        each = (np.repeat(Q, K.shape[1], axis=1), K, np.ones_like(K))
        return _typed({"X": np.concatenate([_tiled(one, heads) for one in each], axis=-1)}, dtype)

    # Without its optional bias ONNX Runtime 1.31 crashes.
    constants = {"W": np.eye(width, dtype=dtype), "bias": np.zeros(width, dtype)}
    return Alone(
        _like(node, "X", "W", "bias"), {"X": Given(("rows", "length", width), dtype)}, feed, constants
    )


def _grouped(node: onnx.NodeProto, dtype: np.dtype[Any]) -> Alone:
    """Return com.microsoft.GroupQueryAttention on a first prompt: no past, and all keys seen by the last query."""
    heads, kv_heads = (int(attribute(node, name) or 1) for name in ("num_heads", "kv_num_heads"))

    def feed(length: Floats, keys: Floats) -> Tensors:
        Q, K = _one_query(length, keys)
        rows, count = keys.shape
        tokens = _typed(
            {
                "Q": _tiled(np.repeat(Q, count, axis=1), heads),
                "K": _tiled(K, kv_heads),
                "V": _tiled(np.ones_like(K), kv_heads),
            },
            dtype,
        )
        return {**tokens, "last": np.full(rows, count - 1, np.int32), "total": np.array(count, np.int32)}

    counted = np.dtype(np.int32)
    inputs = {
        "Q": Given(("rows", "length", heads * HEAD), dtype),
        "K": Given(("rows", "length", kv_heads * HEAD), dtype),
        "V": Given(("rows", "length", kv_heads * HEAD), dtype),
        "last": Given(("rows",), counted),
        "total": Given((), counted),
    }
    return Alone(_like(node, "Q", "K", "V", "", "", "last", "total"), inputs, feed, more_outputs=2)


_ALONE: dict[str, Callable[[onnx.NodeProto, np.dtype[Any]], Alone]] = {
    "Attention": _four_axes,
    "com.microsoft.MultiHeadAttention": _packed,
    "com.microsoft.Attention": _projecting,
    "com.microsoft.GroupQueryAttention": _grouped,
}


def _like(node: onnx.NodeProto, *inputs: str) -> onnx.NodeProto:
    copy = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=inputs)
    copy.attribute.extend(one for one in node.attribute if one.name not in _DROPPED)
    return copy


def _one_query(length: Floats, keys: Floats) -> tuple[Floats, Floats]:
    """Return Q (rows, 1, head) and K (rows, keys, head), along the first direction."""
    Q, K = np.zeros((len(keys), 1, HEAD)), np.zeros((*keys.shape, HEAD))
    Q[:, 0, 0], K[:, :, 0] = length, keys
    return Q, K


def _tiled(array: Floats, heads: int) -> Floats:
    """Return (rows, length, head) as (rows, length, heads x head), the same for every head."""
    return np.tile(array, (1, 1, heads))


def _typed(arrays: Tensors, dtype: np.dtype[Any]) -> Tensors:
    return {name: array.astype(dtype) for name, array in arrays.items()}
