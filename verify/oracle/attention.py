"""Softmax attention in float64, with the bound of NUMERICS.md section 1.

The bound treats softmax(l) V as one step whichever way the graph writes it. The computed exponentials are
e^(l - c) (1 + theta) with |theta| <= e^W - 1; numerator and normaliser share theta, and sum_j p_j (V_j - o) = 0, so
the error is sum_j p_j theta_j (V_j - o) to first order: centred, and far smaller than |V| allows where softmax
saturates. `softmax` keeps p and theta, `weighted_sum` uses them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle import blocks
from onnx_attest.verify.oracle.blocks import in_blocks
from onnx_attest.verify.oracle.bounded import (
    FUNCTION_VARIANCE,
    KAPPA,
    Bounded,
    Floats,
    add,
    matmul,
    multiply,
    rounded,
    sum_variance,
    where,
)

# Products of W's own terms are left out of it; this inflation covers them (NUMERICS.md, after the formula).
_SECOND_ORDER = 2.0**-20
# Cancellation in p V^2 - o^2, evaluated in float64.
_CANCELLATION = 8 * 2.0**-53
_SHORT_SERIES = 2.0**-5
TANH_ERROR = 8.0
"""Absolute error of a runtime's tanh in units of u; the rational approximations in use are within a few ulp of 1."""


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxFacts:
    """What is known of the rows of one softmax; all arrays are (..., queries, keys) or (..., queries, 1).

    Attributes:
        weights: p, exact.
        theta: bound on the relative error of each computed exponential, e^W - 1.
        weighted_theta: p theta, formed from the exponents: where p underflows, p theta need not.
        logits: l, -inf where masked.
        magnitude: s |q||K| if the logits came from a product, else None.
        masked: keys that a mask hides.
        normaliser: G, the relative error of summing a row.
        variance: of the exponents, v of NUMERICS.md section 2; None where it is not asked for.
        condition: relative change of the output for one of the logits, (..., queries); None until there is an output.
    """

    weights: Floats
    theta: Floats
    weighted_theta: Floats
    logits: Floats
    magnitude: Floats | None
    masked: NDArray[np.bool_]
    normaliser: Floats
    variance: Floats | None = None
    condition: Floats | None = None

    @property
    def mean_theta(self) -> Floats:
        """sum_j p_j theta_j of each row."""
        return np.asarray(self.weighted_theta.sum(-1, keepdims=True))

    @property
    def empty(self) -> NDArray[np.bool_]:
        """Rows in which every key is masked, (..., queries)."""
        return np.asarray(self.masked.all(-1))

    def with_weights(self, rows: NDArray[np.bool_], fill: float, theta: float) -> SoftmaxFacts:
        """Return the same with other weights where `rows`, (..., queries, 1) or (..., queries, keys), is true."""
        return replace(
            self,
            weights=np.where(rows, fill, self.weights),
            theta=np.where(rows, theta, self.theta),
            weighted_theta=np.where(rows, fill * theta, self.weighted_theta),
        )

    def without_nan(self) -> SoftmaxFacts:
        """Return the same with NaN weights set to 0, as Where(IsNaN(p), 0, p) does: rows masked with -inf only."""
        return self.with_weights(np.isnan(self.weights), 0.0, 0.0)

    def weight_error(self) -> Floats:
        """Return the bound on a weight's error, (p theta + p (mean theta + G (1 + mean theta))) / (1 - mean theta - G)."""
        mean, G = self.mean_theta, self.normaliser
        remaining = 1.0 - mean - G
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = (self.weighted_theta + self.weights * (mean + G * (1 + mean))) / remaining
        return np.where(remaining > 0, bound, np.inf)


