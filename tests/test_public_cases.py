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
