"""What libraries write out by hand: RMS normalisation, positions in buckets, masks with the lowest number there is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onnx_attest.export import export
from onnx_attest.export.artifact import Artifact, digest
from onnx_attest.verify import verify
from onnx_attest.verify.api import Report
from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.constants import Beside
from onnx_attest.verify.gauge import Gauge
from onnx_attest.verify.oracle.bounded import Bounded, add, multiply, subtract
from onnx_attest.verify.oracle.graph import Evaluation
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.records import CellRecord
from onnx_attest.verify.segments import cuts_of

WIDTH, HEADS, BUCKETS = 16, 2, 16
LENGTH = 33
"""At a distance of 32 the logarithm that says the bucket is a whole number: a rounding decides what it is cut off to."""


class Rms(nn.Module):
    """RMS normalisation in float32 whatever the dtype, as T5 and Llama have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


class Block(nn.Module):
    """Attention with a bias of the distance, looked up in buckets that grow with its logarithm; then a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Rms(), Rms()
        self.qkv, self.up, self.down = (
            nn.Linear(WIDTH, 3 * WIDTH, bias=False),
            nn.Linear(WIDTH, 32),
            nn.Linear(32, WIDTH),
        )
        self.bias = nn.Embedding(BUCKETS, HEADS)
        with torch.no_grad():
            self.qkv.weight.mul_(
                6
            )  # scores are not scaled, and large: no bound gets from one end to the other

    def bucket(self, distance: torch.Tensor) -> torch.Tensor:
        near = BUCKETS // 2
        far = near + (torch.log(distance.float() / near) / math.log(128 / near) * (BUCKETS - near)).long()
        return torch.where(distance < near, distance, far.clamp(max=BUCKETS - 1))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(x.shape[1], device=x.device)
        bias = self.bias(self.bucket((steps[:, None] - steps[None, :]).abs())).permute(2, 0, 1)
        hidden = (1 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) + bias + hidden).softmax(-1)
        x = x + (weights @ v).transpose(1, 2).flatten(-2)
        return x + self.down(self.up(self.second(x)).relu())


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.last = nn.ModuleList([Block(), Block(), Block()]), Rms()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, mask)
        return self.last(x)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    axes = {0: "batch", 1: "seq_len"}
    args = {"x": torch.randn(3, 7, WIDTH), "mask": torch.ones(3, 7, dtype=torch.int64)}
    path = tmp_path_factory.mktemp("stack") / "stack.onnx"
    return export(Stack().eval(), args, dynamic={"x": axes, "mask": axes}, path=path)


SHAPES = {"x": (2, LENGTH, WIDTH), "mask": (2, LENGTH)}


def cells_of(report: Report, runtime: str) -> list[CellRecord]:
    return [cell for cell in report.cells if cell.runtime == runtime]


def test_a_graph_is_cut_where_it_is_normalised_and_where_it_looks_up(stack):
    cuts = cuts_of(onnx.load(stack.path))
    assert (cuts.norms.count, len(cuts.norms.names)) == (7, 7)  # what follows the last is its weight
    assert (cuts.lookups.count, len(cuts.lookups.names)) == (3, 3)


@pytest.mark.slow
def test_a_module_without_a_bound_end_to_end_passes_in_pieces(stack):
    report = verify(stack, runtimes=["torch"], input_shapes=SHAPES)
    assert [cell.reason for cell in report.cells if cell.verdict != "passed"] == []
    assert {cell.gates["proof"]["pieces"] for cell in cells_of(report, "torch")} == {
        9.0
    }  # the three share one value of buckets
    assert "OA113" not in {item.code for item in report.findings}  # there is a twin, whatever hides the keys


Change = Callable[[dict[str, onnx.TensorProto], list[onnx.NodeProto]], str]


def bucket_of_another(constants: dict[str, onnx.TensorProto], nodes: list[onnx.NodeProto]) -> str:
    """The second block's distances are one larger where they are looked up."""
    node = next(
        node for node in nodes if node.op_type == "Gather" and node.input[0] == "blocks.1.bias.weight"
    )
    made = next(one for one in nodes if node.input[1] in one.output)
    assert made.op_type == "Where"
    made.input[1], made.input[2] = made.input[2], made.input[1]
    return node.input[1]


def epsilon(constants: dict[str, onnx.TensorProto], nodes: list[onnx.NodeProto]) -> str:
    """A hundredth is added to the mean of squares before the third root."""
    root = [node for node in nodes if node.op_type == "Sqrt"][2]
    added = next(node for node in nodes if root.input[0] in node.output)
    constants["more"] = onnx.numpy_helper.from_array(np.float32(0.01), "more")
    added.input[1] = "more"
    makes = next(node for node in nodes if node.op_type == "Reciprocal" and node.input[0] == root.output[0])
    return next(node.name for node in nodes if node.op_type == "Mul" and makes.output[0] in node.input)


