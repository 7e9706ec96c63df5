"""Softmax stability: what is measured on the rows of weights that a runtime gave (NUMERICS.md section 5)."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic, largest_of
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.oracle.attention import SoftmaxFacts, row_limit
from onnx_attest.verify.oracle.program import AttentionSeen
from onnx_attest.verify.records import finite

_LEAST_RATIO = 2.0**-52
"""A weight that is less than this share of the exact one is as good as lost; log1p needs more than -1."""


@dataclass(frozen=True, kw_only=True)
class Stability:
    """The worst row of one attention in each respect; None where no row can say. Units are in StabilityRecord."""

    rows: int
    empty_rows: int
    finite_ratio: float
    row_sum_err_u: float | None = None
    row_sum_err_over_limit: float | None = None
    weight_err_over_limit: float | None = None
    kl_over_limit: float | None = None
    lse_err_over_limit: float | None = None
    p_max: float | None = None
    entropy_min: float | None = None
    effective_keys_min: float | None = None
    condition: float | None = None
    largest_logit: float | None = None
    overflow_margin: float | None = None
    exp_flushed: int | None = None
    mask_leak: float | None = None
    mask_leak_over_limit: float | None = None


def measure(weights: NDArray[Any], seen: AttentionSeen, arithmetic: Arithmetic) -> Stability:
    """Return the measures of weights (..., queries, keys) as a runtime computed them.

    Rows in which every key is masked are counted and left out: what they hold is a matter of policy.
    """
    facts, largest = seen.facts, float(np.log(largest_of(weights.dtype)))
    rows = ~facts.empty
    top = float(facts.logits.max(initial=-np.inf))
    common: dict[str, Any] = {"largest_logit": finite(top), "overflow_margin": finite(largest - top)}
    seen_weights = weights.astype(np.float64)
    total, empty = int(rows.size), int(rows.size - rows.sum())
    whole = rows & np.isfinite(seen_weights).all(-1)
    ratio = float(whole.sum() / max(int(rows.sum()), 1))
    if not whole.any():
        return Stability(rows=total, empty_rows=empty, finite_ratio=ratio if rows.any() else 1.0, **common)
    return Stability(
        rows=total, empty_rows=empty, finite_ratio=ratio, **common,
        **_rows(seen_weights[whole], _exact_rows(seen, whole, arithmetic), arithmetic),
        condition=_worst_condition(seen.facts, whole),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Rows:
    """The exact side of the rows that are measured, flattened to (rows, keys), and the limits that follow from it.

    It is the same for all runtimes of one arithmetic, and costs more than what is measured against it.
    """

    p: NDArray[np.float64]
    error: NDArray[np.float64]
    theta: NDArray[np.float64]
    normaliser: NDArray[np.float64]
    masked: NDArray[np.bool_]
    arithmetic: Arithmetic

    @cached_property
    def entropy_min(self) -> float:
        """The least entropy of a row, nats."""
        p = self.p
        entropy = -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1)
        return float(np.maximum(entropy, 0.0).min())  # -0.0 for a single key

    @cached_property
    def leak_limit(self) -> NDArray[np.float64]:
        """What a clamped exponential may leave on the masked keys of each row (MLAS: 4.2e-39 on each)."""
        return np.asarray(2 * self.arithmetic.omega * np.maximum(self.masked.sum(-1), 1))

    @cached_property
    def may_flush(self) -> NDArray[np.bool_]:
        """The weights that are not 0."""
        return (self.p > 0) & ~self.masked

    @cached_property
    def weight_limit(self) -> NDArray[np.float64]:
        """Of each weight's error: the bound, its storing, and what exponentials may lose to flushing."""
        arithmetic, keys = self.arithmetic, self.p.shape[-1]
        c, u = arithmetic.c_o, max(arithmetic.u_out, arithmetic.u_p)
        limit = self.error * (1 + c * u) + c * u * self.p + 2 * keys * arithmetic.omega + arithmetic.eta
        return np.asarray(limit)

    @cached_property
    def beside_flushing(self) -> NDArray[np.bool_]:
        """The weights that are no matter of flushing to 0: what is left out has a share below omega."""
        return np.asarray(self.p > np.sqrt(self.arithmetic.omega))

    @cached_property
    def divergence_limit(self) -> NDArray[np.float64]:
        """1/2 sum p theta^2 of each row."""
        # Storing and dividing add roundings that theta does not count.
        stored = np.where(self.p > 0, self.theta, 0.0) + (self.arithmetic.c_o + 2) * self.arithmetic.u_out
        with np.errstate(over="ignore"):
            return np.asarray(0.5 * (self.p * stored**2).sum(-1))

    @cached_property
    def top(self) -> NDArray[np.intp]:
        """Where the largest weight of each row is."""
        return np.asarray(self.p.argmax(-1, keepdims=True))

    @cached_property
    def lse_limit(self) -> NDArray[np.float64]:
        """Of the error of log-sum-exp in each row: max W + gamma_n, the top's own W, a division and a store."""
        theta = np.where(self.p > 0, self.theta, 0.0)  # that of a masked key may be anything
        own = np.log1p(np.take_along_axis(theta, self.top, -1))
        W = own + np.log1p(theta).max(-1, keepdims=True)
        return np.asarray(W + self.normaliser + (self.arithmetic.c_o + 2) * self.arithmetic.u_out)


