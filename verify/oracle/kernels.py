"""Kernels: correct ways to carry out products, sums and softmax in a working precision, unlike each other on purpose.

A correct runtime may sum in any order. How far correct results lie from the exact one on the very inputs at hand is
what the *noise* gate compares with: the pool of NUMERICS.md section 3. The values between operations are float64
arrays that hold numbers of the working precision only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.blocks import matmul

Array = NDArray[Any]
Floats = NDArray[np.float64]


TF32_CUT = 13
"""Bits of float32 that TF32 does not have."""


@dataclass(frozen=True)
class Kernel:
    """One correct implementation.

    Attributes:
        block: terms that are summed at once, by NumPy's own product or sum; the sums of the blocks are added one after
            another. None: all at once; 1: plain sequential sums, the least accurate correct order there is.
        online: whether softmax is taken block by block with a running maximum, and what there is so far rescaled.
        working: dtype of products and sums.
        storing: dtype of what an operator gives.
        truncated: bits that are cut off the operands of a product, TF32_CUT for TF32.
        splits_scale: an attention operator multiplies q and k by the root of the scale each, as torch's math path and
            ONNX's definition do.
        steps: softmax stores each of its steps, as NumPy does in float16.
    """

    name: str
    block: int | None = None
    online: bool = False
    working: Any = np.float32
    storing: Any = np.float32
    truncated: int = 0
    splits_scale: bool = False
    steps: bool = False

    def stored(self, value: Array) -> Floats:
        """Return a value as an operator gives it: rounded in the working precision, and stored."""
        with np.errstate(over="ignore", invalid="ignore"):
            worked = np.asarray(value).astype(self.working, copy=False)
            return worked.astype(self.storing, copy=False).astype(np.float64, copy=False)

    def matmul(self, a: Array, b: Array) -> Floats:
        """Return a @ b for a (..., m, k) and b (..., k, n), vectors included."""
        return self.stored(self._product(self._operand(a), self._operand(b)))

    def _operand(self, a: Array) -> Array:
        taken = np.asarray(a.astype(self.working, copy=False))
        if not self.truncated:
            return taken
        bits = taken.view(np.uint32) & np.uint32((0xFFFFFFFF << self.truncated) & 0xFFFFFFFF)
        return np.asarray(bits.view(np.float32))

    def total(self, a: Array, axes: tuple[int, ...], *, keepdims: bool = False) -> Floats:
        """Return the sum over axes."""
        kept = tuple(axis for axis in range(a.ndim) if axis not in {one % a.ndim for one in axes})
        moved = a.astype(self.working).transpose(*kept, *(axis for axis in range(a.ndim) if axis not in kept))
        flat = moved.reshape(*moved.shape[: len(kept)], -1)
        value = self.stored(self._sum(flat))
        return np.expand_dims(value, axes) if keepdims else value

    def attend(self, logits: Array, values: Array) -> tuple[Floats, Floats]:
        """Return softmax(logits) @ values and the weights; rows of -inf only give NaN."""
        if self.online:
            return self._attend_online(logits.astype(self.working), self._operand(values))
        weights = self.softmax(logits)
        return self.matmul(weights, values), weights

    def softmax(self, logits: Array) -> Floats:
        """Return softmax over the last axis."""
        with np.errstate(invalid="ignore"):
            x = logits.astype(self.working)
            shifted = self._step(x - x.max(-1, keepdims=True, initial=-np.inf))
            e = self._step(np.exp(shifted))
            return self.stored(e / self._step(self._sum(e))[..., None])

    def _step(self, value: Array) -> Array:
        return self.stored(value).astype(self.working) if self.steps else value

    def _product(self, a: Array, b: Array) -> Array:
        depth = a.shape[-1]
        if self.block is None or min(a.ndim, b.ndim) < 2 or depth == 0:
            return matmul(a, b)
        result = np.matmul(a[..., : self.block], b[..., : self.block, :])
        for start in range(self.block, depth, self.block):
            result += np.matmul(a[..., start : start + self.block], b[..., start : start + self.block, :])
        return np.asarray(result)

    def _sum(self, a: Array) -> Array:
        if self.block is None or a.shape[-1] == 0:
            return np.asarray(a.sum(-1))
        if self.block == 1:  # an accumulation keeps every partial sum: one after another
            return np.asarray(np.add.accumulate(a, -1)[..., -1])
        starts = range(0, a.shape[-1], self.block)
        parts = [a[..., start : start + self.block].sum(-1) for start in starts]
        return np.asarray(np.add.accumulate(np.stack(parts, -1), -1)[..., -1])

    def _attend_online(self, logits: Array, values: Array) -> tuple[Floats, Floats]:
        step = self.block or logits.shape[-1]
        top = np.full((*logits.shape[:-1], 1), -np.inf, self.working)
        total = np.zeros_like(top)
        result = np.zeros((*logits.shape[:-1], values.shape[-1]), self.working)
        with np.errstate(invalid="ignore"):
            for start in range(0, logits.shape[-1], step):
                block = logits[..., start : start + step]
                higher = np.maximum(top, block.max(-1, keepdims=True))
                base = np.where(np.isneginf(higher), 0, higher).astype(self.working)
                rescale = np.exp(top - base)
                e = np.exp(block - base)
                total = total * rescale + e.sum(-1, keepdims=True)
                result = result * rescale + np.matmul(self._operand(e), values[..., start : start + step, :])
                top = higher
            weights = np.exp(logits - np.where(np.isneginf(top), 0, top)) / total
            return self.stored(result / total), self.stored(weights)


VALUES_ALONE = Kernel("float64", working=np.float64, storing=np.float64)
"""For evaluations of which only the exact values are wanted: no bounds are made."""


def pool(arithmetic: Arithmetic, storing: Any = np.float32) -> tuple[Kernel, ...]:
    """Return the four deliberately different implementations: naive, blocks of 8 with the scale split, online in blocks of 32, sequential.

    The sequential one is essential: it is the worst that is correct (NUMERICS.md section 3).

    Args:
        arithmetic: declared; none of these sums in half precision.
        storing: dtype of the graph.
    """
    common: dict[str, Any] = {
        "storing": storing,
        "working": np.float64 if np.dtype(storing) == np.float64 else np.float32,
        "truncated": TF32_CUT if arithmetic.u_in else 0,
        "steps": arithmetic.u > _SINGLE,
    }
    return (
        Kernel("naive", **common),
        Kernel("blocks of 8, scale split", 8, splits_scale=True, **common),
        Kernel("online, blocks of 32", 32, online=not common["steps"], **common),
        Kernel("sequential", 1, **common),
    )


_SINGLE = 2.0**-24
