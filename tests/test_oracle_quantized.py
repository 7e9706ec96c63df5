"""Quantised operators: against ONNX Runtime, codes that rounding decides, and whole quantised models."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import pytest
from one_operator import session_of
from onnx import TensorProto

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops.operator import Node, UnsupportedOperatorError
from onnx_attest.verify.oracle.ops.quantized import OPERATORS

FP32 = PROFILES["fp32"]
FLOAT64_SLACK = 1 + 2.0**-30
MICROSOFT = "com.microsoft."


def normal(*shape, seed=0, scale=1.0, shift=0.0):
    rng = np.random.default_rng([seed, *shape])
    return (shift + scale * rng.standard_normal(shape)).astype(np.float32)


def codes(*shape, seed=0, kind=np.uint8, least=None, most=None):
    known = np.iinfo(kind)
    low, high = known.min if least is None else least, known.max if most is None else most
    return np.random.default_rng([seed, *shape]).integers(low, high + 1, shape).astype(kind)


def f(*numbers):
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.float32)


def u8(*numbers):
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.uint8)


def i8(*numbers):
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.int8)


X, SCALES = normal(6, 5, 40, scale=3.0), np.abs(normal(5, seed=1, scale=0.01, shift=0.03))
ZEROS = codes(5, seed=2, least=90, most=160)
A, B, W = codes(7, 30, seed=3), codes(30, 11, seed=4), codes(30, 11, seed=5, kind=np.int8, least=-60, most=60)
COLUMNS, COLUMN_ZEROS = (
    np.abs(normal(11, seed=6, scale=0.01, shift=0.02)),
    codes(11, seed=7, kind=np.int8, least=-9, most=9),
)
IMAGE, FILTER = codes(2, 3, 9, 8, seed=8), codes(4, 3, 3, 2, seed=9, kind=np.int8, least=-60, most=60)
CHANNELS = np.abs(normal(4, seed=10, scale=0.01, shift=0.02))
S8, T8 = A.view(np.int8), codes(7, 30, seed=11, kind=np.int8)
NBITS = codes(10, 3, 16, seed=12)
CASES = {
    "quantize": ("QuantizeLinear", [X, f(0.037), u8(121)], {}),
    "quantize without a zero point": ("QuantizeLinear", [X, f(0.037)], {}),
    "quantize to int8": ("QuantizeLinear", [X, f(0.037), i8(-7)], {}),
    "quantize along an axis": ("QuantizeLinear", [X, SCALES, ZEROS], {}),
    "quantize along the first axis": ("QuantizeLinear", [X.swapaxes(0, 1).copy(), SCALES, ZEROS], {"axis": -3}),
    "quantize to sixteen bits": ("QuantizeLinear", [X, f(1.7e-4), np.array(30000, np.uint16)], {}),
    "quantize blocks": (
        "QuantizeLinear", [X, np.abs(normal(6, 5, 3, scale=0.01, shift=0.03))], {"axis": 2, "block_size": 16, "output_dtype": 3},
    ),
    "quantize by a power of two": ("QuantizeLinear", [np.rint(X * 32) / 32, f(0.0625), u8(121)], {}),
    "dequantize": ("DequantizeLinear", [A, f(0.037), u8(121)], {}),
    "dequantize along an axis": ("DequantizeLinear", [codes(6, 5, 4), SCALES, ZEROS], {}),
    "dequantize 32 bits": ("DequantizeLinear", [codes(6, 5, kind=np.int32), f(1e-6)], {}),
    "dequantize blocks": (
        "DequantizeLinear", [codes(4, 40), np.abs(normal(4, 3)), codes(4, 3, seed=1)], {"axis": 1, "block_size": 16}
    ),
    "dequantize, com.microsoft": (MICROSOFT + "DequantizeLinear", [codes(6, 5, 4), SCALES, ZEROS], {"axis": 1}),
    "quantize, com.microsoft": (MICROSOFT + "QuantizeLinear", [X, SCALES, ZEROS], {"axis": 1}),
    "dynamic": ("DynamicQuantizeLinear", [X], {}),
    "dynamic, positive": ("DynamicQuantizeLinear", [np.abs(X)], {}),
    "dynamic, negative": ("DynamicQuantizeLinear", [-np.abs(X) - 1], {}),
    "integers": ("MatMulInteger", [A, B, u8(7), u8(200)], {}),
    "integers without zero points": ("MatMulInteger", [A, W], {}),
    "integers in batches": ("MatMulInteger", [codes(2, 1, 7, 30), codes(3, 30, 11), u8(3)], {}),
    "integers, zero points of columns": ("MatMulInteger", [A, W, u8(9), COLUMN_ZEROS], {}),
    "integer convolution": ("ConvInteger", [IMAGE, codes(4, 3, 3, 2), u8(121), u8(7)], {"pads": [1, 0, 2, 1]}),
    "qlinear product": ("QLinearMatMul", [A, f(0.02), u8(121), B, f(0.03), u8(99), f(0.7), u8(130)], {}),
    "qlinear product of int8": (
        "QLinearMatMul", [S8, f(0.02), i8(3), W, f(0.03), i8(-3), f(0.31), i8(11)], {}
    ),
    "qlinear product, scales of columns": (
        "QLinearMatMul", [A, f(0.02), u8(121), W, COLUMNS, COLUMN_ZEROS, f(0.7), u8(130)], {}
    ),
    "qlinear convolution": (
        "QLinearConv",
        [IMAGE, f(0.02), u8(121), FILTER, CHANNELS, i8(0, 0, 0, 0), f(0.3), u8(130), codes(4, kind=np.int32, least=-99, most=99)],
        {"pads": [1, 1, 1, 1], "strides": [2, 1]},
    ),
    "qlinear convolution of groups": (
        "QLinearConv", [codes(2, 4, 9), f(0.02), u8(121), codes(6, 2, 3), f(0.01), u8(99), f(0.1), u8(130)],
        {"group": 2, "dilations": [2], "pads": [1, 2]},
    ),
    "qlinear convolution, channels last": (
        MICROSOFT + "QLinearConv",
        [np.moveaxis(IMAGE, 1, -1).copy(), f(0.02), u8(121), FILTER, CHANNELS, i8(0, 0, 0, 0), f(0.3), u8(130)],
        {"channels_last": 1, "pads": [1, 1, 1, 1]},
    ),
    "to float": (MICROSOFT + "MatMulIntegerToFloat", [A, B, f(0.02), f(0.03), u8(121), u8(99)], {}),
    "to float, columns and bias": (
        MICROSOFT + "MatMulIntegerToFloat", [A, W, f(0.02), COLUMNS, u8(121), COLUMN_ZEROS, normal(11)], {}
    ),
    "dynamic product": (MICROSOFT + "DynamicQuantizeMatMul", [normal(7, 30), B, f(0.03), u8(99), normal(11)], {}),
    "dynamic product of columns": (MICROSOFT + "DynamicQuantizeMatMul", [normal(2, 7, 30), W, COLUMNS], {}),
    "gemm": (
        MICROSOFT + "QGemm",
        [A, f(0.02), u8(121), W.T.copy(), COLUMNS, COLUMN_ZEROS, codes(11, kind=np.int32, least=-999, most=999), f(0.7), u8(130)],
        {"transB": 1, "alpha": 0.7},
    ),
    "gemm to float": (
        MICROSOFT + "QGemm", [A.T.copy(), f(0.02), u8(121), B, f(0.03), u8(99), None], {"transA": 1}
    ),
    "add": (MICROSOFT + "QLinearAdd", [A, f(0.021), u8(121), A[:1, ::-1].copy(), f(0.013), u8(3), f(0.0271), u8(130)], {}),
    "add int8": (MICROSOFT + "QLinearAdd", [S8, f(0.021), i8(21), T8, f(0.013), i8(3), f(0.0271), i8(-4)], {}),
    "mul": (MICROSOFT + "QLinearMul", [A, f(0.021), u8(121), A[::-1].copy(), f(0.013), u8(3), f(0.0271), u8(130)], {}),
    "mul int8": (MICROSOFT + "QLinearMul", [S8, f(0.021), i8(5), T8, f(0.013), i8(0), f(0.0271), i8(-1)], {}),
    "sigmoid": (MICROSOFT + "QLinearSigmoid", [A, f(0.041), u8(121), f(1 / 255), u8(0)], {}),
    "leaky relu": (MICROSOFT + "QLinearLeakyRelu", [S8, f(0.041), i8(21), f(0.033), i8(-21)], {"alpha": 0.3}),
    "softmax": (MICROSOFT + "QLinearSoftmax", [A, f(0.041), u8(121), f(1 / 256), u8(0)], {"opset": 13, "axis": -1}),
    "softmax of all axes behind": (
        MICROSOFT + "QLinearSoftmax", [codes(3, 2, 5, kind=np.int8), f(0.041), i8(21), f(1 / 256), i8(-128)], {"opset": 11, "axis": 1}
    ),
    "concat": (
        MICROSOFT + "QLinearConcat", [f(0.021), u8(99), A, f(0.0173), u8(121), B[:7], f(0.021), u8(99)], {"axis": 1}
    ),
    "where": (
        MICROSOFT + "QLinearWhere",
        [codes(7, 1, most=1).astype(bool), A, f(0.0173), u8(121), A[::-1].copy(), f(0.021), u8(99), f(0.021), u8(99)], {},
    ),
    "average pool": (
        MICROSOFT + "QLinearAveragePool", [IMAGE, f(0.0173), u8(121), f(0.0131), u8(99)],
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 1, 1, 0], "ceil_mode": 1},
    ),
    "average pool, channels last, padding counted": (
        MICROSOFT + "QLinearAveragePool", [np.moveaxis(IMAGE, 1, -1).copy(), f(0.0173), u8(121), f(0.0131), u8(99)],
        {"kernel_shape": [3, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1, "channels_last": 1},
    ),
    "global average pool": (
        MICROSOFT + "QLinearGlobalAveragePool", [codes(9, 11, 7, 5), f(0.0173), u8(121), f(0.0021), u8(99)], {"channels_last": 0}
    ),
    "global average pool, channels last": (
        MICROSOFT + "QLinearGlobalAveragePool", [codes(9, 7, 5, 11), f(0.0173), u8(121), f(0.0021), u8(99)], {"channels_last": 1}
    ),
    "max pool": (MICROSOFT + "NhwcMaxPool", [codes(2, 9, 8, 3, kind=np.int8)], {"kernel_shape": [3, 2], "pads": [1, 1, 1, 1]}),
    "attention": (
        MICROSOFT + "QAttention",
        [codes(2, 5, 24), codes(24, 48, kind=np.int8, seed=1), normal(48), f(0.01), f(0.005), np.array([[1, 1, 1, 1, 0]] * 2, np.int32), u8(121), i8(3)],
        {"num_heads": 4},
    ),
    "attention with a past": (
        MICROSOFT + "QAttention",
        [codes(2, 3, 24), codes(24, 48, seed=1), normal(48), f(0.01), f(0.005), None, u8(121), u8(99), normal(2, 2, 4, 6, 4)],
        {"num_heads": 4, "unidirectional": 1},
    ),
    "four bits": (MICROSOFT + "MatMulNBits", [normal(7, 90), NBITS, normal(10, 3)], {"K": 90, "N": 10, "block_size": 32, "bits": 4}),
    "four bits, zero points, bias": (
        MICROSOFT + "MatMulNBits", [normal(2, 7, 96), NBITS, normal(10, 3), codes(10, 2), None, normal(10)],
        {"K": 96, "N": 10, "block_size": 32, "bits": 4, "accuracy_level": 1},
    ),
    "four bits, zero points in numbers": (
        MICROSOFT + "MatMulNBits", [normal(7, 96), NBITS, normal(10, 3), normal(10, 3, shift=8.0)],
        {"K": 96, "N": 10, "block_size": 32, "bits": 4},
    ),
    "four bits, eight on the left": (
        MICROSOFT + "MatMulNBits", [normal(7, 96), NBITS, normal(10, 3)],
        {"K": 96, "N": 10, "block_size": 32, "bits": 4, "accuracy_level": 4},
    ),
    "eight bits": (
        MICROSOFT + "MatMulNBits", [normal(7, 96), codes(10, 3, 32), normal(10, 3)], {"K": 96, "N": 10, "block_size": 32, "bits": 8}
    ),
}  # fmt: skip
COARSE = {"four bits, eight on the left", "dynamic product", "dynamic product of columns"}
"""Products with numbers that are rounded to eight bits on the way."""
OUTPUTS = {"DynamicQuantizeLinear": 3, "QAttention": 2}


def names_of(operator, inputs):
    outputs = OUTPUTS.get(operator.removeprefix(MICROSOFT), 1)
    return tuple("" if x is None else f"x{i}" for i, x in enumerate(inputs)), tuple(
        f"y{i}" for i in range(outputs)
    )


def evaluated(operator, inputs, attributes, arithmetic=FP32, opset=21, kinds=None):
    given = [x if x is None or isinstance(x, Bounded) else exact(x) for x in inputs]
    node = Node(
        "n",
        operator,
        opset,
        attributes,
        *names_of(operator, inputs),
        type_of=lambda name: (kinds or {}).get(name, 0),
    )
    results = OPERATORS[operator](node, given, arithmetic)
    node.refuse_unasked()
    return results


def run_onnxruntime(operator, inputs, attributes):
    """Return the outputs; weights of a few bits are constants, for only those are packed."""
    names, outputs = names_of(operator, inputs)
    domain, _, kind = operator.rpartition(".")
    node = onnx.helper.make_node(kind, names, outputs, domain=domain, **attributes)
    given = {name: x for name, x in zip(names, inputs, strict=True) if name}
    constants = {name: x for name, x in given.items() if kind == "MatMulNBits" and name != "x0"}
    graph = onnx.helper.make_graph(
        [node], "g",
        [onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
         for name, x in given.items() if name not in constants],
        [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(x, name) for name, x in constants.items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    session = session_of(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))
    return session.run(None, {name: x for name, x in given.items() if name not in constants})


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_is_within_the_bound(name):
    for result, y in zip(evaluated(*CASES[name]), run_onnxruntime(*CASES[name]), strict=True):
        assert y.shape == result.value.shape
        assert result.is_float or y.dtype == result.value.dtype
        assert (np.abs(y.astype(float) - result.value) <= result.errors()).all()


@pytest.mark.parametrize("name", CASES)
def test_bound_says_something(name):
    """Few codes may be off, and by one; numbers are off by some roundings."""
    for result in evaluated(*CASES[name]):
        errors = np.broadcast_to(result.errors(), result.value.shape)
        if not result.is_float:
            assert errors.max() <= 1
            assert (errors > 0).mean() < 0.02
        else:
            limit = 0.1 if name in COARSE else 5e-5
            assert np.median(errors) < limit * np.sqrt(np.mean(result.value**2))


@pytest.mark.parametrize(
    "name", [name for name in CASES if "Quantize" in CASES[name][0] or "QLinear" not in CASES[name][0]]
)
def test_deviation_is_of_the_size_of_onnxruntimes_error(name):
    result, *_ = evaluated(*CASES[name], replace(FP32, deviations=True))
    if not result.is_float:
        return
    y = run_onnxruntime(*CASES[name])[0]
    known = result.variance > 0
    z = (y - result.value)[known] / np.sqrt(result.variance[known])
    assert 0.1 < np.sqrt(np.mean(z**2)) < 3


def moved_within(x, rng, side):
    """Return an input with an error, and one that is that far off: codes by one here and there, numbers by a little."""
    if x is None or x.dtype in (bool, np.int32):
        return x, x
    if x.dtype.kind in "iu":
        error = (rng.random(x.shape) < 0.3).astype(np.float64)
        known = np.iinfo(x.dtype)
        step = np.clip(x.astype(np.float64) + side * error, known.min, known.max)
        return Bounded(x, error), Bounded(step.astype(x.dtype))
    x = x.astype(np.float64)
    error = 1e-4 * np.abs(x)
    return Bounded(x, error), Bounded(x + side * error)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_inputs_anywhere_within_their_errors_stay_within_the_bound(name, seed):
    operator, inputs, attributes = CASES[name]
    rng = np.random.default_rng(seed)
    pairs = [
        (x, x)
        if "NBits" in operator and x is not None and x.dtype == np.uint8
        else moved_within(x, rng, (1.0, -1.0)[seed] if seed < 2 else rng.choice([-1.0, 1.0], np.shape(x)))
        for x in inputs
    ]
    given, moved = ([pair[side] for pair in pairs] for side in (0, 1))
    for result, other in zip(
        evaluated(operator, given, attributes), evaluated(operator, moved, attributes), strict=True
    ):
        assert np.isfinite(result.errors()).all()
        difference = np.abs(other.value.astype(np.float64) - result.value)
        assert (difference <= result.errors() * FLOAT64_SLACK).all()


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_same_and_have_no_bounds(name):
    arithmetic = replace(FP32, kernel=Kernel("blocks of 8", 8))
    for computed, exactly in zip(evaluated(*CASES[name], arithmetic), evaluated(*CASES[name]), strict=True):
        assert computed.error is None
        assert computed.value.dtype == exactly.value.dtype
        assert (np.abs(computed.value.astype(float) - exactly.value) <= exactly.errors()).all()


# Codes that rounding decides, and those that it does not


def quantized(x, scale, zero=None, **attributes):
    inputs = [
        x if isinstance(x, Bounded) else np.asarray(x, np.float32),
        f(scale),
        *([] if zero is None else [zero]),
    ]
    return evaluated("QuantizeLinear", inputs, attributes)[0]


def test_halves_go_to_the_even_code_where_the_scale_is_a_power_of_two():
    """So a runtime that rounds halves away from zero, or after it has added an odd zero point, is found out."""
    result = quantized(0.25 * np.array([-1.5, -0.5, 0.5, 1.5, 2.5]), 0.25, i8(7))
    np.testing.assert_array_equal(result.value, [5, 7, 7, 9, 9])
    assert not np.any(result.errors())


def test_halves_may_go_either_way_where_the_quotient_is_rounded():
    result = quantized(np.float32(0.3) * np.array([0.5, 0.75, 1.5], np.float32), 0.3)
    np.testing.assert_array_equal(result.errors(), [1, 0, 1])


@pytest.mark.parametrize("distance", [1e-6, 1e-5])
def test_code_is_off_only_within_the_numbers_own_error_of_a_half(distance):
    """Two roundings of 7.5 are 9e-7."""
    x = np.float64(np.float32(0.3)) * (7.5 - 8e-7 + distance)
    result = quantized(exact(np.array([x])), 0.3)
    assert np.any(result.errors()) == (distance < 5e-6)


def test_error_of_a_number_is_counted_in_codes():
    result = quantized(Bounded(np.array([1.0, 1.2, 50.0]), np.array([0.31, 0.07, 20.0])), 0.25, u8(100))
    np.testing.assert_array_equal(result.value, [104, 105, 255])
    np.testing.assert_array_equal(result.errors(), [1, 0, 35])


def test_saturated_codes_are_certain():
    result = quantized(Bounded(np.array([90.0, -90.0, np.inf]), np.array([20.0, 20.0, 0.0])), 0.25, i8(3))
    np.testing.assert_array_equal(result.value, [127, -128, 127])
    np.testing.assert_array_equal(result.errors(), 0)


def test_nan_may_become_any_code():
    result = quantized([np.nan, 1.0], 0.25, i8(3))
    assert result.value[0] - result.errors()[0] <= -128
    assert result.value[0] + result.errors()[0] >= 127
    assert result.errors()[1] == 0


def test_zero_point_that_may_be_off_moves_the_codes():
    zero = Bounded(np.array(100, np.uint8), np.array(1.0))
    (result,) = evaluated("QuantizeLinear", [f(1.1, 90.0), f(0.25), zero], {})
    np.testing.assert_array_equal(result.errors(), [1, 0])


def test_codes_that_are_off_are_numbers_that_are_off_by_scales():
    given = Bounded(u8(5, 6), np.array([0.0, 1.0]))
    (result,) = evaluated("DequantizeLinear", [given, f(0.3), u8(4)], {})
    np.testing.assert_allclose(result.errors(), [0, np.float32(0.3)], atol=1e-7)


def test_variance_tells_how_many_deviations_a_number_was_off_whose_code_is_off():
    rng = np.random.default_rng(0)
    x = rng.uniform(-30, 30, 20_000)
    given = Bounded(x, np.full_like(x, 0.02), variance=np.full_like(x, 0.004**2))
    noisy = quantized(exact(x + 0.004 * rng.standard_normal(x.shape)), 0.25, u8(128))
    result = evaluated("QuantizeLinear", [given, f(0.25), u8(128)], {}, replace(FP32, deviations=True))[0]
    known = result.variance > 0
    z = (noisy.value.astype(float) - result.value)[known] / np.sqrt(result.variance[known])
    assert 0.1 < np.sqrt(np.mean(z**2)) < 3
    assert np.abs(z).max() < 6
    assert (result.variance <= np.asarray(result.errors()) ** 2).all()


@pytest.mark.parametrize(("kind", "certain"), [(TensorProto.FLOAT, True), (TensorProto.FLOAT16, False)])
def test_type_of_the_scale_says_how_precisely_is_divided(kind, certain):
    x = np.float64(np.float32(0.3)) * np.array([7.499])
    (result,) = evaluated("QuantizeLinear", [exact(x), f(0.3)], {}, opset=23, kinds={"x1": kind})
    assert np.any(result.errors()) != certain


def test_precision_says_how_precisely_is_divided():
    inputs = [f([1 + 2.0**-12]), f(0.5)]
    (short,) = evaluated("QuantizeLinear", inputs, {"precision": TensorProto.FLOAT16}, opset=23)
    assert short.value[0] == 2
    inputs[0] = f([1.25 + 2.0**-12])  # 2.5 and a little, in float16 2.5
    (short,) = evaluated("QuantizeLinear", inputs, {"precision": TensorProto.FLOAT16}, opset=23)
    (single,) = evaluated("QuantizeLinear", inputs, {"precision": TensorProto.FLOAT}, opset=23)
    assert (short.value[0], single.value[0]) == (2, 3)


@pytest.mark.parametrize("kind", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2])
def test_codes_of_a_few_bits(kind):
    info = ml_dtypes.iinfo(kind)
    result = quantized([-9.0, 0.6, 90.0], 0.5, np.array(1, kind))
    assert result.value.dtype == kind
    np.testing.assert_array_equal(result.value.astype(int), [info.min, min(2, info.max), info.max])


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "message"),
    [
        ("QuantizeLinear", [X, np.array(3, np.int32)], {}, "scale in int32"),
        ("QuantizeLinear", [X, f(1.0)], {"output_dtype": TensorProto.FLOAT8E4M3FN}, "float8"),
        ("QuantizeLinear", [X, f(1.0), u8(3)], {"output_dtype": TensorProto.INT8}, "another type"),
        ("QuantizeLinear", [X, SCALES[:4]], {}, "along axis"),
        ("QuantizeLinear", [X[0, 0], SCALES], {}, "along axis 1 of 1"),
        ("DequantizeLinear", [codes(6, 40), np.ones((6, 2), np.float32)], {"block_size": 16}, "for blocks of 16"),
        ("DequantizeLinear", [np.zeros(3, ml_dtypes.float8_e5m2), f(1.0)], {}, "float8"),
        ("MatMulInteger", [np.full((1, 40_000), 255, np.uint8), np.full((40_000, 1), 255, np.uint8)], {}, "32 bits"),
        ("QLinearMatMul", [A, f(0.02), u8(1), B, f(0.03), u8(9), COLUMNS, u8(1)], {}, "11 numbers"),
        (MICROSOFT + "MatMulNBits", [normal(7, 96), NBITS, normal(10, 3), None, np.zeros(96, np.int32)], {"K": 96, "N": 10, "block_size": 32}, "g_idx"),
        (MICROSOFT + "MatMulNBits", [normal(7, 96), NBITS, normal(10, 3)], {"K": 96, "N": 10, "block_size": 32, "bits": 3}, "3 bits"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_said(operator, inputs, attributes, message):
    with pytest.raises(UnsupportedOperatorError, match=message):
        evaluated(operator, inputs, attributes)


# Scales that are found on the way


def test_zeros_have_codes_and_a_zero_point_but_any_scale():
    y, scale, zero = evaluated("DynamicQuantizeLinear", [np.zeros((2, 3), np.float32)], {})
    assert not y.value.any()
    assert not np.any(y.errors())
    assert zero.value == 0
    assert scale.value - scale.errors() <= 1 / 255
    assert scale.value + scale.errors() >= 1


def test_zero_point_on_a_half_may_be_either_and_the_product_hardly_minds():
    """Symmetrical numbers have theirs at 127.5."""
    x = np.concatenate([X[0], -X[0]])
    y, _, zero = evaluated("DynamicQuantizeLinear", [x], {})
    assert zero.errors() == 1
    assert np.mean(y.errors()) > 0.9
    (product,) = evaluated(MICROSOFT + "DynamicQuantizeMatMul", [x, codes(40, 5, kind=np.int8), f(0.01)], {})
    assert np.median(product.errors()) < 0.05 * np.sqrt(np.mean(product.value**2))


def test_numbers_that_are_zero_within_their_error_have_any_codes():
    given = Bounded(np.zeros(3), np.full(3, 1e-9))
    y, scale, zero = evaluated("DynamicQuantizeLinear", [given], {})
    assert np.isinf(scale.errors())
    assert (y.errors() >= 255).all()
    assert zero.errors() == 255


def test_empty_tensors():
    for name, shape in (("quantize", (0, 5, 40)), ("dynamic", (0, 4))):
        operator, inputs, attributes = CASES[name]
        empty = np.zeros(shape, np.float32)
        assert evaluated(operator, [empty, *inputs[1:]], attributes)[0].value.shape == shape
    assert evaluated("MatMulInteger", [A[:, :0], B[:0]], {})[0].value.tolist() == [[0] * 11] * 7


# Products


def test_codes_that_are_off_go_through_a_product_of_integers():
    left, right = (
        Bounded(u8([3, 5]), np.array([0.0, 1.0])),
        Bounded(i8([[2], [-4]]), np.array([[1.0], [1.0]])),
    )
    (result,) = evaluated("MatMulInteger", [left, right, u8(1)], {})
    assert result.value.tolist() == [2 * 2 - 4 * 4]
    assert result.errors().tolist() == [2 * 1 + 4 * 1 + 1 * 4 + 1 * 1]


def test_sums_that_saturate_in_sixteen_bits_are_no_sums_of_products():
    """What x86 without VNNI does to pairs of products of uint8 and int8 is outside the bound."""
    a, b = np.full((1, 2), 255, np.uint8), np.full((2, 1), 127, np.int8)
    (result,) = evaluated("MatMulInteger", [a, b], {})
    assert result.value.item() == 2 * 255 * 127
    assert not np.any(result.errors())


def test_scale_of_softmax_codes_that_is_cut_off_is_found_out():
    """ONNX Runtime 1.31 multiplies by floor(1 / y_scale): 254 for 1/255 in float32, its own quantiser's scale."""
    operator, inputs, attributes = CASES["softmax"]
    (result,) = evaluated(operator, [*inputs[:3], f(1 / 255), u8(0)], attributes)
    x = (inputs[0].astype(float) - inputs[2]) * float(inputs[1])
    p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    assert (np.abs(np.rint(p * 254) - result.value) > result.errors()).any()


