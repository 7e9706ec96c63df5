"""From the sums of pass 2 to the output's bound and deviation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.oracle.bounded import KAPPA
from onnx_attest.verify.oracle.streaming.operands import KeyHead
from onnx_attest.verify.oracle.streaming.panel import Panel
from onnx_attest.verify.oracle.streaming.scores import weights_of
from onnx_attest.verify.oracle.streaming.terms import Terms
from onnx_attest.verify.oracle.streaming.tiles import Workspace, longest_sum, product, relative_loss
from onnx_attest.verify.oracle.streaming.weights import Sums

Floats = NDArray[np.float64]

_CANCELLATION = 8 * 2.0**-53  # in p V^2 - o^2, evaluated in float64
_SHOWS = 3e-4
"""The share of a bound that float32 may add to it through p V^2 before that is formed anew in float64."""


def bound_of(sums: Sums, panel: Panel, o: Floats, head: KeyHead, terms: Terms, work: Workspace) -> Floats:
    """Return the bound of an output o, still for scaled values, that is stored and scaled back."""
    size, a, keys = np.abs(o), terms.arithmetic, head.count
    bound, stored = _before_storing(sums, panel, o, size, head, terms, work), a.c_o * a.u_out
    # A weight that is flushed, and a product that is: at most keys of each.
    size *= (stored + keys * a.omega) / (1 + stored)
    bound += size
    bound *= head.factor * (1 + stored)
    bound += keys * a.omega * head.largest * head.factor + a.omega * (keys + 2)
    return bound


def _before_storing(
    sums: Sums, panel: Panel, o: Floats, size: Floats, head: KeyHead, terms: Terms, work: Workspace
) -> Floats:
    """Return the bound before the output is stored, as the dense `weighted_sum` has it, for scaled values."""
    a, S, count = terms.arithmetic, sums.total, head.count
    roundings = (panel.scores.keys - (-count // a.key_block) + 2) * a.u_acc
    G = np.where(roundings < 1, roundings / (1 - roundings), np.inf)
    mean, cast = sums.theta / S, 2 * a.u_p * (1 + a.u_p)
    lost = _lost_over_tiles(head)
    N = sums.absolute * ((G * (1 + mean) + cast) * (1 + lost) / S)
    if (
        panel.shift is not None
    ):  # else no product of a weight and a value underflows in float32, and omega is more
        N += (
            np.where(sums.squared > 0, (G * (1 + mean) + cast) * count * _smallest(sums, head), 0.0)
            * head.largest
        )
    N += G * (1 + mean) * size
    if head.value_error is not None:
        flushed = 2 * count * _smallest(sums, head) * head.largest_error  # of P, and of P theta
        N += (sums.inherited / S + flushed) * (1 + G) * (1 + lost)
    if sums.unknown.any():
        reach = np.maximum(head.high - o, o - head.low)
        N += np.where(sums.unknown > 0, sums.unknown / S * reach, 0.0) * (1 + G + cast)
    N += _centred(sums, panel, o, N, 1 + G + cast, head, terms, work)
    remaining = 1 - mean - G
    N *= np.where(remaining > 0, 1 / remaining, np.inf)
    if np.all(N.max(0, initial=0.0) <= (head.high - head.low) / 2):
        return N  # no hull is smaller
    reach = np.maximum(head.high - o, o - head.low) + head.largest_error
    hull = (reach + (2 * G + 2 * a.u_p) * head.largest) / (1 - G)
    return np.fmin(N, np.where(G < 1, hull, np.inf))


def _centred(
    sums: Sums,
    panel: Panel,
    o: Floats,
    rest: Floats,
    factor: Floats,
    head: KeyHead,
    terms: Terms,
    work: Workspace,
) -> Floats:
    """Return factor sqrt(sum p theta^2 (p V^2 - o^2)), from p V^2 in float32 unless that would show beside the rest.

    Where softmax saturates, p V^2 is almost o^2, and what float32 may have lost of it is all that is left.
    """
    S, lost = sums.total, _lost_over_tiles(head) + _CANCELLATION
    theta_squared, o_squared = factor * factor * sums.theta_squared / S, o * o
    second = sums.squares * (1 / S)
    variance = np.subtract(second, o_squared)
    np.maximum(variance, 0.0, out=variance)
    second *= lost
    second += head.count * _smallest(sums, head)
    variance += second
    second *= 2 / _SHOWS
    shows = not np.all(second <= variance)
    result: Floats = np.sqrt(np.multiply(variance, theta_squared, out=variance), out=variance)
    # The root moves by second theta^2 / (2 result), to be held against result and rest.
    if not shows or np.all(second * theta_squared <= (rest + result) * result):
        return result
    second = np.where(panel.empty[:, None], sums.squares, _exact_squares(panel, head, terms, work)) / S
    variance = np.maximum(second - o_squared, 0.0) + _CANCELLATION * second
    return np.asarray(np.sqrt(variance * theta_squared))


def _exact_squares(panel: Panel, head: KeyHead, terms: Terms, work: Workspace) -> Floats:
    """Return P V^2 in float64."""
    total = np.zeros((len(panel.top), head.factor.size))
    for tile in panel.scores.tiles:
        total += product(weights_of(tile, panel.scores, head, terms, work), np.square(head.values[tile.keys]))
    return total


def _lost_over_tiles(head: KeyHead) -> float:
    """Return the relative error of a sum of positive magnitudes over the tiles."""
    return relative_loss(longest_sum(head.count), head.dtype)


def _smallest(sums: Sums, head: KeyHead) -> Floats:
    """Return what a product of a weight, divided by their total, loses at most where it underflows, (rows, 1)."""
    return np.asarray(float(np.finfo(head.dtype).smallest_subnormal) / np.minimum(sums.total, 1.0))


def deviation_of(sums: Sums, panel: Panel, o: Floats, head: KeyHead, terms: Terms) -> Floats:
    """Return sigma: the weights' errors, the two sums' own, the casts of weights and output."""
    a, S2 = terms.arithmetic, sums.total * sums.total
    unit = panel.spread_unit / S2
    own = (
        KAPPA * a.u_acc**2 * (panel.scores.keys + 1) * (2 / 3 + sums.squared / S2 / 6)
        + 2 * KAPPA * a.u_out**2
    )
    # (spread o^2 - 2 o of_spread + of_squares) unit + own o^2, in this order for fewer passes
    square = o * (sums.spread * unit + own)
    square -= sums.of_spread * (2 * unit)
    square *= o
    square += sums.of_squares * unit
    np.maximum(square, 0.0, out=square)
    # eta^2 beside the scaled square; where that is beyond float64's range, only the maximum counts.
    square += np.minimum(a.eta / head.factor, 1e150) ** 2
    deviation = np.sqrt(square, out=square)
    deviation *= head.factor
    return np.maximum(deviation, a.eta, out=deviation)
