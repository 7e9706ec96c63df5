"""Faults from public reports, as small inputs: what each does today, and what the verifier says of it."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onnx_attest.export import export
from onnx_attest.models import Contract, Entry, TensorSpec
from onnx_attest.verify.api import verify
from onnx_attest.verify.static.rules import static_findings

RUNTIMES = ("torch", "ort-cpu", "onnx-reference")


class Sdpa(nn.Module):
    """scaled_dot_product_attention with a mask, nothing else."""

    def forward(self, q, k, v, mask):
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def sdpa_contract(mask_dtype: str) -> Contract:
    return Contract(
        inputs=(
            TensorSpec("q", ("batch", 2, "l", 8), role="query"),
            TensorSpec("k", ("batch", 2, "l", 8), role="key"),
            TensorSpec("v", ("batch", 2, "l", 6), role="value"),
            TensorSpec("mask", ("batch", 1, "l", "l"), mask_dtype, "mask", ("all", "empty-row")),
        ),
        outputs=(TensorSpec("y", ("batch", 2, "l", 6), role="output"),),
        traced={"batch": 3, "l": 7},
        empty_rows="zero",
    )


@pytest.mark.pinned
@pytest.mark.parametrize(
    ("dtype", "today"), [("bool", "the mean of V"), ("float", "NaN")], ids=["K1-bool-mask", "K2-float-mask"]
)
def test_k1_k2_empty_row_is_the_exporters_fault_although_all_runtimes_agree(tmp_path, dtype, today):
    """microsoft/onnxscript#2654, pytorch/pytorch#103749: torch gives 0."""
    shapes = ((3, 2, 7, 8), (3, 2, 7, 8), (3, 2, 7, 6))
    mask = torch.ones(3, 1, 7, 7, dtype=torch.bool) if dtype == "bool" else torch.zeros(3, 1, 7, 7)
    args = (*(torch.randn(shape) for shape in shapes), mask)
    artifact = export(Sdpa().eval(), args, path=tmp_path / "a.onnx", contract=sdpa_contract(dtype))
    report = verify(artifact, runtimes=RUNTIMES, input_shapes={"q": (3, 2, 9, 8)})
    verdicts = {(cell.runtime, cell.case.mask): cell.verdict for cell in report.cells}
    assert {verdicts[name, "all"] for name in RUNTIMES} == {"passed"}
    assert [verdicts[name, "empty-row"] for name in RUNTIMES] == ["passed", "failed", "failed"]
    found = [item for item in report.findings if item.code == "OA305"]
    assert {item.blame for item in found} == {"exporter"}
    assert found[0].message == f"the row without any key, [0, 0, 4], is {today}; the contract declares 0"


class Normalised(nn.Module):
    """Weights of linear attention: not negative, divided by their sum and a little more, so that a row of zeros stays one."""

    def __init__(self, epsilon):
        super().__init__()
        self.epsilon = epsilon

    def forward(self, x):
        weights = torch.relu(x)
        return weights / (weights.sum(-1, keepdim=True) + self.epsilon)


@pytest.mark.pinned
@pytest.mark.parametrize(("epsilon", "verdict"), [(1e-9, "failed"), (1e-7, "passed")])
def test_an_epsilon_that_the_exporter_drops_is_its_fault(tmp_path, epsilon, verdict):
    """onnxscript takes x + c for x where c is within 1e-8 of 0: a row of zeros is 0/0 in the file."""
    module = Normalised(epsilon).eval()
    artifact = export(module, (torch.randn(7, 4),), path=tmp_path / "a.onnx", dynamic={"x": {0: "n"}})
    report = verify(artifact, runtimes=("torch", "ort-cpu"))
    assert report.verdict == verdict
    assert {item.blame for item in report.findings} == ({"exporter"} if verdict == "failed" else set())
    if verdict == "failed":
        assert any("NaN" in item.message for item in report.findings)


