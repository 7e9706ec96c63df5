"""From the file to the verdict: a scale that is off, and an arithmetic other than the declared one, by name and size."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from onnx_attest.export import export_entry
from onnx_attest.export.artifact import digest
from onnx_attest.models import resolve
from onnx_attest.verify import verify
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.power.mutants import mutants
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.signature import read_signature


@pytest.fixture
def mutated(exported, tmp_path):
    """Return an artifact whose file has one fault, by the fault's class and size."""

    def make(stem, fault, size=None):
        artifact = exported[stem]
        model = read_signature(artifact).model
        mutant = next(one for one in mutants(model) if one.fault == fault and size in (None, one.size))
        path = tmp_path / artifact.path.name
        path.write_bytes(mutant.model.SerializeToString())
        return replace(artifact, path=path, sha256=digest(path.read_bytes()))

    return make


def ran(report):
    return [cell for cell in report.cells if cell.runtime == "ort-cpu" and "noise" in cell.gates]


@pytest.mark.parametrize("error", [1e-6, 1e-5])
def test_a_scale_error_in_the_file_is_told_as_one_with_its_size(mutated, error):
    report = verify(mutated("sdpa-decomposed-18", "scale", error), runtimes=["ort-cpu"])
    found = [item for item in report.findings if item.code == "OA311" and item.runtime == "ort-cpu"]
    assert [item.message.partition(" were")[0] for item in found] == ["off as if all logits"]
    size = float(re.search(r"times 1 (\S+)", found[0].message)[1])
    assert size == pytest.approx(error, rel=0.2)
    assert report.verdict == "failed"


def test_tf32_fails_under_fp32_and_is_named(mutated):
    report = verify(mutated("sdpa-decomposed-18", "products-tf32"), runtimes=["ort-cpu"])
    cells = ran(report)
    assert {cell.verdict for cell in cells} == {"failed"}
    assert {cell.ran_as for cell in cells if cell.case.name != "integers"} == {"tf32"}
    told = next(item for item in report.findings if item.code in ("OA301", "OA310"))
    assert "as tf32 it would be right" in told.message


def test_tf32_passes_where_it_is_declared(mutated):
    plan = Plan(runtimes=select(("ort-cpu",)), arithmetic="tf32")
    report = verify(mutated("sdpa-decomposed-18", "products-tf32"), plan=plan)
    assert {cell.verdict for cell in report.cells if cell.runtime == "ort-cpu"} == {"passed"}


def test_a_float16_graph_computed_in_fp32_is_told(tmp_path):
    (artifact,) = export_entry(resolve("sdpa"), tmp_path, dtype="float16")
    report = verify(artifact, runtimes=["ort-cpu"])
    assert {cell.ran_as for cell in ran(report)} == {"fp32"}
    (told,) = (item for item in report.findings if item.code == "OA312")
    assert "declared fp16-unfused, it computes as fp32" in told.message
    assert report.verdict == "passed"


@pytest.mark.parametrize("error", [1e-3, 1e-2])
def test_a_scale_error_is_not_taken_for_another_arithmetic(mutated, error):
    """The bound of TF32 covers it as well; but its direction says that it is no rounding."""
    report = verify(mutated("sdpa-decomposed-18", "scale", error), runtimes=["ort-cpu"])
    told = [cell for cell in ran(report) if "OA311" in cell.findings]
    assert told
    assert {cell.ran_as for cell in told} == {None}
    assert not any("it would be right" in cell.reason for cell in told)


def test_a_file_against_its_module_needs_no_torch_runtime(mutated):
    artifact = mutated("mha-attention-23", "scale", 1e-2)
    report = verify(artifact, runtimes=["ort-cpu"], against=resolve("mha"))
    # With a single key the scale does not matter.
    assert "failed" in {cell.verdict for cell in report.cells if cell.runtime == "exporter"}
    assert report.verdict == "failed"
