"""Softmax attention in float64, with the bound of NUMERICS.md section 1.

The bound treats softmax(l) V as one step whichever way the graph writes it. The computed exponentials are
e^(l - c) (1 + theta) with |theta| <= e^W - 1; numerator and normaliser share theta, and sum_j p_j (V_j - o) = 0, so
the error is sum_j p_j theta_j (V_j - o) to first order: centred, and far smaller than |V| allows where softmax
saturates. `softmax` keeps p and theta, `weighted_sum` uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle.bounded import Bounded, Floats, add, matmul, multiply, rounded, where

# Products of W's own terms are left out of it; this inflation covers them (NUMERICS.md, after the formula).
_SECOND_ORDER = 2.0**-20
# Cancellation in p V^2 - o^2, evaluated in float64.
_CANCELLATION = 8 * 2.0**-53
TANH_ERROR = 8.0
"""Absolute error of a runtime's tanh in units of u; the rational approximations in use are within a few ulp of 1."""
MASKED_BELOW = -(2.0**127)
"""A logit below half of fp32's range comes from a mask: exporters write -inf, or the lowest finite number."""


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxFacts:
    """What is known of the rows of one softmax; all arrays are (..., queries, keys) or (..., queries, 1).

    Attributes:
        weights: p, exact.
        theta: bound on the relative error of each computed exponential, e^W - 1.
        logits: l, -inf where masked.
        logit_error: W less the terms of the exponential: what the logits themselves may be off by.
        magnitude: s |q||K| if the logits came from a product, else None.
        normaliser: G, the relative error of summing a row.
        rescalings: R.
    """

    weights: Floats
    theta: Floats
    logits: Floats
    logit_error: Floats
    magnitude: Floats | None
    normaliser: Floats
    rescalings: int

    @property
    def weighted_theta(self) -> Floats:
        """The product p theta, 0 where p is 0 although theta may be infinite."""
        out = np.zeros_like(self.weights)
        np.multiply(self.weights, self.theta, out=out, where=self.weights > 0)
        return out

    @property
    def mean_theta(self) -> Floats:
        """sum_j p_j theta_j of each row."""
        return np.asarray(self.weighted_theta.sum(-1, keepdims=True))

    @property
    def masked(self) -> NDArray[np.bool_]:
        """Keys that a mask hides."""
        return self.logits < MASKED_BELOW

    @property
    def empty(self) -> NDArray[np.bool_]:
        """Rows in which every key is masked, (..., queries)."""
        return np.asarray(self.masked.all(-1))

    def with_empty_rows(self, fill: float) -> SoftmaxFacts:
        """Return the same with the weights of empty rows set to `fill`, which is exact."""
        empty = self.empty[..., None]
        weights, theta = np.where(empty, fill, self.weights), np.where(empty, 0.0, self.theta)
        return replace(self, weights=weights, theta=theta)

    def without_nan(self) -> SoftmaxFacts:
        """Return the same with NaN weights set to 0, as Where(IsNaN(p), 0, p) does: rows masked with -inf only."""
        nan = np.isnan(self.weights)
        return replace(self, weights=np.where(nan, 0.0, self.weights), theta=np.where(nan, 0.0, self.theta))

    def relative_error(self) -> Floats:
        """Return the bound on a weight's relative error, (theta + mean theta + G) / (1 - mean theta - G)."""
        mean, G = self.mean_theta, self.normaliser
        remaining = 1.0 - mean - G
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(remaining > 0, (self.theta + mean + G) / remaining, np.inf)


