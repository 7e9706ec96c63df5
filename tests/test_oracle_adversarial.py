"""Inputs made to break the oracle: each is a false alarm or a silent pass that was found once."""

from __future__ import annotations

import attention_arrays as arrays
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from onnx_attest.verify.api import verify
from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.gates import judge
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.attention import attention, softmax, weighted_sum
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.softmax import find, measure

FP32 = PROFILES["fp32"]


def graph(text: str, opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')


def worst_on_ort(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> float:
    """Return the largest error over its bound that ORT has on a graph, optimised or not."""
    evaluation = GraphOracle(model).evaluate(inputs, FP32)
    worst = 0.0
    for level in (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    ):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [output.name for output in session.get_outputs()]
        actual = dict(zip(names, session.run(names, inputs), strict=True))
        found = judge(actual, evaluation.outputs, {name: array.dtype for name, array in actual.items()})
        assert not found.findings or found.max_err_over_tau is not None, found.findings
        worst = max(worst, found.max_err_over_tau)
    return worst


def test_logits_so_uncertain_that_an_underflowing_key_may_win():
    """q.k cancels to -8e11 +- 3e5: exp underflows in float64, and the bound must not take that for 0."""
    q = np.array([[[1055768, 1151884]]], np.float32)
    k = np.array([[[0, 0], [1905997, -1746956]]], np.float32)
    v = np.array([[[0], [1]]], np.float32)
    output, weights = attention(exact(q), exact(k), exact(v), FP32, scale=2**-0.5)
    for implementation in arrays.CORRECT.values():
        assert (np.abs(implementation(q, k, v) - output.value) <= output.error).all()
    assert (np.abs(1.0 - weights.value[..., 1]) <= weights.error[..., 1]).all()


def test_errors_of_the_values_are_weighted_by_the_weights_that_a_runtime_has():
    """A value with an error behind a key whose weight may be 1.6 times the exact one."""
    logits = Bounded(np.zeros((1, 2)), np.array([[0.0, 1.0]]))
    values = Bounded(np.zeros((2, 1)), np.array([[0.0], [1.0]]))
    output = weighted_sum(softmax(logits, FP32), values, FP32)
    largest_weight = np.e / (1 + np.e)
    assert output.error[0, 0] >= largest_weight


@pytest.mark.parametrize("keys", [7, 100, 1000])
def test_empty_row_under_a_finite_mask_is_summed_whole(keys):
    model = graph("""g (float[n] l, float[n, 1] v) => (float[1, 1] y)
    <float lowest = {-3.4028235e38}, int64[2] row = {1, -1}> {
      a = Add (l, lowest)  b = Reshape (a, row)  p = Softmax <axis = -1> (b)  y = MatMul (p, v)
    }""")
    inputs = {"l": np.linspace(-1, 1, keys, dtype=np.float32), "v": np.full((keys, 1), 0.7, np.float32)}
    assert worst_on_ort(model, inputs) <= 1


def test_declared_mean_is_rounded_too():
    model = graph("""g (float[n] l, float[n, 1] v) => (float[1, 1] y, float[1, n] p)
    <float lowest = {-3.4028235e38}, int64[2] row = {1, -1}> {
      a = Add (l, lowest)  b = Reshape (a, row)  p = Softmax <axis = -1> (b)  y = MatMul (p, v)
    }""")
    inputs = {"l": np.zeros(7, np.float32), "v": np.full((7, 1), 0.7, np.float32)}
    mean = GraphOracle(model, empty_rows="mean").evaluate(inputs, FP32).outputs
    assert abs(float(np.float32(1) / np.float32(7)) - mean["p"].value[0, 0]) <= mean["p"].error[0, 0]


@pytest.mark.parametrize("size", [1e-42, 1e-40, 1e-38])
@pytest.mark.parametrize("implementation", arrays.CORRECT)
def test_denormal_values(size, implementation):
    q, k, v = arrays.inputs(queries=3, keys=1031)
    v = (v * np.float32(size)).astype(np.float32)
    output, _ = attention(exact(q), exact(k), exact(v), FP32, scale=q.shape[-1] ** -0.5)
    assert (np.abs(arrays.CORRECT[implementation](q, k, v) - output.value) <= output.error).all()


@pytest.mark.parametrize(("source", "expected"), [(0.1, np.float32(0.1)), (16777217.0, np.float32(16777216))])
def test_cast_to_a_shorter_format_rounds(source, expected):
    model = graph("g (double[1] x) => (float[1] y) { y = Cast <to = 1> (x) }")
    y = GraphOracle(model).evaluate({"x": np.array([source])}, FP32).outputs["y"]
    np.testing.assert_array_equal(y.value, float(expected))


def test_both_names_of_the_standard_domain_are_one():
    model = graph("g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax (x) }")
    model.opset_import[0].domain = "ai.onnx"
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    sums = GraphOracle(model).evaluate({"x": x}, FP32).outputs["y"].value.sum(-1)
    np.testing.assert_allclose(sums, 1, rtol=2.0**-50)


CANCELS = "a = Add (x, w)  b = Sub (a, x)  c = Sub (b, w)"  # exactly zero, with an error


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("y = Div (x, c)", "divides by a number that is zero"),
        ("y = Sqrt (c)", "negative within its rounding error"),
    ],
)
def test_what_rounding_decides_is_refused(last, message):
    model = graph(f"g (float[1] x, float[1] w) => (float[1] y) {{ {CANCELS} {last} }}")
    with pytest.raises(UnsupportedOperatorError, match=message):
        GraphOracle(model).evaluate({"x": np.full(1, 1e4, np.float32), "w": np.ones(1, np.float32)}, FP32)