class Mha(nn.Module):
    """nn.MultiheadAttention as self-attention."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def test_k4_traced_length_that_is_baked_in(tmp_path):
    """pytorch/pytorch#120075: the legacy exporter, dynamic_axes for batch and length, traced at (2, 7)."""
    path = tmp_path / "mha.onnx"
    axes = {0: "batch", 1: "seq_len"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entry_module = Mha().eval()
        torch.onnx.export(
            entry_module, (torch.randn(2, 7, 12),), path, dynamo=False, opset_version=17,
            input_names=["x"], output_names=["y"], dynamic_axes={"x": axes, "y": axes},
        )  # fmt: skip
    tensor = TensorSpec("x", ("batch", "seq_len", 12), role="tokens")
    out = TensorSpec("y", ("batch", "seq_len", 12), role="output")
    entry = Entry("mha", "", Contract((tensor,), (out,), {"batch": 2, "seq_len": 7}), lambda: entry_module)
    report = verify(path, runtimes=["torch", "ort-cpu"], against=entry)
    by_case = {cell.case.name: cell.verdict for cell in report.cells if cell.runtime == "ort-cpu"}
    assert by_case["traced"] == "passed"
    assert by_case["batch+1"] == "passed"  # the batch alone: it is dynamic
    assert {by_case[name] for name in ("traced-1", "traced+1", "off-8", "long")} == {
        "errored"
    }  # the length is not
    raised = [item for item in report.findings if item.code == "OA304"]
    assert raised
    assert "Reshape" in raised[0].message
    assert "OA121" in {item.code for item in report.findings}  # known before anything runs
    assert report.run.exit_code == 1


SOFTCAP = """
<ir_version: 10, opset_import: ["": 24]>
g (float[1, 1, 2, 8] q, float[1, 1, 4, 8] k, float[1, 1, 4, 8] v, bool[2, 4] m) => (float[1, 1, 2, 8] y)
{ y = Attention <softcap = 2.0> (q, k, v, m) }
"""


def saved(tmp_path, text):
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.mark.pinned
def test_k9_softcap_before_the_mask_leaves_a_masked_key_no_weight(tmp_path):
    """onnx/onnx#7865, microsoft/onnxruntime#28379: key 3 masked, V[3] = 1e4."""
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal((1, 1, 2 if name == "q" else 4, 8)).astype(np.float32) for name in "qkv"
    }
    inputs["v"][..., 3, :] = 1e4
    inputs["m"] = np.array([[True, True, True, False]] * 2)
    report = verify(saved(tmp_path, SOFTCAP), runtimes=["ort-cpu", "onnx-reference"], inputs=inputs)
    assert {cell.runtime: cell.verdict for cell in report.cells} == {
        "ort-cpu": "passed",
        "onnx-reference": "passed",
    }
    leaks = {record.mask_leak for record in report.records if type(record).__name__ == "StabilityRecord"}
    assert leaks == {0.0}


CAUSAL = """
<ir_version: 10, opset_import: ["": 23]>
g (float[1, 2, 1, 8] q, float[1, 2, 4, 8] k, float[1, 2, 4, 8] v) => (float[1, 2, 1, 8] y)
{ y = Attention <is_causal = 1> (q, k, v) }
"""


@pytest.mark.pinned
def test_k10_causal_is_aligned_at_the_top_left_without_a_past(tmp_path):
    """microsoft/onnxruntime#29020: one query, four keys; top left, it sees the first key only."""
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal((1, 2, 1 if name == "q" else 4, 8)).astype(np.float32) for name in "qkv"
    }
    report = verify(saved(tmp_path, CAUSAL), runtimes=["ort-cpu", "onnx-reference"], inputs=inputs)
    assert {cell.verdict for cell in report.cells} == {"passed"}


