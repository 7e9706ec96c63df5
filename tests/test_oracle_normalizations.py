"""Normalisations, Einsum and rotary positions: against ONNX Runtime, under perturbed inputs, and each opset's meaning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops import products, rotary, statistics
from onnx_attest.verify.oracle.ops.attention import OPERATORS as ATTENTION
from onnx_attest.verify.oracle.ops.operator import Node, UnsupportedOperatorError

FP32 = PROFILES["fp32"]
FLOAT64_SLACK = 1 + 2.0**-30  # a number moved by the whole error is off by a rounding of float64 more
OPERATORS = {**statistics.OPERATORS, **products.OPERATORS, **rotary.OPERATORS}


def normal(*shape, seed=0, scale=1.0, shift=0.0):
    rng = np.random.default_rng([seed, *shape])
    return (shift + scale * rng.standard_normal(shape)).astype(np.float32)


def positive(*shape, seed=0):
    return (0.5 + np.abs(normal(*shape, seed=seed))).astype(np.float32)


X = normal(3, 8, 5, 6, seed=1, scale=2.0, shift=0.7)
ROWS = normal(4, 33, 48, seed=2, scale=3.0, shift=-0.4)
CHANNELS = [normal(8, seed=3, shift=1.0), normal(8, seed=4)]
ANGLES = np.arange(12)[:, None] / 10.0 ** np.arange(8)
TABLES = [np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)]
POSITIONS = np.array([[3, 4, 5], [0, 1, 11]])

CASES = {
    "batch": ("BatchNormalization", 15, [X, *CHANNELS, normal(8, seed=5), positive(8)], {}),
    "batch far from 0": (
        "BatchNormalization", 9, [X + 50, *CHANNELS, 50 + normal(8, seed=5), positive(8)], {"epsilon": 1e-3}
    ),
    "instance": ("InstanceNormalization", 22, [X, *CHANNELS], {}),
    "group by group": ("GroupNormalization", 18, [X, *(p[:4] for p in CHANNELS)], {"num_groups": 4}),
    "group by channel": ("GroupNormalization", 21, [X, *CHANNELS], {"num_groups": 2, "epsilon": 1e-2}),
    "rms": ("RMSNormalization", 23, [ROWS, normal(48, seed=6)], {}),
    "rms of two axes": ("RMSNormalization", 23, [ROWS, normal(33, 48, seed=6)], {"axis": 1}),
    "l1": ("LpNormalization", 22, [ROWS], {"p": 1, "axis": 1}),
    "l2": ("LpNormalization", 1, [ROWS], {}),
    "mean and variance": ("MeanVarianceNormalization", 13, [X], {}),
    "mean and variance of a channel": ("MeanVarianceNormalization", 9, [X], {"axes": [2, 3]}),
    "local response": ("LRN", 13, [X], {"size": 3, "alpha": 0.2, "beta": 0.6, "bias": 1.5}),
    "local response, even": ("LRN", 1, [X], {"size": 4}),
    "product of heads": (
        "Einsum", 12, [normal(2, 3, 7, 16, seed=7), normal(2, 3, 9, 16, seed=8)], {"equation": "bhid,bhjd->bhij"}
    ),
    "implicit, with ellipsis": (
        "Einsum", 12, [normal(2, 3, 5, 6, seed=7), normal(2, 3, 6, 4, seed=8)], {"equation": "...zi, ...ij"}
    ),
    "sum before the product": (
        "Einsum", 12, [normal(5, 6, 7, seed=7), normal(7, 3, 4, seed=8)], {"equation": "abi,icd->cb"}
    ),
    "three operands": (
        "Einsum", 12, [normal(4, 5, seed=7), normal(5, 6, seed=8), normal(6, 4, seed=9)], {"equation": "ij,jk,ki->ki"}
    ),
    "rotary": ("RotaryEmbedding", 23, [normal(2, 4, 3, 16, seed=7), *TABLES, POSITIONS], {}),
    "rotary, interleaved, in part": (
        "RotaryEmbedding", 23, [normal(2, 3, 80, seed=7), *(t[:, :6] for t in TABLES), POSITIONS],
        {"num_heads": 4, "interleaved": 1, "rotary_embedding_dim": 12},
    ),
    "rotary of Microsoft": (
        "com.microsoft.RotaryEmbedding", 1, [normal(2, 3, 64, seed=7), np.array([2]), *TABLES], {"interleaved": 1}
    ),
    "rotary of Microsoft, in part": (
        "com.microsoft.RotaryEmbedding", 1, [normal(2, 3, 80, seed=7), POSITIONS, *(t[:, :6] for t in TABLES)],
        {"num_heads": 4, "rotary_embedding_dim": 12},
    ),
}  # fmt: skip
MADE_BY_NO_RUNTIME = {"local response, even"}
"""ONNX Runtime takes an odd size only."""


def evaluated(operator, opset, inputs, attributes, arithmetic=FP32):
    given = [value if value is None or isinstance(value, Bounded) else exact(value) for value in inputs]
    node = Node("n", operator, opset, attributes, tuple(f"x{i}" for i in range(len(given))), ("y",))
    (result,) = OPERATORS[operator](node, given, arithmetic)
    node.refuse_unasked()
    return result


def run_onnxruntime(operator, opset, inputs, attributes):
    ort = pytest.importorskip("onnxruntime")
    domain, _, name = operator.rpartition(".")
    node = onnx.helper.make_node(
        name, [f"x{i}" for i in range(len(inputs))], ["y"], domain=domain, **attributes
    )
    graph = onnx.helper.make_graph(
        [node], "g",
        [onnx.helper.make_tensor_value_info(f"x{i}", onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
         for i, x in enumerate(inputs)],
        [onnx.helper.make_empty_tensor_value_info("y")],
    )  # fmt: skip
    opsets = [
        onnx.helper.make_opsetid("", 20 if domain else opset),
        onnx.helper.make_opsetid("com.microsoft", 1),
    ]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {f"x{i}": x for i, x in enumerate(inputs)})[0].astype(np.float64)


RUN_CASES = [name for name in CASES if name not in MADE_BY_NO_RUNTIME]


def with_opset_of_kernels(opset):
    """ONNX Runtime has no kernels of operators older than opset 7."""
    return max(opset, 7)


@pytest.mark.parametrize("name", RUN_CASES)
def test_onnxruntime_is_within_the_bound_and_the_bound_says_something(name):
    operator, opset, inputs, attributes = CASES[name]
    result = evaluated(*CASES[name])
    y = run_onnxruntime(operator, with_opset_of_kernels(opset), inputs, attributes)
    assert y.shape == result.value.shape
    assert (np.abs(y - result.value) <= result.error).all()
    assert np.median(result.error) < 2e-5 * np.sqrt(np.mean(result.value**2))


@pytest.mark.parametrize("name", RUN_CASES)
def test_deviation_is_of_the_size_of_onnxruntimes_error(name):
    operator, opset, inputs, attributes = CASES[name]
    result = evaluated(*CASES[name], arithmetic=replace(FP32, deviations=True))
    y = run_onnxruntime(operator, with_opset_of_kernels(opset), inputs, attributes)
    deviation = np.sqrt(np.maximum(result.variance, 1e-60))
    z = np.where(result.variance > 0, (y - result.value) / deviation, 0.0)
    assert 0.1 < np.sqrt(np.mean(z**2)) < 3


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_inputs_anywhere_within_their_errors_stay_within_the_bound(name, seed):
    operator, opset, inputs, attributes = CASES[name]
    rng = np.random.default_rng(seed)
    given, moved = [], []
    for x in inputs:
        if x.dtype.kind != "f":
            given.append(exact(x))
            moved.append(exact(x))
            continue
        x = x.astype(np.float64)
        error = 1e-4 * np.abs(x) + 1e-5
        # Whole channels to the same side, some to the other: what moves a statistic most.
        side = (
            rng.choice([-1.0, 1.0], x.shape[:2] + (1,) * (x.ndim - 2))
            if seed % 2
            else rng.choice([-1, 1], x.shape)
        )
        given.append(Bounded(x, error))
        moved.append(Bounded(x + side * error))
    result = evaluated(operator, opset, given, attributes)
    other = evaluated(operator, opset, moved, attributes)
    assert np.isfinite(result.error).all()
    assert (np.abs(other.value - result.value) <= result.error * FLOAT64_SLACK).all()


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_same_and_have_no_bounds(name):
    operator, opset, inputs, attributes = CASES[name]
    expected = evaluated(*CASES[name])
    for kernel in (Kernel("sequential", 1), Kernel("blocks of 8", 8)):
        computed = evaluated(operator, opset, inputs, attributes, replace(FP32, kernel=kernel))
        assert computed.error is None
        assert (np.abs(computed.value - expected.value) <= expected.error).all()


def half_group(x, scale, bias, num_groups):
    parts = x.reshape(len(x), num_groups, -1)
    mean = parts.mean(-1, keepdims=True)
    spread = (parts * parts).mean(-1, keepdims=True) - mean * mean
    y = (parts - mean) / np.sqrt(spread + np.float16(1e-5))
    return (scale[None, :, None] * y + bias[None, :, None]).reshape(x.shape)


def half_mean_variance(x):
    mean = x.mean((0, 2, 3), keepdims=True)
    spread = (x * x).mean((0, 2, 3), keepdims=True) - mean * mean
    return (x - mean) / np.sqrt(spread)


def half_rms(x, scale):
    wide = x.astype(np.float32)
    return (wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)).astype(np.float16) * scale


def half_rotary(x, cos, sin, positions):
    cos, sin = cos[positions][:, None], sin[positions][:, None]
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def half_einsum(a, b, equation):
    return np.einsum(equation, a.astype(np.float32), b.astype(np.float32)).astype(np.float16)


IN_HALF = {
    "group by group": half_group,
    "mean and variance": half_mean_variance,
    "rms": half_rms,
    "rotary": half_rotary,
    "product of heads": half_einsum,
}
"""The definitions, in the dtype of their inputs."""


@pytest.mark.parametrize("name", IN_HALF)
def test_numpy_in_half_precision_is_within_the_bound(name):
    """Each step of NumPy's rounds to float16."""
    operator, opset, inputs, attributes = CASES[name]
    halves = [x.astype(np.float16) if x.dtype.kind == "f" else x for x in inputs]
    computed = IN_HALF[name](*halves, **attributes)
    result = evaluated(operator, opset, halves, attributes, PROFILES["fp16-steps"])
    assert (np.abs(computed.astype(np.float64) - result.value) <= result.error).all()


