"""A deep graph judged piece by piece: quiet on correct runtimes, and a fault shows in the piece it is in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from onnx_attest.export import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models import resolve
from onnx_attest.verify import verify
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.records import CellRecord
from onnx_attest.verify.runtimes.base import Availability, Session, Tensors
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.runtimes.torch_eager import Heard
from onnx_attest.verify.segments import Cuts, Row, at_places, cuts_of
from onnx_attest.verify.task import Task, run_task

SHAPES = {"X": (2, 9, 45), "mask": (2, 9, 9)}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    (artifact,) = export_entry(
        resolve("encoder"), tmp_path_factory.mktemp("encoder"), variants=("attention",), opset=23
    )
    assert isinstance(artifact, Artifact)
    return artifact


def verdicts(cells: tuple[CellRecord, ...]) -> dict[str, set[str]]:
    seen: dict[str, set[str]] = {}
    for cell in cells:
        seen.setdefault(cell.runtime, set()).add(cell.verdict)
    return seen


def with_keys(cells: tuple[CellRecord, ...]) -> tuple[CellRecord, ...]:
    """Return the cells of the cases in which every row has a key; runtimes have changed their mind about others."""
    return tuple(cell for cell in cells if cell.case is not None and cell.case.mask != "empty-row")


def test_correct_runtimes_pass_piece_by_piece_where_the_whole_has_no_bound(encoder):
    names = ("torch", "ort-cpu", "ort-cpu-noopt", "onnx-reference")
    report = verify(encoder, runtimes=names, input_shapes=SHAPES)
    cells = with_keys(report.cells)
    assert verdicts(cells) == {name: {"passed"} for name in ("exporter", *names)}
    pieces = {cell.runtime: cell.gates["proof"].get("pieces") for cell in cells if cell.runtime != "exporter"}
    assert pieces["torch"] == 7  # two normalisations a block, and what follows the last of them
    assert min(pieces.values()) >= 7  # runtimes that show every node are held to each of them


@dataclass(frozen=True)
class Wrong:
    """ort-cpu over a graph that was changed inside: what a broken kernel in a later block looks like."""

    name: str = "ort-cpu"
    value: str = "layer_norm_3"
    error: float = 1e-3

    def arithmetic(self, dtype: str) -> str:
        return "fp32"

    def availability(self) -> Availability:
        return Availability(True, "1")

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Session:
        graph = onnx.load(artifact.path) if model is None else onnx.load_model_from_string(model)
        (node,) = (node for node in graph.graph.node if node.output[0] == self.value)
        node.output[0] = "right"
        graph.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1 + self.error), "gain"))
        index = list(graph.graph.node).index(node) + 1
        graph.graph.node.insert(index, onnx.helper.make_node("Mul", ["right", "gain"], [self.value]))
        (runtime,) = select(("ort-cpu",))
        return runtime.open(artifact, model=graph.SerializeToString(), threads=threads)


@pytest.mark.parametrize("value", ["layer_norm_1", "layer_norm_3", "layer_norm_5"])
def test_a_fault_shows_in_the_piece_it_is_in(encoder, value):
    report = verify(encoder, input_shapes=SHAPES, plan=Plan(runtimes=(Wrong(value=value),)))
    failed = with_keys(report.cells)
    assert {cell.verdict for cell in failed} == {"failed"}
    assert {cell.worst_output for cell in failed} == {value}


LONG = {"X": (1, 72, 45), "mask": (1, 72, 72)}
"""Longer than what the gates noise and direction look at."""


def effective_bits(report) -> set[float | None]:
    return {cell.effective_bits for cell in with_keys(report.cells)}


def test_effective_bits_of_long_cases_too(encoder):
    bits = effective_bits(verify(encoder, runtimes=("ort-cpu", "ort-cpu-noopt"), input_shapes=LONG))
    assert None not in bits
    assert 22 < min(bits) <= max(bits) < 27


def test_effective_bits_of_a_runtime_that_is_off_beyond_its_roundings(encoder):
    # The last normalisation of the first block is off by 2^-17, a hundred times its own rounding.
    plan = Plan(runtimes=(Wrong(value="layer_norm_2", error=2.0**-17),))
    bits = effective_bits(verify(encoder, input_shapes=LONG, plan=plan))
    assert max(bits) < 22


class Fickle(Wrong):
    """A runtime that gives other bits when it is looked into."""

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Session:
        (runtime,) = select(("ort-cpu",))
        session = runtime.open(artifact, model=model, threads=threads)
        return session if model is None else Nudged(session)


class Nudged:
    def __init__(self, session: Session) -> None:
        self.placement, self._session = session.placement, session

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        return {name: np.nextafter(array, np.float32(9)) for name, array in self._session.run(inputs).items()}


def test_a_copy_that_gives_other_bits_proves_nothing(encoder):
    report = verify(encoder, input_shapes=SHAPES, plan=Plan(runtimes=(Fickle(),)))
    assert {cell.verdict for cell in report.cells} == {"inconclusive"}
    assert all("gives other bits" in cell.reason for cell in report.cells)


def test_places_are_the_normalisations_that_are_no_outputs(encoder):
    cuts = cuts_of(onnx.load(encoder.path))
    assert cuts == Cuts(Row({0: "layer_norm", **{i: f"layer_norm_{i}" for i in range(1, 6)}}, 7), Row({}, 0))
    seen = [np.full(1, float(i)) for i in range(7)]
    assert at_places(cuts, Heard(seen, []))["layer_norm_4"] == 4.0
    with pytest.raises(LookupError, match=r"torch normalised 6 times and .*, the graph 7"):
        at_places(cuts, Heard(seen[:6], []))


def test_an_entry_says_in_which_dtypes_it_is_verified(tmp_path):
    task = Task(
        reference="encoder", dtype="float16", variants=(), folder=str(tmp_path), runtimes=("torch",), known=()
    )
    (record,) = run_task(task, lambda step: None)
    assert (record.verdict, record.dtype) == ("skipped", "float16")
    assert "verified in float32 only" in record.reason
