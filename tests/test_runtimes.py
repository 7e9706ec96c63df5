"""Adapters: placement that cannot lie, reasons in the runtime's own words, and a table that knows its names."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact, read_artifact
from onnx_attest.verify import verify
from onnx_attest.verify.runtimes import onnxruntime as adapter
from onnx_attest.verify.runtimes.base import Placement, UnavailableError
from onnx_attest.verify.runtimes.ort_placement import refuse_fallback
from onnx_attest.verify.runtimes.registry import registered, select

(CUDA,) = select(("ort-cuda",))
NO_CUDA = CUDA.availability().reason
TEXT = """
<ir_version: 10, opset_import: ["": 18]>
g (float[n, 4] x) => (float[n, n] y) { t = Transpose (x) y = MatMul (x, t) }
"""


@pytest.fixture
def artifact(tmp_path) -> Artifact:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return read_artifact(path)


@pytest.mark.parametrize("name", ["ort-cpu", "ort-cpu-noopt", "onnx-reference"])
def test_runs_by_name(artifact, name):
    (runtime,) = select((name,))
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    outputs = runtime.open(artifact).run({"x": x})
    np.testing.assert_array_equal(outputs["y"], x @ x.T)


def test_placement_is_asked_of_the_session_and_of_each_node(artifact):
    (runtime,) = select(("ort-cpu-noopt",))
    placement = runtime.open(artifact).placement
    assert placement.used == ("CPUExecutionProvider",)
    assert placement.nodes_by_provider == {"CPUExecutionProvider": 2}


def test_optimisations_are_on_by_default_and_off_where_asked():
    """The table's own options: nodes are assigned before ORT fuses them, so a count of nodes would not tell."""
    from onnxruntime import GraphOptimizationLevel as Level

    levels = {
        name: select((name,))[0]._options(None).graph_optimization_level
        for name in ("ort-cpu", "ort-cpu-noopt")
    }
    assert levels == {"ort-cpu": Level.ORT_ENABLE_ALL, "ort-cpu-noopt": Level.ORT_DISABLE_ALL}


@pytest.mark.skipif(not NO_CUDA, reason="CUDA works here: nothing falls back")
@pytest.mark.skipif("has no CUDA" in NO_CUDA, reason=f"ort-cuda: {NO_CUDA}")
def test_session_without_cuda_libraries_is_refused_with_the_loaders_reason(artifact):
    """K8, microsoft/onnxruntime#23372: ORT gives a CPU session and no exception."""
    with pytest.raises(UnavailableError) as error:
        CUDA.open(artifact)
    assert str(error.value).startswith(NO_CUDA)
    assert "cannot open shared object file" in NO_CUDA or "CUDA" in NO_CUDA


@pytest.mark.skipif(not NO_CUDA, reason="CUDA works here: nothing falls back")
@pytest.mark.skipif("has no CUDA" in NO_CUDA, reason=f"ort-cuda: {NO_CUDA}")
def test_session_that_fell_back_is_refused_even_if_the_library_loads(artifact, monkeypatch):
    """The loader may be content where the provider then fails to start: the session itself is asked."""
    monkeypatch.setattr(adapter, "why_not", lambda provider: "")
    with pytest.raises(
        UnavailableError, match="asked for CUDAExecutionProvider, the session runs on CPUExecutionProvider"
    ):
        CUDA.open(artifact)


@pytest.mark.skipif(bool(NO_CUDA), reason=f"ort-cuda: {NO_CUDA}")
def test_cuda_runs_without_tf32_and_keeps_outputs_on_the_device(artifact):
    session = CUDA.open(artifact)
    assert session.placement.used[0] == "CUDAExecutionProvider"
    assert CUDA.provider_options == {"use_tf32": "0"}
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(session.run({"x": x})["y"], x @ x.T)


def test_session_that_lists_a_provider_and_runs_no_node_on_it_is_refused():
    placement = Placement(("CUDAExecutionProvider",), ("CUDAExecutionProvider", "CPUExecutionProvider"), {"CPUExecutionProvider": 9})  # fmt: skip
    with pytest.raises(UnavailableError, match="runs none of its nodes: 9 on CPUExecutionProvider"):
        refuse_fallback(placement, "CUDAExecutionProvider")


def test_session_with_some_nodes_elsewhere_is_not_refused():
    nodes = {"CUDAExecutionProvider": 7, "CPUExecutionProvider": 2}
    refuse_fallback(Placement(("CUDAExecutionProvider",), tuple(nodes), nodes), "CUDAExecutionProvider")


