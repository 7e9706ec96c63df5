"""The weights of a tile of keys, and what the sums take from them alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onnx_attest.verify.oracle.streaming.operands import KeyHead
from onnx_attest.verify.oracle.streaming.tiles import Workspace, product, row_sum

Array = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Tile:
    """The rows of a panel and a range of its keys; arrays are (rows, columns)."""

    columns: slice  # of the panel
    keys: slice  # of the head
    clear: bool  # whether no key is hidden
    logits: Floats  # where they need no shift, they last until the tile is weighed
    x: Array  # l - c, once it is weighed, in the dtype of magnitudes; 0 at keys that are gone
    P: Array  # e^(l - c), likewise
    raw: Array | None = None  # s q.K, where that is not the logit itself
    huge: bool = False  # whether some bias may absorb a score
    gone: NDArray[np.bool_] | None = None  # keys without a weight, if there are any
    idle: bool = False  # whether all are gone


@dataclass(slots=True, eq=False)
class Sums:
    """Sums over the keys of a panel, weights not yet divided by their total; float64 unless it says otherwise."""

    total: Floats  # of P = e^(l - c), (rows, 1); so are the next six
    theta: Floats  # P theta
    theta_squared: Floats  # P theta^2, of keys known to a factor of two
    unknown: Floats  # P theta of the others
    score: Floats  # P l', l' up to a constant of the row
    squared: Floats  # P^2
    spread: Floats  # P^2 v
    values: Floats  # P V, (rows, d_v)
    inherited: Floats  # P (1 + theta) E_V, (rows, d_v)
    magnitudes: Array  # P |V| and P V^2, (2, rows, d_v), in the dtype of magnitudes; so are the others
    of_scores: Array  # P l' V, (rows, d_v); so are the next two
    of_spread: Array  # P^2 v V
    of_squares: Array  # P^2 (v + extra) V^2

    @property
    def absolute(self) -> Array:
        """P |V|."""
        return np.asarray(self.magnitudes[0])

    @property
    def squares(self) -> Array:
        """P V^2."""
        return np.asarray(self.magnitudes[1])

    @classmethod
    def zero(cls, rows: int, d_v: int, dtype: DTypeLike) -> Sums:
        """Return sums of nothing; `dtype` is that of magnitudes."""
        exact = (np.zeros((rows, width)) for width in (1,) * 7 + (d_v,) * 2)
        short = (np.zeros((*lead, rows, d_v), dtype) for lead in ((2,), (), (), ()))
        return cls(*exact, *short)


def weigh(
    tile: Tile, sums: Sums, shift: Floats | None, widest: float, head: KeyHead, work: Workspace
) -> None:
    """Form the weights of a tile, and add to the sums what is made of them alone.

    A key whose exponent l - c is below -widest, a hidden one among them, is gone: it has no weight, whatever its error.
    """
    P64 = tile.logits
    if shift is not None:
        P64 = np.subtract(tile.logits, shift, out=work.take("P64", P64.shape))
    if not tile.clear:
        gone = np.less(P64, -widest)
        tile.gone = gone if gone.any() else None
        tile.idle = head.finite and bool(gone.all())
    if tile.idle:
        return
    np.copyto(tile.x, P64, casting="same_kind")
    if tile.gone is not None:
        np.copyto(tile.x, 0.0, where=tile.gone)
    np.exp(P64, out=P64)
    np.copyto(tile.P, P64, casting="same_kind")
    sums.total += row_sum(P64)
    sums.values += product(P64, head.values[tile.keys])
    sums.magnitudes += product(tile.P, head.short[1:, tile.keys])
