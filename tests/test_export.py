"""Exports: what comes out is what was asked for, byte for byte the same, and carries nothing of this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from onnx_attest.errors import UsageError
from onnx_attest.export import export, export_entry
from onnx_attest.export.api import ExportFailure
from onnx_attest.export.artifact import manifest_path, read_artifact
from onnx_attest.export.lower import capture, example_inputs, lower
from onnx_attest.export.strip import strip_metadata
from onnx_attest.models import CATALOGUE, Entry, TensorSpec, resolve
from onnx_attest.models.contract import Contract
from onnx_attest.models.entry import build_module
from onnx_attest.verify.asked_got import compare_asked_and_got
from onnx_attest.verify.signature import read_signature

STEMS = [
    "causal-attention-23", "causal-attention-24", "causal-decomposed-18", "mha-attention-23", "mha-attention-24",
    "mha-decomposed-18", "sdpa-decomposed-18", "sdpa-naive-decomposed-18", "sdpa-unscaled-decomposed-18",
    "self-attention-attention-23", "self-attention-attention-24", "self-attention-decomposed-18",
]  # fmt: skip
HERE = (b"/site-packages/", b".py", str(Path.cwd()).encode(), b"stack_trace")


def test_catalogue_comes_out_in_every_variant(exported):
    assert sorted(exported) == STEMS


@pytest.mark.parametrize("stem", STEMS)
def test_file_is_what_was_asked_for(exported, stem):
    artifact = exported[stem]
    assert compare_asked_and_got(artifact, read_signature(artifact)) == []
    got = artifact.manifest.got
    assert (got.opset, "Attention" in got.operators) == (int(stem[-2:]), "attention" in stem.split("-")[-2])


@pytest.mark.parametrize("stem", STEMS)
def test_nothing_names_this_machine(exported, stem):
    artifact = exported[stem]
    data = artifact.path.read_bytes() + manifest_path(artifact.path).read_bytes()
    assert not [text for text in HERE if text in data]
    assert hashlib.sha256(artifact.path.read_bytes()).hexdigest() == artifact.manifest.sha256


def test_same_module_gives_the_same_bytes_twice(exported, tmp_path):
    again = list(export_entry(resolve("mha"), tmp_path))
    for artifact in again:
        assert artifact.sha256 == exported[artifact.path.stem].sha256
        first = manifest_path(exported[artifact.path.stem].path).read_bytes()
        assert manifest_path(artifact.path).read_bytes() == first


def test_absolute_path_of_a_users_file_stays_out_of_the_manifest(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from onnx_attest.models import resolve\n\ndef entry():\n    return resolve('causal')\n")
    (artifact, *_) = export_entry(resolve(f"{file}:entry"), tmp_path)
    assert artifact.manifest.module == "mine.py:entry"
    assert str(tmp_path).encode() not in manifest_path(artifact.path).read_bytes()


def test_module_is_captured_once_for_all_opsets(monkeypatch, tmp_path):
    calls = []
    original = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *a, **k: calls.append(1) or original(*a, **k))
    assert len(list(export_entry(resolve("self-attention"), tmp_path))) == 3
    assert len(calls) == 1


def test_manifest_is_read_back(exported):
    artifact = exported["mha-decomposed-18"]
    assert read_artifact(artifact.path) == artifact


def test_opset_below_18_is_reported(tmp_path):
    """K6: torch's exporter gives 18 and says so in a log line only."""
    (artifact,) = export_entry(resolve("sdpa"), tmp_path, opset=13)
    (found,) = compare_asked_and_got(artifact, read_signature(artifact))
    assert (found.code, found.message) == ("OA101", "opset 13 was asked for, the file is opset 18")
    assert artifact.path.name == "sdpa-decomposed-18.onnx"  # nor does its name say 13


