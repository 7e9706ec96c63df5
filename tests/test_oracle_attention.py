"""The oracle's attention: exact against mpmath, and a bound that correct kernels keep and wrong ones break."""

from __future__ import annotations

import attention_arrays as arrays
import mpmath
import numpy as np
import pytest

from onnx_attest.verify.arithmetic import PROFILES, gamma
from onnx_attest.verify.oracle.attention import attention, softmax, weighted_sum, with_policy
from onnx_attest.verify.oracle.bounded import Bounded, exact

FP32 = PROFILES["fp32"]
FLOAT64_ROUNDING = 1e3 * 2.0**-53  # the oracle's own rounding, some hundred operations deep


def oracle(q, k, v, mask=None, arithmetic=FP32):
    allowed = None if mask is None else Bounded(mask)
    return attention(exact(q), exact(k), exact(v), arithmetic, scale=q.shape[-1] ** -0.5, allowed=allowed)


def mpmath_attention(q, k, v):
    """One head with 60 digits."""
    with mpmath.workdps(60):
        Q, K, V = (mpmath.matrix(array.astype(float).tolist()) for array in (q, k, v))
        scores = Q * K.T / mpmath.sqrt(q.shape[-1])
        rows = []
        for i in range(scores.rows):
            exponentials = [mpmath.exp(scores[i, j]) for j in range(scores.cols)]
            total = mpmath.fsum(exponentials)
            rows.append([
                float(mpmath.fsum(e * V[j, c] for j, e in enumerate(exponentials)) / total)
                for c in range(V.cols)
            ])  # fmt: skip
    return np.array(rows)


@pytest.mark.parametrize("logit_std", [0.3, 3.0, 100.0])
def test_values_are_those_of_mpmath(logit_std):
    q, k, v = (a[0, 0] for a in arrays.inputs(queries=4, keys=6, d=5, d_v=3, logit_std=logit_std))
    output, _ = oracle(q, k, v)
    assert np.abs(output.value - mpmath_attention(q, k, v)).max() <= FLOAT64_ROUNDING


