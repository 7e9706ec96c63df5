"""From the sums of pass 2 to the output's bound and deviation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.oracle.bounded import KAPPA
from onnx_attest.verify.oracle.streaming.operands import KeyHead
from onnx_attest.verify.oracle.streaming.panel import Panel
from onnx_attest.verify.oracle.streaming.sums import Sums
from onnx_attest.verify.oracle.streaming.terms import Terms
from onnx_attest.verify.oracle.streaming.tiles import Workspace, longest_tile, relative_loss, tiles

Floats = NDArray[np.float64]

_CANCELLATION = 8 * 2.0**-53  # in p V^2 - o^2, evaluated in float64
_SHOWS = 3e-4
"""The share of a bound that float32 may add to it through p V^2 before that is formed anew in float64."""


def bound_of(sums: Sums, panel: Panel, o: Floats, head: KeyHead, terms: Terms, work: Workspace) -> Floats:
    """Return the bound of an output o, still for scaled values, that is stored and scaled back."""
    return _stored(_before_storing(sums, panel, o, head, terms, work), o, head, terms)


def _before_storing(
    sums: Sums, panel: Panel, o: Floats, head: KeyHead, terms: Terms, work: Workspace
) -> Floats:
    """Return the bound before the output is stored, as the dense `weighted_sum` has it, for scaled values."""
    a, S, count = terms.arithmetic, sums.total, len(head.values)
    roundings = (panel.keys - (-count // a.key_block) + 2) * a.u_acc
    G = np.where(roundings < 1, roundings / (1 - roundings), np.inf)
    mean, cast = sums.theta / S, 2 * a.u_p * (1 + a.u_p)
    lost = _lost_over_tiles(head)
    flushed = np.where(sums.squared > 0, count * _smallest(head) * head.largest, 0.0)
    rest = sums.absolute * ((G * (1 + mean) + cast) * (1 + lost) / S)
    rest += (G * (1 + mean) + cast) * flushed
    rest += G * (1 + mean) * np.abs(o)
    if head.value_error is not None:
        rest += sums.inherited / S * (1 + G) * (1 + lost)
    if sums.unknown.any():
        reach = np.maximum(head.high - o, o - head.low)
        rest += np.where(sums.unknown > 0, sums.unknown / S * reach, 0.0) * (1 + G + cast)
    N = _centred(sums, panel, o, rest / (1 + G + cast), head, work)
    N *= 1 + G + cast
    N += rest
    remaining = 1 - mean - G
    first = np.where(remaining > 0, N / remaining, np.inf)
    if np.all(first * (1 - G) <= (head.high - head.low) / 2):
        return first  # no hull is smaller
    reach = np.maximum(head.high - o, o - head.low) + head.largest_error
    hull = (reach + (2 * G + 2 * a.u_p) * head.largest) / (1 - G)
    return np.fmin(first, np.where(G < 1, hull, np.inf))


def _centred(sums: Sums, panel: Panel, o: Floats, rest: Floats, head: KeyHead, work: Workspace) -> Floats:
    """Return sqrt(sum p theta^2 (p V^2 - o^2)), from p V^2 in float32 unless that would show beside the rest.

    Where softmax saturates, p V^2 is almost o^2, and what float32 may have lost of it is all that is left.
    """
    S, lost = sums.total, _lost_over_tiles(head) + _CANCELLATION
    theta_squared, o_squared = sums.theta_squared / S, o * o
    second = sums.squares * (1 / S)
    variance = np.maximum(second - o_squared, 0.0)
    second *= lost
    second += len(head.values) * _smallest(head)
    variance += second
    result: Floats = np.sqrt(np.multiply(variance, theta_squared, out=variance), out=variance)
    second *= theta_squared * (2 / _SHOWS)
    rest += result
    rest *= result
    if np.all(second <= rest):
        return result
    second = np.where(panel.empty[:, None], sums.squares, _exact_squares(panel, head, work)) / S
    variance = np.maximum(second - o_squared, 0.0) + _CANCELLATION * second
    return np.asarray(np.sqrt(variance * theta_squared))


def _exact_squares(panel: Panel, head: KeyHead, work: Workspace) -> Floats:
    """Return P V^2 in float64."""
    d_v = head.factor.size
    total = np.zeros((len(panel.logits), d_v))
    for tile in tiles(panel.logits.shape[1]):
        logits = panel.logits[:, tile]
        P = np.subtract(logits, panel.top, out=work.take("P64", logits.shape))
        np.exp(P, out=P)
        first = panel.first + tile.start
        total += np.matmul(P, head.values[first : first + P.shape[1], 2 * d_v :])
    return total


def _stored(bound: Floats, o: Floats, head: KeyHead, terms: Terms) -> Floats:
    """Return the bound with the output's own rounding, in its unscaled size."""
    a, keys = terms.arithmetic, len(head.values)
    stored = a.c_o * a.u_out
    # A weight that is flushed, and a product that is: at most keys of each.
    bound = bound * (1 + stored)
    bound += (stored + keys * a.omega) * np.abs(o)
    bound += keys * a.omega * head.largest
    bound *= head.factor
    bound += a.omega * (keys + 2)
    return bound


def _lost_over_tiles(head: KeyHead) -> float:
    """Return the relative error of a sum of positive magnitudes over the tiles."""
    return relative_loss(longest_tile(len(head.values)), head.dtype)


def _smallest(head: KeyHead) -> float:
    return float(np.finfo(head.dtype).smallest_subnormal)


def deviation_of(sums: Sums, panel: Panel, o: Floats, head: KeyHead, terms: Terms) -> Floats:
    """Return sigma: the weights' errors, the two sums' own, the casts of weights and output."""
    a, S2 = terms.arithmetic, sums.total * sums.total
    unit = panel.spread_unit / S2
    own = KAPPA * a.u_acc**2 * (panel.keys + 1) * (2 / 3 + sums.squared / S2 / 6) + 2 * KAPPA * a.u_out**2
    # (spread o^2 - 2 o of_spread + of_squares) unit + own o^2, in this order for fewer passes
    square = o * (sums.spread * unit + own)
    square -= sums.of_spread * (2 * unit)
    square *= o
    square += sums.of_squares * unit
    np.maximum(square, 0.0, out=square)
    deviation = np.sqrt(square, out=square)
    deviation *= head.factor
    if terms.arithmetic.eta > 1e-160:  # else its square is lost, and so is it beside anything but a zero
        np.multiply(deviation, deviation, out=deviation)
        deviation += a.eta**2
        np.sqrt(deviation, out=deviation)
    return np.maximum(deviation, a.eta, out=deviation)