def test_variant_that_a_module_does_not_have_is_skipped_with_the_reason(tmp_path):
    results = list(export_entry(resolve("sdpa"), tmp_path, variants=("attention",)))
    assert all(isinstance(result, ExportFailure) and result.skipped for result in results)
    assert "writes its softmax out" in results[0].reason
    assert list(tmp_path.iterdir()) == []


class ThreeAxes(nn.Module):
    """scaled_dot_product_attention without a head axis, which torch's exporter refuses."""

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)


class FixesItsLength(nn.Module):
    """The length as a Python number: torch.export would have to fix the axis."""

    def forward(self, x):
        return x.reshape(x.shape[0], 7, -1).softmax(-1)


class Drops(nn.Module):
    """An input that does not reach the result."""

    def forward(self, x, unused):
        return x.softmax(-1)


class Raises(nn.Module):
    """A module with a bug."""

    def forward(self, x):
        raise RuntimeError("no such head")


class Dropout(nn.Module):
    """An encoder layer as torch builds it: in training mode."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 3, dim_feedforward=16, dropout=0.5, batch_first=True)

    def forward(self, x):
        return self.layer(x)


X = TensorSpec("x", ("batch", "seq_len", 12), role="tokens")
Y = TensorSpec("y", ("batch", "seq_len", 12), role="output")


def entry_of(module: type[nn.Module], *more: TensorSpec, outputs=(Y,)) -> Entry:
    contract = Contract((X, *more), outputs, {"batch": 2, "seq_len": 7})
    return Entry(module.__name__, "", contract, module, variants=("decomposed",))


@pytest.mark.parametrize("module", [ThreeAxes, FixesItsLength])
def test_exporter_that_fails_is_a_failure_with_its_own_message_in_a_line(module, tmp_path):
    (failure,) = export_entry(entry_of(module), tmp_path)
    assert isinstance(failure, ExportFailure)
    assert not failure.skipped
    assert failure.reason.startswith("torch.")
    assert "\n" not in failure.reason
    assert "\x1b" not in failure.reason


def test_dropped_input_is_reported(tmp_path):
    unused = TensorSpec("unused", ("batch",), role="data")
    (artifact,) = export_entry(entry_of(Drops, unused), tmp_path)
    found = compare_asked_and_got(artifact, read_signature(artifact))
    # torch keeps the input in the file's signature; whichever way, asked and got agree or it is said.
    kept = "unused" in artifact.manifest.got.inputs
    assert [item.code for item in found] == ([] if kept else ["OA104"])


def test_fixed_axis_that_was_to_be_dynamic_is_reported(exported, tmp_path):
    """K5, from the file's own words: the manifest asked for seq_len, the file says 128."""
    model = onnx.load(exported["causal-decomposed-18"].path)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 128
    path = tmp_path / "causal-decomposed-18.onnx"
    onnx.save(model, path)
    manifest_path(path).write_bytes(manifest_path(exported["causal-decomposed-18"].path).read_bytes())
    artifact = read_artifact(path)
    found = {item.code: item.message for item in compare_asked_and_got(artifact, read_signature(artifact))}
    assert found["OA102"] == "axis 1 of X was requested dynamic (seq_len), the file says 128"
    assert "OA801" in found  # these are other bytes than the manifest's


def test_module_that_raises_is_named_with_its_inputs(tmp_path):
    with pytest.raises(
        UsageError, match=r"Raises: forward raised RuntimeError: no such head; .* \(2, 7, 12\)"
    ):
        list(export_entry(entry_of(Raises), tmp_path))


