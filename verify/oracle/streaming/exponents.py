"""W and v of a tile: what its logits, cap and bias add to the products, for pass 2."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.oracle.bounded import ABSORBED, HUGE
from onnx_attest.verify.oracle.streaming.panel import Panel
from onnx_attest.verify.oracle.streaming.terms import FUNCTION, Terms
from onnx_attest.verify.oracle.streaming.tiles import Workspace

Array = NDArray[Any]


def add_plain_exponent(
    W: Array, v: Array, x: Array, t: Array, panel: Panel, terms: Terms, gone: NDArray[np.bool_] | None
) -> None:
    """Add to W and v what they have beside their products, where l = s q.K: x is l - m, and t is overwritten.

    In v, score l^2 + (l - m)^2 is a polynomial in l - m whose constant is in the product already.
    """
    if gone is not None:
        for array in (x, W, v):
            np.copyto(array, 0.0, where=gone)
    np.add(x, panel.top_short, out=t)
    np.abs(t, out=t)
    t *= terms.raw
    W += t
    W -= x
    np.add(x, panel.shift, out=t)
    t *= x
    v += t


def add_masked_exponent(
    W: Array, v: Array, x: Array, t: Array, tile: slice, panel: Panel, terms: Terms, work: Workspace,
    gone: NDArray[np.bool_] | None,
) -> Array:  # fmt: skip
    """Do the same where a cap or a bias comes in between; return d l / d log(scale)."""
    assert panel.raw is not None
    raw = panel.raw[:, tile]
    slope = work.take("slope", x.shape, x.dtype)
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
        _add_bias(W, v, slope, np.add(x, panel.top_short, out=t), tile, panel, terms)
    W -= x
    if gone is not None:
        for array in (x, W, v, slope):
            np.copyto(array, 0.0, where=gone)
    return slope


def _add_bias(
    W: Array, v: Array, slope: Array, logit: Array, tile: slice, panel: Panel, terms: Terms
) -> None:
    """Add the error of adding a bias; one so large that it absorbs the score leaves no error but its own."""
    absorbed = None
    if panel.huge:
        size = np.abs(panel.bias[:, tile])
        absorbed = (size > HUGE) & np.isfinite(size)
        absorbed &= np.abs(slope) + panel.unit * W < ABSORBED * size
        if panel.bias_error is not None:
            absorbed &= panel.bias_error[:, tile] == 0
    if panel.bias_error is not None:
        W += (terms.bias * panel.bias_error[:, tile]).astype(W.dtype)
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
