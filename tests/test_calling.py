"""Modules as libraries write them: inputs by name, dictionaries of outputs, objects among them; messages for the rest."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from onnx_attest.errors import UsageError
from onnx_attest.export import export
from onnx_attest.export.artifact import Artifact
from onnx_attest.export.lower import ExportError
from onnx_attest.models import Contract, Entry, TensorSpec
from onnx_attest.verify import verify
from onnx_attest.verify.signature import read_signature

IDS, MASK = torch.randint(0, 11, (3, 7)), torch.ones(3, 7, dtype=torch.int64)
AXES = {0: "batch", 1: "seq_len"}


class Cache:
    """What a decoder returns beside its tensors."""


class Decoder(nn.Module):
    """Takes what it does not need, in another order than one would, and returns a dictionary with an object in it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 5)

    def forward(
        self,
        cache: Any = None,
        attention_mask: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        assert input_ids is not None
        assert attention_mask is not None
        x = self.table(input_ids)
        hidden = (1 - attention_mask[:, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        y = (x @ x.transpose(-1, -2) + hidden).softmax(-1) @ x
        return OrderedDict(logits=self.head(y), states=(x, y), cache=Cache())


class Sum(nn.Module):
    """Its forward says nothing of its inputs."""

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return tensors[0] + 2 * tensors[1]


INPUTS = {"input_ids": IDS, "attention_mask": MASK}
DYNAMIC = {"input_ids": AXES, "attention_mask": AXES}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    path = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    return export(Decoder().eval(), INPUTS, dynamic=DYNAMIC, outputs=["logits", "states_1"], path=path)


def test_inputs_go_by_name_and_outputs_have_the_names_of_their_keys(artifact):
    got = artifact.manifest.got
    assert got.axes == {
        "input_ids": ("batch", "seq_len"),
        "attention_mask": ("batch", "seq_len"),
        "logits": ("batch", "seq_len", 5),
        "states_1": ("batch", "seq_len", 8),
    }


def test_parameters_keep_the_names_that_the_module_gives_them(artifact):
    names = {tensor.name for tensor in onnx.load(artifact.path).graph.initializer}
    assert {"table.weight", "head.bias"} <= names
    assert not [name for name in names if name.startswith("called")]


def test_what_nobody_said_of_the_inputs_is_read_off_the_graph(artifact):
    ids, mask = read_signature(artifact).contract.inputs
    assert (ids.below, ids.role) == (11, "data")
    assert (mask.role, mask.masks) == ("mask", ("all", "padding", "left-padding", "holes"))


def test_what_was_said_is_kept(tmp_path):
    tokens = ("batch", "seq_len")
    contract = Contract(
        (TensorSpec("input_ids", tokens, "int64", below=4), TensorSpec("attention_mask", tokens, "int64", below=2)),
        (TensorSpec("logits", (*tokens, 5), role="output"),),
        {"batch": 3, "seq_len": 7},
    )  # fmt: skip
    artifact = export(Decoder().eval(), INPUTS, contract=contract, path=tmp_path / "a.onnx")
    ids, mask = read_signature(artifact).contract.inputs
    assert (ids.below, mask.role, mask.below) == (4, "data", 2)
    assert artifact.manifest.got.outputs == ("logits",)


def test_it_is_verified_at_all_sizes_and_masks(artifact):
    report = verify(artifact, runtimes=["torch", "ort-cpu"])
    assert {cell.verdict for cell in report.cells} == {"passed"}
    assert {cell.case.mask for cell in report.cells} == {"all", "padding", "left-padding", "holes"}
    assert "exporter" in {cell.runtime for cell in report.cells}
    assert report.verdict == "passed"


SHAPES = {"input_ids": (2, 5), "attention_mask": (2, 5)}


def test_a_file_is_held_against_a_module_itself(artifact):
    report = verify(artifact.path, against=Decoder().eval(), runtimes=["ort-cpu"], input_shapes=SHAPES)
    assert report.verdict == "passed"
    other = Decoder().eval()
    nn.init.zeros_(other.head.bias)
    report = verify(artifact.path, against=other, runtimes=["ort-cpu"], input_shapes=SHAPES)
    assert report.verdict == "failed"
    (found,) = (item for item in report.findings if item.code == "OA112")
    assert found.message.startswith("head.bias")


def test_a_bare_file_is_held_against_a_module_itself(artifact, tmp_path):
    bare = tmp_path / "bare.onnx"
    bare.write_bytes(artifact.path.read_bytes())
    report = verify(bare, against=Decoder().eval(), runtimes=["ort-cpu"], input_shapes=SHAPES)
    assert report.verdict == "passed"
    assert "exporter" in {cell.runtime for cell in report.cells}


def test_a_factory_of_a_module_is_enough_to_hold_a_file_against(artifact, tmp_path, command):
    file = tmp_path / "mine.py"
    file.write_text("from test_calling import Decoder\n\ndef decoder():\n    return Decoder().eval()\n")
    shapes = ["--input-shapes", "input_ids:[2,5]", "attention_mask:[2,5]"]
    answer = command("verify", artifact.path, "--against", f"{file}:decoder", "--runtime", "ort-cpu", *shapes)
    assert answer.code == 0, answer
    command("export", f"{file}:decoder", "-o", tmp_path).assert_refused(
        "gives Decoder, not an onnx_attest.models.Entry, which says what the module takes"
    )


def test_a_forward_without_names_is_given_its_tensors_in_order(tmp_path):
    x = torch.randn(3, 7)
    dynamic = {"tensors_0": AXES, "tensors_1": AXES}
    artifact = export(Sum().eval(), (x, x), dynamic=dynamic, path=tmp_path / "a.onnx")
    assert artifact.manifest.got.axes["tensors_1"] == ("batch", "seq_len")
    assert (
        verify(
            artifact, runtimes=["ort-cpu"], input_shapes={"tensors_0": (2, 5), "tensors_1": (2, 5)}
        ).verdict
        == "passed"
    )
    with pytest.raises(UsageError, match="names no inputs of its own, so give a tuple"):
        export(Sum().eval(), {"x": x, "y": x}, path=tmp_path / "b.onnx")


def test_an_entry_whose_outputs_have_other_names_takes_them_in_order(tmp_path):
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"double": 2 * x, "half": x / 2}

    from onnx_attest.export import export_entry

    x = TensorSpec("x", ("n", 3))
    outputs = (TensorSpec("a", ("n", 3), role="output"), TensorSpec("b", ("n", 3), role="output"))
    (artifact,) = export_entry(
        Entry("two", "", Contract((x,), outputs, {"n": 2}), lambda: Two().eval(), ("decomposed",)), tmp_path
    )
    report = verify(artifact, runtimes=["torch", "ort-cpu"])
    assert {cell.verdict for cell in report.cells} == {"passed"}


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (INPUTS, {}, "cache is of type Cache; name those to keep, outputs=.*'logits', 'states_0', 'states_1'.*use_cache=False"),
        (INPUTS, {"outputs": ["cache"]}, "cache is of type Cache"),
        (INPUTS, {"outputs": ["logit"]}, "logit is not among the 4 outputs that forward returns: logits, states_0"),
        ({"input_idz": IDS, "attention_mask": MASK}, {}, "forward takes no 'input_idz'; it takes cache, attention_mask"),
        ({**INPUTS, "use_cache": False}, {}, "the input use_cache is of type bool"),
        ({"input_ids": [[1, 2]], "attention_mask": MASK}, {}, "input_ids is of type list.*return_tensors='pt'"),
        ((), {}, "no inputs were given"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_said_in_a_line(args, options, message, tmp_path):
    with pytest.raises(UsageError, match=message) as raised:
        export(Decoder().eval(), args, path=tmp_path / "a.onnx", **options)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


class Positions(nn.Module):
    """A table of positions has a last row."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(16, 4)
        self.register_buffer("ids", torch.arange(16)[None])

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x + self.places(self.ids[:, : x.shape[1]])) * mask[..., None]


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"x": AXES, "mask": AXES}, r'seq_len goes up to 16 .*Dim\("seq_len", max=16\)'),
        ({"x": {0: "batch", 1: torch.export.Dim("seq_len", max=16)}, "mask": {0: "batch"}},
         "works at seq_len = 7 only, or another input has that size.*name the dynamic axes of every input"),
    ],
)  # fmt: skip
def test_an_axis_that_cannot_be_dynamic_is_told_with_what_to_do(dynamic, message, tmp_path):
    with pytest.raises(ExportError, match=message) as raised:
        export(
            Positions().eval(),
            (torch.randn(3, 7, 4), torch.ones(3, 7)),
            dynamic=dynamic,
            path=tmp_path / "a.onnx",
        )
    assert "\n" not in str(raised.value)


def test_the_largest_size_is_kept_to(tmp_path: Path):
    axes = {0: "batch", 1: torch.export.Dim("seq_len", max=16)}
    dynamic = {"x": axes, "mask": axes}
    artifact = export(
        Positions().eval(),
        (torch.randn(3, 7, 4), torch.ones(3, 7)),
        dynamic=dynamic,
        path=tmp_path / "a.onnx",
    )
    report = verify(artifact, runtimes=["ort-cpu"])
    assert max(cell.case.axes["seq_len"] for cell in report.cells) == 16
    assert report.verdict == "passed"