def test_exact_zeros_may_divide_and_have_roots():
    zero = exact(np.zeros(1))
    assert bounded.root(zero, FP32).value == 0
    assert np.isinf(bounded.divide(exact(np.ones(1)), zero, FP32).value)


WRITTEN_OUT = """g (float[2, n] l, bool[2, n] m) => (float[2, n] y)
<float lowest = {-3.4028235e38}, float zero = {0}, int64[1] last = {-1}> {
  bias = Where (m, zero, lowest)  s = Add (l, bias)  top = ReduceMax (s, last)  d = Sub (s, top)
  e = Exp (d)  t = ReduceSum (e, last)  y = Div (e, t)
}"""


def test_softmax_written_out_under_a_finite_mask_is_bounded():
    """0 * inf in the error of a masked exponential was NaN, and a NaN bound let everything pass."""
    inputs = {
        "l": np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32),
        "m": np.array([[1, 1, 1, 0, 0], [1, 1, 0, 1, 1]], bool),
    }
    outputs = GraphOracle(graph(WRITTEN_OUT)).evaluate(inputs, FP32).outputs
    assert np.isfinite(outputs["y"].error).all()
    assert outputs["y"].error.max() < 1e-5
    wrong = np.full((2, 5), 12345.0, np.float32)
    assert not judge({"y": wrong}, outputs, {"y": wrong.dtype}).passed


def test_normalisation_of_equal_numbers_is_inconclusive_not_passed(tmp_path):
    model = graph("""g (float[n, 4] x, float[n, 4] w) => (float[n, 4] y) <float[4] s = {1, 1, 1, 1}> {
      a = Add (x, w)  y = LayerNormalization <epsilon = 1e-30> (a, s)
    }""")
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    ones = {"x": np.ones((2, 4), np.float32), "w": np.ones((2, 4), np.float32)}
    report = verify(path, runtimes=["ort-cpu"], inputs=ones)
    assert report.verdict == "inconclusive"
    assert (
        report.cells[0].reason
        == "8 elements have no bound in this case, even node by node: LayerNormalization_1 (LayerNormalization)"
    )