@pytest.mark.parametrize("implementation", arrays.CORRECT)
@pytest.mark.parametrize("logit_std", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("keys", [1, 23, 600])
def test_correct_kernels_keep_the_bound(implementation, logit_std, keys):
    q, k, v = arrays.inputs(queries=9, keys=keys, logit_std=logit_std, seed=keys)
    output, _ = oracle(q, k, v)
    actual = arrays.CORRECT[implementation](q, k, v)
    assert (np.abs(actual - output.value) / output.error).max() <= 1


@pytest.mark.parametrize("implementation", arrays.CORRECT)
def test_correct_kernels_keep_the_bound_under_a_mask(implementation):
    q, k, v = arrays.inputs()
    mask = arrays.causal_mask(17, 23)
    output, _ = oracle(q, k, v, mask)
    actual = arrays.CORRECT[implementation](q, k, v, mask)
    assert (np.abs(actual - output.value) / output.error).max() <= 1


def test_bound_is_centred_where_softmax_saturates():
    """Propagating op by op allows the weights' relative error on all of V; the centred bound only on its spread."""
    q, k, v = arrays.inputs(logit_std=100.0)
    _, weights = oracle(q, k, v)
    centred = weighted_sum(weights, exact(v), FP32)
    op_by_op = np.matmul(weights.error, np.abs(v.astype(float)))
    assert np.median(op_by_op / centred.error) > 10


def test_bound_grows_with_inherited_errors():
    q, k, v = (exact(array) for array in arrays.inputs())
    clean, _ = attention(q, k, v, FP32, scale=0.2)
    off = Bounded(q.value, np.full(q.value.shape, 1e-3))
    inherited, _ = attention(off, k, v, FP32, scale=0.2)
    moved, _ = attention(Bounded(q.value + 1e-3), k, v, FP32, scale=0.2)
    assert (np.abs(moved.value - clean.value) <= inherited.error).all()
    assert (inherited.error > clean.error).all()


def test_tf32_products_break_the_fp32_bound_and_keep_their_own():
    q, k, v = arrays.inputs(logit_std=3.0, keys=65)

    def truncated(array):
        return (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    scores = (truncated(q) @ truncated(k).swapaxes(-1, -2)) * np.float32(q.shape[-1] ** -0.5)
    actual = truncated(arrays.softmax(scores)) @ truncated(v)
    assert (np.abs(actual - oracle(q, k, v)[0].value) / oracle(q, k, v)[0].error).max() > 1
    tf32 = oracle(q, k, v, arithmetic=PROFILES["tf32"])[0]
    assert (np.abs(actual - tf32.value) / tf32.error).max() <= 1


def test_finite_mask_leaves_no_weight_and_no_vacuous_bound():
    """A key masked with the lowest finite number has an enormous logit error, on a weight of exactly zero."""
    v = arrays.inputs()[2]
    mask = arrays.causal_mask(17, 23)
    scores = exact(np.where(mask, 1.0, np.finfo(np.float32).min) * np.ones((2, 3, 17, 23)))
    logits = Bounded(scores.value, np.abs(scores.value) * FP32.u)
    weights = softmax(logits, FP32)
    assert (weights.value[..., ~mask] == 0).all()
    assert (weights.softmax.masked == ~mask).all()
    assert weighted_sum(weights, exact(v), FP32).error.max() < 1e-4


@pytest.mark.parametrize(("policy", "expected"), [("nan", np.nan), ("zero", 0.0), ("mean", 1 / 4)])
def test_policies_of_empty_rows(policy, expected):
    logits = np.zeros((2, 4))
    logits[1] = -np.inf
    weights = with_policy(softmax(Bounded(logits), FP32), policy, FP32)
    np.testing.assert_array_equal(weights.value[1], expected)
    np.testing.assert_array_equal(weights.value[0], 1 / 4)


def test_unknown_policy_leaves_what_the_formula_gives():
    weights = with_policy(softmax(Bounded(np.full((1, 3), -np.inf)), FP32), "unknown", FP32)
    assert np.isnan(weights.value).all()


def test_masked_garbage_has_no_influence_on_value_or_bound():
    q, k, v = arrays.inputs()
    mask = arrays.causal_mask(17, 23)
    clean = oracle(q, k, v, mask)[0]
    k, v = k.copy(), v.copy()
    k[..., 17:, :], v[..., 17:, :] = 1e30, 1e5  # keys beyond the last query are hidden from all
    poisoned = oracle(q, k, v, mask)[0]
    np.testing.assert_array_equal(poisoned.value, clean.value)
    # flushed weights may carry masked values: n omega max|V|, a subnormal share
    assert (poisoned.error - clean.error).max() <= 23 * FP32.omega * 2e5


def test_sum_that_may_stall_has_no_bound_rather_than_a_negative_one():
    """257 terms at u = 2^-8: n u is beyond 1, and n u / (1 - n u) would be negative."""
    weights = softmax(Bounded(np.zeros((1, 300))), PROFILES["bf16-acc"])
    assert np.isposinf(weights.softmax.normaliser).all()
    assert (weights.error > 0).all()


@pytest.mark.parametrize(("profile", "keys"), [("bf16-acc", 150), ("bf16-acc", 250), ("fp16-acc", 1500)])
def test_a_mean_whose_normaliser_may_be_anything_has_no_bound(profile, keys):
    """Between n u = 1/2 and 1, G is finite and above 1: the distance to the hull over 1 - G would be negative."""
    rng = np.random.default_rng(0)
    weights = softmax(exact(rng.standard_normal((1, 4, keys))), PROFILES[profile])
    output = weighted_sum(weights, exact(rng.standard_normal((1, keys, 5))), PROFILES[profile])
    assert np.isposinf(output.error).all()


@pytest.mark.parametrize(("terms", "u"), [(10, 2.0**-24), (1e9, 2.0**-24)])
def test_gamma_is_infinite_where_it_says_nothing(terms, u):
    assert (
        gamma(terms, u) == pytest.approx(terms * u / (1 - terms * u))
        if terms * u < 1
        else gamma(terms, u) == np.inf
    )