def test_group_normalization_scales_groups_before_opset_21_and_channels_since():
    scale = np.array([1.0, 2.0], np.float32)
    x = normal(2, 4, 5)
    by_group = evaluated("GroupNormalization", 18, [x, scale, 0 * scale], {"num_groups": 2}).value
    wide = np.repeat(scale, 2)
    by_channel = evaluated("GroupNormalization", 21, [x, wide, 0 * wide], {"num_groups": 2}).value
    np.testing.assert_array_equal(by_group, by_channel)
    with pytest.raises(ValueError, match="reshape"):
        evaluated("GroupNormalization", 21, [x, scale, 0 * scale], {"num_groups": 2})


def test_stash_type_of_half_precision_is_refused():
    with pytest.raises(UnsupportedOperatorError, match="stash_type 10"):
        evaluated("RMSNormalization", 23, [ROWS, normal(48)], {"stash_type": 10})


@pytest.mark.parametrize(
    ("opset", "attributes", "outputs"),
    [(9, {}, 3), (6, {}, 1), (6, {"is_test": 0}, 1)],
)
def test_batch_normalization_in_training_is_refused_before_opset_14(opset, attributes, outputs):
    names = ("y", "a", "b")[:outputs]
    node = Node("n", "BatchNormalization", opset, attributes, ("x",) * 5, names)
    given = [exact(x) for x in CASES["batch"][2]]
    with pytest.raises(UnsupportedOperatorError, match="training"):
        OPERATORS["BatchNormalization"](node, given, FP32)