def test_nan_is_never_excused_by_a_bound_that_reaches_infinity():
    near = Bounded(np.array([3.4028e38]), np.array([1e35]))
    float32 = {"y": np.dtype(np.float32)}
    for value, passes in ((np.inf, True), (3.4028e38, True), (np.nan, False), (-np.inf, False)):
        assert judge({"y": np.array([value], np.float32)}, {"y": near}, float32).passed is passes


def test_integers_are_compared_as_integers():
    expected, dtypes = {"y": Bounded(np.array([2**53]))}, {"y": np.dtype(np.int64)}
    assert not judge({"y": np.array([2**53 + 1])}, expected, dtypes).passed


def test_softmax_of_a_vector_times_a_matrix():
    model = graph("g (float[n] x, float[n, 3] v) => (float[3] y) { p = Softmax (x)  y = MatMul (p, v) }")
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal(5).astype(np.float32),
        "v": rng.standard_normal((5, 3)).astype(np.float32),
    }
    assert worst_on_ort(model, inputs) <= 1


def test_clamp_on_a_thousand_masked_keys_of_one_row_is_no_leak():
    logits = np.full((1, 1001), -np.inf)
    logits[0, 0] = 0
    output = weighted_sum(softmax(Bounded(logits), FP32), exact(np.ones((1001, 1))), FP32)
    weights = np.full((1, 1001), 4.2e-39, np.float32)
    weights[0, 0] = 1
    from onnx_attest.verify.oracle.program import AttentionSeen

    assert find(measure(weights, AttentionSeen("n", "y", "w", output.attended), FP32)) == []


@pytest.mark.parametrize("axes", [3, 4])
def test_attention_operator_with_grouped_heads_and_a_cache_can_be_looked_at(axes):
    heads = "<q_num_heads = 4, kv_num_heads = 2>" if axes == 3 else ""
    q, k = (
        ("float[b, l, 32] q", "float[b, s, 16] k")
        if axes == 3
        else ("float[b, 4, l, 8] q", "float[b, 2, s, 8] k")
    )
    y = "float[b, l, 32] y" if axes == 3 else "float[b, 4, l, 8] y"
    model = graph(f"g ({q}, {k}, {k[:-1]}v) => ({y}) {{ y = Attention {heads} (q, k, v) }}", opset=24)
    rng = np.random.default_rng(0)
    shapes = ((2, 5, 32), (2, 7, 16)) if axes == 3 else ((2, 4, 5, 8), (2, 2, 7, 8))
    arrays_ = {
        "q": rng.standard_normal(shapes[0]),
        "k": rng.standard_normal(shapes[1]),
        "v": rng.standard_normal(shapes[1]),
    }
    inputs = {name: array.astype(np.float32) for name, array in arrays_.items()}
    (seen,) = GraphOracle(model).evaluate(inputs, FP32).attentions
    assert seen.facts.weights.shape == (2, 4, 5, 7)
    assert find(measure(seen.facts.weights.astype(np.float32), seen, FP32)) == []
    assert worst_on_ort(model, inputs) <= 1


def test_declared_policy_holds_inside_the_attention_operator():
    model = graph(
        """g (float[1, 1, l, 4] q, float[1, 1, l, 4] k, float[1, 1, l, 3] v, bool[l, l] m)
    => (float[1, 1, l, 3] y) { y = Attention (q, k, v, m) }""",
        opset=24,
    )
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal((1, 1, 5, 4 if name != "v" else 3)).astype(np.float32) for name in "qkv"
    }
    mask = np.ones((5, 5), bool)
    mask[2] = False
    rows = {
        policy: GraphOracle(model, empty_rows=policy)
        .evaluate({**inputs, "m": mask}, FP32)
        .outputs["y"]
        .value[0, 0, 2]
        for policy in ("nan", "zero", "mean", "unknown")
    }
    assert np.isnan(rows["nan"]).all()
    assert (rows["zero"] == 0).all()
    np.testing.assert_allclose(rows["mean"], inputs["v"][0, 0].astype(float).mean(0))
    np.testing.assert_array_equal(rows["unknown"], rows["zero"])  # what the standard says