# Whole models


MODEL = """
<ir_version: 9, opset_import: ["": 17]>
g (float[2, 6, 16] x, float[2, 3, 8, 8] image) => (float[2, 6, 16] y, float[2, 4, 4, 4] z)
<float scale = {0.35}> {
  q = MatMul (x, wq)
  k = MatMul (x, wk)
  v = MatMul (x, wv)
  kt = Transpose <perm = [0, 2, 1]> (k)
  scores = MatMul (q, kt)
  scaled = Mul (scores, scale)
  p = SOFTMAX (scaled)
  attended = MatMul (p, v)
  r = Add (attended, x)
  h = MatMul (r, w1)
  hb = Add (h, b1)
  s = Sigmoid (hb)
  silu = Mul (hb, s)
  o = MatMul (silu, w2)
  y = Add (o, r)
  c = Conv <pads = [1, 1, 1, 1]> (image, filter)
  positive = Relu (c)
  z = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (positive)
}
"""
WEIGHTS = {
    **{name: normal(16, 16, seed=20 + i, scale=0.3) for i, name in enumerate(("wq", "wk", "wv"))},
    "w1": normal(16, 24, seed=23, scale=0.3), "b1": normal(24, seed=24), "w2": normal(24, 16, seed=25, scale=0.3),
    "filter": normal(4, 3, 3, 3, seed=26, scale=0.3),
}  # fmt: skip


