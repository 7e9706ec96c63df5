"""The exporter check: quiet on clean exports, and a fault put into an export is told with its size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onnx_attest.export import export_entry
from onnx_attest.export.artifact import Artifact, digest, read_artifact
from onnx_attest.models import CATALOGUE, Contract, Entry, TensorSpec, resolve
from onnx_attest.verify import verify
from onnx_attest.verify.api import Report
from onnx_attest.verify.constants import Beside, Pair
from onnx_attest.verify.records import CellRecord

SHAPES = {"Q": (2, 7, 20), "K": (2, 7, 20), "V": (2, 7, 12), "mask": (2, 7, 7)}


def exporter_cells(report: Report) -> list[CellRecord]:
    return [cell for cell in report.cells if cell.runtime == "exporter"]


def checked(artifact: Artifact, shapes: dict[str, tuple[int, ...]] | None = None) -> Report:
    """Verify with the module alone: the exporter check needs no runtime."""
    return verify(artifact, runtimes=["torch"], input_shapes=shapes)


@pytest.mark.parametrize(
    "stem", ["sdpa-decomposed-18", "mha-attention-23", "causal-decomposed-18", "sdpa-naive-decomposed-18"]
)
def test_clean_exports_pass(exported, stem):
    cells = exporter_cells(checked(exported[stem]))
    assert len(cells) >= 15
    assert {cell.verdict for cell in cells} == {"passed"}


def test_a_scale_of_1_and_1e_9_put_into_an_export_is_told_with_its_size(tmp_path, monkeypatch):
    from onnx_attest.export import twin

    original = twin.lower

    def wrong(*arguments: object) -> onnx.ModelProto:
        return scaled(original(*arguments), 1 + 1e-9)

    monkeypatch.setattr(twin, "lower", wrong)
    (artifact,) = export_entry(resolve("self-attention"), tmp_path, variants=("decomposed",))
    report = checked(artifact)
    (found,) = (
        item
        for item in report.findings
        if item.code == "OA111" and item.runtime == "exporter" and not item.known
    )
    assert "exported in float64" in found.message
    assert "as if the constant" in found.message
    assert "were times 1 +1e-09" in found.message
    assert (found.blame, report.verdict) == ("exporter", "failed")


def scaled(model: onnx.ModelProto, factor: float) -> onnx.ModelProto:
    """Return the graph with what scales its scores off by a factor."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    values = {name: onnx.numpy_helper.to_array(tensor) for name, tensor in constants.items()}
    (scale,) = {
        name
        for node in model.graph.node if node.op_type == "Mul"
        for name in node.input
        if name in values and values[name].size == 1 and values[name].dtype.kind == "f"
    }  # fmt: skip
    constants[scale].CopyFrom(
        onnx.numpy_helper.from_array(values[scale] * values[scale].dtype.type(factor), scale)
    )
    return model


@pytest.fixture
def tampered(tmp_path: Path) -> Callable[..., Artifact]:
    """Return the export of a model whose file was changed after it."""

    def make(
        name: str, change: Callable[[onnx.ModelProto], onnx.ModelProto], dtype: str = "float32"
    ) -> Artifact:
        (artifact,) = export_entry(resolve(name), tmp_path, variants=("decomposed",), dtype=dtype)
        data = change(onnx.load(artifact.path)).SerializeToString()
        artifact.path.write_bytes(data)
        assert artifact.manifest is not None
        return replace(artifact, sha256=digest(data))

    return make


@pytest.mark.slow
def test_the_same_in_the_file_itself_if_it_is_float64(tampered):
    report = checked(tampered("self-attention", lambda model: scaled(model, 1 + 1e-9), "float64"))
    message = next(item.message for item in report.findings if item.code == "OA111" and not item.known)
    assert "exported in float64" not in message
    assert "times 1 +1e-09" in message


def test_a_constant_that_is_not_the_modules_is_named_with_its_node(tampered):
    report = checked(tampered("self-attention", lambda model: scaled(model, 1 + 1e-6)))
    (found,) = (item for item in report.findings if item.code == "OA112")
    assert float(found.message.rpartition("times 1 ")[2]) == pytest.approx(1e-6, abs=2**-23)
    assert found.node.startswith("node_Mul")
    assert found.blame == "exporter"
    assert report.verdict == "failed"


