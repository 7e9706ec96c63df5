"""How the work is cut: panels of queries, tiles of keys, arrays that are used again, and what a sum loses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

PANEL_ROWS, PANEL_SIZE, TILE = 256, 2**20, 256
"""Rows of a panel, logits in it that may shorten it, keys of a tile: the fastest of those tried with 1 MiB of L2."""
_SLACK = 48
"""Roundings that a magnitude undergoes beside its inner product: casts of both factors and a dozen steps."""


def panels(queries: int, keys: int) -> Iterator[slice]:
    """Yield the rows of each panel."""
    rows = max(32, min(PANEL_ROWS, PANEL_SIZE // max(keys, 1)))
    return _slices(queries, rows)


def tiles(width: int) -> Iterator[slice]:
    """Yield the columns of each tile."""
    return _slices(width, TILE)


def _slices(whole: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, whole)) for start in range(0, whole, size))


def longest_tile(keys: int) -> int:
    """Return how many keys are summed at once, at most."""
    return min(keys, TILE)


def relative_loss(summands: int, dtype: DTypeLike) -> float:
    """Return the relative error of a sum of so many positive magnitudes in the dtype."""
    return (summands + _SLACK) * float(np.finfo(dtype).eps) / 2


def row_dot(a: Array, b: Array) -> Array:
    """Return each row's product of a and b, (rows, 1)."""
    return np.asarray(np.vecdot(a, b))[:, None]


@dataclass(slots=True)
class Workspace:
    """Arrays that are used again: a fresh large array costs more in page faults than what is computed in it."""

    flat: dict[tuple[str, Any], Array] = field(default_factory=dict)

    def take(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> Array:
        """Return an array of this shape with anything in it; the next of this name overwrites it."""
        key, size = (name, dtype), math.prod(shape)
        if key not in self.flat or self.flat[key].size < size:
            self.flat[key] = np.empty(size, dtype)
        return self.flat[key][:size].reshape(shape)
