"""Pass 1: the logits of a panel of query rows, tile by tile, and their maxima.

Where every logit is small, weights need no shift: they are formed at once, and the logits need not be kept for pass 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onnx_attest.verify.oracle.bounded import HUGE
from onnx_attest.verify.oracle.streaming.masks import Masks
from onnx_attest.verify.oracle.streaming.operands import KeyHead, Queries
from onnx_attest.verify.oracle.streaming.terms import Terms
from onnx_attest.verify.oracle.streaming.tiles import Workspace, longest_tile, product, tiles
from onnx_attest.verify.oracle.streaming.weights import Sums, Tile, weigh

Array = NDArray[Any]
Floats = NDArray[np.float64]

_UNSHIFTED = 24.0
"""Logits up to here need no shift. Sums of P^2 v V^2 are at most e^48 < 10^21 a key, times v: 10^10 in the profile with
the coarsest casts. Products with V are at least e^-24 2^-61: float32 holds both."""
_HIDDEN = 1e3
"""Where the logits of visible keys are that small, a key that far below zero is hidden."""


@dataclass(slots=True, eq=False)
class Scores:
    """The tiles of a panel, and what is known of its rows after pass 1: (rows, 1), or (1, 1) if all are equal.

    Weights are e^(l - c), the shift c being m, or 0 where every logit is small.
    """

    tiles: list[Tile]
    start: int  # the first row
    scaled: Floats  # s q, (rows, d)
    masks: Masks
    largest: float  # no |s q.K| is larger
    shifted: bool
    top: Floats  # m; -inf in an empty row
    keys: Floats  # n_eff


def score(queries: Queries, rows: slice, head: KeyHead, terms: Terms, sums: Sums, work: Workspace) -> Scores:
    """Form the logits of query rows, and their weights if they need no shift: those are in the sums then."""
    masks, scaled = queries.masks, queries.q[rows] * terms.scale
    largest = float(np.sqrt((scaled * scaled).sum(1).max(initial=0.0))) * head.key_norm
    # Without a shift m - l cancels, and W needs raw |l| for what that loses to be relative to it (see `Panel.of`).
    shifted = not (terms.plain and terms.raw >= 1 and largest <= _UNSHIFTED)
    formed, keys = [], np.zeros((1, 1))
    # Column by column over the tiles: NumPy is slow along a short row.
    top = np.full((len(scaled), longest_tile(masks.keys)), -np.inf)
    for tile in _tiles(masks, rows, head, terms, work, shifted=shifted):
        _form_logits(tile, scaled, rows.start, head, masks, terms)
        columns = tile.logits.shape[1]
        np.maximum(top[:, :columns], tile.logits, out=top[:, :columns])
        if tile.clear and largest < -terms.arithmetic.masked_below:
            keys = keys + columns
        else:
            keys = keys + (tile.logits >= terms.arithmetic.masked_below).sum(1, keepdims=True)
        if not shifted:
            weigh(tile, sums, None, _HIDDEN, head, work)
        formed.append(tile)
    keys = np.where(keys == 0, masks.keys, keys)  # a row masked with finite numbers is summed whole
    return Scores(
        tiles=formed, start=rows.start, scaled=scaled, masks=masks, largest=largest, shifted=shifted, keys=keys,
        top=top.max(1, keepdims=True, initial=-np.inf),
    )  # fmt: skip


def weights_of(tile: Tile, scores: Scores, head: KeyHead, terms: Terms, work: Workspace) -> Floats:
    """Return a tile's e^(l - c) in float64 once more; where they need no shift, from logits that are formed anew."""
    if not scores.shifted:
        _form_logits(tile, scores.scaled, scores.start, head, scores.masks, terms)
        return np.exp(tile.logits, out=tile.logits)
    top = np.where(np.isneginf(scores.top), 0.0, scores.top)
    P64 = np.subtract(tile.logits, top, out=work.take("P64", tile.logits.shape))
    return np.exp(P64, out=P64)


def _tiles(
    masks: Masks, rows: slice, head: KeyHead, terms: Terms, work: Workspace, *, shifted: bool
) -> Iterator[Tile]:
    """Yield tiles with room for what they will hold: pass 2 wants the logits, or the weights if they are there."""
    low, high = masks.span(rows.start, rows.stop) if head.finite else (0, masks.keys)
    first, last = masks.clear(rows.start, rows.stop)
    count = rows.stop - rows.start

    def place(name: str, columns: slice, dtype: DTypeLike, *, kept: bool) -> Array:
        if not kept:
            return work.take(name, (count, columns.stop - columns.start), dtype)
        whole = work.take(name, (count * (high - low),), dtype)
        return whole[count * columns.start : count * columns.stop].reshape(count, -1)

    for columns in tiles(high - low):
        keys = slice(low + columns.start, low + columns.stop)
        yield Tile(
            columns=columns,
            keys=keys,
            clear=first <= keys.start and keys.stop <= last,
            logits=place("logits", columns, np.float64, kept=shifted),
            x=place("x", columns, head.dtype, kept=not shifted),
            P=place("P", columns, head.dtype, kept=not shifted),
            raw=None if terms.plain else place("raw", columns, head.dtype, kept=True),
        )


def _form_logits(tile: Tile, scaled: Floats, start: int, head: KeyHead, masks: Masks, terms: Terms) -> None:
    """Write the logits of query rows from `start` on: scaled products, a cap, a bias and what hides keys."""
    logits = product(scaled, head.keys[:, tile.keys], out=tile.logits)
    if tile.raw is not None:
        np.copyto(tile.raw, logits, casting="same_kind")
    if terms.softcap:
        logits /= terms.softcap
        np.tanh(logits, out=logits)
        logits *= terms.softcap
    if masks.bias is not None:
        logits += masks.bias[start : start + len(scaled), tile.keys]
        # so written that a NaN counts as huge: it only costs time
        tile.huge = not (logits.min(initial=0.0) > HUGE / -2 and logits.max(initial=0.0) < HUGE / 2)
    masks.hide(logits, start, tile.keys.start)