def test_k15_logits_off_by_hundreds_are_a_failure_and_exit_1(tmp_path):
    """huggingface/optimum#1755: the peer says "export succeeded with the warning"."""

    class Linear(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = nn.Parameter(torch.full((12, 12), weight))

        def forward(self, x):
            return x @ self.weight

    tensor = TensorSpec("x", ("batch", "seq_len", 12), role="tokens")
    out = TensorSpec("y", ("batch", "seq_len", 12), role="output")
    contract = Contract((tensor,), (out,), {"batch": 2, "seq_len": 7})
    artifact = export(
        Linear(1.0).eval(), (torch.randn(2, 7, 12),), path=tmp_path / "a.onnx", contract=contract
    )
    entry = Entry("linear", "", contract, lambda: Linear(50.0).eval())
    report = verify(artifact.path, runtimes=["torch", "ort-cpu"], against=entry)
    assert (report.verdict, report.run.exit_code) == ("failed", 1)
    assert {item.blame for item in report.findings if item.code == "OA301"} == {"exporter"}


def parsed(text: str, tmp_path, name: str = "model.onnx", **opsets: int):
    """Return the path of a model written in ONNX's text form."""
    imports = ", ".join(f'"{domain}": {version}' for domain, version in opsets.items())
    model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]> {text}")
    onnx.save(model, tmp_path / name)
    return tmp_path / name


def test_k3_a_mask_of_one_row_is_found_before_anything_runs(tmp_path):
    """microsoft/onnxruntime#12149: the standard lets it broadcast, ONNX Runtime refuses it at run time."""
    text = """g (float[b, 2, l, 8] q, float[b, 2, l, 8] k, float[b, 2, l, 8] v, bool[b, 1, 1, l] mask)
      => (float[b, 2, l, 8] y) { y = Attention (q, k, v, mask) }"""
    model = onnx.load(parsed(text, tmp_path, **{"": 23}))
    (found,) = static_findings(model)
    assert (found.code, found.blame) == ("OA118", "exporter")
    wide = onnx.load(parsed(text.replace("[b, 1, 1, l]", "[b, 1, l, l]"), tmp_path, **{"": 23}))
    assert static_findings(wide) == []


def test_k7_softmax_of_opset_11_sums_over_the_whole_block(tmp_path):
    """apache/tvm#19420: without an axis it flattens from axis 1 on; the reference evaluator takes the last axis."""
    path = parsed("g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax (x) }", tmp_path, **{"": 11})
    report = verify(path, runtimes=("ort-cpu", "onnx-reference"))
    verdicts = {cell.runtime: cell.verdict for cell in report.cells}
    assert verdicts == {"ort-cpu": "passed", "onnx-reference": "failed"}


def test_k11_scores_are_shown_before_the_softcap(tmp_path):
    """microsoft/onnxruntime#26813: mode 0 shows the scaled products; the reference evaluator caps them first."""
    text = """g (float[b, 2, l, 8] q, float[b, 2, s, 8] k, float[b, 2, s, 8] v)
      => (float[b, 2, l, 8] y, float[b, 2, l, s] shown) {
        y, no_key, no_value, shown = Attention <softcap = 2.0, qk_matmul_output_mode = 0> (q, k, v) }"""
    report = verify(parsed(text, tmp_path, **{"": 24}), runtimes=("ort-cpu-noopt", "onnx-reference"))
    verdicts = {(cell.runtime, cell.verdict) for cell in report.cells}
    assert verdicts == {("ort-cpu-noopt", "passed"), ("onnx-reference", "failed")}
    assert {cell.worst_output for cell in report.cells if cell.verdict == "failed"} == {"shown"}


UNFUSED = """g (float[2, 6, 8] x, int64[2, 6] mask, float[8, 24] w, float[24] b) => (float[2, 6, 8] y) {
  qkv_0 = MatMul (x, w)  qkv = Add (qkv_0, b)
  q_0, k_0, v_0 = Split <axis = 2, num_outputs = 3> (qkv)
  heads = Constant <value_ints = [2, 6, 2, 4]> ()
  q_1 = Reshape (q_0, heads)  q = Transpose <perm = [0, 2, 1, 3]> (q_1)
  k_1 = Reshape (k_0, heads)  k = Transpose <perm = [0, 2, 3, 1]> (k_1)
  v_1 = Reshape (v_0, heads)  v = Transpose <perm = [0, 2, 1, 3]> (v_1)
  half = Constant <value_float = 0.5> ()
  products = MatMul (q, k)  scaled = Mul (products, half)
  axes = Constant <value_ints = [1, 2]> ()
  given = Cast <to = 1> (mask)  one = Constant <value_float = 1.0> ()  hidden = Sub (one, given)
  lowest = Constant <value_float = -10000.0> ()  added_0 = Mul (hidden, lowest)  added = Unsqueeze (added_0, axes)
  scores = Add (scaled, added)  p = Softmax <axis = -1> (scores)
  o = MatMul (p, v)  o_1 = Transpose <perm = [0, 2, 1, 3]> (o)
  back = Constant <value_ints = [2, 6, 8]> ()  y = Reshape (o_1, back)
}"""
FUSED = """g (float[2, 6, 8] x, int64[2, 6] mask, float[8, 24] w, float[24] b) => (float[2, 6, 8] y) {
  short = Cast <to = 6> (mask)  last = Constant <value_ints = [1]> ()
  lengths = ReduceSum <keepdims = 0> (short, last)
  y = com.microsoft.Attention <num_heads = 2> (x, w, b, lengths)
}"""