def test_an_extra_node_is_told_though_no_constant_differs(tampered):
    def twice(model: onnx.ModelProto) -> onnx.ModelProto:
        last = model.graph.node[-1]
        name = last.output[0]
        last.output[0] = "before"
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1 + 2**-10), "gain"))
        model.graph.node.append(onnx.helper.make_node("Mul", ["before", "gain"], [name]))
        return model

    report = checked(tampered("mha", twice))
    (found,) = (item for item in report.findings if item.code == "OA111" and not item.known)
    assert "as if the constant gain (1.00098) were times 1 +0.00098" in found.message


@pytest.mark.pinned
def test_the_file_of_another_module_fails_the_exporter_and_no_runtime_is_blamed(exported, tmp_path):
    def other() -> torch.nn.Module:
        torch.manual_seed(1)
        return resolve("mha").build()

    mine = replace(resolve("mha"), build=other)
    path = tmp_path / "model.onnx"
    path.write_bytes(exported["mha-attention-23"].path.read_bytes())
    report = verify(path, against=mine, runtimes=["torch", "onnx-reference"])
    assert {cell.verdict for cell in exporter_cells(report)} == {"failed"}
    assert {item.blame for item in report.findings if item.code.startswith(("OA1", "OA3"))} == {"exporter"}


@pytest.mark.slow
def test_what_a_module_computes_in_float32_on_purpose_is_no_fault(tmp_path):
    for artifact in export_entry(resolve("rotary"), tmp_path, variants=("attention",), opset=23):
        assert isinstance(artifact, Artifact)
        assert {cell.verdict for cell in exporter_cells(checked(artifact))} == {"passed"}


@pytest.mark.slow
def test_a_file_of_the_older_exporter_is_held_against_the_module_too(tmp_path):
    entry = resolve("mha")
    module, path = entry.build(), tmp_path / "older.onnx"
    names = ["X", "mask"]
    axes = {
        "X": {0: "batch", 1: "seq_len"},
        "mask": {0: "batch", 1: "seq_len", 2: "seq_len"},
        "output": {0: "batch", 1: "seq_len"},
    }
    example = (torch.randn(2, 7, 45), torch.ones(2, 7, 7, dtype=torch.bool))
    torch.onnx.export(
        module,
        example,
        str(path),
        dynamo=False,
        opset_version=18,
        input_names=names,
        output_names=["output"],
        dynamic_axes=axes,
    )
    same = replace(entry, build=lambda: module)
    report = verify(path, against=same, runtimes=["torch"])
    failed = {cell.case.mask for cell in exporter_cells(report) if cell.verdict != "passed" and cell.case}
    assert failed <= {"empty-row"}