def feed(seed):
    return {"x": normal(2, 6, 16, seed=30 + seed), "image": normal(2, 3, 8, 8, seed=40 + seed)}


def float_model(path, gate):
    model = onnx.parser.parse_model(MODEL.replace("SOFTMAX", gate))
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, name) for name, w in WEIGHTS.items())
    onnx.save(model, path)


def quantized_model(tmp_path, kind, gate):
    """Return a small transformer block and a convolution as ONNX Runtime's tools quantise them."""
    pytest.importorskip("onnxruntime")
    quantization = pytest.importorskip("onnxruntime.quantization")
    source, target = tmp_path / "float.onnx", tmp_path / "quantized.onnx"
    float_model(source, gate)
    if kind == "dynamic":
        quantization.quantize_dynamic(source, target, weight_type=quantization.QuantType.QInt8)
        return onnx.load(target)

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.feeds = iter([feed(seed) for seed in range(1, 4)])

        def get_next(self):
            return next(self.feeds, None)

    kinds = quantization.QuantType[kind]
    quantization.quantize_static(
        source, target, Reader(), activation_type=kinds, weight_type=quantization.QuantType.QInt8,
        per_channel=kind == "QUInt8",
    )  # fmt: skip
    return onnx.load(target)


def assert_all_within(model, runtime_outputs):
    evaluation = GraphOracle(model).evaluate(feed(0))
    for output, y in zip(model.graph.output, runtime_outputs, strict=True):
        result = evaluation.outputs[output.name]
        assert (np.abs(y - result.value) <= result.errors()).all()
        assert np.median(result.errors()) < 0.03 * np.sqrt(np.mean(result.value**2))


