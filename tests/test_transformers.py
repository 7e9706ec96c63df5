"""Models of transformers: clean exports pass at every size, and a fault put into the file is told with its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from onnx_attest.export import export_entry
from onnx_attest.export.artifact import Artifact, digest
from onnx_attest.models import Entry
from onnx_attest.verify import verify
from onnx_attest.verify.api import Report
from onnx_attest.verify.records import CellRecord

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install onnx-attest[dev]")
models = pytest.importorskip("transformers_models")

FILE = Path(__file__).with_name("transformers_models.py")
RUNTIMES = ("ort-cpu", "ort-cpu-noopt")
SLOW = ("gpt2", "llama", "t5")
"""Each takes half a minute: the whole sweep of sizes and masks, three parties."""
CODES = {"OA111", "OA112", "OA115"}
"""What a graph that is not the module's is told by."""


@pytest.fixture(autouse=True, scope="module")
def quiet():
    transformers.logging.set_verbosity_error()


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Artifact]:
    """Export a model once for all tests."""
    made: dict[str, Artifact] = {}

    def of(name: str) -> Artifact:
        if name not in made:
            entry: Entry = getattr(models, name)()
            (artifact,) = export_entry(entry, tmp_path_factory.mktemp(name), variants=("decomposed",))
            assert isinstance(artifact, Artifact), artifact
            made[name] = artifact
        return made[name]

    return of


def exporter_cells(report: Report) -> list[CellRecord]:
    return [cell for cell in report.cells if cell.runtime == "exporter"]


TRUE = {"OA425", "OA427"}
"""T5 has no scale, and masks of transformers hide keys by the lowest number: so the models are, module and file alike."""


def told(report: Report) -> list[str]:
    """Return what is not right, in words."""
    return [f"{item.code} {item.runtime} {item.case}: {item.message}" for item in report.findings
            if item.severity != "note" and item.code not in TRUE]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["bert", "vit", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_a_clean_export_passes_at_every_size_and_mask(clean, name):
    artifact = clean(name)
    report = verify(artifact.path, against=getattr(models, name)(), runtimes=RUNTIMES)
    assert told(report) == []
    assert {cell.verdict for cell in report.cells} == {"passed"}
    assert report.verdict == "passed"
    assert {cell.runtime for cell in report.cells} == {"exporter", *RUNTIMES}
    sizes = [tuple(cell.case.axes.values()) for cell in exporter_cells(report) if cell.case is not None]
    traced = tuple(artifact.manifest.contract.traced.values())
    assert {cell.arithmetic for cell in exporter_cells(report)} == {"fp64"}
    assert len(set(sizes) - {traced}) >= (4 if name != "vit" else 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "llama", "t5"])
def test_torch_passes_too_though_it_has_no_nodes(clean, name):
    """T5 has no bound end to end: unscaled scores, and positions that rounding looks up. Piece by piece it has."""
    report = verify(clean(name).path, against=getattr(models, name)(), runtimes=["torch"])
    assert told(report) == []
    assert {cell.verdict for cell in report.cells} == {"passed"}


def shapes_of(artifact: Artifact) -> dict[str, tuple[int, ...]]:
    """Return one size that is not the traced one."""
    sizes = {"batch": 2, "seq_len": 9, "target_len": 6}
    return {
        spec.name: tuple(sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes)
        for spec in artifact.manifest.contract.inputs
    }


Change = Callable[[dict[str, onnx.TensorProto], list[onnx.NodeProto]], str]


def changed(artifact: Artifact, change: Change, folder: Path) -> tuple[Artifact, str]:
    """Return a copy of an export with a fault in it, and the name of what is wrong."""
    model = onnx.load(artifact.path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    guilty = change(constants, list(model.graph.node))
    path = folder / artifact.path.name
    path.write_bytes(model.SerializeToString())
    return replace(artifact, path=path, sha256=digest(path.read_bytes())), guilty


def put(tensor: onnx.TensorProto, array: NDArray[np.generic]) -> None:
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(array), tensor.name))


def with_epsilon(constants: dict[str, onnx.TensorProto], nodes: list[onnx.NodeProto]) -> str:
    """The epsilon of the second layer normalisation 1e-5 too large, relatively."""
    node = [node for node in nodes if node.op_type == "LayerNormalization"][1]
    attribute = next(one for one in node.attribute if one.name == "epsilon")
    attribute.f *= 1 + 1e-5
    return node.name


def with_scale(constants: dict[str, onnx.TensorProto], nodes: list[onnx.NodeProto]) -> str:
    """What the queries are multiplied with before the first scores 1e-5 too large."""
    first = next(index for index, node in enumerate(nodes) if node.op_type == "Softmax")
    node = next(
        node for node in reversed(nodes[:first])
        if node.op_type == "Mul" and node.input[1] in constants and constants[node.input[1]].dims in ([], [1])
    )  # fmt: skip
    tensor = constants[node.input[1]]
    put(tensor, onnx.numpy_helper.to_array(tensor) * np.float32(1 + 1e-5))
    return tensor.name


def with_shifted_mask(constants: dict[str, onnx.TensorProto], nodes: list[onnx.NodeProto]) -> str:
    """The first mask is compared the other way round: a key later is seen as well."""
    node = next(node for node in nodes if node.op_type == "LessOrEqual")
    node.op_type = "GreaterOrEqual"
    return node.name


def with_swapped_weights(constants: dict[str, onnx.TensorProto], nodes: list[onnx.NodeProto]) -> str:
    """Keys of the first layer by the queries' weights."""
    products = [node for node in nodes if node.op_type in ("MatMul", "Gemm") and node.input[1] in constants]
    first, second = products[0], products[1]
    assert constants[first.input[1]].dims == constants[second.input[1]].dims
    second.input[1] = first.input[1]
    return second.name


def with_weak_mask(constants: dict[str, onnx.TensorProto], nodes: list[onnx.NodeProto]) -> str:
    """What hides keys is -5, not the lowest number there is."""
    lowest = float(np.finfo(np.float32).min)
    found = [
        tensor for tensor in constants.values()
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) < 2
        and onnx.numpy_helper.to_array(tensor).reshape(-1)[:1] == np.float32(lowest)
    ]  # fmt: skip
    assert found
    for tensor in found:
        put(tensor, np.full(tuple(tensor.dims), -5, np.float32))
    return found[0].name


FAULTS = [
    ("bert", with_epsilon), ("bert", with_swapped_weights), ("vit", with_scale),
    *(pytest.param(name, fault, marks=pytest.mark.slow) for name, fault in [
        ("vit", with_epsilon), ("gpt2", with_epsilon), ("gpt2", with_shifted_mask), ("llama", with_scale), ("llama", with_shifted_mask),
        ("t5", with_weak_mask), ("t5", with_swapped_weights),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_fault_in_the_file_is_the_exporters_and_its_place_is_named(clean, tmp_path, name, fault):
    artifact, guilty = changed(clean(name), fault, tmp_path)
    # The module that was exported, not another one like it: then its twin in float64 is made once for all faults.
    module = clean(name).module
    report = verify(artifact, runtimes=["ort-cpu"], against=module, input_shapes=shapes_of(artifact))
    assert report.verdict == "failed"
    found = [item for item in report.findings if item.code in CODES]
    assert {item.blame for item in report.findings if item.code in ("OA111", "OA112")} == {"exporter"}
    assert any(guilty in (item.node, *item.message.replace(",", " ").split()) for item in found), [
        (item.code, item.node, item.message) for item in found
    ]
