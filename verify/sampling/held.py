"""What a runtime gave, as far as it is compared: the rows that are verified, and no more of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.oracle.bounded import is_floating
from onnx_attest.verify.oracle.by_rows import Layout
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.sampling.sample import Rows, Sample

_LOOKED_AT = 4096
"""Rows that are looked at at a time: what is made for them is small beside the output."""
_ODD = 16
"""Odd rows of a kind that are verified: they are of one fault, if there are many."""


@dataclass(frozen=True, eq=False)
class Held:
    """Outputs of the right shapes.

    Attributes:
        rows: that are held, in increasing order.
        arrays: outputs that have query rows, only these of them.
        others: outputs that have none.
        odd: how many rows are held because of how they look.
    """

    rows: Rows
    arrays: Tensors
    others: Tensors
    odd: int
    _axes: Mapping[str, int]

    @staticmethod
    def of(outputs: Tensors, layout: Mapping[str, Layout], sample: Sample) -> Held:
        """Return what is compared of outputs: the sample, and rows that are odd, wherever they are."""
        axes = {name: one.axis for name, one in layout.items() if one.axis is not None}
        others = {name: outputs[name] for name in layout if name not in axes}
        whole = {name: outputs[name] for name in axes}
        if sample.is_whole:
            return Held(sample.rows, whole, others, 0, axes)
        odd = [odd_rows(array, axes[name]) for name, array in whole.items()]
        rows = np.union1d(sample.rows, np.concatenate(odd)).astype(np.intp)
        kept = {name: array.take(rows, axes[name]) for name, array in whole.items()}
        return Held(rows, kept, others, len(rows) - len(sample.rows), axes)

    def among(self, rows: Rows) -> NDArray[np.bool_]:
        """Return which of these rows are held."""
        return np.isin(rows, self.rows, assume_unique=True)

    def part(self, rows: Rows) -> Tensors:
        """Return some of the rows that are held, as views where they lie side by side."""
        places = np.searchsorted(self.rows, rows)
        run = len(places) > 0 and places[-1] - places[0] + 1 == len(places)
        return {
            name: _between(array, axis, places) if run else array.take(places, axis)
            for (name, array), axis in zip(self.arrays.items(), self._axes.values(), strict=True)
        }


def _between(array: NDArray[Any], axis: int, places: Rows) -> NDArray[Any]:
    return array[(slice(None),) * axis + (slice(int(places[0]), int(places[-1]) + 1),)]


def odd_rows(array: NDArray[Any], axis: int) -> Rows:
    """Return rows that no random sample need hit and that look as if something were wrong with them.

    Those with numbers that are none, those that are zero throughout, as what was never written is, and the one with the
    largest number: of each kind the first few.
    """
    if not is_floating(array.dtype):
        return np.zeros(0, np.intp)
    broken, empty = list[int](), list[int]()
    largest, where = -1.0, 0
    for start, block in _blocks(array, axis):
        sizes = np.abs(block.astype(np.float32)).reshape(len(block), -1)
        row_largest = sizes.max(1, initial=0.0)
        finite = np.isfinite(row_largest)  # NaN propagates through max
        broken += (start + np.flatnonzero(~finite)).tolist()
        empty += (start + np.flatnonzero(row_largest == 0)).tolist()
        top = int(np.argmax(np.where(finite, row_largest, -1.0)))
        if row_largest[top] > largest and finite[top]:
            largest, where = float(row_largest[top]), start + top
    return np.unique(np.array([*broken[:_ODD], *empty[:_ODD], where], np.intp))


def _blocks(array: NDArray[Any], axis: int) -> Iterator[tuple[int, NDArray[Any]]]:
    rows_first = np.moveaxis(array, axis, 0)
    for start in range(0, len(rows_first), _LOOKED_AT):
        yield start, rows_first[start : start + _LOOKED_AT]
