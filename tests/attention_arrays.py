"""Correct and wrong attention in NumPy, to feed the gates with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def inputs(
    *, batch: int = 2, heads: int = 3, queries: int = 17, keys: int = 23, d: int = 20, d_v: int = 12,
    logit_std: float = 2.0, seed: int = 0,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return q (batch, heads, queries, d), k (.., keys, d), v (.., keys, d_v) in float32."""
    rng = np.random.default_rng(seed)
    gain = np.sqrt(logit_std)
    shapes = ((queries, d), (keys, d), (keys, d_v))
    q, k, v = (rng.standard_normal((batch, heads, *shape)) for shape in shapes)
    return (q * gain).astype(np.float32), (k * gain).astype(np.float32), v.astype(np.float32)


def softmax(scores: Array) -> Array:
    """Softmax over the last axis in the dtype of the scores, the maximum subtracted."""
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def naive(q: Array, k: Array, v: Array, mask: Array | None = None, *, scale: float | None = None) -> Array:
    """The textbook formula in the dtype of the inputs."""
    factor = q.dtype.type(q.shape[-1] ** -0.5 if scale is None else scale)
    scores = q @ k.swapaxes(-1, -2) * factor
    if mask is not None:
        scores = np.where(mask, scores, q.dtype.type(-np.inf))
    return softmax(scores) @ v


def online(q: Array, k: Array, v: Array, mask: Array | None = None, *, block: int = 512) -> Array:
    """Online softmax in blocks of keys, rescaled as it goes, as flash attention does."""
    factor = q.dtype.type(q.shape[-1] ** -0.5)
    top = np.full((*q.shape[:-1], 1), -np.inf, q.dtype)
    total = np.zeros_like(top)
    output = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
    for start in range(0, k.shape[-2], block):
        part = slice(start, start + block)
        scores = q @ k[..., part, :].swapaxes(-1, -2) * factor
        if mask is not None:
            scores = np.where(mask[..., part], scores, q.dtype.type(-np.inf))
        new_top = np.maximum(top, scores.max(-1, keepdims=True))
        safe = np.where(np.isneginf(new_top), 0, new_top)
        weights = np.exp(scores - safe)
        rescale = np.exp(np.where(np.isneginf(top), -np.inf, top - safe))
        total = total * rescale + weights.sum(-1, keepdims=True)
        output = output * rescale + weights @ v[..., part, :]
        top = new_top
    return output / total


def sequential(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    """Every sum taken one term after another, which rounds worst."""
    factor = q.dtype.type(q.shape[-1] ** -0.5)
    scores = _sequential_product(q, k.swapaxes(-1, -2)) * factor
    if mask is not None:
        scores = np.where(mask, scores, q.dtype.type(-np.inf))
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    total = np.add.accumulate(exponentials, axis=-1)[..., -1:]
    return _sequential_product(exponentials / total, v)


def _sequential_product(a: Array, b: Array) -> Array:
    result = np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
    for index in range(a.shape[-1]):
        result += a[..., index : index + 1] * b[..., index : index + 1, :]
    return result


CORRECT = {"naive": naive, "online": online, "sequential": sequential}


def causal_mask(queries: int, keys: int, offset: int = 0) -> Array:
    """Lower-triangular, shifted by `offset` keys."""
    return np.tril(np.ones((queries, keys), bool), offset)
