"""Inputs made from a graph alone: what its integers index, which inputs hide keys, which sizes it takes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify import verify
from onnx_attest.verify.cases import make_inputs, plan_cases
from onnx_attest.verify.signature import read_signature

EMBEDDING = (
    """g (int64[b, n] ids, int64[b, n] places, int64[b, n] mask) => (float[b, n, 4] y)
<float[11, 4] words = {"""
    + ",".join(["0"] * 44)
    + """}, float[7, 4] table = {"""
    + ",".join(["0"] * 28)
    + """}, int64 two = {2}> {
  w = Gather (words, ids)  shifted = Add (places, two)  p = Gather (table, shifted)  x = Add (w, p)
  t = Transpose <perm = [0, 2, 1]> (x)  scores = MatMul (x, t)
  given = Cast <to = 1> (mask)  one = Constant <value_float = 1.0> ()  hidden = Sub (one, given)
  lowest = Constant <value_float = -10000.0> ()  added_0 = Mul (hidden, lowest)
  axis = Constant <value_ints = [1]> ()  added = Unsqueeze (added_0, axis)
  masked = Add (scores, added)  weights = Softmax <axis = -1> (masked)  y = MatMul (weights, x)
}"""
)


def saved(text: str, tmp_path):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}')
    rng = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2:
            array = rng.standard_normal(tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture
def embedding(tmp_path):
    return saved(EMBEDDING, tmp_path)


def test_integers_stay_within_the_table_they_index(embedding):
    contract = read_signature(read_artifact(embedding)).contract
    below = {spec.name: spec.below for spec in contract.inputs}
    assert (below["ids"], below["places"]) == (11, 5)  # seven rows, and two are added first
    for case in plan_cases(contract):
        inputs = make_inputs(contract, case)
        assert inputs["ids"].max() < 11
        assert inputs["places"].max() < 5


def test_a_mask_is_recognised_by_where_it_goes(embedding):
    contract = read_signature(read_artifact(embedding)).contract
    masks = [spec for spec in contract.inputs if spec.role == "mask"]
    assert [spec.name for spec in masks] == ["mask"]
    assert masks[0].masks == ("all", "padding", "left-padding", "holes")


def test_what_is_made_of_it_is_verified_as_it_stands(embedding):
    report = verify(embedding, runtimes=["ort-cpu"])
    assert report.verdict == "passed"
    assert {cell.case.mask for cell in report.cells} == {"all", "padding", "left-padding", "holes"}


def test_sizes_are_multiples_that_the_file_takes(tmp_path):
    text = """g (float[b, 2, h, w] x) => (float[b, 2, k, l] y) <int64[6] s = {0, 2, -1, 8, 0, 8}> {
      halves = Constant <value_ints = [1, 2, -1, 8]> ()
      t = Reshape (x, halves)  y = Relu (t) }"""
    signature = read_signature(read_artifact(saved(text, tmp_path)))
    assert signature.in_multiples_of(8).contract.traced["h"] == 8 * signature.contract.traced["h"]
    sizes = [case.axes for case in plan_cases(signature.in_multiples_of(8).contract)]
    assert all(axes["h"] % 8 == axes["w"] % 8 == 0 for axes in sizes)
    assert signature.contract.is_batch("b")


def test_unnamed_axes_of_integers_are_the_same_tokens(tmp_path):
    text = "g (int64[?, ?] ids, int64[?, ?] more) => (int64[?, ?] y) { y = Add (ids, more) }"
    contract = read_signature(read_artifact(saved(text, tmp_path))).contract
    assert contract.inputs[0].axes == contract.inputs[1].axes


@pytest.mark.parametrize(
    ("graph", "numbers"),
    [
        ("g (int64[n] x) => (int64[n] y) { c = Constant <value_int = 3> ()  y = Mod (x, c) }", (-100, 101)),
        ("g (uint8[n] x) => (float[n] y) { y = Cast <to = 1> (x) }", (0, 256)),
        ("g (int64[n] x) => (int64[n] y) { c = Constant <value_int = 3> ()  y = Div (c, x) }", (1, 17)),
        ("g (int64[n, 4] x, int64[k] i) => (int64[k, 4] y) { y = Gather (x, i) }", (-100, 101)),
        ("g (int64[2] x, float[n] d) => (float[a, b] y) { y = Reshape (d, x) }", (0, None)),
        ("g (int64[n] x_mask, float[n] d) => (float[n] y) { f = Cast <to = 1> (x_mask)  y = Mul (f, d) }", (0, None)),
        ("""g (int64 x, float[4] d) => (float[4] y) { c = Constant <value = bool {1}> ()  y = Loop (x, c, d)
         <body = b (int64 i, bool k, float[4] s) => (bool o, float[4] t) { o = Identity (k)  t = Tanh (s) }> }""", (0, None)),
        ("""g (bool[1] k, int64[1] x, float[4] d) => (float[4] y) { y = If (k) <then_branch = t () => (float[a] o)
         { o = Gather (d, x) }, else_branch = e () => (float[a] o) { o = Gather (d, x) }> }""", (0, None)),
    ],
)  # fmt: skip
def test_integers_that_are_only_computed_with_may_be_anything(tmp_path, graph, numbers):
    """Zeros and ones alone would not show that x mod 3 is not x, nor that an image is cut off above 1."""
    contract = read_signature(read_artifact(saved(graph, tmp_path))).contract
    spec = next(spec for spec in contract.inputs if spec.name in ("x", "x_mask"))
    assert (spec.least, spec.below) == numbers


def test_another_function_of_integers_is_found(tmp_path):
    original, changed = (
        saved(f"g (int64[n] x) => (int64[n] y) {{ c = Constant <value_int = {k}> ()  y = Mod (x, c) }}", folder)
        for k, folder in ((3, tmp_path), (4, tmp_path / "changed"))
    )  # fmt: skip
    assert verify(changed, runtimes=["ort-cpu"], against=original).verdict == "failed"