def single() -> torch.nn.Module:
    class Single(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.eye(3, dtype=torch.float32)

    return Single().eval()


def test_a_module_that_does_not_run_in_float64_is_a_note(tmp_path):
    contract = Contract(
        (TensorSpec("x", ("batch", 3)),), (TensorSpec("y", ("batch", 3), role="output"),), {"batch": 2}
    )
    (artifact,) = export_entry(Entry("single", "x @ I", contract, single, ("decomposed",)), tmp_path)
    report = checked(artifact)
    (note,) = (item for item in report.findings if item.code == "OA113")
    assert "cannot be copied into float64 and run" in note.message
    assert (exporter_cells(report), report.verdict) == ([], "passed")


def test_no_module_no_check(exported):
    bare = replace(read_artifact(exported["mha-attention-23"].path), manifest=None)
    assert exporter_cells(verify(bare, runtimes=["torch", "onnx-reference"])) == []
    assert exporter_cells(verify(exported["mha-attention-23"], runtimes=["onnx-reference"])) == []


def pair(stored: object, meant: object) -> Pair:
    array = np.asarray(stored)
    return Pair("c", "node", array, np.asarray(meant), held=array.size > 1)


@pytest.mark.parametrize(
    ("stored", "meant", "differs"),
    [
        (np.float32(20**-0.5), np.float64(20**-0.5), ""),
        (np.float32(20**-0.5) * np.float32(1 + 1e-6), np.float64(20**-0.5), "times 1 +9.21e-07"),
        (np.float16(20**-0.5), np.float64(20**-0.5), ""),
        (np.finfo(np.float32).min, np.finfo(np.float64).min, ""),
        (np.float32(-np.inf), np.float64(-np.inf), ""),
        (np.float32(-1e4), np.float64(-np.inf), "in the export in float64 -inf"),
        (np.float16(np.inf), np.float64(1e9), ""),
        (np.float32([1, 2, 3]), np.float64([1, 2, 3]), ""),
        (np.float32([1, 2, 3.001]), np.float64([1, 2, 3]), "c[2]"),
        (np.float32([1, 2]), np.float64([1, 2, 3]), "shape (2,)"),
    ],
)
def test_a_constant_is_the_modules_rounded_or_it_is_told(stored, meant, differs):
    text = pair(stored, meant).difference
    assert differs in text
    assert bool(text) is bool(differs)


def test_constants_are_paired_by_their_use(tmp_path):
    from onnx_attest.export.twin import twin_of

    entry = resolve("rotary")  # its twin has two more casts
    (artifact,) = export_entry(entry, tmp_path, variants=("attention",), opset=23)
    assert isinstance(artifact, Artifact)
    twin = twin_of(artifact.module, entry.contract)
    pairs = Beside(onnx.load(artifact.path), twin.graph(23)).pairs(twin.numbers())
    held = {name for name, tensor in artifact.module.state_dict().items() if tensor.dim() == 1}
    assert held <= {pair.name for pair in pairs}
    assert all(pair.stored.shape == pair.meant.shape for pair in pairs)


def test_every_model_of_the_catalogue_has_a_contract_that_fits_the_check():
    assert all(entry.contract.traced for entry in CATALOGUE)


class Written(nn.Module):
    """A linear map, and what is done with it."""

    def __init__(self, then: Callable[[Written, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.then = nn.Linear(16, 16), then
        self.register_buffer("visible", torch.arange(16) < 8)
        self.gate, self.small = nn.Parameter(torch.randn(16)), nn.Parameter(torch.randn(4, 16) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(self, x)


def exported_as(
    then: Callable[[Written, torch.Tensor], torch.Tensor], folder: Path, dtype: str = "float32"
) -> Artifact:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return Written(then).eval()

    contract = Contract(
        (TensorSpec("x", ("batch", "seq_len", 16), role="tokens"),),
        (TensorSpec("y", ("batch", "seq_len", 16), role="output"),),
        {"batch": 2, "seq_len": 7},
    )
    (artifact,) = export_entry(Entry("written", "", contract, build, ("decomposed",)), folder, dtype=dtype)
    if torch.__version__ < "2.12" and not isinstance(artifact, Artifact):
        pytest.skip(f"an exporter that can: torch {torch.__version__} says {artifact.reason}")
    assert isinstance(artifact, Artifact)
    return artifact


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize(
    "then",
    [
        lambda m, x: x * m.gate.exp(),
        lambda m, x: torch.sigmoid(m.gate) * m.linear(x) + (1 - torch.sigmoid(m.gate)) * x,
        lambda m, x: nn.functional.linear(x, m.linear.weight + 0.5 * (m.small.T @ m.small), m.linear.bias),
        lambda m, x: x * (m.gate * 0.1 * m.gate),
    ],
    ids=["exp", "gate", "low-rank", "product-with-a-float"],
)
def test_what_the_exporter_folds_is_no_fault_of_its(then, dtype, tmp_path):
    """Parameter-only expressions are computed in the file's dtype by the exporter, and anew by torch."""
    report = checked(exported_as(then, tmp_path, dtype), {"x": (2, 9, 16)})
    assert [(cell.runtime, cell.reason) for cell in report.cells if cell.verdict != "passed"] == []
    assert report.verdict == "passed"


def test_a_module_that_asks_for_its_dtype_is_not_judged_by_its_twin(tmp_path):
    def then(m: Written, x: torch.Tensor) -> torch.Tensor:
        return m.linear(x) / torch.sqrt((x * x).mean(-1, keepdim=True) + torch.finfo(x.dtype).eps * 1000)

    report = checked(exported_as(then, tmp_path), {"x": (2, 9, 16)})
    assert {cell.verdict for cell in exporter_cells(report)} == {"inconclusive"}
    assert {item.code for item in report.findings if item.runtime == "exporter"} == {"OA116"}


def test_a_twin_whose_constants_overflow_is_left_out(tmp_path):
    """(1 - mask) * finfo.min: the export in float64 makes 0 * -inf of it, the file does not."""

    def then(m: Written, x: torch.Tensor) -> torch.Tensor:
        hidden = (1.0 - m.visible.to(x.dtype)) * torch.finfo(x.dtype).min
        return m.linear(x) * (x @ x.transpose(-1, -2))[..., :1] + hidden

    artifact = exported_as(then, tmp_path)
    report = checked(artifact, {"x": (2, 9, 16)})
    assert "failed" not in {cell.verdict for cell in exporter_cells(report)}


def through_bfloat16(model: onnx.ModelProto) -> onnx.ModelProto:
    node = next(node for node in model.graph.node if node.op_type == "MatMul")
    name, index = node.output[0], list(model.graph.node).index(node)
    node.output[0] = "long"
    model.graph.node.insert(
        index + 1, onnx.helper.make_node("Cast", ["long"], ["short"], name="shorten", to=16)
    )
    model.graph.node.insert(index + 2, onnx.helper.make_node("Cast", ["short"], [name], to=1))
    return model


@pytest.mark.slow
def test_a_cast_to_a_shorter_format_that_the_module_has_not_is_told(tampered):
    report = checked(tampered("mha", through_bfloat16))
    (found,) = (item for item in report.findings if item.code == "OA114")
    assert found.message == "the file casts to bfloat16 at shorten, the module does not"
    assert report.verdict == "failed"


def test_a_cast_in_the_twin_is_told_too(tmp_path, monkeypatch):
    from onnx_attest.export import twin

    original = twin.lower

    def wrong(*arguments: object) -> onnx.ModelProto:
        model = original(*arguments)
        node = next(node for node in model.graph.node if node.op_type == "MatMul")
        name, index = node.output[0], list(model.graph.node).index(node)
        node.output[0] = "long"
        model.graph.node.insert(index + 1, onnx.helper.make_node("Cast", ["long"], ["short"], to=1))
        model.graph.node.insert(index + 2, onnx.helper.make_node("Cast", ["short"], [name], to=11))
        return model

    monkeypatch.setattr(twin, "lower", wrong)
    (artifact,) = export_entry(resolve("mha"), tmp_path, variants=("decomposed",))
    report = checked(artifact)
    assert any("the export in float64 casts to float32" in item.message for item in report.findings)
    assert report.verdict == "failed"


@pytest.mark.slow
def test_an_attribute_that_is_not_the_modules_is_told(tampered):
    def other_epsilon(model: onnx.ModelProto) -> onnx.ModelProto:
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "epsilon":
                    attribute.f *= 1 + 1e-6
        return model

    report = checked(tampered("block", other_epsilon))
    assert {item.code for item in report.findings if "epsilon of" in item.message} == {"OA112"}
    assert report.verdict == "failed"


@pytest.mark.pinned
def test_a_file_that_is_written_otherwise_says_so(tampered):
    def identity(model: onnx.ModelProto) -> onnx.ModelProto:
        model.graph.node[-1].output[0] = "before"
        model.graph.node.append(onnx.helper.make_node("Identity", ["before"], ["output"]))
        return model

    report = checked(tampered("mha", identity))
    (note,) = (item for item in report.findings if item.code == "OA115")
    assert note.message == "more: 1 Identity; less: nothing"
    assert {cell.verdict for cell in exporter_cells(report) if not cell.known} == {"passed"}