@pytest.mark.parametrize(
    ("mask", "verdict"), [([1, 1, 1, 1, 0, 0], "passed"), ([0, 1, 0, 1, 1, 0], "failed")],
    ids=["right padding", "holes"],
)  # fmt: skip
def test_k14_a_fusion_that_keeps_only_the_count_of_a_mask(tmp_path, mask, verdict):
    """microsoft/onnxruntime#18945: right for right padding; the graph it was made from says what else is wrong."""
    original = parsed(UNFUSED, tmp_path, "original.onnx", **{"": 18})
    fused = parsed(FUSED, tmp_path, "fused.onnx", **{"": 18, "com.microsoft": 1})
    rng = np.random.default_rng(14)
    inputs = {
        "x": rng.standard_normal((2, 6, 8)).astype(np.float32),
        "w": rng.standard_normal((8, 24)).astype(np.float32),
        "b": rng.standard_normal(24).astype(np.float32),
        "mask": np.array([mask, [1] * 6]),
    }
    report = verify(fused, against=original, runtimes=("ort-cpu",), inputs=inputs)
    assert report.verdict == verdict
    blamed = {item.blame for item in report.findings if item.severity == "error"}
    assert blamed == ({"fusion"} if verdict == "failed" else set())
    assert ("OA117" in {item.code for item in report.findings}) == (verdict == "failed")


@pytest.mark.pinned
@pytest.mark.parametrize(("runtime", "verdict"), [("ort-cpu", "failed"), ("onnx-reference", "passed")])
def test_logarithm_of_a_sum_that_onnx_runtime_does_not_shift_in_half(onnx_file, runtime, verdict):
    """ONNX Runtime 1.31.1, float16: exp(800) is infinite, and so is its logarithm; the right value is 801.4."""
    path = onnx_file(
        "g (float16[n, 4] x) => (float16[n, 1] y) <int64[1] a = {-1}> { y = ReduceLogSumExp <keepdims = 1> (x, a) }"
    )
    report = verify(path, runtimes=(runtime,), inputs={"x": np.full((3, 4), 800, np.float16)})
    assert report.verdict == verdict
    if verdict == "failed":
        assert report.cells[0].reason == "y[0, 0] has +inf, 3 such of 3; exact: 801.386"


@pytest.mark.pinned
@pytest.mark.parametrize(("runtime", "verdict"), [("ort-cpu", "failed"), ("ort-cpu-noopt", "passed")])
def test_quantised_softmax_of_one_key_that_is_zero(onnx_file, runtime, verdict):
    """ONNX Runtime 1.31.1 fuses a softmax between codes; where all weight is on one key, its code wraps round to 0."""
    path = onnx_file(
        "g (float[n, k] x) => (float[n, k] y) <float s = {0.05}, uint8 z = {128}, float t = {0.003921569}, uint8 o = {0}> {"
        " c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z) p = Softmax <axis = -1> (d)"
        " q = QuantizeLinear (p, t, o) y = DequantizeLinear (q, t, o) }"
    )
    report = verify(path, runtimes=(runtime,), inputs={"x": np.zeros((3, 1), np.float32)})
    assert report.verdict == verdict
    if verdict == "failed":
        assert "QLinearSoftmax" in " ".join(item.message for item in report.findings)
