"""Each gate catches what it is for and is quiet on what is right."""

from __future__ import annotations

import attention_arrays as arrays
import numpy as np
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.gates import Tolerance, check_form, exceeds, judge
from onnx_attest.verify.oracle.attention import attention
from onnx_attest.verify.oracle.bounded import Bounded, exact

FP32 = PROFILES["fp32"]
QUERIES, KEYS, D = 17, 17, 20
DTYPES = {"y": np.dtype(np.float32)}


def expected(q, k, v, mask):
    return attention(exact(q), exact(k), exact(v), FP32, scale=D**-0.5, allowed=Bounded(mask))[0]


def verdict(actual, q, k, v, mask):
    return judge({"y": actual}, {"y": expected(q, k, v, mask)}, DTYPES)


@pytest.fixture
def case():
    q, k, v = arrays.inputs(queries=QUERIES, keys=KEYS, d=D, logit_std=2.0)
    return q, k, v, arrays.causal_mask(QUERIES, KEYS)


@pytest.mark.parametrize("implementation", arrays.CORRECT)
def test_quiet_on_correct_kernels(case, implementation):
    q, k, v, mask = case
    assert verdict(arrays.CORRECT[implementation](q, k, v, mask), q, k, v, mask).passed


def mask_off_by_one(q, k, v, mask):
    return arrays.naive(q, k, v, arrays.causal_mask(QUERIES, KEYS, 1))


def mask_missing(q, k, v, mask):
    return arrays.naive(q, k, v)


def mask_too_weak(q, k, v, mask):
    scores = q @ k.swapaxes(-1, -2) * np.float32(D**-0.5) + np.where(mask, 0, -10).astype(np.float32)
    return arrays.softmax(scores) @ v


def key_dropped(q, k, v, mask):
    mask = mask.copy()
    mask[:, 3] = False
    mask[3, 2] = True  # no empty row
    return arrays.naive(q, k, v, mask)


def heads_swapped(q, k, v, mask):
    return arrays.naive(q, k, v, mask)[:, [1, 0, 2]]


def scale_missing(q, k, v, mask):
    return arrays.naive(q, k, v, mask, scale=1.0)


def scale_of_other_axis(q, k, v, mask):
    return arrays.naive(q, k, v, mask, scale=KEYS**-0.5)


def fp16_logits(q, k, v, mask):
    scores = (q @ k.swapaxes(-1, -2) * np.float32(D**-0.5)).astype(np.float16).astype(np.float32)
    return arrays.softmax(np.where(mask, scores, np.float32(-np.inf))) @ v


def fp16_weights(q, k, v, mask):
    scores = np.where(mask, q @ k.swapaxes(-1, -2) * np.float32(D**-0.5), np.float32(-np.inf))
    return arrays.softmax(scores).astype(np.float16).astype(np.float32) @ v


def softmax_over_queries(q, k, v, mask):
    scores = q @ k.swapaxes(-1, -2) * np.float32(D**-0.5)
    return arrays.softmax(scores.swapaxes(-1, -2)).swapaxes(-1, -2) @ v


def values_rolled(q, k, v, mask):
    return arrays.naive(q, k, np.roll(v, 1, axis=-2), mask)


def denominator_plus_epsilon(q, k, v, mask):
    return arrays.naive(q, k, v, mask) * np.float32(1 - 1e-4)


WRONG = [
    mask_off_by_one, mask_missing, mask_too_weak, key_dropped, heads_swapped, scale_missing, scale_of_other_axis,
    fp16_logits, fp16_weights, softmax_over_queries, values_rolled, denominator_plus_epsilon,
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda function: function.__name__)
def test_proof_catches(case, wrong):
    q, k, v, mask = case
    found = verdict(wrong(q, k, v, mask).astype(np.float32), q, k, v, mask)
    assert [item.code for item in found.findings] == ["OA301"]
    assert found.worst.ratio > 1


def with_nan(array):
    array[0, 1, 2, 3] = np.nan


def with_infinity(array):
    array[0, 1, 2, 3] = np.inf


@pytest.mark.parametrize("spoil", [with_nan, with_infinity], ids=lambda function: function.__name__)
def test_form_catches_positions(case, spoil):
    actual = arrays.naive(*case)
    spoil(actual)
    found = verdict(actual, *case)
    assert {item.code for item in found.findings} == {"OA303"}
    assert "y[0, 1, 2, 3]" in found.findings[0].message
    assert found.max_err_over_tau is None


def test_form_catches_a_number_where_nan_is_right(case):
    q, k, v, mask = case
    mask = mask.copy()
    mask[4] = False
    reference = expected(q, k, v, mask)
    nan = Bounded(np.where(np.arange(QUERIES)[:, None] == 4, np.nan, reference.value), reference.error)
    assert judge({"y": nan.value.astype(np.float32)}, {"y": nan}, DTYPES).passed  # NaN on both sides
    found = judge({"y": reference.value.astype(np.float32)}, {"y": nan}, DTYPES)
    assert found.findings[0].code == "OA303"
    assert "lacks NaN" in found.findings[0].message


def test_overflow_of_the_dtype_is_an_infinity():
    beyond = Bounded(np.array([1e39, 3.4028235e38]), np.array([1e31, 1e31]))
    assert judge({"y": np.array([np.inf, np.inf], np.float32)}, {"y": beyond}, DTYPES).passed
    found = judge({"y": np.array([1.0, 3.4028235e38], np.float32)}, {"y": beyond}, DTYPES)
    assert [item.code for item in found.findings] == ["OA303"]


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        ({"z": np.zeros(3, np.float32)}, "outputs are z, they should be y"),
        ({"y": np.zeros(4, np.float32)}, "y.shape is (4,), it should be (3,)"),
        ({"y": np.zeros(3, np.float64)}, "y.dtype is float64, it should be float32"),
    ],
)
def test_form_catches_names_shapes_and_dtypes(actual, message):
    found = check_form(actual, {"y": exact(np.zeros(3))}, DTYPES)
    assert [(item.code, item.message) for item in found] == [("OA302", message)]


def test_exact_outputs_have_no_slack():
    integers = Bounded(np.array([1, 2, 3]))
    dtypes = {"y": np.dtype(np.int64)}
    assert judge({"y": np.array([1, 2, 3])}, {"y": integers}, dtypes).passed
    assert not judge({"y": np.array([1, 2, 4])}, {"y": integers}, dtypes).passed


def test_empty_outputs_pass():
    empty = Bounded(np.zeros((0, 3)), np.zeros((0, 3)))
    assert judge({"y": np.zeros((0, 3), np.float32)}, {"y": empty}, DTYPES).passed


def test_tolerance_is_a_gate_of_its_own():
    reference = {"y": exact(np.array([1.0, 100.0]))}
    actual = {"y": np.array([1.0, 100.5])}
    assert exceeds(actual, reference, Tolerance(atol=0.0, rtol=0.01)) == []
    found = exceeds(actual, reference, Tolerance(atol=0.1, rtol=0.0))
    assert [item.code for item in found] == ["OA306"]
    assert found[0].message == "y[1] is off by 0.5, 0.1 is allowed"