def test_nodes_elsewhere_are_counted():
    nodes = {"CUDAExecutionProvider": 7, "CPUExecutionProvider": 2}
    assert (
        Placement(("CUDAExecutionProvider",), tuple(nodes), nodes).elsewhere()
        == "of 9 nodes, 2 on CPUExecutionProvider"
    )
    assert (
        Placement(
            ("CPUExecutionProvider",), ("CPUExecutionProvider",), {"CPUExecutionProvider": 9}
        ).elsewhere()
        == ""
    )


def test_provider_that_the_build_does_not_have_is_named(artifact):
    runtime = adapter.OrtRuntime("ort-dml", "DmlExecutionProvider")
    assert "has no DmlExecutionProvider, only" in runtime.availability().reason
    with pytest.raises(UnavailableError):
        runtime.open(artifact)


def test_unknown_names_are_refused_with_the_names_there_are():
    with pytest.raises(UsageError, match=r"unknown runtime ort-gpu; there are torch, .*ort-cpu, "):
        select(("ort-gpu",))


def test_selection_keeps_the_order_and_drops_doubles():
    assert [runtime.name for runtime in select(("ort-cpu", "torch", "ort-cpu"))] == ["ort-cpu", "torch"]


def test_torch_refuses_a_module_with_other_parameters(exported):
    import msgspec

    artifact = exported["mha-decomposed-18"]
    other = msgspec.structs.replace(artifact.manifest, parameters_sha256="0" * 64)
    (torch_runtime,) = select(("torch",))
    with pytest.raises(UnavailableError, match="mha now builds other parameters than were exported"):
        torch_runtime.open(Artifact(artifact.path, artifact.sha256, other))


def test_a_manifest_does_not_get_code_run(exported):
    """A manifest is data: whoever sends a file must not choose what is imported."""
    import msgspec

    artifact = exported["mha-decomposed-18"]
    elsewhere = msgspec.structs.replace(artifact.manifest, module="antigravity:fly")
    (torch_runtime,) = select(("torch",))
    with pytest.raises(
        UnavailableError, match="names antigravity:fly, which is code: to run it, say --against"
    ):
        torch_runtime.open(Artifact(artifact.path, artifact.sha256, elsewhere))


def test_torch_refuses_a_file_without_a_module(artifact):
    (torch_runtime,) = select(("torch",))
    with pytest.raises(UnavailableError, match="no manifest"):
        torch_runtime.open(artifact)


def test_run_that_fails_is_not_repeated_on_the_cpu(artifact):
    """ORT's Python layer repeats a run that failed on CUDA on the CPU, and prints; that would be a silent fallback."""
    (runtime,) = select(("ort-cpu",))
    assert runtime.open(artifact)._session._enable_fallback is False


def test_availability_never_raises_and_always_says_why_not():
    for runtime in registered():
        found = runtime.availability()
        assert found.usable is (found.reason == "")
        assert isinstance(found.version, str)


def test_onnx_runtime_takes_and_gives_bfloat16(artifact):
    """Its Python interface converts no such array; a value of the bits can be made, and read."""
    text = """<ir_version: 10, opset_import: ["": 24]>
        g (bfloat16[2, 7, 4] cache, bfloat16[2, 3, 4] new, int64[2] at) => (bfloat16[2, 7, 4] y) {
            y = TensorScatter (cache, new, at)
        }"""
    cache, new = np.arange(56).reshape(2, 7, 4), np.arange(24).reshape(2, 4, 3).swapaxes(1, 2) - 1000.5
    cache, new = cache.astype(ml_dtypes.bfloat16), new.astype(ml_dtypes.bfloat16)
    assert not new.flags.c_contiguous
    model = onnx.parser.parse_model(text).SerializeToString()
    (runtime,) = select(("ort-cpu",))
    y = runtime.open(artifact, model=model).run({"cache": cache, "new": new, "at": np.array([0, 4])})["y"]
    expected = cache.copy()
    expected[0, :3], expected[1, 4:] = new[0], new[1]
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y, expected)


def test_what_onnx_runtime_casts_to_bfloat16_is_verified(onnx_file):
    path = onnx_file("g (float[n, 4] x) => (bfloat16[n, 4] y) { y = Cast <to = 16> (x) }")
    report = verify(path, runtimes=["ort-cpu"])
    assert {cell.verdict for cell in report.cells} == {"passed"}
