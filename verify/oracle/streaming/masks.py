"""What hides keys from queries, and which ranges of keys need no look at it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """What hides keys from queries; `allowed`, `bias` and its error are views of the full shape, not copies."""

    allowed: Any
    bias: Any
    bias_error: Any
    causal: int | None
    window: int | None
    queries: int
    keys: int

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
        position = self.causal or 0
        low = 0 if self.window is None else max(0, start + position - self.window + 1)
        high = self.keys if self.causal is None else min(self.keys, stop + position)
        return min(low, self.keys), max(high, min(low, self.keys))

    def clear(self, start: int, stop: int) -> tuple[int, int]:
        """Return a range of keys that each query of start..stop sees, and to which nothing is added."""
        if self.allowed is not None or self.bias is not None:
            return 0, 0
        position = self.causal or 0
        low = 0 if self.window is None else stop + position - self.window
        return low, self.keys if self.causal is None else start + position + 1

    def hide(self, logits: Floats, start: int, low: int) -> None:
        """Write -inf over the logits, of queries start.. and keys low.., that are hidden."""
        rows, columns = logits.shape
        if self.allowed is not None:
            seen = self.allowed[start : start + rows, low : low + columns]
            np.copyto(logits, -np.inf, where=np.logical_not(seen))
        position = (start + (self.causal or 0) + np.arange(rows))[:, None]
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