def test_batch_normalization_in_training_mixes_statistics():
    scale, bias, mean, spread = (part.astype(np.float64) for part in CASES["batch"][2][1:])
    node = Node(
        "n", "BatchNormalization", 15, {"training_mode": 1, "momentum": 0.75}, ("x",) * 5, ("y", "m", "v")
    )
    y, running_mean, running_variance = OPERATORS["BatchNormalization"](
        node, [exact(x) for x in CASES["batch"][2]], FP32
    )
    wide = X.astype(np.float64)
    own_mean, own_variance = wide.mean((0, 2, 3)), wide.var((0, 2, 3))
    normalised = np.moveaxis(
        (np.moveaxis(wide, 1, -1) - own_mean) / np.sqrt(own_variance + 1e-5) * scale + bias, -1, 1
    )
    np.testing.assert_allclose(y.value, normalised, atol=1e-12)
    np.testing.assert_allclose(running_mean.value, 0.75 * mean + 0.25 * own_mean)
    np.testing.assert_allclose(running_variance.value, 0.75 * spread + 0.25 * own_variance)
    assert running_variance.error.max() < 1e-5 * running_variance.value.max()


def test_batch_normalization_that_is_not_spatial_has_statistics_of_each_place():
    scale, bias, mean = (normal(8, 5, 6, seed=seed) for seed in range(3))
    spread = positive(8, 5, 6)
    attributes = {"is_test": 1, "spatial": 0, "epsilon": 0.0}
    result = evaluated("BatchNormalization", 6, [X, scale, bias, mean, spread], attributes)
    wide = [part.astype(np.float64) for part in (scale, bias, mean, spread)]
    np.testing.assert_allclose(
        result.value,
        (X.astype(np.float64) - wide[2]) / np.sqrt(wide[3]) * wide[0] + wide[1],
        rtol=1e-12,
        atol=1e-12,
    )


