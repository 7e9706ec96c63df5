"""ONNX Runtime's fused operators: against ONNX Runtime, the operators they stand for, and whole optimised graphs.

Those without a kernel on the CPU are held against their definitions in float64 only.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx
import pytest
from one_operator import session_of

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.attention import softmax
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops.contrib.decoder import decoder_masked_multi_head_attention
from onnx_attest.verify.oracle.ops.fusions import OPERATORS as FUSED
from onnx_attest.verify.oracle.ops.operator import Node, UnsupportedOperatorError

FP32 = PROFILES["fp32"]
FLOAT64_SLACK = 1 + 2.0**-30
OPERATORS = {
    **{name.removeprefix("com.microsoft."): operator for name, operator in FUSED.items()},
    "DecoderMaskedMultiHeadAttention": decoder_masked_multi_head_attention,
}
STANDARD = {"SimplifiedLayerNormalization"}
"""Registered in ONNX's own domain."""


def normal(*shape, seed=0, scale=1.0, shift=0.0):
    rng = np.random.default_rng([seed, *shape])
    return (shift + scale * rng.standard_normal(shape)).astype(np.float32)


X, SKIP = normal(2, 7, 48, seed=1, scale=2.0), normal(2, 7, 48, seed=2, shift=0.5)
SCALE, SHIFT, BIAS = normal(48, seed=3, shift=1.0), normal(48, seed=4), normal(48, seed=5)
A, B, C = normal(9, 32, seed=6), normal(32, 24, seed=7, scale=0.3), normal(24, seed=8)
IDS = np.array([[1, 2, 3, 0], [0, 0, 4, 4]], np.int32)
TABLES = [normal(5, 48, seed=9), normal(6, 48, seed=10), normal(2, 48, seed=11)]
MASK = np.array([[1, 1, 0, 1], [2, 1, 1, 0]], np.int32)

CASES = {
    "product": ("FusedMatMul", [normal(2, 3, 9, 32), normal(2, 3, 32, 5)], {"alpha": 0.3}),
    "product with the transposed": ("FusedMatMul", [normal(2, 3, 9, 32), normal(2, 3, 5, 32)], {"transB": 1, "alpha": 0.125}),
    "product of the transposed": ("TransposeMatMul", [normal(2, 32, 9), normal(2, 32, 5)], {"transA": 1}),
    "product with batches inside": (
        "FusedMatMul", [normal(9, 2, 3, 32), normal(32, 2, 3, 5)], {"transBatchA": 1, "transBatchB": 1}
    ),
    "product with all transposed": (
        "FusedMatMul", [normal(32, 2, 9), normal(5, 2, 32)],
        {"transBatchA": 1, "transBatchB": 1, "transA": 1, "transB": 1, "alpha": 2.5},
    ),
    "gemm and relu": ("FusedGemm", [A, B, C], {"activation": "Relu"}),
    "gemm and tanh": ("FusedGemm", [A, B.T.copy(), C], {"activation": "Tanh", "transB": 1, "alpha": 0.5, "beta": 2.0}),
    "gemm and leaky relu": ("FusedGemm", [A, B, C], {"activation": "LeakyRelu", "activation_alpha": 0.2}),
    "gemm and hard sigmoid": (
        "FusedGemm", [A, B], {"activation": "HardSigmoid", "activation_alpha": 0.2, "activation_beta": 0.5}
    ),
    "gemm and selu": (
        "FusedGemm", [A, B, C], {"activation": "Selu", "activation_alpha": 1.6732632, "activation_gamma": 1.050701}
    ),
    "gelu": ("Gelu", [3 * X], {}),
    "gelu with bias": ("BiasGelu", [X, BIAS], {}),
    "fast gelu": ("FastGelu", [3 * X], {}),
    "fast gelu with bias": ("FastGelu", [X, BIAS], {}),
    "quick gelu": ("QuickGelu", [X], {}),
    "silu": ("QuickGelu", [3 * X], {"alpha": 1.0}),
    "skip": ("SkipLayerNormalization", [X, SKIP, SCALE, SHIFT], {"epsilon": 1e-5}),
    "skip with bias": ("SkipLayerNormalization", [X, SKIP[:1], SCALE, SHIFT, BIAS], {}),
    "skip without shift": ("SkipLayerNormalization", [X, SKIP, SCALE, None, BIAS], {}),
    "skip, simplified": ("SkipSimplifiedLayerNormalization", [X, SKIP, SCALE], {"epsilon": 1e-6}),
    "skip, simplified, with bias": ("SkipSimplifiedLayerNormalization", [X, SKIP, SCALE, BIAS], {}),
    "simplified": ("SimplifiedLayerNormalization", [X, SCALE], {"axis": -1, "stash_type": 1}),
    "embeddings": (
        "EmbedLayerNormalization",
        [IDS, IDS % 2, *TABLES, SCALE, SHIFT, MASK, np.array([[0, 1, 2, 5]], np.int32)], {"mask_index_type": 1},
    ),
    "embeddings of words only": (
        "EmbedLayerNormalization", [IDS, None, *TABLES[:2], None, SCALE, SHIFT], {"mask_index_type": 0}
    ),
    "cross attention of one token": (
        "DecoderMaskedMultiHeadAttention", [normal(2, 1, 32), normal(2, 4, 9, 8, seed=1), normal(2, 4, 9, 8, seed=2)],
        {"num_heads": 4},
    ),
}  # fmt: skip
NO_CPU_KERNEL = {
    "gemm and fast gelu": ("GemmFastGelu", [A, B, C], {}),
    "half a gelu": ("BiasSplitGelu", [normal(2, 3, 20), normal(20)], {}),
    "bias and skip": ("BiasAdd", [X, BIAS, SKIP], {}),
    "softmax with bias": ("BiasSoftmax", [normal(2, 3, 5, 5), normal(2, 1, 1, 5)], {"axis": 3, "is_inner_broadcast": 1}),
    "groups": ("GroupNorm", [normal(2, 4, 5, 8), SCALE[:8], SHIFT[:8]], {"groups": 2, "activation": 0}),
    "groups and silu": (
        "GroupNorm", [normal(2, 8, 4, 5), SCALE[:8], SHIFT[:8]], {"groups": 4, "activation": 1, "channels_last": 0}
    ),
    "skip and groups": (
        "SkipGroupNorm", [normal(2, 4, 5, 8), SCALE[:8], SHIFT[:8], normal(2, 8, seed=1), BIAS[:8]],
        {"groups": 2, "activation": 1, "epsilon": 1e-3},
    ),
    "product and activation": ("FusedMatMulActivation", [A, B], {"activation": "Relu", "alpha": 0.5}),
}  # fmt: skip
ALL = {**CASES, **NO_CPU_KERNEL}


