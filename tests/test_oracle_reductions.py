"""Reductions, cumulative sums and products, and places of extremes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from one_operator import FP32, apply, on_runtime

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError

FP64 = replace(PROFILES["fp64"], deviations=True)
U = FP32.u
RNG = np.random.default_rng(0)
WIDE = RNG.standard_normal((40, 3, 50)).astype(np.float32)
POSITIVE = (np.abs(WIDE) + 0.01).astype(np.float32)
AROUND_ONE = (1 + 0.2 * WIDE).astype(np.float32)
LAST = np.array([2], np.int64)
ROUNDED = {
    "ReduceL1": WIDE, "ReduceL2": WIDE, "ReduceLogSum": POSITIVE, "ReduceLogSumExp": WIDE, "ReduceMean": WIDE,
    "ReduceProd": AROUND_ONE, "ReduceSum": POSITIVE, "ReduceSumSquare": WIDE, "CumSum": POSITIVE, "CumProd": AROUND_ONE,
}  # fmt: skip
CUMULATIVE = ("CumSum", "CumProd")
ALL = {**ROUNDED, "ReduceMax": WIDE, "ReduceMin": WIDE}


def second(operator):
    """Return the input that holds the axes, or the axis."""
    return np.array(2) if operator in CUMULATIVE else LAST


def on_any_runtime(operator, x):
    """Return what ONNX Runtime gives; CumProd, which it lacks, from NumPy in float32."""
    if operator == "CumProd":
        return np.multiply.accumulate(x, axis=2, dtype=np.float32)
    return on_runtime(operator, [x, second(operator)], opset=18)


@pytest.mark.parametrize("operator", ROUNDED)
def test_onnx_runtime_is_within_a_bound_that_says_something(operator):
    x = ROUNDED[operator]
    expected = apply(operator, x, second(operator), opset=26)
    error = np.abs(on_any_runtime(operator, x).astype(np.float64) - expected.value)
    assert (error <= expected.error).all()
    # 50 terms, each rounded at the most a few times, of sizes that add up to 50 or so.
    assert (expected.error / np.maximum(1, np.abs(expected.value))).max() < 150 * U


@pytest.mark.parametrize("operator", ROUNDED)
def test_onnx_runtime_deviates_as_the_variance_says(operator):
    x = ROUNDED[operator]
    expected = apply(operator, x, second(operator), opset=26)
    rounds = expected.variance > 0
    error = on_any_runtime(operator, x).astype(np.float64) - expected.value
    assert 0.1 < np.sqrt(np.mean(error[rounds] ** 2 / expected.variance[rounds])) < 3


@pytest.mark.parametrize("operator", ROUNDED)
def test_plain_sequential_float32_is_within_the_bound(operator):
    """The least accurate order that is correct."""
    x = ROUNDED[operator][:, :, ::-1]
    steps = {
        "ReduceL1": np.abs, "ReduceL2": np.square, "ReduceSumSquare": np.square, "ReduceLogSumExp": np.exp,
    }.get(operator, np.asarray)  # fmt: skip
    of = np.multiply if operator in ("ReduceProd", "CumProd") else np.add
    sums = of.accumulate(steps(x), axis=2, dtype=np.float32)
    last = {"ReduceL2": np.sqrt, "ReduceLogSum": np.log, "ReduceLogSumExp": np.log,
            "ReduceMean": lambda total: total / np.float32(50)}.get(operator, np.asarray)  # fmt: skip
    actual = sums if operator in CUMULATIVE else last(sums[..., -1:])
    expected = apply(operator, x, second(operator), opset=26)
    assert (np.abs(actual - expected.value) <= expected.error).all()


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1e-2])
@pytest.mark.parametrize("operator", ALL)
def test_operands_anywhere_within_their_errors_stay_within_the_bound(operator, size):
    x = ALL[operator].astype(float)
    given = Bounded(x, size * (1 + (np.arange(50) % 3)) * np.ones(x.shape))
    expected = apply(operator, given, second(operator), arithmetic=FP64, opset=26)
    rng, reached = np.random.default_rng(1), 0.0
    towards = [
        np.sign(x),
        np.ones(x.shape),
        -np.sign(x),
        *(rng.choice([-1.0, 1.0], x.shape) for _ in range(4)),
    ]
    for signs in towards:
        actual = apply(operator, x + given.error * signs, second(operator), arithmetic=FP64, opset=26).value
        difference = np.abs(actual - expected.value)
        assert (difference <= expected.error * (1 + 1e-9)).all()
        reached = np.maximum(reached, difference)
    assert (reached / expected.error).max() > 0.25


@pytest.mark.parametrize("operator", ALL)
def test_variances_of_the_operands_become_that_of_the_result(operator):
    x, size = ALL[operator].astype(float), 1e-4
    given = Bounded(x, np.full(x.shape, 5 * size), variance=np.full(x.shape, size**2))
    expected = apply(operator, given, second(operator), arithmetic=FP64, opset=26)
    rng, squares = np.random.default_rng(2), 0.0
    for _ in range(30):
        moved = x + size * rng.standard_normal(x.shape)
        actual = apply(operator, moved, second(operator), arithmetic=FP64, opset=26).value
        squares = squares + (actual - expected.value) ** 2 / 30
    assert 0.5 < np.mean(squares / expected.variance.clip(1e-20)) < 2


@pytest.mark.parametrize("operator", ALL)
@pytest.mark.parametrize("block", [None, 1])
def test_a_kernel_gives_numbers_of_its_precision_without_bounds(operator, block):
    kernel = replace(PROFILES["fp32"], kernel=Kernel("plain", block))
    result = apply(operator, ALL[operator], second(operator), arithmetic=kernel, opset=26)
    assert not np.any(result.errors())
    np.testing.assert_array_equal(result.value, result.value.astype(np.float32).astype(np.float64))
    expected = apply(operator, ALL[operator], second(operator), opset=26).value
    np.testing.assert_allclose(result.value, expected, rtol=1e-4, atol=1e-5)


# Axes


def test_axes_are_an_attribute_first_and_an_input_then():
    total = WIDE.astype(float).sum((0, 2))
    np.testing.assert_allclose(apply("ReduceSum", WIDE, opset=11, axes=[0, 2], keepdims=0).value, total)
    np.testing.assert_allclose(apply("ReduceSum", WIDE, np.array([0, -1]), opset=13, keepdims=0).value, total)
    np.testing.assert_allclose(
        apply("ReduceSum", WIDE, np.array([], int)).value, total.sum().reshape(1, 1, 1)
    )
    logs = apply("ReduceLogSumExp", WIDE, np.array([0, 2]), keepdims=0).value
    np.testing.assert_allclose(logs, np.log(np.exp(WIDE.astype(float)).sum((0, 2))))


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"])
def test_no_axes_may_mean_that_nothing_is_done(operator):
    result = apply(operator, WIDE, np.array([], int), noop_with_empty_axes=1)
    np.testing.assert_array_equal(result.value, WIDE)
    assert result.error is None


@pytest.mark.parametrize(
    ("operator", "step"),
    [("ReduceL1", np.abs), ("ReduceL2", np.abs), ("ReduceSumSquare", np.square), ("ReduceLogSum", np.log),
     ("ReduceLogSumExp", np.asarray)],
)  # fmt: skip
def test_without_axes_the_steps_around_the_sum_are_taken(operator, step):
    x = POSITIVE.astype(float)
    result = apply(operator, x, noop_with_empty_axes=1)
    np.testing.assert_allclose(result.value, step(x), rtol=1e-14)


@pytest.mark.parametrize(
    ("operator", "expected"),
    [("ReduceSum", 0.0), ("ReduceL1", 0.0), ("ReduceL2", 0.0), ("ReduceSumSquare", 0.0), ("ReduceProd", 1.0),
     ("ReduceLogSum", -np.inf), ("ReduceLogSumExp", -np.inf), ("ReduceMax", -np.inf), ("ReduceMin", np.inf)],
)  # fmt: skip
def test_no_numbers_reduce_to_what_leaves_others_as_they_are(operator, expected):
    result = apply(operator, np.zeros((2, 0, 3)), np.array([1]))
    np.testing.assert_array_equal(result.value, np.full((2, 1, 3), expected))


def test_the_mean_of_no_numbers_is_undefined():
    with pytest.raises(UnsupportedOperatorError, match="undefined"):
        apply("ReduceMean", np.zeros((2, 0)), np.array([1]))


# Integers and truth values


def test_sums_and_products_of_integers_wrap_around_in_their_type():
    x = np.array([[100, 100, 3]], np.int8)
    total = apply("ReduceSum", x, np.array([1]))
    assert (total.value.dtype, total.value.tolist()) == (np.int8, [[-53]])
    assert apply("ReduceProd", np.array([[2**20, 2**20, 3]], np.int32), np.array([1])).value.tolist() == [[0]]
    assert apply("CumSum", x, np.array(1)).value.tolist() == [[100, -56, -53]]
    assert apply("ReduceSumSquare", x.astype(np.int32), np.array([1])).value.tolist() == [[20009]]


def test_the_mean_of_integers_is_cut_off():
    assert apply("ReduceMean", np.array([[-3, -4], [3, 4]], np.int32), np.array([1])).value.tolist() == [
        [-3],
        [3],
    ]
    with pytest.raises(UnsupportedOperatorError, match="beyond int32"):
        apply("ReduceMean", np.array([2**31 - 1, 5], np.int32), np.array([0]))


def test_truth_values_have_a_largest_and_a_smallest():
    x = np.array([[True, False], [True, True]])
    assert apply("ReduceMax", x, np.array([1])).value.tolist() == [[True], [True]]
    assert apply("ReduceMin", x, np.array([1])).value.tolist() == [[False], [True]]
    none = np.zeros((1, 0), bool)
    assert apply("ReduceMax", none, np.array([1])).value.tolist() == [[False]]
    assert apply("ReduceMin", none, np.array([1])).value.tolist() == [[True]]


@pytest.mark.parametrize("operator", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_roots_and_logarithms_of_integers_are_refused(operator):
    with pytest.raises(UnsupportedOperatorError, match="integers"):
        apply(operator, np.array([1, 2]), np.array([0]))


def test_codes_that_may_be_off_are_not_summed():
    with pytest.raises(UnsupportedOperatorError, match="rounding decides"):
        apply("ReduceSum", Bounded(np.array([1, 2]), np.array([1.0, 0.0])), np.array([0]))


# What is peculiar to one


def test_a_norm_of_zeros_is_zero_and_one_near_zero_has_the_norm_of_the_errors():
    assert apply("ReduceL2", np.zeros((1, 4)), np.array([1])).error.max() <= FP32.omega
    x = Bounded(np.zeros((1, 4)), np.full((1, 4), 1e-3))
    np.testing.assert_allclose(apply("ReduceL2", x, np.array([1])).error, 2e-3, rtol=1e-4)


def test_squares_that_are_flushed_to_zero_are_within_the_bound_of_a_norm():
    x = np.full((1, 4), 1e-25, np.float32)
    expected = apply("ReduceL2", x, np.array([1]))
    assert expected.error >= expected.value


def test_squares_beyond_half_precision_leave_no_bound_of_a_norm():
    x = np.array([[300.0, 1.0], [100.0, 1.0]], np.float16)
    expected = apply("ReduceL2", x, np.array([1]), arithmetic=PROFILES["fp16-steps"])
    np.testing.assert_array_equal(np.isinf(expected.error[:, 0]), [True, False])


def test_a_product_that_overflows_in_some_order_has_no_bound():
    x = np.array([[1e30, 1e-30, 1e30, 1e-30], [1.0, 2.0, 3.0, 4.0]], np.float32)
    expected = apply("ReduceProd", x, np.array([1]))
    np.testing.assert_array_equal(np.isinf(expected.error[:, 0]), [True, False])


def test_the_logarithm_of_a_sum_that_may_be_zero_is_refused():
    x = Bounded(np.array([1.0, -1.0 + 1e-4]), np.full(2, 1e-3))
    with pytest.raises(UnsupportedOperatorError, match="rounding error"):
        apply("ReduceLogSum", x, np.array([0]))


def test_sums_of_exponentials_of_infinities():
    x = np.array([[-np.inf, -np.inf], [0.0, -np.inf], [np.inf, 1.0]])
    result = apply("ReduceLogSumExp", x, np.array([1]), keepdims=0)
    np.testing.assert_array_equal(result.value, [-np.inf, 0.0, np.inf])
    assert not result.error[[0, 2]].any()


@pytest.mark.parametrize("operator", ["ReduceLogSumExp", "LogSoftmax"])
def test_a_sum_of_exponentials_that_stalls_in_half_precision_is_within_the_bound(operator):
    """From 2048 on, 1 more is lost: 2400 pairs of 1 and 0.75 come to half of what they should."""
    x = np.log(np.tile([1.0, 0.75], 2400)).reshape(1, -1)
    arithmetic = PROFILES["fp16-acc"]
    terms = np.exp(x).astype(np.float16)
    total = np.add.accumulate(terms, axis=1)[:, -1:].astype(float)
    logarithm = np.log(total) if operator == "ReduceLogSumExp" else x - np.log(total)
    inputs = [x, np.array([1])] if operator == "ReduceLogSumExp" else [x]
    expected = apply(operator, *inputs, arithmetic=arithmetic)
    difference = np.abs(logarithm - expected.value)
    assert difference.min() > 0.5
    assert (difference <= expected.error).all()


def test_sums_of_exponentials_do_not_overflow():
    result = apply("ReduceLogSumExp", np.array([[1000.0, 1000.0]]), np.array([1]))
    np.testing.assert_allclose(result.value, 1000 + np.log(2))


def test_the_largest_number_is_off_by_what_may_be_the_largest():
    x = Bounded(np.array([[5.0, 4.999, 1.0]]), np.array([[1e-6, 1e-2, 100.0]]) * [1, 1, 0.01])
    assert apply("ReduceMax", x, np.array([1])).error.max() == 1e-2
    assert apply("ReduceMin", Bounded(-x.value, x.error), np.array([1])).error.max() == 1e-2


@pytest.mark.parametrize(
    ("attributes", "sums", "products"),
    [
        ({}, [1, 3, 6], [1, 2, 6]),
        ({"exclusive": 1}, [0, 1, 3], [1, 1, 2]),
        ({"reverse": 1}, [6, 5, 3], [6, 6, 3]),
        ({"exclusive": 1, "reverse": 1}, [5, 3, 0], [6, 3, 1]),
    ],
)
def test_cumulation_forwards_backwards_and_without_the_own_number(attributes, sums, products):
    x, axis = Bounded(np.array([[1.0, 2.0, 3.0]]), np.full((1, 3), 0.5)), np.array(-1)
    total = apply("CumSum", x, axis, arithmetic=FP64, **attributes)
    assert total.value.tolist() == [sums]
    counts = {1: 0.5, 2: 1.0, 3: 1.5}
    ends = [0.0 if s == 0 else counts[_terms(s, attributes)] for s in sums]
    np.testing.assert_allclose(total.error[0], ends)
    assert apply("CumProd", x, axis, opset=26, **attributes).value.tolist() == [products]


def _terms(total, attributes):
    """How many of 1, 2, 3, from the one end or from the other, come to a sum."""
    return ({3: 1, 5: 2, 6: 3} if "reverse" in attributes else {1: 1, 3: 2, 6: 3})[total]


# Places


def test_of_equal_numbers_the_first_or_the_last_is_the_largest():
    x = np.array([[3.0, 1.0, 3.0], [1.0, 1.0, 1.0]])
    assert apply("ArgMax", x, axis=1).value.tolist() == [[0], [0]]
    assert apply("ArgMax", x, axis=1, select_last_index=1).value.tolist() == [[2], [2]]
    assert apply("ArgMin", x, axis=1, select_last_index=1, keepdims=0).value.tolist() == [1, 2]
    assert apply("ArgMax", x).value.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_the_smallest_integer_of_a_type_is_found(dtype):
    known = np.iinfo(dtype)
    assert apply("ArgMin", np.array([known.max, known.min, 3], dtype)).value.tolist() == [1]


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_a_place_that_rounding_chooses_is_refused(operator):
    sign = 1.0 if operator == "ArgMax" else -1.0
    near = Bounded(sign * np.array([1.0, 1.001, 0.5]), np.full(3, 1e-3))
    with pytest.raises(UnsupportedOperatorError, match="rounding"):
        apply(operator, near)
    with pytest.raises(UnsupportedOperatorError, match="rounding"):
        apply(operator, Bounded(sign * np.array([1.0, 1.0015, 0.5]), np.full(3, 1e-3)))
    apart = Bounded(sign * np.array([1.0, 1.1, 0.5]), np.full(3, 1e-3))
    assert apply(operator, apart).value.tolist() == [1]
    with pytest.raises(UnsupportedOperatorError, match="not all numbers"):
        apply(operator, np.array([1.0, np.nan]))


def test_a_place_is_an_int64():
    assert apply("ArgMax", np.array([[1, 2]], np.int32), axis=-1).value.dtype == np.int64
