"""The OpenVINO adapter: names, types, the precision it was given and the one that it takes by itself."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify import verify
from onnx_attest.verify.environment import cpu_features
from onnx_attest.verify.runtimes.base import Placement, UnavailableError
from onnx_attest.verify.runtimes.openvino import OpenVinoRuntime
from onnx_attest.verify.runtimes.registry import select

pytest.importorskip("openvino", reason="needs the package openvino (onnx-attest[openvino])")
F32, DEFAULT = select(("openvino-cpu", "openvino-cpu-default"))
X = np.arange(8, dtype=np.float32).reshape(2, 4)
GRAM = "g (float[n, 4] x) => (float[n, n] y) { t = Transpose (x) y = MatMul (x, t) }"


@pytest.mark.parametrize("rows", [1, 2, 0])
def test_runs_by_name_at_every_size(onnx_file, rows):
    x = np.resize(X, (rows, 4))
    np.testing.assert_array_equal(F32.open(read_artifact(onnx_file(GRAM))).run({"x": x})["y"], x @ x.T)


def test_placement_and_precision_are_asked_of_the_compiled_model(onnx_file):
    placement = F32.open(read_artifact(onnx_file(GRAM))).placement
    assert placement == Placement(("CPU",), ("CPU",), details={"INFERENCE_PRECISION_HINT": "f32"})


def test_precision_other_than_asked_is_refused():
    placement = Placement(("CPU",), ("CPU",), details={"INFERENCE_PRECISION_HINT": "bf16"})
    with pytest.raises(
        UnavailableError, match="asked for INFERENCE_PRECISION_HINT=f32, the compiled model has bf16"
    ):
        F32._refuse_other_than_asked(placement)


def test_device_other_than_asked_is_refused():
    placement = Placement(("GPU",), ("CPU",), details={"INFERENCE_PRECISION_HINT": "f16"})
    with pytest.raises(UnavailableError, match="asked for GPU, the model runs on CPU"):
        OpenVinoRuntime("gpu", "GPU")._refuse_other_than_asked(placement)


def test_device_that_is_not_there_is_named():
    found = OpenVinoRuntime("openvino-npu", "NPU").availability()
    assert not found.usable
    assert found.reason.startswith("OpenVINO has no device NPU here, only CPU")


def test_outputs_that_openvino_merges_or_renames_come_by_the_files_names(onnx_file):
    graph = """g (float[n, 4] x) => (float[n, 4] twice, float[n, 4] same, float[n, 4] again)
               { same = Identity (x) twice = Relu (x) again = Identity (twice) }"""
    outputs = F32.open(read_artifact(onnx_file(graph))).run({"x": -X})
    assert list(outputs) == ["twice", "same", "again"]
    np.testing.assert_array_equal(outputs["same"], -X)
    np.testing.assert_array_equal(outputs["twice"], np.zeros_like(X))
    np.testing.assert_array_equal(outputs["again"], np.zeros_like(X))


def test_outputs_of_one_run_are_not_written_to_by_the_next(onnx_file):
    session = F32.open(read_artifact(onnx_file("g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }")))
    first = session.run({"x": X})["y"]
    session.run({"x": X + 1})
    np.testing.assert_array_equal(first, X)


def test_input_that_no_node_reads_is_taken(onnx_file):
    file = onnx_file("g (float[n, 4] x, float[m] unread) => (float[n, 4] y) { y = Relu (x) }")
    inputs = {"x": X, "unread": np.zeros(3, np.float32)}
    np.testing.assert_array_equal(F32.open(read_artifact(file)).run(inputs)["y"], X)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float", np.float32),
        ("double", np.float64),
        ("float16", np.float16),
        ("bfloat16", ml_dtypes.bfloat16),
        ("int64", np.int64),
        ("int32", np.int32),
        ("uint8", np.uint8),
        ("bool", np.bool_),
    ],
)
def test_every_type_keeps_its_bits(onnx_file, name, dtype):
    """A move computes nothing; whatever arrives in another type, or read as another one, is seen."""
    file = onnx_file(f"g ({name}[n, 4] x) => ({name}[4, n] y) {{ y = Transpose (x) }}")
    x = X.astype(dtype)
    y = F32.open(read_artifact(file)).run({"x": x})["y"]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x.T)


def test_operator_without_translation_is_refused_in_openvinos_words(onnx_file):
    file = onnx_file("g (float[n, 3, 3] x) => (float[n] y) { y = Det (x) }")
    with pytest.raises(UnavailableError, match="No conversion rule found for operations: Det-18"):
        F32.open(read_artifact(file))


def test_tensors_beside_the_file_reach_a_copy_of_it(tmp_path):
    import onnx

    text = '<ir_version: 10, opset_import: ["": 18]> g (float[n, 4] x) => (float[n, 4] y) <float[4] w = {1, 2, 3, 4}> { y = Mul (x, w) }'
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx.parser.parse_model(text), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    copy = onnx.load(path, load_external_data=False).SerializeToString()
    y = F32.open(read_artifact(path), model=copy).run({"x": X})["y"]
    np.testing.assert_array_equal(y, X * [1, 2, 3, 4])


@pytest.mark.skipif(
    not {"avx512_bf16", "amx_bf16"} & set(cpu_features()), reason="needs a CPU with bfloat16 instructions"
)
def test_default_precision_on_a_cpu_with_bfloat16_is_found_out(exported):
    """Nobody declared bfloat16: the fp32 bound is broken, and what it ran as is said, with what is left of the bits."""
    artifact = exported["sdpa-decomposed-18"]
    shapes = {
        spec.name: tuple({"batch": 2}.get(axis, 37) if isinstance(axis, str) else axis for axis in spec.axes)
        for spec in artifact.manifest.contract.inputs
    }
    report = verify(artifact, runtimes=["openvino-cpu", "openvino-cpu-default"], input_shapes=shapes)
    by_runtime = {cell.runtime: cell for cell in report.cells if cell.runtime.startswith("openvino")}
    fine, coarse = by_runtime["openvino-cpu"], by_runtime["openvino-cpu-default"]
    assert (fine.verdict, fine.ran_as) == ("passed", "fp32")
    assert (coarse.verdict, coarse.arithmetic, coarse.ran_as) == ("failed", "fp32", "bf16-unfused")
    assert coarse.session == {"INFERENCE_PRECISION_HINT": "bf16"}
    assert coarse.effective_bits < 12 < 20 < fine.effective_bits
    assert DEFAULT.arithmetic("float32") == "fp32"
