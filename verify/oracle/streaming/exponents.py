"""W and v of a tile: what its logits, cap and bias add to the products, for pass 2."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.oracle.bounded import ABSORBED, HUGE
from onnx_attest.verify.oracle.streaming.operands import KeyHead
from onnx_attest.verify.oracle.streaming.panel import Panel
from onnx_attest.verify.oracle.streaming.terms import FUNCTION, Terms
from onnx_attest.verify.oracle.streaming.tiles import Workspace, product
from onnx_attest.verify.oracle.streaming.weights import Tile

Array = NDArray[Any]


def plain_error(tile: Tile, panel: Panel, head: KeyHead, terms: Terms, work: Workspace) -> Array:
    """Return W where l = s q.K: its products, and raw |l| + (m - l); 0 where a key is gone."""
    x = tile.x
    W, t = work.take("W", x.shape, x.dtype), work.take("t", x.shape, x.dtype)
    product(panel.sizes, head.sizes[:, tile.keys], out=W)
    np.abs(x if panel.shift_short is None else np.add(x, panel.shift_short, out=t), out=t)
    t *= terms.raw
    t -= x
    W += t
    if tile.gone is not None:
        np.copyto(W, 0.0, where=tile.gone)
    return W


def plain_variance(tile: Tile, panel: Panel, head: KeyHead, work: Workspace) -> Array:
    """Return v there: its products, and score l^2 + (m - l)^2 as a polynomial in l - c; it overwrites W."""
    x = tile.x
    v, t = work.take("W", x.shape, x.dtype), work.take("t", x.shape, x.dtype)
    product(panel.squares, head.squares[:, tile.keys], out=v)
    np.add(x, panel.linear, out=t)
    t *= x
    v += t
    if tile.gone is not None:
        np.copyto(v, 0.0, where=tile.gone)
    return v


def masked_exponent(
    tile: Tile, panel: Panel, head: KeyHead, terms: Terms, work: Workspace
) -> tuple[Array, Array, Array]:
    """Return W, v and d l / d log(scale) where a cap or a bias comes in between; there c = m."""
    assert tile.raw is not None
    assert panel.shift_short is not None
    raw, x = tile.raw, tile.x
    W, v, slope, t = (work.take(name, x.shape, x.dtype) for name in ("W", "v", "slope", "t"))
    product(panel.sizes, head.sizes[:, tile.keys], out=W)
    product(panel.squares, head.squares[:, tile.keys], out=v)
    np.copyto(slope, raw)
    np.abs(raw, out=t)
    t *= terms.raw
    W += t
    np.multiply(raw, raw, out=t)
    t *= terms.score
    v += t
    if terms.softcap:
        bent = np.tanh(raw / terms.softcap)
        capped = terms.softcap * bent
        steepness = 1 - bent * bent
        slope *= steepness
        W += terms.capped * np.abs(capped)
        v -= FUNCTION
        v *= steepness * steepness
        v += terms.of_capped * capped * capped + FUNCTION * (1 + terms.softcap**2)
    np.multiply(x, x, out=t)
    v += t
    if panel.bias is not None:
        _add_bias(W, v, slope, np.add(x, panel.shift_short, out=t), tile, panel, terms)
    W -= x
    if tile.gone is not None:
        for array in (W, v, slope):
            np.copyto(array, 0.0, where=tile.gone)
    return W, v, slope


def _add_bias(W: Array, v: Array, slope: Array, logit: Array, tile: Tile, panel: Panel, terms: Terms) -> None:
    """Add the error of adding a bias; one so large that it absorbs the score leaves no error but its own."""
    absorbed = None
    if tile.huge:
        size = np.abs(panel.bias[:, tile.columns])
        absorbed = (size > HUGE) & np.isfinite(size)
        absorbed &= np.abs(slope) + panel.unit * W < ABSORBED * size
        if panel.bias_error is not None:
            absorbed &= panel.bias_error[:, tile.columns] == 0
    if panel.bias_error is not None:
        W += (terms.bias * panel.bias_error[:, tile.columns]).astype(W.dtype)
    np.abs(logit, out=logit)
    if terms.stored != 1:
        W += terms.stored * logit
    else:
        W += logit
    logit *= logit
    logit *= terms.of_biased
    v += logit
    if absorbed is not None:
        W[absorbed], v[absorbed], slope[absorbed] = terms.floor, FUNCTION, 0.0