def test_where_with_a_broadcast_branch_keeps_errors_of_the_right_shape():
    model = graph("""g (float[2, 4] x, float[2, 4] w, bool[2, 1] m) => (float[2, 2] y)
    <float zero = {0}> { a = Add (x, w)  b = Where (m, zero, a)  t = Transpose (b)  y = MatMul (b, t) }""")
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((2, 4)).astype(np.float32) for name in "xw"}
    assert worst_on_ort(model, {**inputs, "m": np.array([[True], [False]])}) <= 1


def test_a_huge_mask_absorbs_the_score_in_every_format():
    """-3.4e38 + x is -3.4e38: a row masked like that has equal logits, and its weights are 1/n."""
    lowest = exact(np.full((1, 4), np.finfo(np.float32).min, np.float32))
    scores = Bounded(np.array([[3.0, -2.0, 40.0, 0.1]]), np.full((1, 4), 1e-3))
    masked = bounded.add(scores, lowest, FP32)
    assert not np.any(masked.errors())
    weights = softmax(masked, FP32)
    assert np.all(np.abs(weights.value - 0.25) == 0)
    assert np.all(weights.errors() < 1e-5)
    # A mask that not every format absorbs keeps its error.
    assert np.all(bounded.add(scores, exact(np.full((1, 4), -1e4)), FP32).errors() >= 1e-3)


def test_what_is_exactly_zero_stays_so():
    nothing = bounded.exponential(exact(np.full((2, 3), -np.inf)), FP32)
    assert not np.any(nothing.errors())
    assert not np.any(bounded.total(nothing, (1,), keepdims=True, arithmetic=FP32).errors())
    cast = GraphOracle(graph("g (float[n] x) => (float16[n] y) { e = Exp (x)  y = Cast <to = 10> (e) }"))
    y = cast.evaluate({"x": np.array([-np.inf, 0.5], np.float32)}).outputs["y"]
    assert y.error is not None
    assert y.error[0] == 0
    assert y.error[1] > 0


def test_layer_normalization_in_steps_of_float16_is_within_its_bound():
    """NumPy keeps the sum, the mean, the squares and the variance in float16; the first bound counted none of them."""
    model = graph(
        "g (float16[n, 45] x, float16[45] w, float16[45] b) => (float16[n, 45] y) "
        "{ y = LayerNormalization <axis = -1> (x, w, b) }"
    )
    evaluator, oracle, rng = ReferenceEvaluator(model), GraphOracle(model), np.random.default_rng(0)
    for offset in (0.0, 0.5, 3.0, 10.0):
        x = (rng.standard_normal((2000, 45)) + offset).astype(np.float16)
        inputs = {"x": x, "w": np.ones(45, np.float16), "b": np.zeros(45, np.float16)}
        bounded_y = oracle.evaluate(inputs, PROFILES["fp16-steps"]).outputs["y"]
        assert judge(
            {"y": evaluator.run(None, inputs)[0]}, {"y": bounded_y}, {"y": np.dtype(np.float16)}
        ).passed


def test_an_operator_may_scale_queries_and_keys_before_their_product():
    """Then the scale rounds each of them: s|q||K| counts, not the product, which may cancel."""
    q = exact(np.array([[[100.0, 100.0]]]))
    k = exact(np.array([[[1.0, -1.0], [0.5, -0.25]]]))
    v = exact(np.array([[[1.0], [-1.0]]]))
    _, weights = attention(q, k, v, PROFILES["fp16-steps"], scale=1.0)
    assert weights.softmax is not None
    assert np.all(weights.softmax.theta > 4 * 2.0**-11 * 100)
