"""Normalisation of a sum: of an input, what skips a block, and a bias; or of embeddings."""

from __future__ import annotations

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.fusions.activations import swish
from onnx_attest.verify.oracle.ops.normalization import normalized
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    optional,
    required,
)
from onnx_attest.verify.oracle.ops.pointwise.composed import stored
from onnx_attest.verify.oracle.ops.statistics import grouped, inside, root_mean_squared, stashed
from onnx_attest.verify.oracle.values import Value

_EPSILON = 1e-12
"""What SkipLayerNormalization and its kin take by default, other than LayerNormalization."""
_SILU = 1
"""What `activation` of GroupNorm asks for, if it is not 0."""


def _total(parts: list[Bounded | None], arithmetic: Arithmetic) -> Bounded:
    """Return the sum of those that are given, with what another order of adding them may lose.

    A sum of three has two roundings in any order: what the first one rounds is at most all sizes together.
    """
    first, *others = [part for part in parts if part is not None]
    result = first
    for other in others:
        result = bounded.add(result, other, arithmetic)
    if arithmetic.kernel is not None or len(others) < 2:
        return result
    u = max(arithmetic.u, arithmetic.u_s)
    sizes = sum(np.abs(part.value) + part.errors() for part in (first, *others))
    error = np.asarray(result.errors() + (len(others) - 1) * u * sizes)
    return Bounded(result.value, np.where(np.isfinite(result.value), error, 0.0), variance=result.variance)


def _skip_layer_normalization(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    """SkipLayerNormalization: the normalised sum, mean and 1 / deviation, and the sum."""
    whole = _total([required(inputs, 0), required(inputs, 1), optional(inputs, 4)], arithmetic)
    result, mean, r = _layer(whole, required(inputs, 2), optional(inputs, 3), node, arithmetic)
    return [result, mean, r, whole]


def _layer(
    x: Bounded, scale: Bounded, bias: Bounded | None, node: Node, arithmetic: Arithmetic
) -> tuple[Bounded, Bounded, Bounded]:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        normal, mean, r = normalized(x, (x.value.ndim - 1,), node.real("epsilon", _EPSILON), arithmetic)
    result = bounded.multiply(normal, scale, arithmetic)
    return result if bias is None else bounded.add(result, bias, arithmetic), mean, r


def _skip_simplified_layer_normalization(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    """SkipSimplifiedLayerNormalization: the sum over its root mean square, and 1 over that, and the sum."""
    if len(node.outputs) > 1 and node.outputs[1]:
        raise UnsupportedOperatorError("SkipSimplifiedLayerNormalization with a mean: it takes none")
    whole = _total([required(inputs, 0), required(inputs, 1), optional(inputs, 3)], arithmetic)
    axes, steps = (whole.value.ndim - 1,), inside(arithmetic)
    normal, inverse = root_mean_squared(whole, axes, node.real("epsilon", _EPSILON), steps)
    result = bounded.multiply(stored(normal, arithmetic), required(inputs, 2), arithmetic)
    return [result, None, stored(inverse, arithmetic), whole]


def simplified_layer_normalization(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    """SimplifiedLayerNormalization: RMSNormalization before ONNX had it, and 1 over the root mean square."""
    x, steps = required(inputs, 0), stashed(node, arithmetic)
    axes = tuple(range(node.get("axis", -1) % x.value.ndim, x.value.ndim))
    normal, inverse = root_mean_squared(x, axes, node.real("epsilon", 1e-5), steps)
    result = bounded.multiply(stored(normal, arithmetic), required(inputs, 1), arithmetic)
    return [result, stored(inverse, arithmetic)]


def _embed_layer_normalization(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    """EmbedLayerNormalization: the normalised sum of two or three embeddings, the count of a mask's ones, the sum."""
    ids, segments, positions = required(inputs, 0).value, optional(inputs, 1), optional(inputs, 8)
    places = np.arange(ids.shape[1])[None] if positions is None else positions.value
    parts = [_embedded(required(inputs, 2), ids), _embedded(required(inputs, 3), places)]
    if segments is not None:
        parts.append(_embedded(required(inputs, 4), segments.value))
    whole = _total([*parts], arithmetic)
    result, _, _ = _layer(whole, required(inputs, 5), required(inputs, 6), node, arithmetic)
    mask = optional(inputs, 7)
    node.get("mask_index_type")  # it tells the type that is inferred, not what is counted
    counts = np.zeros(ids.shape[0]) if mask is None else (mask.value == 1).sum(1)
    return [result, Bounded(counts.astype(np.int32)), whole]


def _embedded(table: Bounded, indices: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Bounded:
    """Return the rows of a table.

    Raises:
        UnsupportedOperatorError: a row that it does not have.
    """
    if np.any(indices < 0) or np.any(indices >= table.value.shape[0]):
        raise UnsupportedOperatorError("an index that an embedding does not have")
    return table.moved(lambda array: array[indices])


def _group_norm(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    x, scale, bias = (required(inputs, index) for index in range(3))
    return [_grouped_and_activated(node, x, scale, bias, arithmetic)]


def _skip_group_norm(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    """SkipGroupNorm: of the sum with what skips a block, (batch, channels) for all places or as x, and a bias."""
    x, scale, bias, skip = (required(inputs, index) for index in range(4))
    last = bool(node.get("channels_last", 1))
    rank = x.value.ndim
    if skip.value.ndim == 2:
        places = tuple(range(1, rank - 1)) if last else tuple(range(2, rank))
        skip = skip.moved(lambda array: np.expand_dims(array, places))
    added = optional(inputs, 4)
    if added is not None and not last:
        added = added.moved(lambda array: array.reshape(-1, *(1,) * (rank - 2)))
    whole = _total([x, skip, added], arithmetic)
    return [_grouped_and_activated(node, whole, scale, bias, arithmetic), whole]


def _grouped_and_activated(
    node: Node, x: Bounded, scale: Bounded, bias: Bounded, arithmetic: Arithmetic
) -> Bounded:
    last, kind = bool(node.get("channels_last", 1)), node.get("activation", 0)
    if kind not in (0, _SILU):
        raise UnsupportedOperatorError(f"{node.operator} with activation {kind}")
    first = x.moved(lambda array: np.moveaxis(array, -1, 1)) if last else x
    result = grouped(first, scale, bias, node.get("groups"), node.real("epsilon", 1e-5), arithmetic)
    if kind == _SILU:
        result = swish(result, Bounded(np.ones(1)), arithmetic)
    return result.moved(lambda array: np.moveaxis(array, 1, -1)) if last else result


OPERATORS: dict[str, Operator] = {
    "SkipLayerNormalization": _skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": _skip_simplified_layer_normalization,
    "EmbedLayerNormalization": _embed_layer_normalization,
    "GroupNorm": _group_norm,
    "SkipGroupNorm": _skip_group_norm,
}