def outputs_of(operator, attributes):
    if operator.startswith("Skip") and operator != "SkipGroupNorm":
        return ("y", "", "", "sum")
    counted = operator == "EmbedLayerNormalization" and attributes.get("mask_index_type")
    return ("y", "counts", "sum") if counted else ("y",)


def evaluated(operator, inputs, attributes, arithmetic=FP32):
    given = [value if value is None or isinstance(value, Bounded) else exact(value) for value in inputs]
    names = tuple("" if value is None else f"x{i}" for i, value in enumerate(given))
    node = Node("n", operator, 1, attributes, names, outputs_of(operator, attributes))
    results = OPERATORS[operator](node, given, arithmetic)
    node.refuse_unasked()
    return [result for result, name in zip(results, node.outputs, strict=False) if name]


def run_onnxruntime(operator, inputs, attributes):
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    outputs = outputs_of(operator, attributes)
    domain = "" if operator in STANDARD else "com.microsoft"
    node = onnx.helper.make_node(operator, names, outputs, domain=domain, **attributes)
    graph = onnx.helper.make_graph(
        [node], "g",
        [onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
         for name, x in zip(names, inputs, strict=True) if name],
        [onnx.helper.make_empty_tensor_value_info(name) for name in outputs if name],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    session = session_of(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8))
    return session.run(None, {name: x for name, x in zip(names, inputs, strict=True) if name})


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_is_within_the_bound_and_the_bound_says_something(name):
    for result, y in zip(evaluated(*CASES[name]), run_onnxruntime(*CASES[name]), strict=True):
        assert y.shape == result.value.shape
        if y.dtype != np.float32:
            np.testing.assert_array_equal(result.value, y)
            continue
        assert (np.abs(y - result.value) <= result.errors()).all()
        assert np.median(result.errors()) < 2e-5 * np.sqrt(np.mean(result.value**2))


@pytest.mark.parametrize("name", CASES)
def test_deviation_is_of_the_size_of_onnxruntimes_error(name):
    result, *_ = evaluated(*CASES[name], replace(FP32, deviations=True))
    y = run_onnxruntime(*CASES[name])[0]
    known = result.variance > 0
    z = (y - result.value)[known] / np.sqrt(result.variance[known])
    assert 0.1 < np.sqrt(np.mean(z**2)) < 3


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_inputs_anywhere_within_their_errors_stay_within_the_bound(name, seed):
    operator, inputs, attributes = ALL[name]
    rng = np.random.default_rng(seed)
    given, moved = [], []
    for x in inputs:
        if x is None or x.dtype.kind != "f":
            given.append(x)
            moved.append(x)
            continue
        x = x.astype(np.float64)
        error = 1e-4 * np.abs(x) + 1e-5
        side = 1.0 if seed == 0 else rng.choice([-1.0, 1.0], x.shape)
        given.append(Bounded(x, error))
        moved.append(Bounded(x + side * error))
    for result, other in zip(
        evaluated(operator, given, attributes), evaluated(operator, moved, attributes), strict=True
    ):
        assert np.isfinite(result.errors()).all()
        assert (np.abs(other.value - result.value) <= result.errors() * FLOAT64_SLACK).all()


