"""Pass 2: what the errors of a tile's weights add to the sums that bound, deviation and direction are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.oracle.streaming.exponents import masked_exponent, plain_error, plain_variance
from onnx_attest.verify.oracle.streaming.operands import KeyHead
from onnx_attest.verify.oracle.streaming.panel import Panel
from onnx_attest.verify.oracle.streaming.terms import FUNCTION, Terms
from onnx_attest.verify.oracle.streaming.tiles import Workspace, product, relative_loss, row_dot, row_sum
from onnx_attest.verify.oracle.streaming.weights import Sums, Tile, weigh

Array = NDArray[Any]
Floats = NDArray[np.float64]

_LINEAR, _QUADRATIC, _UNKNOWN = 4e-4, 0.04, float(np.log(2.0))
"""Up to the first, W stands for e^W - 1 within 2e-4; up to the second, W + W^2 / 2 within 3e-4 and a little more; from
the third on, a key is not known to a factor of two."""


def add_tile(sums: Sums, panel: Panel, tile: Tile, head: KeyHead, terms: Terms, work: Workspace) -> None:
    """Add a tile of keys to the sums of pass 2."""
    if panel.shift is not None:
        weigh(tile, sums, panel.shift, panel.widest, head, work)
    if tile.idle:
        return
    if terms.plain:
        W = plain_error(tile, panel, head, terms, work)
        _add_theta(sums, W, tile, panel, head, panel.most if tile.gone is None else np.inf, work)
        v, slope = plain_variance(tile, panel, head, work), tile.x
    else:
        W, v, slope = masked_exponent(tile, panel, head, terms, work)
        _add_theta(sums, W, tile, panel, head, np.inf, work)
    _add_moments(sums, tile.P, slope, v, panel, head.short[:, tile.keys], work)


def _add_moments(
    sums: Sums, P: Array, slope: Array, v: Array, panel: Panel, values: Array, work: Workspace
) -> None:
    """Add what deviation and direction are made of, slope and v overwritten."""
    slope *= P
    sums.score += row_sum(slope)
    sums.of_scores += product(slope, values[0])
    P_squared = np.multiply(P, P, out=work.take("t", P.shape, P.dtype))
    v *= P_squared
    sums.squared += row_sum(P_squared)
    sums.spread += row_sum(v)
    sums.of_spread += product(v, values[0])
    P_squared *= panel.extra
    v += P_squared
    sums.of_squares += product(v, values[2])


def _add_theta(
    sums: Sums, W: Array, tile: Tile, panel: Panel, head: KeyHead, most: float, work: Workspace
) -> None:
    """Add theta = e^W - 1 to the sums, from W in its units, none above `most`; W is overwritten."""
    P = tile.P
    most *= panel.unit
    if not most <= _LINEAR:
        most = panel.unit * float(W.max(initial=0.0))
    if most < _UNKNOWN:
        P_theta = work.take("t", P.shape, P.dtype)
        unit = _exponential_less_one(W, P_theta, panel.unit, most)
        summed = 1 + relative_loss(W.shape[1], W.dtype)
        np.multiply(P, W, out=P_theta)
        sums.theta += summed * unit * row_sum(P_theta)
        sums.theta_squared += summed * unit * unit * row_dot(P_theta, W)
    else:
        unit, x = 1.0, None if panel.shift is None else tile.logits - panel.shift
        P_theta = _add_unknown(sums, P, x, panel.unit * W.astype(float))
    if head.value_error is not None:
        sums.inherited += product(P + unit * P_theta, head.value_error[tile.keys])


def _exponential_less_one(W: Array, t: Array, unit: float, most: float) -> float:
    """Replace unit W, at most `most`, by e^(unit W) - 1 in units that are returned; t is overwritten."""
    if most <= _LINEAR:
        return unit * (1 + most / 2 + most * most)
    if most <= _QUADRATIC:
        np.multiply(W, unit * (1 / 2 + most / 6 + most * most / 20), out=t)
        t += 1
        W *= t
        return unit
    # Pade's (2, 2) of e^(W/2) = 1 + f, f = h / (1 - h / 2 + h^2 / 12) with h = W / 2, lacks at most h^5 / 350;
    # the result is f (f + 2).
    W *= unit / 2
    np.multiply(W, 1 / 12, out=t)
    t -= 0.5
    t *= W
    t += 1
    W /= t
    np.add(W, 2, out=t)
    W *= t
    return 1 + most**4 / 2800


def _add_unknown(sums: Sums, P: Array, x: Floats | None, W: Floats) -> Floats:
    """Do the same where some weight is not known to a factor of two, in float64 and from the exponents.

    Those are not at hand, x is None, where they need no shift: there no weight underflows, and each is within 2^-24.
    """
    theta = np.expm1(W)
    if x is None:
        P_theta = P * (1 + 2.0**-23) * theta
    else:
        P64 = np.exp(x)
        P_theta = np.where(P64 > 0, P64 * theta, np.exp(x + W))
    known = theta <= 1
    sums.theta += P_theta.sum(1, keepdims=True)
    sums.theta_squared += np.where(known, P_theta * theta, 0.0).sum(1, keepdims=True)
    sums.unknown += np.where(known, 0.0, P_theta).sum(1, keepdims=True)
    return P_theta


def fill_empty(
    sums: Sums, panel: Panel, empty: NDArray[np.bool_], head: KeyHead, terms: Terms, empty_rows: str
) -> None:
    """Give rows without a key the sums of equal weights, or of one weight of zero."""
    sums.total[empty], sums.theta[empty] = 1.0, 0.0
    if empty_rows != "mean":
        return
    keys, theta = head.count, terms.arithmetic.c_exp * terms.arithmetic.u
    sums.total[empty] = sums.squared[empty] = keys
    sums.theta[empty], sums.theta_squared[empty] = keys * theta, keys * theta * theta
    unit = terms.variance * FUNCTION / panel.spread_unit
    V, extra = head.values, np.broadcast_to(panel.extra, panel.top.shape)
    whole = V.sum(0), np.abs(V).sum(0), np.square(V).sum(0)
    sums.values[empty], sums.absolute[empty], sums.squares[empty] = whole
    sums.spread[empty], sums.of_spread[empty] = keys * unit, unit * whole[0]
    sums.of_squares[empty] = (unit + extra[empty]) * whole[2]
    if head.value_error is not None:
        sums.inherited[empty] = (1 + theta) * head.value_error.sum(0)
