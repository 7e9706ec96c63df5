"""What hides keys from queries, and which ranges of keys need no look at it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """What hides keys from queries; `allowed`, `bias` and its error are views of the full shape, not copies.

    Attributes:
        rows: where the queries stand, in increasing order; None: one behind the other from 0 on.
    """

    allowed: Any
    bias: Any
    bias_error: Any
    causal: int | None
    window: int | None
    keys: int
    rows: NDArray[np.intp] | None = None

    def of_head(self, index: tuple[int, ...]) -> Masks:
        """Return the masks of one head."""
        return replace(
            self,
            allowed=part_of(self.allowed, index),
            bias=part_of(self.bias, index),
            bias_error=part_of(self.bias_error, index),
        )

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of keys that some query of start..stop sees."""
        first, last = self._positions(start, stop)
        low = 0 if self.window is None else max(0, first - self.window + 1)
        high = self.keys if self.causal is None else min(self.keys, last + 1)
        return min(low, self.keys), max(high, min(low, self.keys))

    def clear(self, start: int, stop: int) -> tuple[int, int]:
        """Return a range of keys that each query of start..stop sees, and to which nothing is added."""
        if self.allowed is not None or self.bias is not None:
            return 0, 0
        first, last = self._positions(start, stop)
        low = 0 if self.window is None else last + 1 - self.window
        return low, self.keys if self.causal is None else first + 1

    def _positions(self, start: int, stop: int) -> tuple[int, int]:
        """Return where the first and the last of the queries start..stop stand."""
        offset = self.causal or 0
        if self.rows is None:
            return start + offset, stop - 1 + offset
        return int(self.rows[start]) + offset, int(self.rows[stop - 1]) + offset

    def hide(self, logits: Floats, start: int, low: int) -> None:
        """Write -inf over the logits, of queries start.. and keys low.., that are hidden."""
        rows, columns = logits.shape
        if self.allowed is not None:
            seen = self.allowed[start : start + rows, low : low + columns]
            np.copyto(logits, -np.inf, where=np.logical_not(seen))
        standing = start + np.arange(rows) if self.rows is None else self.rows[start : start + rows]
        position = (standing + (self.causal or 0))[:, None]
        if self.causal is not None:
            first = max(0, int(position[0, 0]) + 1 - low)
            later = logits[:, first:]
            np.copyto(later, -np.inf, where=low + first + np.arange(later.shape[1]) > position)
        if self.window is not None:
            last = max(0, int(position[-1, 0]) - self.window + 1 - low)
            earlier = logits[:, :last]
            np.copyto(earlier, -np.inf, where=low + np.arange(earlier.shape[1]) <= position - self.window)


def part_of(array: Any, index: tuple[int, ...]) -> Any:
    """Return a head's part of an array, None of none."""
    return None if array is None else array[index]
