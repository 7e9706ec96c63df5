"""Elementwise operators and activations: bounds against ONNX Runtime, what becomes of errors, and awkward semantics."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx
import pytest
from one_operator import FP32, apply, model_of, on_runtime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.oracle.ops.pointwise.error_function import erf

FP64 = replace(PROFILES["fp64"], deviations=True)
FP16 = PROFILES["fp16-steps"]
U = FP32.u


RNG = np.random.default_rng(0)
WIDE = (RNG.standard_normal((4, 500)) * 2).astype(np.float32)
OTHER = RNG.standard_normal((4, 500)).astype(np.float32)
POSITIVE = (np.abs(RNG.standard_normal((4, 500))) + 0.01).astype(np.float32)
UNIT = RNG.uniform(-1, 1, (4, 500)).astype(np.float32)
ROUNDED = {
    "Acos": ([UNIT], {}), "Acosh": ([1 + POSITIVE], {}), "Asin": ([UNIT], {}), "Asinh": ([WIDE], {}),
    "Atan": ([WIDE], {}), "Atanh": ([UNIT * np.float32(0.99)], {}), "Cos": ([WIDE], {}), "Cosh": ([WIDE], {}),
    "Sin": ([WIDE], {}), "Sinh": ([WIDE], {}), "Tan": ([UNIT], {}), "Tanh": ([WIDE], {}), "Erf": ([WIDE], {}),
    "Exp": ([WIDE], {}), "Log": ([POSITIVE], {}), "Sqrt": ([POSITIVE], {}), "Reciprocal": ([POSITIVE], {}),
    "Pow": ([POSITIVE, WIDE], {}), "Sum": ([WIDE, OTHER, UNIT, POSITIVE], {}), "Mean": ([WIDE, OTHER, UNIT], {}),
    "Celu": ([WIDE], {"alpha": 1.7}), "Elu": ([WIDE], {"alpha": 0.3}), "Gelu": ([WIDE], {}),
    "HardSigmoid": ([WIDE], {}), "HardSwish": ([WIDE], {}), "LeakyRelu": ([WIDE], {"alpha": 0.3}),
    "LogSoftmax": ([WIDE], {"axis": 0}), "Mish": ([WIDE], {}), "PRelu": ([WIDE, UNIT[:1]], {}), "Selu": ([WIDE], {}),
    "Shrink": ([WIDE], {"bias": 0.3, "lambd": 0.7}), "Sigmoid": ([WIDE], {}), "Softplus": ([WIDE], {}),
    "Softsign": ([WIDE], {}),
}  # fmt: skip
VACUOUS = {"Pow": 200.0, "Mish": 200.0, "Gelu": 80.0, "LogSoftmax": 60.0, "Sum": 60.0, "Acos": 30.0}
"""Bounds in units of u, of results of size 1 or relative, that would be too wide; 20 for the others."""


@pytest.mark.parametrize("operator", ROUNDED)
def test_onnx_runtime_is_within_a_bound_that_says_something(operator):
    arrays, attributes = ROUNDED[operator]
    expected = apply(operator, *arrays, **attributes)
    actual = on_runtime(operator, arrays, **attributes)
    error = np.abs(actual.astype(np.float64) - expected.value)
    assert (error <= expected.error).all()
    assert (expected.error / np.maximum(1, np.abs(expected.value))).max() < VACUOUS.get(operator, 20.0) * U


@pytest.mark.parametrize("operator", ROUNDED)
def test_onnx_runtime_deviates_as_the_variance_says(operator):
    arrays, attributes = ROUNDED[operator]
    expected = apply(operator, *arrays, **attributes)
    actual = on_runtime(operator, arrays, **attributes)
    rounds = expected.variance > 0
    z = (actual.astype(np.float64) - expected.value)[rounds] / np.sqrt(expected.variance[rounds])
    assert 0.1 < np.sqrt(np.mean(z**2)) < 3


SMALL = 1e-3
JUMPING = ("Floor", "Ceil", "Round", "Sign", "ThresholdedRelu", "Mod")
PROPAGATED = {
    **{name: (arrays, attributes) for name, (arrays, attributes) in ROUNDED.items()},
    "Relu": ([WIDE], {}), "Clip": ([WIDE, np.array(-0.5), np.array(1.0)], {}), "Max": ([WIDE, OTHER], {}),
    "Min": ([WIDE, OTHER], {}), "Floor": ([WIDE], {}), "Ceil": ([WIDE], {}), "Round": ([WIDE], {}),
    "Sign": ([WIDE], {}), "ThresholdedRelu": ([WIDE], {"alpha": 0.4}), "Mod": ([WIDE, POSITIVE + 1], {"fmod": 1}),
    "Swish": ([WIDE], {"alpha": 1.5}), "SwiGLU": ([WIDE, OTHER], {}), "Abs": ([WIDE], {}), "Neg": ([WIDE], {}),
}  # fmt: skip


def inner(operator, arrays):
    """Return operands whose errors keep clear of the edges of the domain, where the oracle refuses."""
    if operator in ("Acos", "Asin"):
        return [0.99 * arrays[0].astype(float)]
    return [array.astype(float) for array in arrays]


@pytest.mark.parametrize("size", [1e-6, SMALL, 4e-3])
@pytest.mark.parametrize("operator", PROPAGATED)
def test_operands_anywhere_within_their_errors_stay_within_the_bound(operator, size):
    arrays, attributes = PROPAGATED[operator]
    values = inner(operator, arrays)
    given = [Bounded(value, np.full(value.shape, size)) for value in values]
    expected = apply(operator, *given, arithmetic=FP64, **attributes)
    rng = np.random.default_rng(1)
    reached = np.zeros(expected.value.shape)
    for _ in range(12):
        moved = [value + size * rng.choice([-1.0, 0.3, 1.0], value.shape) for value in values]
        actual = apply(operator, *moved, arithmetic=FP64, **attributes).value
        difference = np.abs(actual - expected.value)
        assert (difference <= expected.error * (1 + 1e-9)).all()
        reached = np.maximum(reached, difference)
    close = reached[expected.error > 0] / expected.error[expected.error > 0]
    assert operator in JUMPING or close.max() > 0.5


SMOOTH = [name for name in PROPAGATED if name not in JUMPING]


@pytest.mark.parametrize("operator", SMOOTH)
def test_variances_of_the_operands_become_that_of_the_result(operator):
    arrays, attributes = PROPAGATED[operator]
    values = inner(operator, arrays)
    given = [
        Bounded(value, np.full(value.shape, SMALL), variance=np.full(value.shape, (SMALL / 5) ** 2))
        for value in values
    ]
    expected = apply(operator, *given, arithmetic=FP64, **attributes)
    rng, squares = np.random.default_rng(2), 0.0
    for _ in range(20):
        moved = [value + SMALL / 5 * rng.standard_normal(value.shape) for value in values]
        squares = (
            squares
            + (apply(operator, *moved, arithmetic=FP64, **attributes).value - expected.value) ** 2 / 20
        )
    assert 0.5 < np.mean(squares) / np.mean(expected.variance) < 2


@pytest.mark.parametrize("operator", ["Floor", "Ceil", "Round", "Sign"])
def test_a_step_has_the_variance_of_being_crossed(operator):
    x = np.random.default_rng(3).uniform(-2, 2, 2000)
    given = Bounded(x, np.full(x.shape, 0.1), variance=np.full(x.shape, 0.02**2))
    expected = apply(operator, given, arithmetic=FP64)
    rng = np.random.default_rng(4)
    noisy = x + 0.02 * rng.standard_normal((50, *x.shape))
    squares = (apply(operator, noisy, arithmetic=FP64).value - expected.value) ** 2
    assert 0.7 < squares.mean() / expected.variance.mean() < 1.4


@pytest.mark.parametrize("operator", PROPAGATED)
def test_a_kernel_gives_numbers_of_its_precision_without_bounds(operator):
    arrays, attributes = PROPAGATED[operator]
    kernel = replace(PROFILES["fp32"], kernel=Kernel("plain"))
    result = apply(operator, *arrays, arithmetic=kernel, **attributes)
    assert not np.any(result.errors())
    np.testing.assert_array_equal(result.value, result.value.astype(np.float32).astype(np.float64))
    exact_value = apply(operator, *arrays, **attributes).value
    np.testing.assert_allclose(result.value, exact_value, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("operator", PROPAGATED)
def test_no_numbers_give_none(operator):
    arrays, attributes = PROPAGATED[operator]
    none = [array if array.ndim == 0 else np.zeros((0, 500), np.float32) for array in arrays]
    if operator == "LogSoftmax":
        attributes = {"axis": 1}
    assert apply(operator, *none, **attributes).value.shape == (0, 500)


def test_the_error_function_is_right_to_a_few_units_of_float64():
    x = np.concatenate([np.linspace(-7, 7, 20001), 10.0 ** np.linspace(-300, 1, 500), [0.46875, 4.0, -0.0]])
    expected = np.array([math.erf(number) for number in x])
    assert (np.abs(erf(x) - expected) <= 8e-16 * np.abs(expected)).all()
    np.testing.assert_array_equal(erf(np.array([np.inf, -np.inf, np.nan])), [1, -1, np.nan])


# Edges of domains and poles


@pytest.mark.parametrize(
    ("operator", "x"),
    [
        ("Log", 1e-4), ("Log", 0.0), ("Log", -1e-4), ("Reciprocal", -1e-4), ("Acos", 1.0), ("Asin", -0.9999),
        ("Acosh", 1.0), ("Atanh", 0.9999), ("Sqrt", 1e-4),
    ],
)  # fmt: skip
def test_a_number_within_its_error_of_the_edge_of_a_domain_is_refused(operator, x):
    with pytest.raises((UnsupportedOperatorError, ArithmeticError), match="rounding error"):
        apply(operator, Bounded(np.array([x]), np.array([1e-3])))


@pytest.mark.parametrize(
    ("operator", "x", "expected"),
    [
        ("Log", [0.0, -1.0, np.inf], [-np.inf, np.nan, np.inf]), ("Acos", [1.0, 1.5], [0.0, np.nan]),
        ("Atanh", [1.0, -1.0, 2.0], [np.inf, -np.inf, np.nan]), ("Acosh", [1.0, 0.5], [0.0, np.nan]),
        ("Reciprocal", [0.0, -0.0, np.inf], [np.inf, -np.inf, 0.0]),
        ("Softplus", [-np.inf, 800.0, np.inf], [0.0, 800.0, np.inf]), ("Softsign", [np.inf, 1.0], [np.nan, 0.5]),
        ("Elu", [-np.inf, np.inf, np.nan], [-1.0, np.inf, np.nan]), ("Sign", [np.nan, -np.inf], [np.nan, -1.0]),
        ("HardSigmoid", [np.inf, -np.inf, np.nan], [1.0, 0.0, np.nan]),
        ("Round", [0.5, 1.5, -2.5, np.inf], [0.0, 2.0, -2.0, np.inf]),
    ],
)  # fmt: skip
def test_the_ends_of_a_domain_are_as_ieee_has_them(operator, x, expected):
    result = apply(operator, np.array(x))
    np.testing.assert_array_equal(result.value, expected)
    assert not np.any(np.broadcast_to(result.errors(), result.value.shape)[~np.isfinite(result.value)])


def test_a_pole_of_the_tangent_within_the_error_leaves_no_bound():
    x = Bounded(np.array([1.57, 1.0]), np.array([1e-2, 1e-2]))
    np.testing.assert_array_equal(np.isinf(apply("Tan", x).error), [True, False])


def test_numbers_that_surely_are_beyond_a_limit_have_its_error():
    x = Bounded(np.array([-3.0, 0.01, 3.0]), np.full(3, 0.1))
    np.testing.assert_allclose(apply("Relu", x).error, [0.0, 0.1, 0.1])
    np.testing.assert_allclose(apply("Clip", x, np.array(-1.0), np.array(1.0)).error, [0.0, 0.1, 0.0])
    np.testing.assert_allclose(apply("Elu", x, arithmetic=FP64).error[2], 0.1)


# Pow


def test_whole_powers_of_a_number_around_zero_are_bounded():
    x = Bounded(np.array([1e-3, -1e-3]), np.full(2, 1e-2))
    for exponent in (2.0, 3.0):
        largest = 1.1e-2**exponent
        assert (apply("Pow", x, np.array(exponent), arithmetic=FP64).error >= largest - 1e-3**exponent).all()
    with pytest.raises(UnsupportedOperatorError, match="zero within its rounding error"):
        apply("Pow", x, np.array(-1.0))
    with pytest.raises(UnsupportedOperatorError, match="zero within its rounding error"):
        apply("Pow", x, np.array(0.5))


@pytest.mark.parametrize("exponent", [-3.5, -1.0, 0.5, 2.0, 3.0, 7.0])
def test_a_power_by_way_of_the_logarithm_is_within_the_bound(exponent):
    x, single = POSITIVE.reshape(-1), np.float32
    expected = apply("Pow", x, np.array(exponent))
    logarithms = np.exp(single(exponent) * np.log(x))
    assert (np.abs(logarithms - expected.value) <= expected.error).all()
    if exponent in (2.0, 3.0):
        products = x * x if exponent == 2 else x * x * x
        assert (np.abs(products - expected.value) <= expected.error).all()


def test_pow_has_the_type_of_its_base():
    whole = apply("Pow", np.array([2, -3, 4], np.int32), np.array([3.0, 2.0, 0.0], np.float32))
    assert whole.value.dtype == np.int32
    assert whole.value.tolist() == [8, 9, 1]
    assert apply("Pow", np.array([1.5]), np.array([2], np.int64)).value.tolist() == [2.25]


@pytest.mark.parametrize(("base", "exponent"), [(3, 40), (2, -1), (2, 0.5), (-2, 31.5)])
def test_integers_beyond_their_type_or_cut_off_powers_are_refused(base, exponent):
    with pytest.raises(UnsupportedOperatorError):
        apply("Pow", np.array([base], np.int32), np.array([exponent]))


# Integers


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8])
def test_integer_quotients_are_cut_off_and_sums_wrap_around(dtype):
    known = np.iinfo(dtype)
    a = np.array([known.min, known.max, 7, 6], dtype)
    b = np.array([2, 3, 4, 3], dtype)
    assert apply("Div", a, b).value.tolist() == [
        int(x / y) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert apply("Add", a[1:2], np.array([1], dtype)).value.tolist() == [known.min]
    assert apply("Div", a, b).value.dtype == dtype


def test_division_of_integers_by_zero_has_no_meaning():
    for operator in ("Div", "Mod"):
        with pytest.raises(UnsupportedOperatorError, match="zero"):
            apply(operator, np.array([1]), np.array([0]))


def test_codes_that_may_be_off_keep_that_in_a_sum_and_nowhere_else():
    codes = Bounded(np.array([3, 4]), np.array([1.0, 0.0]))
    assert apply("Sub", codes, np.array([1])).error.tolist() == [1.0, 0.0]
    for operator in ("Mul", "BitwiseAnd", "Mod"):
        with pytest.raises(UnsupportedOperatorError, match="rounding decides"):
            apply(operator, codes, np.array([2, 2]))


def test_shifts_past_the_width_of_the_type():
    x, by = np.array([-8, 8, 1], np.int8), np.array([9, 8, -1], np.int8)
    assert apply("BitShift", x, by, opset=28, direction="RIGHT").value.tolist() == [-1, 0, 0]
    assert apply("BitShift", x, by, opset=28, direction="LEFT").value.tolist() == [0, 0, 0]
    with pytest.raises(UnsupportedOperatorError, match="before opset 28"):
        apply("BitShift", np.array([1], np.uint8), np.array([8], np.uint8), opset=11, direction="LEFT")


# Remainders


@pytest.mark.parametrize("fmod", [0, 1])
def test_a_remainder_is_exact_or_sure_or_a_whole_divisor_off(fmod):
    exactly = apply("Mod", np.array([-7.5]), np.array([2.0]), opset=28, fmod=fmod)
    assert exactly.value[0] == (0.5 if fmod == 0 else -1.5)
    a = Bounded(np.array([5.5, 5.9999]), np.full(2, 1e-3))
    result = apply("Mod", a, np.array([2.0]), opset=28, fmod=fmod, arithmetic=FP64)
    assert result.error[0] == pytest.approx(1e-3)
    assert result.error[1] >= 1.9999 - 0.0009


def test_floored_remainders_of_floats_come_with_opset_28():
    with pytest.raises(UnsupportedOperatorError, match="before opset 28"):
        apply("Mod", np.array([1.5]), np.array([1.0]), opset=13)


# Clip


def test_clip_by_attributes_by_inputs_and_by_neither():
    x = np.array([-5.0, 0.0, 5.0])
    assert apply("Clip", x, opset=6, min=-1.0, max=2.0).value.tolist() == [-1.0, 0.0, 2.0]
    assert apply("Clip", x, None, np.array(2.0), opset=13).value.tolist() == [-5.0, 0.0, 2.0]
    assert apply("Clip", x, np.array(3.0), np.array(2.0), opset=13).value.tolist() == [2.0, 2.0, 2.0]
    assert apply("Clip", np.array([1, 9], np.int8), np.array(2, np.int8), opset=12).value.tolist() == [2, 9]


def test_clip_without_a_limit_stops_at_the_last_number_of_the_type():
    """numeric_limits::max(), as the operator is defined: an infinity is cut."""
    x, largest = np.array([np.inf, 1.0]), 65504.0
    result = apply("Clip", x, np.array(0.0), types={"x0": TensorProto.FLOAT16})
    assert result.value.tolist() == [largest, 1.0]
    with pytest.raises(UnsupportedOperatorError, match="not known"):
        apply("Clip", x, np.array(0.0))
    actual = on_runtime("Clip", [x.astype(np.float32), np.array(0.0, np.float32)])
    assert actual[0] == np.finfo(np.float32).max


# Comparisons and casts


def test_infinities_by_sign_and_by_overflow():
    x = np.array([np.inf, -np.inf, 1e39, np.nan, 1.0])
    assert apply("IsInf", x).value.tolist() == [True, True, True, False, False]
    assert apply("IsInf", x, detect_positive=0).value.tolist() == [False, True, False, False, False]
    with pytest.raises(UnsupportedOperatorError, match="overflow"):
        apply("IsInf", Bounded(np.array([3.4028235e38]), np.array([1e32])))


def test_a_comparison_that_rounding_decides_is_refused():
    with pytest.raises(UnsupportedOperatorError, match="rounding"):
        apply("Less", Bounded(np.array([1.0]), np.array([1e-3])), np.array([1.0005]))
    assert apply("Less", Bounded(np.array([1.0]), np.array([1e-3])), np.array([1.1])).value.all()


def test_a_cast_to_integers_cuts_off_what_is_sure():
    x = Bounded(np.array([2.5, -2.5, 0.0]), np.full(3, 0.1))
    assert apply("Cast", x, to=TensorProto.INT32).value.tolist() == [2, -2, 0]
    near = apply("Cast", Bounded(np.array([2.95, 2.5]), np.full(2, 0.1)), to=TensorProto.INT32)
    assert (near.value.tolist(), near.error.tolist()) == ([2, 2], [1, 0])


@pytest.mark.parametrize("x", [300.0, -1.0, np.nan, np.inf])
def test_a_cast_beyond_the_integer_type_may_be_anything(x):
    cast = apply("Cast", np.array([x, 7.0]), to=TensorProto.UINT8)
    assert (cast.value[1], cast.error.tolist()) == (7, [np.inf, 0])


def test_the_last_numbers_of_an_integer_type_can_be_cast():
    lowest, highest = -(2.0**63), 2.0**63 - 1024
    assert apply("Cast", np.array([lowest, highest]), to=TensorProto.INT64).value.tolist() == [
        -(2**63),
        int(highest),
    ]
    assert apply("Cast", np.array([2.0**63]), to=TensorProto.INT64).error.tolist() == [np.inf]


def test_casts_between_integers_drop_bits_and_keep_errors():
    assert apply("Cast", np.array([200], np.int16), to=TensorProto.INT8).value.tolist() == [-56]
    codes = Bounded(np.array([200], np.uint8), np.array([1.0]))
    assert apply("Cast", codes, to=TensorProto.INT32).error.tolist() == [1.0]
    assert apply("Cast", codes, to=TensorProto.FLOAT).error[0] >= 1.0


def test_casts_to_shorter_formats_overflow_to_infinity():
    rounded = Bounded(np.array([7e4, 1.0]), np.array([1.0, 0.0]))
    assert apply("Cast", rounded, to=TensorProto.FLOAT16).value.tolist() == [7e4, 1.0]
    assert apply("Cast", np.array([70000]), to=TensorProto.FLOAT16).value.tolist() == [np.inf]


def test_a_cast_to_bool_asks_whether_a_number_is_zero():
    x = np.array([0.0, -0.0, 0.3, np.nan])
    assert apply("Cast", x, to=TensorProto.BOOL).value.tolist() == [False, False, True, True]
    with pytest.raises(UnsupportedOperatorError, match="zero within"):
        apply("Cast", Bounded(np.array([0.1]), np.array([0.2])), to=TensorProto.BOOL)


def test_a_cast_names_its_type_before_opset_6():
    assert apply("Cast", np.array([1.7]), opset=1, to="INT32").value.tolist() == [1]


def test_cast_like_takes_the_type_of_the_other():
    third = np.array([1 / 3])
    half = apply("CastLike", third, np.zeros(1), types={"x1": TensorProto.FLOAT16})
    assert half.value[0] == np.float16(1 / 3)
    assert apply("CastLike", np.array([1.9]), np.array([True])).value.dtype == np.bool_
    with pytest.raises(UnsupportedOperatorError, match="not known"):
        apply("CastLike", third, np.zeros(1))


def test_casts_to_eight_bits_are_refused():
    with pytest.raises(UnsupportedOperatorError, match="float8"):
        apply("Cast", np.array([1.0]), to=TensorProto.FLOAT8E4M3FN, saturate=1)


# Broadcasting before opset 7, and other old forms


@pytest.mark.parametrize(
    ("operator", "a", "b"),
    [("Add", np.ones((2, 3, 4)), np.arange(3.0)), ("And", np.ones((2, 3, 4), bool), np.array([True, False, True])),
     ("Pow", np.full((2, 3, 4), 2.0), np.arange(3.0)), ("Greater", np.ones((2, 3, 4)), np.arange(3.0))],
)  # fmt: skip
def test_operands_were_aligned_from_an_axis_on(operator, a, b):
    old = apply(operator, a, b, opset=6, broadcast=1, axis=1)
    np.testing.assert_array_equal(old.value, apply(operator, a, b[:, None]).value)
    with pytest.raises(UnsupportedOperatorError, match="without broadcast"):
        apply(operator, a, b, opset=6)


def test_prelu_had_a_slope_for_each_channel_before_opset_7():
    x, slope = -np.ones((1, 3, 2)), np.array([1.0, 2.0, 3.0])
    assert apply("PRelu", x, slope, opset=6).value[0, :, 0].tolist() == [-1.0, -2.0, -3.0]


def test_selu_had_shorter_constants_in_opset_1():
    x = np.array([1.0])
    assert apply("Selu", x, opset=1).value[0] == float(np.float32(1.0507))
    assert apply("Selu", x, opset=6).value[0] == float(np.float32(1.0507009873554805))


@pytest.mark.parametrize("operator", ["Hardmax", "LogSoftmax"])
def test_rows_were_all_axes_behind_one_before_opset_13(operator):
    x = np.arange(24.0).reshape(2, 3, 4) / 5
    flat = apply(operator, x.reshape(2, 12), opset=13)
    np.testing.assert_array_equal(apply(operator, x, opset=11).value, flat.value.reshape(2, 3, 4))
    assert not np.array_equal(apply(operator, x, opset=13).value, flat.value.reshape(2, 3, 4))


def test_hardmax_refuses_a_winner_that_rounding_chooses():
    x = Bounded(np.array([[1.0, 1.0 + 1e-4, 0.0]]), np.full((1, 3), 1e-3))
    with pytest.raises(UnsupportedOperatorError, match="rounding"):
        apply("Hardmax", x)
    assert apply("Hardmax", np.array([[1.0, 1.0, 0.0]])).value.tolist() == [[1.0, 0.0, 0.0]]


# Jumps and attributes of activations


def test_a_threshold_within_the_error_makes_all_of_the_number_uncertain():
    x = Bounded(np.array([1.0, 1.0005, 3.0]), np.full(3, 1e-3))
    result = apply("ThresholdedRelu", x, alpha=1.0)
    assert result.value.tolist() == [0.0, 1.0005, 3.0]
    assert (result.error[:2] >= 1.0).all()
    assert result.error[2] == 1e-3


def test_attributes_may_be_cast_to_the_short_format_of_the_operand():
    x = np.array([-1.0, -3.0])
    held = float(np.float16(0.3))
    for alpha in (held, float(np.float32(0.3))):
        result = apply("LeakyRelu", x, alpha=float(np.float32(0.3)), arithmetic=FP16)
        assert (np.abs(x * alpha - result.value) <= result.error).all()
    assert apply("LeakyRelu", x, alpha=0.25, arithmetic=FP32).error[0] <= 6 * U


def test_shrink_of_integers_has_no_fractions():
    x = np.array([-3, 0, 3], np.int8)
    assert apply("Shrink", x, lambd=1.0, bias=1.0).value.tolist() == [-2, 0, 2]
    with pytest.raises(UnsupportedOperatorError, match="fraction"):
        apply("Shrink", x, lambd=1.5)


@pytest.mark.parametrize("dtype", ["fp16-steps", "fp16-unfused", "bf16-acc"])
@pytest.mark.parametrize(
    "operator", ["Elu", "Selu", "Mish", "Softplus", "HardSwish", "Softsign", "LogSoftmax"]
)
def test_steps_that_are_each_stored_in_half_precision_are_within_the_bound(operator, dtype):
    """ONNX's own function of the operator, evaluated node by node in a short format."""
    short = onnx.helper.tensor_dtype_to_np_dtype(
        TensorProto.BFLOAT16 if dtype == "bf16-acc" else TensorProto.FLOAT16
    )
    x = (WIDE[:, :60]).astype(short)
    model = model_of(operator, [x], opset=22)
    expected = GraphOracle(model).evaluate({"x0": x}, PROFILES[dtype]).outputs["y"]
    schema = onnx.defs.get_schema(operator, 22)
    steps = ReferenceEvaluator(_as_function(model, schema))
    with np.errstate(all="ignore"):
        actual = steps.run(None, {"x0": x})[0].astype(np.float64)
    assert (np.abs(actual - expected.value) <= expected.error).all()


def _as_function(model, schema):
    """Return the model with the operator written out as its definition, if there is one without context."""
    if not schema.has_function:
        return model
    body = schema.function_body
    if body.attribute or body.attribute_proto:
        return model
    renamed = {body.input[0]: "x0", body.output[0]: "y"}
    nodes = []
    for original in body.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(original)
        copy.input[:] = [renamed.get(name, name) for name in copy.input]
        copy.output[:] = [renamed.get(name, name) for name in copy.output]
        nodes.append(copy)
    graph = helper.make_graph(nodes, "g", list(model.graph.input), list(model.graph.output))
    return helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=10)