@pytest.mark.parametrize("name", ALL)
def test_kernels_compute_the_same_and_have_no_bounds(name):
    arithmetic = replace(FP32, kernel=Kernel("blocks of 8", 8))
    for computed, exactly in zip(evaluated(*ALL[name], arithmetic), evaluated(*ALL[name]), strict=True):
        assert computed.error is None
        assert (np.abs(computed.value - exactly.value) <= exactly.errors()).all()


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def silu(x):
    return x / (1 + np.exp(-x))


def groups_normalised(x, scale, bias, groups, epsilon):
    parts = x.reshape(len(x), groups, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + epsilon)
    return parts.reshape(x.shape) * scale[:, None, None] + bias[:, None, None]


DEFINITIONS = {
    "gemm and fast gelu": lambda a, b, c: 0.5 * (a @ b + c) * (
        1 + np.tanh(math.sqrt(2 / math.pi) * ((a @ b + c) + 0.044715 * (a @ b + c) ** 3))
    ),
    "half a gelu": lambda x, bias: (x + bias)[..., :10] * gelu((x + bias)[..., 10:]),
    "bias and skip": lambda x, bias, skip: x + bias + skip,
    "softmax with bias": lambda x, bias: np.exp(x + bias) / np.exp(x + bias).sum(-1, keepdims=True),
    "groups": lambda x, scale, bias: np.moveaxis(
        groups_normalised(np.moveaxis(x, -1, 1), scale, bias, 2, 1e-5), 1, -1
    ),
    "groups and silu": lambda x, scale, bias: silu(groups_normalised(x, scale, bias, 4, 1e-5)),
    "skip and groups": lambda x, scale, bias, skip, added: np.moveaxis(
        silu(groups_normalised(np.moveaxis(x + skip[:, None, None] + added, -1, 1), scale, bias, 2, 1e-3)), 1, -1
    ),
    "product and activation": lambda a, b: np.maximum(0.5 * a @ b, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFINITIONS)
def test_operators_without_a_cpu_kernel_are_their_definitions(name):
    (result, *_) = evaluated(*NO_CPU_KERNEL[name])
    expected = DEFINITIONS[name](*(x.astype(np.float64) for x in NO_CPU_KERNEL[name][1]))
    np.testing.assert_allclose(result.value, expected, rtol=1e-9, atol=1e-12)


def test_decoder_with_a_cache_takes_the_new_token_apart_or_in_one():
    """ONNX Runtime's CPU kernel has no cache but a shared one, so the documentation is all there is."""
    q, k, v = (normal(2, 1, 32, seed=seed) for seed in range(3))
    cache = [normal(2, 4, 6, 8, seed=seed) for seed in (3, 4)]
    node = Node("n", "DecoderMaskedMultiHeadAttention", 1, {"num_heads": 4}, ("x",) * 7, ("y", "k", "v"))
    packed = [np.concatenate([q, k, v], -1), None, None, None, None, *cache]
    apart = [q, k, v, None, None, *cache]
    results = [
        decoder_masked_multi_head_attention(node, [x if x is None else exact(x) for x in inputs], FP32)
        for inputs in (packed, apart)
    ]
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one.value, other.value)
    keys, values = (
        np.concatenate([c, x.reshape(2, 4, 1, 8)], 2).astype(float)
        for c, x in zip(cache, (k, v), strict=True)
    )
    logits = np.exp((q.reshape(2, 4, 1, 8).astype(float) * keys).sum(-1) / math.sqrt(8))
    expected = (logits[..., None] * values).sum(2) / logits.sum(-1)[..., None]
    np.testing.assert_allclose(results[0][0].value, expected.reshape(2, 1, 32))
    np.testing.assert_array_equal(results[0][1].value, keys)


def test_softmax_with_bias_keeps_what_is_known_of_its_weights():
    (result,) = evaluated(*NO_CPU_KERNEL["softmax with bias"])
    assert result.softmax is not None


def test_softmax_with_bias_is_over_all_axes_from_its_own_on():
    (result,) = evaluated("BiasSoftmax", [normal(2, 3, 4), normal(2, 3, 4)], {"is_inner_broadcast": 0})
    np.testing.assert_allclose(result.value.sum((1, 2)), 1.0)