def test_zero_rows_normalise_to_zero():
    x = np.array([[0.0, 0.0], [3.0, 4.0]], np.float32)
    result = evaluated("LpNormalization", 22, [x], {})
    np.testing.assert_allclose(result.value, [[0, 0], [0.6, 0.8]])
    assert result.error[0].max() < 1e-37


def test_norm_that_is_zero_within_its_error_is_refused():
    with pytest.raises(ArithmeticError, match="within its rounding error"):
        evaluated("LpNormalization", 22, [Bounded(np.zeros((1, 2)), np.full((1, 2), 1e-6))], {})


def test_equal_numbers_far_from_zero_have_no_bound():
    """A variance as the difference of squares is anything there, and a correct runtime may take it so."""
    x = np.full((1, 2, 64), 1000.0, np.float32)
    result = evaluated("InstanceNormalization", 6, [x, np.ones(2), np.zeros(2)], {})
    assert np.isinf(result.error).all()


def test_einsum_recognises_attention():
    """The centred bound and the facts of the softmax, though keys and heads are in another order."""
    q, k, v = (normal(2, 6, 3, 16, seed=seed) for seed in range(3))
    scores = evaluated("Einsum", 12, [q, k], {"equation": "bihd,bjhd->bhij"})
    assert scores.magnitude is not None
    node = Node("s", "Softmax", 13, {"axis": -1}, ("x",), ("y",))
    (weights,) = ATTENTION["Softmax"](node, [scores], FP32)
    for equation, operands in (("bhij,bjhd->bihd", [weights, v]), ("bjhd,bhij->bihd", [v, weights])):
        result = evaluated("Einsum", 12, operands, {"equation": equation})
        assert result.attended is not None
        np.testing.assert_allclose(
            result.value, np.einsum("bhij,bjhd->bihd", weights.value, v.astype(np.float64))
        )


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ii->i", [(4, 4)]), ("ii", [(4, 4)]), ("ij->ji", [(3, 4)]), ("i,j->ij", [(3,), (4,)]), ("ij,ij->", [(3, 4)] * 2),
        ("...ii->...i", [(2, 3, 3)]), ("iij,jk->ik", [(3, 3, 4), (4, 5)]), ("b...,b...->...", [(2, 3, 4)] * 2),
        ("ab...,bc...", [(2, 3, 5), (3, 4, 5)]), ("Ba,aA", [(2, 3), (3, 4)]), (",->", [(), ()]), ("i,i->i", [(0,), (0,)]),
        ("bij,bjk->bik", [(1, 3, 4), (5, 4, 2)]), ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ],
)  # fmt: skip
def test_einsum_is_numpys(equation, shapes):
    arrays = [
        normal(*shape, seed=seed).astype(np.float64).reshape(shape) for seed, shape in enumerate(shapes)
    ]
    result = evaluated("Einsum", 12, arrays, {"equation": equation})
    np.testing.assert_allclose(result.value, np.einsum(equation, *arrays), rtol=1e-12, atol=1e-12)


def test_einsum_of_integers_wraps_around_in_their_dtype():
    a = np.array([100, 100], np.int8)
    result = evaluated("Einsum", 12, [a, a], {"equation": "i,i->"})
    assert result.value.dtype == np.int8
    assert result.value == np.int8(20000 % 256)


def test_einsum_without_a_sum_is_exact():
    assert evaluated("Einsum", 12, [normal(3, 3)], {"equation": "ii->i"}).error is None


def test_position_that_the_tables_do_not_have_is_refused():
    x = normal(1, 4, 2, 16)
    with pytest.raises(UnsupportedOperatorError, match="position"):
        evaluated("RotaryEmbedding", 23, [x, *TABLES, np.array([[0, -1]])], {})
