"""The stability measures: at most 1 over their limit on correct softmax, over it on each fault, and findings for both."""

from __future__ import annotations

import attention_arrays as arrays
import numpy as np
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.attention import attention
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.program import AttentionSeen
from onnx_attest.verify.softmax import find, measure

FP32 = PROFILES["fp32"]


def seen_and_scores(logit_std=2.0, keys=33, mask=None, seed=0):
    """Return the oracle's side and the fp32 scores of one attention."""
    q, k, v = arrays.inputs(queries=keys, keys=keys, logit_std=logit_std, seed=seed)
    allowed = None if mask is None else Bounded(mask)
    scale = q.shape[-1] ** -0.5
    output, _ = attention(exact(q), exact(k), exact(v), FP32, scale=scale, allowed=allowed)
    scores = q @ k.swapaxes(-1, -2) * np.float32(scale)
    if mask is not None:
        scores = np.where(mask, scores, np.float32(-np.inf))
    return AttentionSeen("node", "y", "w", output.attended), scores


def codes(weights, seen):
    return {item.code for item in find(measure(weights, seen, FP32))}


@pytest.mark.parametrize("logit_std", [0.3, 3.0, 30.0, 300.0])
@pytest.mark.parametrize("keys", [1, 33, 257])
def test_quiet_on_correct_softmax(logit_std, keys):
    seen, scores = seen_and_scores(logit_std, keys)
    stability = measure(arrays.softmax(scores), seen, FP32)
    assert find(stability) == []
    assert stability.finite_ratio == 1
    assert 0 < stability.p_max <= 1 + 4 * FP32.u
    assert stability.mask_leak == 0


def test_quiet_under_a_causal_mask():
    seen, scores = seen_and_scores(mask=arrays.causal_mask(33, 33))
    assert codes(arrays.softmax(scores), seen) == set()


def not_finite(weights):
    weights[0, 0, 3, 5] = np.nan


def row_does_not_sum_to_one(weights):
    weights[0, 0, 3] *= np.float32(1 + 1e-4)


def one_weight_off(weights):
    weights[0, 0, 3, 5] += np.float32(1e-3)
    weights[0, 0, 3, 6] -= np.float32(1e-3)


def tempered(weights):
    weights[:] = weights**1.001
    weights /= weights.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (not_finite, "OA401"), (row_does_not_sum_to_one, "OA402"), (one_weight_off, "OA404"), (tempered, "OA405"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_each_fault_is_found(spoil, code):
    seen, scores = seen_and_scores()
    weights = arrays.softmax(scores)
    spoil(weights)
    assert code in codes(weights, seen)


def test_weak_mask_leaks():
    mask = arrays.causal_mask(33, 33)
    seen, _ = seen_and_scores(mask=mask)
    _, scores = seen_and_scores()
    weak = arrays.softmax(scores + np.where(mask, 0, -10).astype(np.float32))
    assert "OA403" in codes(weak, seen)


def test_clamp_of_a_generic_kernel_is_no_leak():
    """MLAS' generic exponential clamps at -88.376 and leaves 4.2e-39 on a masked key (NUMERICS.md section 5)."""
    mask = arrays.causal_mask(33, 33)
    seen, scores = seen_and_scores(mask=mask)
    weights = np.where(mask, arrays.softmax(scores), np.float32(4.2e-39))
    assert codes(weights, seen) == set()


def test_empty_rows_are_counted_and_left_out():
    mask = arrays.causal_mask(33, 33)
    mask[4] = False
    seen, scores = seen_and_scores(mask=mask)
    with np.errstate(invalid="ignore"):
        weights = arrays.softmax(scores)  # NaN in row 4
    stability = measure(weights, seen, FP32)
    assert (stability.empty_rows, stability.rows) == (2 * 3, 2 * 3 * 33)
    assert stability.finite_ratio == 1
    assert find(stability) == []


def test_overflow_margin_is_the_distance_to_88_7():
    seen, scores = seen_and_scores(logit_std=30.0)
    stability = measure(arrays.softmax(scores), seen, FP32)
    assert stability.largest_logit == pytest.approx(float(scores.max()), rel=1e-6)
    assert stability.overflow_margin == pytest.approx(
        np.log(np.finfo(np.float32).max) - scores.max(), rel=1e-6
    )


def test_saturated_rows_have_one_effective_key():
    seen, scores = seen_and_scores(logit_std=1000.0)
    stability = measure(arrays.softmax(scores), seen, FP32)
    assert stability.effective_keys_min == pytest.approx(1.0)
    assert stability.exp_flushed > 0


def test_flat_rows_have_all_keys():
    seen, scores = seen_and_scores(logit_std=1e-12)
    stability = measure(arrays.softmax(scores), seen, FP32)
    assert stability.effective_keys_min == pytest.approx(33)
    assert stability.entropy_min == pytest.approx(np.log(33))