def test_product_of_softmax_weights_is_attention():
    weights = softmax(exact(normal(2, 3, 5, 7, scale=4.0)), FP32)
    values = normal(2, 3, 7, 8)
    (result,) = evaluated("FusedMatMul", [weights, values], {})
    assert result.attended is not None
    (scaled,) = evaluated("FusedMatMul", [weights, values], {"alpha": 0.5})
    np.testing.assert_array_equal(scaled.value, 0.5 * result.value)


def test_scores_keep_how_much_cancels_in_them():
    (result,) = evaluated(*CASES["product with the transposed"])
    sizes = np.matmul(
        *(np.abs(x.astype(np.float64)) for x in (normal(2, 3, 9, 32), normal(2, 3, 5, 32).swapaxes(-1, -2)))
    )
    np.testing.assert_allclose(result.magnitude, 0.125 * sizes)


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        ("FusedGemm", {"activation": "Mish"}, "activation Mish"),
        ("GroupNorm", {"groups": 2, "activation": 3}, "activation 3"),
    ],
)
def test_unknown_activation_is_refused_by_name(operator, attributes, message):
    inputs = [A, B, C] if operator == "FusedGemm" else NO_CPU_KERNEL["groups"][1]
    with pytest.raises(UnsupportedOperatorError, match=message):
        evaluated(operator, inputs, attributes)


def test_word_that_the_embedding_does_not_have_is_refused():
    inputs = [IDS + 1, None, *TABLES[:2], None, SCALE, SHIFT]
    with pytest.raises(UnsupportedOperatorError, match="index"):
        evaluated("EmbedLayerNormalization", inputs, {"mask_index_type": 0})


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "expected"),
    [
        ("GatherND", [np.arange(12.0).reshape(3, 4), np.array([[2, 1], [-1, 0]])], {}, [9.0, 8.0]),
        ("GatherND", [np.arange(4.0).reshape(2, 2), np.array([[1]])], {}, [[2.0, 3.0]]),
        ("ExpandDims", [np.arange(2.0), np.array(-1, np.int32)], {}, [[0.0], [1.0]]),
        ("Trilu", [np.ones((2, 2)), np.array(1)], {}, [[0.0, 1.0], [0.0, 0.0]]),
        ("Trilu", [np.ones((2, 2))], {"upper": 0}, [[1.0, 0.0], [1.0, 1.0]]),
    ],
)
def test_moves(operator, inputs, attributes, expected):
    (result,) = evaluated(operator, inputs, attributes)
    np.testing.assert_array_equal(result.value, expected)
    assert result.error is None


BLOCK = """
<ir_version: 9, opset_import: ["": 17]>
g (float[2, 5, 16] x, float[2, 1, 5, 5] mask) => (float[2, 5, 16] y)
<int64[4] split = {2, 5, 4, 4}, int64[3] whole = {2, 5, 16}, float four = {0.5}, float root = {1.41421356}, float unit = {1.0},
 float half = {0.5}> {
  p = MatMul (x, w)
  pb = Add (b, p)
  heads = Reshape (pb, split)
  q = Transpose <perm = [0, 2, 1, 3]> (heads)
  kt = Transpose <perm = [0, 2, 3, 1]> (heads)
  raw = MatMul (q, kt)
  s = Mul (raw, four)
  masked = Add (s, mask)
  weights = Softmax <axis = -1> (masked)
  o = MatMul (weights, q)
  back = Transpose <perm = [0, 2, 1, 3]> (o)
  merged = Reshape (back, whole)
  r = Add (x, merged)
  n = LayerNormalization <axis = -1, epsilon = 1e-5> (r, one, ub)
  u = MatMul (n, up)
  v = Add (u, ub)
  d = Div (v, root)
  e = Erf (d)
  f = Add (e, unit)
  m = Mul (v, f)
  h = Mul (m, half)
  y = Add (h, n)
}
"""


@pytest.mark.pinned
def test_what_onnxruntime_makes_of_a_transformers_block_is_covered(tmp_path):
    """Every operator of its own that the optimised graph has is one of these."""
    ort = pytest.importorskip("onnxruntime")
    model = onnx.parser.parse_model(BLOCK)
    arrays = {
        "w": 0.3 * normal(16, 16),
        "b": normal(16),
        "up": 0.3 * normal(16, 16, seed=1),
        "ub": normal(16, seed=2),
    }
    arrays["one"] = np.ones(16, np.float32)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()
    )
    path = tmp_path / "optimised.onnx"
    level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session_of(model, optimized_model_filepath=str(path), graph_optimization_level=level)
    made = {node.op_type for node in onnx.load(path).graph.node if node.domain == "com.microsoft"}
    assert {"FusedMatMul", "SkipLayerNormalization"} <= made
    assert made <= set(OPERATORS)