def changed(artifact: Artifact, change: Change, folder: Path) -> tuple[Artifact, str]:
    model = onnx.load(artifact.path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    guilty = change(constants, list(model.graph.node))
    known = {tensor.name for tensor in model.graph.initializer}
    model.graph.initializer.extend(tensor for name, tensor in constants.items() if name not in known)
    path = folder / "changed.onnx"
    path.write_bytes(model.SerializeToString())
    return replace(artifact, path=path, sha256=digest(path.read_bytes())), guilty


@pytest.mark.parametrize("change", [bucket_of_another, epsilon])
def test_a_fault_inside_is_told_with_its_piece(stack, tmp_path, change):
    artifact, guilty = changed(stack, change, tmp_path)
    report = verify(artifact, runtimes=["torch"], input_shapes=SHAPES)
    assert {cell.verdict for cell in cells_of(report, "exporter")} == {"failed"}
    words = [f"{item.node} {item.message}" for item in report.findings if item.code in ("OA111", "OA112")]
    assert any(guilty in text.replace("[", " ").split() for text in words), words


def test_the_lowest_number_of_float64_is_the_twins_though_the_exporter_writes_minus_infinity():
    def graph(dtype: int, lowest: float) -> onnx.ModelProto:
        kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
        node = onnx.helper.make_node("Add", ["x", "hides"], ["y"], name="add")
        values = [onnx.helper.make_tensor_value_info(name, dtype, ["n"]) for name in ("x", "y")]
        constant = onnx.numpy_helper.from_array(np.array([lowest, 2.0], kind), "hides")
        return onnx.helper.make_model(onnx.helper.make_graph([node], "g", values[:1], values[1:], [constant]))

    file = graph(onnx.TensorProto.FLOAT, np.finfo(np.float32).min)
    (pair,) = Beside(file, graph(onnx.TensorProto.DOUBLE, -np.inf)).pairs(np.zeros(0))
    assert pair.meant.tolist() == [np.finfo(np.float64).min, 2.0]
    assert (pair.mended, pair.unusable, pair.difference) == (True, False, "")
    # An infinity that the file has too is one.
    same = graph(onnx.TensorProto.FLOAT, -np.inf)
    (pair,) = Beside(same, graph(onnx.TensorProto.DOUBLE, -np.inf)).pairs(np.zeros(0))
    assert (pair.meant.tolist(), pair.mended) == ([-np.inf, 2.0], False)


def test_an_arithmetic_without_a_bound_is_not_what_a_runtime_ran_as():
    """In TF32 a variance may be below 0 within its error: then there is no bound, and nothing to raise."""

    def evaluate(arithmetic: object, **options: object) -> Evaluation:
        if arithmetic.u_in:  # type: ignore[attr-defined]
            raise UnsupportedOperatorError(
                "takes the square root of a number that is negative within its error"
            )
        return Evaluation({"y": Bounded(np.ones(3), np.full(3, 1e-7), variance=np.full(3, 1e-15))}, ())

    gauge = Gauge(evaluate, PROFILES["fp32"], np.dtype(np.float32), {"y": np.dtype(np.float32)}, {})
    assert gauge._bounds_in("tf32") is None
    assert gauge._bounds_in("fp32") is not None


def test_what_cancels_is_exactly_nothing():
    """1 - 1, times the lowest number, hides no key; a tiny error of it would be of any size there."""
    one, other = Bounded(np.ones(2)), Bounded(np.ones(2))
    lowest = Bounded(np.array([np.finfo(np.float64).min]))
    for arithmetic in (PROFILES["fp64"], PROFILES["fp32"]):
        nothing = subtract(one, other, arithmetic)
        with np.errstate(over="ignore"):  # of squares, for variances that nobody asked for
            hidden = multiply(nothing, lowest, arithmetic)
        assert np.all(hidden.errors() == 0)
        assert np.all(add(one, Bounded(-other.value), arithmetic).errors() == 0)
        # Not so of numbers that are off themselves.
        assert np.all(subtract(Bounded(np.ones(2), np.full(2, 1e-20)), other, arithmetic).errors() > 0)


def test_the_bound_of_the_lowest_number_is_a_number():
    lowest = Bounded(np.array([np.finfo(np.float64).min]), np.array([1e292]))
    error = add(lowest, Bounded(np.array([0.3]), np.array([1e-16])), PROFILES["fp64"]).errors()
    assert np.all(np.isfinite(error))
    assert np.all(error >= 1e292)