_EXACT: weakref.WeakKeyDictionary[AttentionSeen, dict[tuple[str, bytes], _Rows]] = weakref.WeakKeyDictionary()


def _exact_rows(seen: AttentionSeen, whole: NDArray[np.bool_], arithmetic: Arithmetic) -> _Rows:
    """Return the exact side of some rows of an attention, the same one as long as the oracle's evaluation is there."""
    made, key, facts = _EXACT.setdefault(seen, {}), (arithmetic.name, whole.tobytes()), seen.facts
    if key not in made:
        made[key] = _Rows(
            p=facts.weights[whole],
            error=facts.weight_error()[whole],
            theta=facts.theta[whole],
            normaliser=facts.normaliser[whole],
            masked=facts.masked[whole],
            arithmetic=arithmetic,
        )
    return made[key]


def _rows(weights: NDArray[np.float64], exact: _Rows, arithmetic: Arithmetic) -> dict[str, Any]:
    keys = weights.shape[-1]
    sums = np.abs(weights.sum(-1) - 1)
    leak = np.where(exact.masked, weights, 0.0).sum(-1)
    return {
        "row_sum_err_u": float(sums.max() / arithmetic.u_out),
        "row_sum_err_over_limit": float(sums.max() / row_limit(keys, arithmetic)),
        "weight_err_over_limit": float((np.abs(weights - exact.p) / exact.weight_limit).max()),
        "kl_over_limit": _divergence_ratio(weights, exact),
        "lse_err_over_limit": _lse_ratio(weights, exact),
        "p_max": float(weights.max()),
        "entropy_min": exact.entropy_min,
        "effective_keys_min": float(np.exp(exact.entropy_min)),
        "exp_flushed": int(((weights == 0) & exact.may_flush).sum()),
        "mask_leak": float(leak.max()),
        "mask_leak_over_limit": float((leak / exact.leak_limit).max()),
    }


def _divergence_ratio(weights: NDArray[np.float64], exact: _Rows) -> float | None:
    """Return KL(p || p^) over its limit 1/2 sum p theta^2, the largest of the rows whose limit is small.

    p^ is renormalised: the raw divergence would only measure the row sum's error. With x = p^/p - 1 it is
    sum p (x - log1p x), which does not cancel. Weights that flush to 0 are left out: their share is below omega.
    """
    with np.errstate(invalid="ignore"):  # a row of zeros, which other measures find
        renormalised = weights / weights.sum(-1, keepdims=True)
    known = exact.beside_flushing & (renormalised > 0)
    x = np.divide(renormalised, exact.p, out=np.ones_like(weights), where=known) - 1  # 0 where not known
    divergence = (exact.p * (x - np.log1p(np.maximum(x, _LEAST_RATIO - 1)))).sum(-1)
    limit = exact.divergence_limit
    # Above that, the second-order expansion behind the limit says nothing.
    valid = np.isfinite(limit) & (limit < 2.0**-10)
    return float((divergence[valid] / limit[valid]).max()) if valid.any() else None


def _lse_ratio(weights: NDArray[np.float64], exact: _Rows) -> float | None:
    """Return the error of log-sum-exp that the largest weight of each row implies, over its limit.

    A weight is e^(l - lse), so log p - log p^ at the row's largest weight is the error of lse, up to that weight's own
    W: at most max W + gamma_n and the roundings of a division and a store.
    """
    p, seen = (np.take_along_axis(array, exact.top, -1) for array in (exact.p, weights))
    limit = exact.lse_limit
    valid = np.isfinite(limit) & (seen > 0)
    if not valid.any():
        return None
    return float((np.abs(np.log(p[valid] / seen[valid])) / limit[valid]).max())


def _worst_condition(facts: SoftmaxFacts, whole: NDArray[np.bool_]) -> float | None:
    if facts.condition is None:
        return None
    kept = facts.condition[whole]
    kept = kept[np.isfinite(kept)]
    return float(kept.max()) if kept.size else None


def find(stability: Stability) -> list[Finding]:
    """Return what the measures break."""
    found = []
    if stability.finite_ratio < 1:
        share = 1 - stability.finite_ratio
        found.append(finding("OA401", f"{share:.1%} of the rows with keys hold NaN or infinity"))
    limits = (
        ("OA402", "row sums", stability.row_sum_err_over_limit),
        ("OA404", "weights", stability.weight_err_over_limit),
        ("OA404", "log-sum-exp", stability.lse_err_over_limit),
        ("OA405", "the divergence", stability.kl_over_limit),
    )
    found += [
        finding(code, f"{what}: {ratio:.3g} times the limit")
        for code, what, ratio in limits
        if (ratio or 0) > 1
    ]
    if (stability.mask_leak_over_limit or 0.0) > 1:
        found.append(finding("OA403", f"masked keys receive {stability.mask_leak:.3g} of the weight"))
    return found