@pytest.mark.parametrize("kind", ["QUInt8", "QInt8", "QUInt16", "dynamic"])
def test_quantized_model_as_it_is_written(tmp_path, kind):
    ort = pytest.importorskip("onnxruntime")
    model = quantized_model(tmp_path, kind, "Softmax")
    session = session_of(model, graph_optimization_level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    assert_all_within(model, session.run(None, feed(0)))


@pytest.mark.parametrize("kind", ["QUInt8", "QInt8", "QUInt16", "dynamic"])
def test_quantized_model_as_onnxruntime_fuses_it(tmp_path, kind):
    """The fused graph, and what was written, hold for what runs; without a softmax, whose scale is cut off."""
    model = quantized_model(tmp_path, kind, "Sigmoid")
    optimized = tmp_path / "optimized.onnx"
    outputs = session_of(model, optimized_model_filepath=str(optimized)).run(None, feed(0))
    assert_all_within(model, outputs)
    fused = onnx.load(optimized)
    operators = {node.op_type for node in fused.graph.node}
    expected = {
        "QUInt8": "QLinearAdd",
        "QInt8": "QLinearMatMul",
        "QUInt16": "QuantizeLinear",
        "dynamic": "DynamicQuantizeMatMul",
    }
    assert expected[kind] in operators
    assert_all_within(fused, outputs)
