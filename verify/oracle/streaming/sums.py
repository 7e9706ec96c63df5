"""Pass 2: the sums over keys that value, bound, deviation and direction are made of, a tile at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.oracle.streaming.exponents import add_masked_exponent, add_plain_exponent
from onnx_attest.verify.oracle.streaming.operands import KeyHead
from onnx_attest.verify.oracle.streaming.panel import Panel
from onnx_attest.verify.oracle.streaming.terms import FUNCTION, Terms
from onnx_attest.verify.oracle.streaming.tiles import Workspace, relative_loss, row_dot

Array = NDArray[Any]
Floats = NDArray[np.float64]

_LINEAR, _QUADRATIC, _UNKNOWN = 4e-4, 0.04, float(np.log(2.0))
"""Up to the first, W stands for e^W - 1 within 2e-4; up to the second, W + W^2 / 2 within 3e-4 and a little more; from
the third on, a key is not known to a factor of two."""


@dataclass(slots=True, eq=False)
class Sums:
    """Sums over the keys of a panel, weights not yet divided by their total; float64."""

    total: Floats  # of P = e^(l - m), (rows, 1); so are the next six
    theta: Floats  # P theta
    theta_squared: Floats  # P theta^2, of keys known to a factor of two
    unknown: Floats  # P theta of the others
    score: Floats  # P l', l' up to a constant of the row
    squared: Floats  # P^2
    spread: Floats  # P^2 v
    magnitudes: Floats  # P (|V|, V^2), (rows, 2 d_v)
    values: Floats  # P V, (rows, d_v); so are the next four
    of_scores: Floats  # P l' V
    of_spread: Floats  # P^2 v V
    of_squares: Floats  # P^2 (v + extra) V^2
    inherited: Floats  # P (1 + theta) E_V

    @property
    def absolute(self) -> Floats:
        """P |V|."""
        return self.magnitudes[:, : self.values.shape[1]]

    @property
    def squares(self) -> Floats:
        """P V^2."""
        return self.magnitudes[:, self.values.shape[1] :]

    @classmethod
    def zero(cls, rows: int, d_v: int) -> Sums:
        """Return sums of nothing."""
        widths = (1,) * 7 + (2 * d_v,) + (d_v,) * 5
        return cls(*(np.zeros((rows, width)) for width in widths))


def add_tile(sums: Sums, panel: Panel, tile: slice, head: KeyHead, terms: Terms, work: Workspace) -> None:
    """Add a tile of keys to the sums of pass 2."""
    shape, dtype = (len(panel.logits), tile.stop - tile.start), head.dtype
    P64 = np.subtract(panel.logits[:, tile], panel.top, out=work.take("P64", shape))
    clear = panel.clear[0] <= tile.start and tile.stop <= panel.clear[1]
    gone = None if clear else _gone(P64, panel.widest, work)
    if gone is not None and head.finite and gone.all():
        return
    P, x, W, v, t = (work.take(name, shape, dtype) for name in "PxWvt")
    np.copyto(x, P64, casting="same_kind")
    np.exp(P64, out=P64)
    np.copyto(P, P64, casting="same_kind")
    at = slice(panel.first + tile.start, panel.first + tile.stop)
    d_v = head.factor.size
    sums.total += P64.sum(1, keepdims=True)
    sums.values += np.matmul(P64, head.values[at, :d_v])
    np.matmul(panel.sizes, head.sizes[at].T, out=W)
    np.matmul(panel.squares, head.squares[at].T, out=v)
    if terms.plain:
        slope = x
        add_plain_exponent(W, v, x, t, panel, terms, gone)
    else:
        slope = add_masked_exponent(W, v, x, t, tile, panel, terms, work, gone)
    P_theta, unit = _add_theta(sums, P, P64, W, t, tile, panel, gone is None and terms.plain)
    if head.value_error is not None:
        sums.inherited += np.matmul(P64 + unit * P_theta, head.value_error[at])
    weighted = work.take("weighted", (2, *shape), dtype)
    np.multiply(P, slope, out=weighted[0])
    np.multiply(P, P, out=t)
    np.multiply(t, v, out=weighted[1])
    sums.score += row_dot(P, slope)
    sums.squared += row_dot(P, P)
    sums.spread += row_dot(t, v)
    t *= panel.extra
    t += weighted[1]
    both = np.matmul(weighted.reshape(-1, shape[1]), head.short[at, :d_v])
    sums.of_scores += both[: shape[0]]
    sums.of_spread += both[shape[0] :]
    sums.of_squares += np.matmul(t, head.short[at, 2 * d_v :])
    sums.magnitudes += np.matmul(P, head.short[at, d_v:])


def _gone(x: Floats, widest: float, work: Workspace) -> NDArray[np.bool_] | None:
    """Return which keys have no weight, hidden ones among them; None if there are none."""
    gone = np.less(x, -widest, out=work.take("gone", x.shape, np.bool_))
    return gone if gone.any() else None


def _add_theta(
    sums: Sums, P: Array, P64: Floats, W: Array, t: Array, tile: slice, panel: Panel, plain: bool
) -> tuple[Array, float]:
    """Add theta = e^W - 1 to the sums, from W in its units, which is overwritten; return P theta and its unit."""
    most = panel.unit * panel.most if plain else np.inf
    if not most <= _LINEAR:
        most = panel.unit * float(W.max(initial=0.0))
    if not most < _UNKNOWN:
        x = panel.logits[:, tile] - panel.top
        return _add_unknown(sums, P64, x, panel.unit * W.astype(float)), 1.0
    unit = _exponential_less_one(W, t, panel.unit, most)
    summed = 1 + relative_loss(W.shape[1], W.dtype)
    np.multiply(P, W, out=t)
    sums.theta += summed * unit * row_dot(P, W)
    sums.theta_squared += summed * unit * unit * row_dot(t, W)
    return t, unit


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


def _add_unknown(sums: Sums, P: Floats, x: Floats, W: Floats) -> Floats:
    """Do the same where some weight is not known to a factor of two, in float64 and from the exponents."""
    theta = np.expm1(W)
    P_theta = np.where(P > 0, P * theta, np.exp(x + W) - P)
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
    keys, theta = len(head.values), terms.arithmetic.c_exp * terms.arithmetic.u
    sums.total[empty] = sums.squared[empty] = keys
    sums.theta[empty], sums.theta_squared[empty] = keys * theta, keys * theta * theta
    d_v, unit = head.factor.size, terms.variance * FUNCTION / panel.spread_unit
    whole = head.values.sum(0)
    sums.values[empty], sums.magnitudes[empty] = whole[:d_v], whole[d_v:]
    sums.spread[empty], sums.of_spread[empty] = keys * unit, unit * whole[:d_v]
    sums.of_squares[empty] = (unit + panel.extra[empty]) * whole[2 * d_v :]
    if head.value_error is not None:
        sums.inherited[empty] = (1 + theta) * head.value_error.sum(0)
