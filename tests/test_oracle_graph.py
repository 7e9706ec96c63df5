"""The graph oracle: ONNX's own node cases, and graphs that write attention in the ways exporters do."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle import program
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError

FP32, FP64 = PROFILES["fp32"], PROFILES["fp64"]


DECOMPOSED = """
<ir_version: 10, opset_import: ["": 18]>
g (float[b, l, 8] q, float[b, l, 8] k, float[b, l, 6] v, bool[b, l, l] m) => (float[b, l, 6] y)
<float hidden = {HIDDEN}, float zero = {0}, float scale = {0.35}> {
  kt = Transpose <perm = [0, 2, 1]> (k)
  s = MatMul (q, kt)
  scaled = Mul (s, scale)
  bias = Where (m, zero, hidden)
  masked = Add (scaled, bias)
  p = Softmax <axis = -1> (masked)
  nan = IsNaN (p)
  w = Where (nan, zero, p)
  y = MatMul (w, v)
}
"""


def masked_inputs(empty_row=False):
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((2, 5, 8)).astype(np.float32) for _ in range(2))
    mask = np.tril(np.ones((2, 5, 5), bool))
    if empty_row:
        mask[:, 3] = False
    return {"q": q, "k": k, "v": rng.standard_normal((2, 5, 6)).astype(np.float32), "m": mask}


@pytest.mark.parametrize("hidden", ["-inf", "-3.4028235e38"])
def test_attention_in_several_nodes_is_bounded_as_one(hidden):
    oracle = GraphOracle(onnx.parser.parse_model(DECOMPOSED.replace("HIDDEN", hidden)))
    evaluation = oracle.evaluate(masked_inputs(), FP32)
    (seen,) = evaluation.attentions
    assert (seen.weights, seen.output_name) == ("w", "y")
    assert seen.facts.masked.sum() == 2 * 10
    assert evaluation.outputs["y"].error.max() < 1e-5  # finite: the hidden logits' error did not leak


@pytest.mark.parametrize(
    ("hidden", "policy", "expected"),
    [
        ("-inf", "unknown", "zero"),  # NaN, guarded by Where(IsNaN)
        (
            "-3.4028235e38",
            "unknown",
            "mean",
        ),  # all logits equal: the guard sees no NaN (microsoft/onnxscript#2654)
        ("-3.4028235e38", "zero", "zero"),  # the declared policy, whatever the graph does
        ("-inf", "mean", "mean"),
        ("-3.4028235e38", "nan", "nan"),  # the guard must not undo what the contract declares
        ("-inf", "nan", "nan"),
    ],
)
def test_empty_rows_follow_the_declared_policy_else_the_graph(hidden, policy, expected):
    oracle = GraphOracle(onnx.parser.parse_model(DECOMPOSED.replace("HIDDEN", hidden)), empty_rows=policy)
    inputs = masked_inputs(empty_row=True)
    row = oracle.evaluate(inputs, FP32).outputs["y"].value[:, 3]
    mean = inputs["v"].astype(float).mean(-2)
    rows = {"zero": 0 * mean, "mean": mean, "nan": np.nan * mean}
    np.testing.assert_allclose(row, rows[expected], atol=2.0**-50)


def test_specification_constants_carry_the_rounding_of_being_stored():
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n] x) => (float[n] y) <double c = {0.1}> { y = Identity (c) }
    """)
    y = GraphOracle(model, stored_as=np.dtype(np.float32)).evaluate({"x": np.zeros(1)}, FP32).outputs["y"]
    assert y.value == 0.1
    assert y.error == abs(float(np.float32(0.1)) - 0.1)


def test_unknown_operator_is_named_before_anything_runs():
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n] x) => (float[n] y) { a = Det (x) y = HannWindow (a) }
    """)
    assert GraphOracle(model).unsupported() == ("Det", "HannWindow")
    with pytest.raises(UnsupportedOperatorError, match="does not have the operator Det"):
        GraphOracle(model).evaluate({"x": np.zeros(1, np.float32)}, FP32)


def test_comparison_that_rounding_decides_is_refused():
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n] x, float[n] z) => (bool[n] y) { a = Add (x, z) y = Less (a, x) }
    """)
    with pytest.raises(UnsupportedOperatorError, match="equal within their rounding errors"):
        GraphOracle(model).evaluate({"x": np.ones(1, np.float32), "z": np.zeros(1, np.float32)}, FP32)


@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_follows_its_own_opset(opset):
    """K7: before opset 13 the whole block from axis 1 on sums to 1, since then the last axis does."""
    model = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["": {opset}]>
    g (float[2, 3, 4] x) => (float[2, 3, 4] y) {{ y = Softmax (x) }}
    """)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    y = GraphOracle(model).evaluate({"x": x}, FP64).outputs["y"].value
    sums = y.sum((1, 2)) if opset == 11 else y.sum(-1)
    np.testing.assert_allclose(sums, np.ones_like(sums), rtol=2.0**-50)


@pytest.mark.parametrize("fault", [NameError, ImportError])
def test_a_fault_of_the_oracle_itself_is_no_operator_that_it_lacks(monkeypatch, fault):
    def broken(node, inputs, arithmetic):
        raise fault("of ours")

    monkeypatch.setattr(program, "OPERATORS", {"Relu": broken})
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]))
    with pytest.raises(fault, match="of ours"):
        GraphOracle(model).evaluate({"x": np.ones(2, np.float32)}, FP32)