def softmax(logits: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return softmax over the last axis, with its facts attached.

    A row in which every logit is -inf is NaN, as the formula gives it.
    """
    value = logits.value
    top = value.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        shifted = value - top  # NaN in an empty row
    exponentials = np.exp(shifted)
    weights = exponentials / exponentials.sum(-1, keepdims=True)
    keys = (value >= MASKED_BELOW).sum(-1, keepdims=True)
    rescalings = _rescalings(value.shape[-1], arithmetic)
    logit_error = np.where(np.isfinite(value), logits.errors(), 0.0)
    with np.errstate(over="ignore"):  # infinite only where a finite mask leaves a weight of 0
        theta = np.expm1(_exponent_error(logit_error, shifted, rescalings, arithmetic))
    facts = SoftmaxFacts(
        weights=weights,
        theta=theta,
        logits=value,
        logit_error=logit_error,
        magnitude=logits.magnitude,
        normaliser=_normaliser_error(keys, rescalings, arithmetic),
        rescalings=rescalings,
    )
    return Bounded(weights, _weight_error(facts, arithmetic), softmax=facts)


def with_policy(weights: Bounded, policy: str) -> Bounded:
    """Return softmax weights whose empty rows follow a policy: `nan`, `zero`, `mean`; any other leaves them as they are.

    What a graph does there is an accident of how the exporter writes a mask; what the module does is its contract.
    """
    facts = weights.softmax
    fills = {"nan": np.nan, "zero": 0.0, "mean": 1.0 / weights.value.shape[-1]}
    if facts is None or policy not in fills or not facts.empty.any():
        return weights
    empty = facts.empty[..., None]
    error = np.where(empty, 0.0, weights.errors())
    return Bounded(
        np.where(empty, fills[policy], weights.value), error, softmax=facts.with_empty_rows(fills[policy])
    )


def _rescalings(keys: int, arithmetic: Arithmetic) -> int:
    """Return R: how often an online softmax rescales what it has so far, once a block of keys."""
    return -(-keys // arithmetic.key_block)


def _exponent_error(logit_error: Floats, shifted: Floats, rescalings: int, arithmetic: Arithmetic) -> Floats:
    """Return W: how far the exponent, and the exponential's own error, may be off."""
    u, c = arithmetic.u, arithmetic.c_exp
    distance = np.where(np.isfinite(shifted), -shifted, 0.0)
    stored = arithmetic.u_s * distance
    W = logit_error + stored + u * distance + c * u + rescalings * (c + 1) * u
    return np.asarray(W * (1 + max(arithmetic.u_s, 2 * arithmetic.u_in) + _SECOND_ORDER))


def _normaliser_error(keys: NDArray[Any], rescalings: int, arithmetic: Arithmetic) -> Floats:
    roundings = (keys + rescalings + 2) * arithmetic.u_acc
    return np.asarray(roundings / (1 - roundings))


def _weight_error(facts: SoftmaxFacts, arithmetic: Arithmetic) -> Floats:
    """Return the absolute error of each weight; at most its distance from 0 and 1 where the bound is vacuous."""
    p = facts.weights
    with np.errstate(invalid="ignore"):
        first = np.where(p > 0, p * facts.relative_error(), 0.0)
        bound = np.minimum(first, np.maximum(p, 1 - p) + 2 * facts.normaliser)
    c, u = arithmetic.c_o, max(arithmetic.u_out, arithmetic.u_p)
    flushed = 2 * p.shape[-1] * arithmetic.omega
    return np.asarray(bound * (1 + c * u) + c * u * p + flushed + arithmetic.eta)


def weighted_sum(weights: Bounded, values: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return weights @ values with the centred bound; `weights` must carry softmax facts.

    The centred term is taken by Cauchy-Schwarz, sqrt(sum p theta^2 (p V^2 - o^2)): products only, at most
    1.18 times looser than the sum itself (NUMERICS.md section 1).
    """
    facts = weights.softmax
    assert facts is not None
    p, V = facts.weights, values.value
    o = np.matmul(p, V)
    mean, G = facts.mean_theta, facts.normaliser
    absolute = np.matmul(p, np.abs(V))
    u_p = arithmetic.u_p
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        spread = _centred(facts, V, o)
        N = spread + (G * (1 + mean) + 2 * u_p * (1 + u_p)) * absolute + G * (1 + mean) * np.abs(o)
        if values.error is not None:
            N = N + np.matmul(p, np.broadcast_to(values.error, V.shape)) * (1 + G)
        remaining = 1 - mean - G
        first = np.where(remaining > 0, N / remaining, np.inf)
        bound = np.fmin(first, _hull(values, o, G, arithmetic))
    return Bounded(o, _output_error(bound, V, o, arithmetic))


def _centred(facts: SoftmaxFacts, V: Floats, o: Floats) -> Floats:
    p_theta2 = np.where(facts.weights > 0, facts.weighted_theta * facts.theta, 0.0).sum(-1, keepdims=True)
    second = np.matmul(facts.weights, V * V)
    variance = np.maximum(second - o * o, 0.0) + _CANCELLATION * second
    return np.asarray(np.sqrt(p_theta2 * variance))


def _hull(values: Bounded, o: Floats, G: Floats, arithmetic: Arithmetic) -> Floats:
    """Return how far a weighted mean can be from o at all: it lies in the hull of the values."""
    V = values.value
    high, low = V.max(-2, keepdims=True), V.min(-2, keepdims=True)
    largest = np.abs(V).max(-2, keepdims=True)
    inherited = 0.0 if values.error is None else values.error.max(-2, keepdims=True)
    reach = np.maximum(high - o, o - low) + inherited
    return np.asarray((reach + (2 * G + 2 * arithmetic.u_p) * largest) / (1 - G))


def _output_error(bound: Floats, V: Floats, o: Floats, arithmetic: Arithmetic) -> Floats:
    c, u, keys = arithmetic.c_o, arithmetic.u_out, V.shape[-2]
    largest = np.abs(V).max(-2, keepdims=True)
    flushed = keys * arithmetic.omega * (largest + np.abs(o))
    return np.asarray(bound * (1 + c * u) + c * u * np.abs(o) + flushed + arithmetic.eta)


def attention(
    q: Bounded,
    k: Bounded,
    v: Bounded,
    arithmetic: Arithmetic,
    *,
    scale: float,
    allowed: Bounded | None = None,
    bias: Bounded | None = None,
    softcap: float = 0.0,
) -> tuple[Bounded, Bounded]:
    """Return (output, weights) of softmax(cap(scale q k^T) + bias) v, keys kept where `allowed` is true.

    Shapes: q (..., queries, d), k (..., keys, d), v (..., keys, d_v), allowed and bias broadcastable to
    (..., queries, keys). cap(s) = softcap tanh(s / softcap), before the mask (onnx/onnx#7865); 0 leaves it out. A row
    without any key is 0, in output and weights: ONNX's Attention from 1.23 on, and torch's
    scaled_dot_product_attention.
    """
    transposed = Bounded(k.value.swapaxes(-1, -2), None if k.error is None else k.error.swapaxes(-1, -2))
    scores = multiply(matmul(q, transposed, arithmetic), Bounded(np.array([scale])), arithmetic)
    if softcap:
        scores = soft_capped(scores, softcap, arithmetic)
    if bias is not None:
        scores = add(scores, bias, arithmetic)
    if allowed is not None:
        scores = where(allowed, scores, Bounded(np.full((1,), -np.inf)))
    weights = with_policy(softmax(scores, arithmetic), "zero")
    return weighted_sum(weights, v, arithmetic), weights


def soft_capped(scores: Bounded, cap: float, arithmetic: Arithmetic) -> Bounded:
    """Return cap tanh(s / cap): the slope is at most 1, and tanh is off by tanh_error u at most."""
    value = cap * np.tanh(scores.value / cap)
    inherited = scores.errors() + 2 * arithmetic.u * np.abs(value) + TANH_ERROR * arithmetic.u * cap
    return replace(rounded(value, inherited, arithmetic), magnitude=scores.magnitude)


def row_limit(keys: int, arithmetic: Arithmetic) -> float:
    """Return the bound on |sum of a row of weights - 1|: the row is summed, divided and stored."""
    roundings = keys + _rescalings(keys, arithmetic) + 2 + arithmetic.c_o
    return gamma(roundings, arithmetic.u_acc) + 2 * keys * arithmetic.omega
