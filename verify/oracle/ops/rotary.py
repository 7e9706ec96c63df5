"""Rotary positions: pairs of numbers turned by an angle of their place."""

from __future__ import annotations

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.attention import merged_heads, split_heads
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    optional,
    required,
)


def rotated(a: Bounded, cos: Bounded, sin: Bounded, arithmetic: Arithmetic, *, interleaved: bool) -> Bounded:
    """Return (x cos - y sin, x sin + y cos) along the last axis: x and y are neighbours, or the two halves.

    Cosines and sines broadcast to (..., pairs); numbers behind the pairs stay.
    """
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
    whole = bounded.concatenated([real, imaginary, rest], a.value.ndim - 1)
    return whole.moved(lambda array: array[..., places])


def _rotary_embedding(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """RotaryEmbedding of opset 23: tables by position, or already (batch, length, pairs)."""
    x, positions = required(inputs, 0), optional(inputs, 3)
    cos, sin = required(inputs, 1), required(inputs, 2)
    if positions is not None:
        cos, sin = (_at(table, positions.value) for table in (cos, sin))
    heads, three_axes = node.get("num_heads", 0), x.value.ndim == 3
    if three_axes and not heads:
        raise UnsupportedOperatorError("RotaryEmbedding of three axes without num_heads")
    parts = split_heads(x, heads) if three_axes else x
    return [_turned(node, parts, cos, sin, arithmetic, merge=three_axes)]


def _rotary_embedding_of_microsoft(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """RotaryEmbedding of com.microsoft: positions, or the one that the first token has.

    Without a rotary_embedding_dim heads are as long as the tables say, whatever num_heads is.
    """
    if node.get("is_packed_batching", 0) or node.get("scale", 1.0) != 1.0:
        raise UnsupportedOperatorError("RotaryEmbedding with is_packed_batching or scale")
    x, positions = required(inputs, 0), required(inputs, 1).value
    cos, sin = required(inputs, 2), required(inputs, 3)
    three_axes, length = x.value.ndim == 3, x.value.shape[-2]
    if positions.ndim == 1:
        positions = (positions.reshape(-1)[0] + np.arange(length))[None]
    cos, sin = (_at(table, positions) for table in (cos, sin))
    heads = node.get("num_heads", 0)
    if not node.get("rotary_embedding_dim", 0):
        heads = x.value.shape[-1] // (2 * cos.value.shape[-1])
    parts = split_heads(x, heads) if three_axes else x
    return [_turned(node, parts, cos, sin, arithmetic, merge=three_axes)]


def _at(table: Bounded, positions: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Bounded:
    """Return (batch, length, pairs) of a table (positions, pairs).

    Raises:
        UnsupportedOperatorError: a position that the table does not have.
    """
    if np.any(positions < 0) or np.any(positions >= table.value.shape[0]):
        raise UnsupportedOperatorError("a position that the tables do not have")
    return table.moved(lambda array: array[positions])


def _turned(
    node: Node, x: Bounded, cos: Bounded, sin: Bounded, arithmetic: Arithmetic, *, merge: bool
) -> Bounded:
    """Return x (batch, heads, length, size) turned by tables (batch, length, pairs)."""
    size = node.get("rotary_embedding_dim", 0) or x.value.shape[-1]
    if 2 * cos.value.shape[-1] != size:
        raise UnsupportedOperatorError(f"RotaryEmbedding of {size} numbers by {cos.value.shape[-1]} angles")
    cos, sin = (table.moved(lambda array: array[:, None]) for table in (cos, sin))
    result = rotated(x, cos, sin, arithmetic, interleaved=bool(node.get("interleaved", 0)))
    return merged_heads(result) if merge else result


OPERATORS: dict[str, Operator] = {
    "RotaryEmbedding": _rotary_embedding,
    "com.microsoft.RotaryEmbedding": _rotary_embedding_of_microsoft,
}
