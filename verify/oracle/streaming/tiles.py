"""How the work is cut: panels of queries, tiles of keys, blocks of products, arrays used again; and what a sum loses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

PANEL_ROWS, PANEL_SIZE, TILE = 384, 2**23, 240
"""Rows of a panel, logits in it that may shorten it, keys of a tile: the fastest of those tried with 1 MiB of L2. Few rows
cost more than their share: at 32,768 keys, 32 of them take 1.8 times as long a row as 256 do, and 64 take 1.4 times."""
_LEAST_ROWS, _PANELS = 128, 2**26
"""Rows of a panel at least; logits of all panels that are in work at a time, 8 bytes each, on however many cores."""
_BLOCK, _SMALL = 64, 10**6
"""Rows of a product's block, and multiply-adds up to which OpenBLAS does not pack the factors (AVX-512). A block of 240
keys and 64 features is just below: a tenth faster in float32, a sixth in float64, than the product of a whole tile."""
_SKEW = 16
"""Elements between the rows of a transposed array: at a stride of 2^k bytes, they would share a few sets of a cache."""
_LINE, _PAGE = 64, 2**21
"""Bytes of a cache line, and of a huge page. NumPy asks for such pages for arrays from 4 MiB on: with common ones, page
faults took a tenth of the whole time."""
_SLACK = 48
"""Roundings that a magnitude undergoes beside its inner product: casts of both factors and a dozen steps."""


def panels(queries: int, keys: int) -> Iterator[slice]:
    """Yield the rows of each panel."""
    return _slices(queries, _rows(keys))


def _rows(keys: int) -> int:
    return max(min(_LEAST_ROWS, PANEL_ROWS), min(PANEL_ROWS, PANEL_SIZE // max(keys, 1) // _BLOCK * _BLOCK))


def panels_at_a_time(keys: int) -> int:
    """Return how many panels may be in work at a time."""
    return max(1, _PANELS // (_rows(keys) * max(keys, 1)))


def tiles(width: int) -> Iterator[slice]:
    """Yield the columns of each tile."""
    return _slices(width, TILE)


def _slices(whole: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, whole)) for start in range(0, whole, size))


def longest_sum(keys: int) -> int:
    """Return how many summands a sum over so many keys has: those of a tile, and the tiles'."""
    return longest_tile(keys) + -(-keys // TILE)


def longest_tile(keys: int) -> int:
    """Return how many keys a tile has, at most."""
    return min(keys, TILE)


def relative_loss(summands: int, dtype: DTypeLike) -> float:
    """Return the relative error of a sum of so many positive magnitudes in the dtype."""
    return (summands + _SLACK) * float(np.finfo(dtype).eps) / 2


def row_dot(a: Array, b: Array) -> Array:
    """Return each row's product of a and b, (rows, 1)."""
    return np.asarray(np.vecdot(a, b))[:, None]


def row_sum(a: Array) -> Array:
    """Return each row's sum, (rows, 1): a product with ones takes half the time of NumPy's sum."""
    return np.asarray(np.matmul(a, np.ones((a.shape[1], 1), a.dtype)))


def product(left: Array, right: Array, out: Array | None = None) -> Array:
    """Return left (..., rows, inner) @ right (..., inner, columns) in blocks of rows, if those are small enough.

    `out` has to be contiguous.
    """
    *_, rows, inner = left.shape
    if rows % _BLOCK or _BLOCK * inner * right.shape[-1] > _SMALL:
        return np.matmul(left, right, out=out)
    blocks, columns = (rows // _BLOCK, _BLOCK), right.shape[-1]
    result = np.matmul(
        left.reshape(*left.shape[:-2], *blocks, inner),
        right[..., None, :, :],
        out=None if out is None else out.reshape(*out.shape[:-2], *blocks, columns),
    )
    return result.reshape(*result.shape[:-3], rows, columns)


def room(shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> Array:
    """Return an array with anything in it; a large one starts at a huge page, so that all of it is in such pages."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size < 2 * _PAGE:
        return np.empty(shape, dtype)
    whole = np.empty(size + _PAGE, np.uint8)
    start = -whole.ctypes.data % _PAGE
    return whole[start : start + size].view(dtype).reshape(shape)


@dataclass(slots=True)
class Workspace:
    """Arrays that are used again: a fresh large array costs more in page faults than what is computed in it.

    Attributes:
        chunk: what arrays are cut from while it lasts, bytes.
    """

    chunk: Array
    flat: dict[tuple[str, Any], Array] = field(default_factory=dict)

    @classmethod
    def of_head(cls, keys: int, d: int, d_v: int) -> Workspace:
        """Return one with a chunk for what the keys and values of a head take."""
        return cls(room((keys + _SKEW) * (16 * (d + 1) + 28 * d_v), np.uint8))

    @classmethod
    def of_panel(cls, queries: int, keys: int) -> Workspace:
        """Return one with a chunk for what a panel of an attention without masks takes."""
        rows = min(queries, _rows(keys))
        return cls(room(8 * rows * (keys + _SKEW) + 24 * rows * longest_tile(keys), np.uint8))

    def take(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> Array:
        """Return an array of this shape with anything in it; the next of this name overwrites it."""
        key, size = (name, dtype), math.prod(shape)
        if key not in self.flat or self.flat[key].size < size:
            self.flat[key] = self._fresh(size, np.dtype(dtype))
        return self.flat[key][:size].reshape(shape)

    def _fresh(self, size: int, dtype: np.dtype[Any]) -> Array:
        needed = -(-size * dtype.itemsize // _LINE) * _LINE
        if needed > len(self.chunk):
            return np.empty(size, dtype)
        part, self.chunk = self.chunk[:needed], self.chunk[needed:]
        return part.view(dtype)[:size]

    def take_skewed(self, name: str, rows: int, columns: int, dtype: DTypeLike = np.float64) -> Array:
        """Return one whose long rows do not lie a power of two apart."""
        return self.take(name, (rows, columns + _SKEW), dtype)[:, :columns]