def softmax(logits: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return softmax over the last axis, with its facts attached.

    A row in which every logit is -inf is NaN, as the formula gives it.
    """
    if arithmetic.kernel is not None:
        return Bounded(arithmetic.kernel.softmax(logits.value))
    weights, theta, weighted_theta, masked, normaliser, v, error, variance = in_blocks(
        partial(_rows, arithmetic=arithmetic), (logits.value, logits.error, logits.variance), whole_axes=1
    )
    facts = SoftmaxFacts(
        weights,
        theta,
        weighted_theta,
        logits.value,
        logits.magnitude,
        masked,
        normaliser,
        v,
    )
    return Bounded(weights, error, softmax=facts, variance=variance)


def _rows(
    value: Floats, error: Floats | None, given: Floats | None, *, arithmetic: Arithmetic
) -> tuple[Floats | NDArray[np.bool_] | None, ...]:
    """Return what `softmax` keeps of rows of logits with their errors and variances, and the weights' own."""
    top = value.max(-1, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        shifted = value - top  # NaN in an empty row
    exponentials = np.exp(shifted)
    total = exponentials.sum(-1, keepdims=True)
    weights = exponentials / total
    masked = value < arithmetic.masked_below
    keys = value.shape[-1] - masked.sum(-1, keepdims=True)
    keys = np.where(keys == 0, value.shape[-1], keys)  # a row masked with finite numbers is summed whole
    rescalings = _rescalings(value.shape[-1], arithmetic)
    finite = np.isfinite(value)
    logit_error = 0.0 if error is None else np.where(finite, error, 0.0)
    W = _exponent_error(logit_error, shifted, rescalings, arithmetic)
    theta = _beyond_one(W)
    with np.errstate(invalid="ignore"):
        weighted = weights * theta
    underflown = (exponentials == 0) & finite
    if underflown.any():
        # Infinite only where a finite mask leaves a weight of 0, or where the bound says nothing and the hull does.
        with np.errstate(over="ignore", invalid="ignore"):
            raised = np.exp(shifted + W) / total
        weighted = np.where(underflown, raised, weighted)  # there e^(l + W) does not underflow
    facts = SoftmaxFacts(
        weights=weights,
        theta=theta,
        weighted_theta=np.where(finite, weighted, np.where(np.isnan(weights), np.nan, 0.0)),
        logits=value,
        magnitude=None,
        masked=masked,
        normaliser=_normaliser_error(keys, rescalings, arithmetic),
        variance=_exponent_variance(given, shifted, arithmetic),
    )
    return (
        weights,
        theta,
        facts.weighted_theta,
        masked,
        facts.normaliser,
        facts.variance,
        _weight_error(facts, arithmetic),
        _weight_variance(facts, arithmetic),
    )


def _beyond_one(W: Floats) -> Floats:
    """Return e^W - 1: for small W its series up to W^5 / 60, which covers the rest of it by 1e-8 of the whole."""
    if W.max(initial=0.0) <= _SHORT_SERIES:  # several times as fast
        return np.asarray(W * (1 + W / 2 * (1 + W / 3 * (1 + W / 4 * (1 + 0.4 * W)))))
    with np.errstate(over="ignore"):
        return np.expm1(W)


def _exponent_variance(given: Floats | None, shifted: Floats, arithmetic: Arithmetic) -> Floats | None:
    """Return v: the logits' own variance, the rounding of the shift, and the exponential's (NUMERICS.md section 2)."""
    if not arithmetic.deviations:
        return None
    known = np.isfinite(shifted)
    v = (0.0 if given is None else given) + arithmetic.u**2 * (KAPPA * shifted**2 + FUNCTION_VARIANCE)
    return np.where(known, v, 0.0)


def _weight_variance(facts: SoftmaxFacts, arithmetic: Arithmetic) -> Floats | None:
    """Return p^2 (v (1 - 2 p) + sum p^2 v) and the roundings of a weight: p_j moves with its own exponent and all others'."""
    if facts.variance is None:
        return None
    p, v = facts.weights, facts.variance
    whole = (p * p * v).sum(-1, keepdims=True)
    own = KAPPA * (arithmetic.u**2 + max(arithmetic.u_p, arithmetic.u_s) ** 2)
    variance = p * p * (np.maximum(v * (1 - 2 * p) + whole, 0.0) + own)
    return np.where(np.isfinite(variance), variance, 0.0)


def with_policy(weights: Bounded, policy: str, arithmetic: Arithmetic) -> Bounded:
    """Return softmax weights whose empty rows follow a policy: `nan`, `zero`, `mean`; any other leaves them as they are.

    What a graph does there is an accident of how the exporter writes a mask; what the module does is its contract.
    """
    facts, keys = weights.softmax, weights.value.shape[-1]
    fills = {"nan": np.nan, "zero": 0.0, "mean": 1.0 / max(keys, 1)}
    if facts is None or policy not in fills or not facts.empty.any():
        return weights
    fill, empty = fills[policy], facts.empty[..., None]
    theta = arithmetic.c_exp * arithmetic.u if policy == "mean" else 0.0
    changed = facts.with_weights(empty, fill, theta)
    own = fill * (gamma(keys + 2, arithmetic.u_acc) + theta + arithmetic.c_o * arithmetic.u_out)
    error = np.where(empty, own if policy == "mean" else 0.0, weights.errors())
    variance = None
    if weights.variance is not None:
        summed = sum_variance(
            np.ones(1), np.full(1, 1 / keys), keys, arithmetic
        )  # equal terms, then a division
        rounding = KAPPA * (arithmetic.u**2 + max(arithmetic.u_p, arithmetic.u_s) ** 2)
        of_mean = fill**2 * (summed + rounding) if policy == "mean" else 0.0
        variance = np.where(empty, of_mean, weights.variance)
    return Bounded(np.where(empty, fill, weights.value), error, softmax=changed, variance=variance)


def _rescalings(keys: int, arithmetic: Arithmetic) -> int:
    """Return R: how often an online softmax rescales what it has so far, once a block of keys."""
    return -(-keys // arithmetic.key_block)


def _exponent_error(
    logit_error: Floats | float, shifted: Floats, rescalings: int, arithmetic: Arithmetic
) -> Floats:
    """Return W: how far the exponent, and the exponential's own error, may be off."""
    u, c = arithmetic.u, arithmetic.c_exp
    distance = np.where(np.isfinite(shifted), -shifted, 0.0)
    stored = arithmetic.u_s * distance
    W = logit_error + stored + u * distance + c * u + rescalings * (c + 1) * u
    return np.asarray(W * (1 + max(arithmetic.u_s, 2 * arithmetic.u_in) + _SECOND_ORDER))


def _normaliser_error(keys: NDArray[Any], rescalings: int, arithmetic: Arithmetic) -> Floats:
    roundings = (keys + rescalings + 2) * arithmetic.u_acc
    known = roundings < 1  # above, a sum in half precision may stall, and nothing is known of it
    return np.where(known, roundings / np.where(known, 1 - roundings, 1.0), np.inf)


def _weight_error(facts: SoftmaxFacts, arithmetic: Arithmetic) -> Floats:
    """Return the absolute error of each weight; at most its distance from 0 and 1 where the bound is vacuous."""
    p = facts.weights
    with np.errstate(invalid="ignore"):
        bound = np.fmin(facts.weight_error(), np.maximum(p, 1 - p) + 2 * np.minimum(facts.normaliser, 1.0))
    c, u = arithmetic.c_o, max(arithmetic.u_out, arithmetic.u_p)
    flushed = 2 * p.shape[-1] * arithmetic.omega
    return np.asarray(bound * (1 + c * u) + c * u * p + flushed + arithmetic.eta)


def weighted_sum(weights: Bounded, values: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return weights @ values with the centred bound; `weights` must carry softmax facts and have two axes or more.

    The centred term is taken by Cauchy-Schwarz, sqrt(sum p theta^2 (p V^2 - o^2)): products only, at most
    1.18 times looser than the sum itself (NUMERICS.md section 1).
    """
    facts = weights.softmax
    assert facts is not None
    p, V = facts.weights, values.value
    o = blocks.matmul(p, V)
    mean, G = facts.mean_theta, facts.normaliser
    cast = 2 * arithmetic.u_p * (1 + arithmetic.u_p)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        variance = _variance(p, V, o)
        N = _centred(facts, variance, _reach(V, o)) * (1 + G + cast)
        N = N + (G * (1 + mean) + cast) * blocks.matmul(p, np.abs(V)) + G * (1 + mean) * np.abs(o)
        if values.error is not None:
            N = N + np.matmul(p + facts.weighted_theta, np.broadcast_to(values.error, V.shape)) * (1 + G)
        remaining = 1 - mean - G
        first = np.where(remaining > 0, N / remaining, np.inf)
        bound = np.fmin(first, _hull(values, o, G, arithmetic))
    seen = replace(facts, condition=_condition(facts, variance, o))
    error = _output_error(bound, V, o, arithmetic)
    return Bounded(o, error, attended=seen, variance=_output_variance(facts, values, o, arithmetic))


def _output_variance(
    facts: SoftmaxFacts, values: Bounded, o: Floats, arithmetic: Arithmetic
) -> Floats | None:
    """Return sigma^2 of NUMERICS.md section 2, and p^2 times the values' own variance."""
    if facts.variance is None:
        return None
    p, V = facts.weights, values.value
    a = arithmetic
    with np.errstate(invalid="ignore", over="ignore"):
        p2, moving, p2_sum, moving_sum = _squares(p, facts.variance)
        V2 = V * V
        spread = blocks.matmul(moving, V2) - 2 * o * blocks.matmul(moving, V) + o * o * moving_sum
        squares = blocks.matmul(p2, V2)
        keys = (~facts.masked).sum(-1, keepdims=True)
        keys = np.where(keys == 0, p.shape[-1], keys)  # a row without any key, if it is a mean, is one of all
        product = sum_variance(o, squares, keys, a)
        normaliser = o * o * sum_variance(np.ones_like(o), p2_sum, keys, a)
        stored = 2 * KAPPA * (a.u_p**2 * squares + a.u_out**2 * o * o)
        whole = np.maximum(spread, 0.0) + product + normaliser + stored
        if values.variance is not None:
            whole = whole + np.matmul(p2, np.broadcast_to(values.variance, V.shape))
    return np.where(np.isfinite(whole) & np.isfinite(o), whole, 0.0)


def _squares(p: Floats, v: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return p^2 where it is a number, p^2 v, and their sums over the keys."""

    def of(p: Floats, v: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        p2 = np.where(np.isfinite(p), p * p, 0.0)
        moving = p2 * v
        return p2, moving, p2.sum(-1, keepdims=True), moving.sum(-1, keepdims=True)

    return in_blocks(of, (p, v), whole_axes=1)


def _variance(p: Floats, V: Floats, o: Floats) -> Floats:
    """Return sum_j p_j (V_j - o)^2, with what float64 may have lost in the difference."""
    second = blocks.matmul(p, V * V)
    return np.asarray(np.maximum(second - o * o, 0.0) + _CANCELLATION * second)


def _centred(facts: SoftmaxFacts, variance: Floats, reach: Floats) -> Floats:
    """Return the bound on sum_j p_j theta_j |V_j - o|.

    Keys whose exponential is known to a factor of two go through Cauchy-Schwarz. The others, among them those whose
    p underflows while p theta does not, enter with the farthest that any V_j is from o.
    """

    def of(p_theta: Floats, theta: Floats) -> tuple[Floats, Floats]:
        product, known = p_theta * theta, theta <= 1
        if known.all():
            return product.sum(-1, keepdims=True), np.zeros((*theta.shape[:-1], 1))
        unknown = np.where(known, 0.0, p_theta).sum(-1, keepdims=True)
        return np.where(known, product, 0.0).sum(-1, keepdims=True), unknown

    p_theta2, unknown = in_blocks(of, (facts.weighted_theta, facts.theta), whole_axes=1)
    return np.asarray(np.sqrt(p_theta2 * variance) + np.where(unknown > 0, unknown * reach, 0.0))


def _reach(V: Floats, o: Floats) -> Floats:
    """Return how far the farthest value is from o, (..., queries, d_v)."""
    high = V.max(-2, keepdims=True, initial=-np.inf)
    low = V.min(-2, keepdims=True, initial=np.inf)
    return np.asarray(np.maximum(high - o, o - low))


def _condition(facts: SoftmaxFacts, variance: Floats, o: Floats) -> Floats | None:
    """Return s sum p |V - o||q||K| / |o| of each row, in the norm over the features; None without products."""
    if facts.magnitude is None:
        return None

    def of(weights: Floats, magnitude: Floats) -> tuple[Floats]:
        return (np.where(weights > 0, weights * magnitude**2, 0.0).sum(-1, keepdims=True),)

    (seconds,) = in_blocks(of, (facts.weights, facts.magnitude), whole_axes=1)
    second = np.asarray(seconds)[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(second * variance.sum(-1)) / np.sqrt((o * o).sum(-1)))


def _hull(values: Bounded, o: Floats, G: Floats, arithmetic: Arithmetic) -> Floats:
    """Return how far a weighted mean can be from o at all: it lies in the hull of the values."""
    V = values.value
    largest = np.abs(V).max(-2, keepdims=True, initial=0.0)
    inherited = 0.0 if values.error is None else values.error.max(-2, keepdims=True, initial=0.0)
    reach = _reach(V, o) + inherited
    # From G = 1 on the normaliser may be anything: where 1 - G is negative, so would the bound be.
    known = G < 1
    bound = (reach + (2 * G + 2 * arithmetic.u_p) * largest) / np.where(known, 1 - G, 1.0)
    return np.where(known, bound, np.inf)


def _output_error(bound: Floats, V: Floats, o: Floats, arithmetic: Arithmetic) -> Floats:
    c, u, keys = arithmetic.c_o, arithmetic.u_out, V.shape[-2]
    largest = np.abs(V).max(-2, keepdims=True, initial=0.0)
    # A weight that is flushed, and a product that is: at most keys of each.
    flushed = arithmetic.omega * (keys * (largest + np.abs(o)) + keys + 2)
    return np.asarray(bound * (1 + c * u) + c * u * np.abs(o) + flushed)


def attention(
    q: Bounded,
    k: Bounded,
    v: Bounded,
    arithmetic: Arithmetic,
    *,
    scale: float,
    scale_error: float = 0.0,
    allowed: Bounded | None = None,
    bias: Bounded | None = None,
    softcap: float = 0.0,
    empty_rows: str = "zero",
) -> tuple[Bounded, Bounded]:
    """Return (output, weights) of softmax(cap(scale q k^T) + bias) v, keys kept where `allowed` is true.

    Shapes: q (..., queries, d), k (..., keys, d), v (..., keys, d_v), allowed and bias broadcastable to
    (..., queries, keys). cap(s) = softcap tanh(s / softcap), before the mask (onnx/onnx#7865); 0 leaves it out. A row
    without any key follows `empty_rows`; by default it is 0, in output and weights: ONNX's Attention from 1.23 on, and
    torch's scaled_dot_product_attention.
    """
    factor = Bounded(np.array([scale]), np.array([scale_error]) if scale_error else None)
    logits = scores(q, k, arithmetic, scale=factor, softcap=softcap, bias=bias, allowed=allowed)
    if arithmetic.kernel is not None:
        output, weights_computed = arithmetic.kernel.attend(logits.value, v.value)
        return Bounded(output), Bounded(weights_computed)
    weights = with_policy(softmax(logits, arithmetic), empty_rows, arithmetic)
    return weighted_sum(weights, v, arithmetic), weights


def scores(
    q: Bounded,
    k: Bounded,
    arithmetic: Arithmetic,
    *,
    scale: Bounded,
    softcap: float = 0.0,
    bias: Bounded | None = None,
    allowed: Bounded | None = None,
) -> Bounded:
    """Return cap(scale q k^T) + bias, -inf where not allowed, of one operator; shapes as in `attention`, scale (1,).

    An operator may scale q and k before their product, which rounds each term: c_s u s|q||k| (NUMERICS.md section 1).
    ONNX's own definition does, by the root of the scale each, and stores both in the format of the graph.
    """
    transposed, factor = k.moved(lambda array: array.swapaxes(-1, -2)), float(scale.value[0])
    if arithmetic.kernel is not None and arithmetic.kernel.splits_scale and factor > 0:
        root = Bounded(np.array([factor**0.5]))
        result = matmul(multiply(q, root, arithmetic), multiply(transposed, root, arithmetic), arithmetic)
    else:
        result = multiply(matmul(q, transposed, arithmetic), scale, arithmetic)
    if arithmetic.kernel is None:
        result = _scaled_anywhere(result, q, transposed, factor, arithmetic)
    if softcap:
        result = soft_capped(result, softcap, arithmetic)
    if bias is not None:
        result = add(result, bias, arithmetic)
    if allowed is not None:
        result = where(allowed, result, Bounded(np.full((1,), -np.inf)))
    return result


def _scaled_anywhere(
    product: Bounded, q: Bounded, transposed: Bounded, scale: float, arithmetic: Arithmetic
) -> Bounded:
    """Return scaled products with what scaling q and k first may add to their error and variance."""
    assert product.magnitude is not None
    u = max(arithmetic.u, arithmetic.u_s)
    rounding = arithmetic.c_s * u * product.magnitude
    variance = product.variance
    if variance is not None and arithmetic.u_s:
        squares = scale**2 * np.matmul(q.value**2, transposed.value**2)
        variance = variance + 2 * KAPPA * u**2 * squares
    return replace(product, error=np.asarray(product.errors() + rounding), variance=variance)


def soft_capped(scores: Bounded, cap: float, arithmetic: Arithmetic) -> Bounded:
    """Return cap tanh(s / cap): the slope is at most 1, and tanh is off by tanh_error u at most."""
    value = cap * np.tanh(scores.value / cap)
    inherited = scores.errors() + 2 * arithmetic.u * np.abs(value) + TANH_ERROR * arithmetic.u * cap
    slope = 1 - (value / cap) ** 2
    variance = slope**2 * scores.variances() + FUNCTION_VARIANCE * (arithmetic.u * cap) ** 2
    return replace(rounded(value, inherited, arithmetic, variance=variance), magnitude=scores.magnitude)


def row_limit(keys: int, arithmetic: Arithmetic) -> float:
    """Return the bound on |sum of a row of weights - 1|: the row is summed, divided and stored."""
    summed = gamma(keys + _rescalings(keys, arithmetic) + 2, arithmetic.u_acc)
    stored = arithmetic.c_o * max(arithmetic.u_out, arithmetic.u_p)
    return summed + stored + keys * (2 * arithmetic.omega + arithmetic.eta)