def test_module_in_training_mode_is_stopped(tmp_path):
    """K12: dropout is active, and the module differs from itself."""
    with pytest.raises(UsageError, match=r"differs from itself by .* training mode: call .eval\(\).*OA106"):
        list(export_entry(entry_of(Dropout), tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_module_in_evaluation_mode_is_not_stopped(tmp_path):
    entry = entry_of(Dropout)
    quiet = Entry(entry.name, "", entry.contract, lambda: Dropout().eval(), entry.variants)
    (result,) = export_entry(quiet, tmp_path)
    assert not isinstance(result, ExportFailure), result


def test_export_of_a_bare_module_reads_the_contract_off_the_call(tmp_path):
    module = resolve("mha").build()
    args = (torch.randn(2, 7, 45), torch.ones(2, 7, 7, dtype=torch.bool))
    symbolic = {"X": {0: "batch", 1: "seq_len"}, "mask": {0: "batch", 1: "seq_len", 2: "seq_len"}}
    artifact = export(module, args, path=tmp_path / "a.onnx", dynamic=symbolic)
    assert artifact.manifest.got.axes == {
        "X": ("batch", "seq_len", 45),
        "mask": ("batch", "seq_len", "seq_len"),
        "output": ("batch", "seq_len", 45),
    }
    assert compare_asked_and_got(artifact, read_signature(artifact)) == []


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [({"z": {0: "b"}}, "the inputs are X, mask"), ({"X": {5: "b"}}, "axis 5 of 'X', which has 3 axes")],
)
def test_dynamic_axes_that_do_not_exist_are_refused(dynamic, message, tmp_path):
    args = (torch.randn(2, 7, 45), torch.ones(2, 7, 7, dtype=torch.bool))
    with pytest.raises(UsageError, match=message):
        export(resolve("mha").build(), args, path=tmp_path / "a.onnx", dynamic=dynamic)


def test_every_entry_names_only_variants_that_exist():
    from onnx_attest.export.api import OPSETS

    assert {variant for entry in CATALOGUE for variant in entry.variants} <= set(OPSETS)


def test_kept_tables_change_no_byte_of_an_export(tmp_path):
    """The exporter's table of translations is kept between exports: the first and the last give the same file."""
    stems = []
    for folder in ("first", "second"):
        (artifact,) = export_entry(resolve("causal"), tmp_path / folder, variants=("attention",), opset=23)
        stems.append(artifact.sha256)
    assert stems[0] == stems[1]


class Normalised(nn.Module):
    """Has an operator that the exporter keeps from opset 23 on, and takes apart below."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(8)

    def forward(self, x):
        return self.norm(x)


NORMALISED = Entry(
    "normalised", "RMS normalisation",
    Contract((TensorSpec("x", ("n", 8)),), (TensorSpec("y", ("n", 8), role="output"),), {"n": 3}),
    lambda: Normalised().eval(), ("decomposed",),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("entry", [resolve("causal"), NORMALISED], ids=lambda entry: entry.name)
def test_a_program_decomposed_for_another_opset_changes_no_byte(entry, monkeypatch):
    """What is decomposed once serves all opsets, but where an operator has a translation in some of them only."""
    module, examples = build_module(entry), example_inputs(entry.contract, torch.float32)

    def lowered(opsets):
        program = capture(module, examples, entry.contract)
        graphs = {opset: lower(program, module, examples, entry.contract, opset) for opset in opsets}
        return {
            opset: strip_metadata(graph).SerializeToString(deterministic=True)
            for opset, graph in graphs.items()
        }

    lowered((24,))  # so that there is a larger table than 18's
    forwards, backwards = lowered((18, 23, 24)), lowered((24, 23, 18))
    monkeypatch.setattr("onnx_attest.export.once._remembering", lambda prepare, translated: prepare)
    assert lowered((18, 23, 24)) == forwards == backwards


def test_a_program_is_decomposed_once_for_all_opsets(tmp_path, monkeypatch):
    calls = []
    original = torch.export.ExportedProgram.run_decompositions
    monkeypatch.setattr(
        torch.export.ExportedProgram,
        "run_decompositions",
        lambda *a, **k: calls.append(1) or original(*a, **k),
    )
    list(export_entry(resolve("causal"), tmp_path / "tables", variants=("attention",)))
    calls.clear()
    assert len(list(export_entry(resolve("causal"), tmp_path / "files"))) == 3
    assert len(calls) == 1
