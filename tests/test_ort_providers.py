"""Providers of ONNX Runtime by name, built in or plugged in: where each node runs, and what a fallback comes to."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import onnx
import pytest

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify.runtimes.base import FallbackError, Placement
from onnx_attest.verify.runtimes.model_file import ModelFile
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime
from onnx_attest.verify.runtimes.ort_placement import copies_in, floating, with_copies
from onnx_attest.verify.runtimes.registry import reference_of, select

(NXRT,) = select(("ort-nxrt",))
needs_plugin = pytest.mark.skipif(
    importlib.util.find_spec("nxrt_ep_cpu") is None,
    reason="needs the package nxrt-ep-cpu (onnx-attest[plugin])",
)
TAKEN = "g (float[n, 4] x) => (float[n, n] y) { t = Transpose (x) z = MatMul (x, t) y = Softmax (z) }"
MIXED = "g (float[n, 3, 3] x) => (float[n] y) { a = Exp (x) d = Det (a) y = Exp (d) }"
LEFT = "g (float[n, 4] x) => (float[n, 4] y) { e = Exp (x) c = Equal (e, x) y = Where (c, x, e) }"


@needs_plugin
def test_plugin_runs_what_it_takes(onnx_file):
    session = NXRT.open(read_artifact(onnx_file(TAKEN)))
    assert session.placement.nodes_by_provider == {"cpu_ep": 3}
    assert session.placement.elsewhere() == ""
    x = np.zeros((2, 4), np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.full((2, 2), 0.5, np.float32))


@needs_plugin
def test_nodes_that_a_plugin_leaves_are_counted_and_named(onnx_file):
    placement = NXRT.open(read_artifact(onnx_file(MIXED))).placement
    assert placement.nodes_by_provider == {"cpu_ep": 2, "CPUExecutionProvider": 1}
    assert placement.elsewhere() == "of 3 nodes, 1 on CPUExecutionProvider"
    assert placement.fallen == ("Det",)


@needs_plugin
def test_session_whose_plugin_takes_no_node_is_refused(onnx_file):
    """ORT lists the plugin among the session's providers, and gives no exception."""
    with pytest.raises(
        FallbackError, match="cpu_ep is listed by the session and runs none of its nodes: 3 on CPU"
    ):
        NXRT.open(read_artifact(onnx_file(LEFT)))


@needs_plugin
def test_fallback_of_a_session_is_a_finding_and_no_pass(command, onnx_file):
    answer = command("verify", onnx_file(LEFT), "--runtime", "ort-nxrt", "--json")
    result = json.loads(answer.out)
    assert (answer.code, [cell["verdict"] for cell in result["cells"]]) == (3, ["skipped"])
    assert "OA202" in [item["code"] for item in result["findings"]]


@needs_plugin
def test_fallback_of_a_node_is_a_finding_and_fails_where_the_runtime_is_required(command, onnx_file):
    file = onnx_file("g (float[n, 4] x) => (float[n, 4] y) { a = Exp (x) s = Shrink (a) y = Sub (s, x) }")
    verify = ("verify", file, "--input-shapes", "x:[2,4]", "--json")
    preferred = json.loads(command(*verify, "--runtime", "ort-nxrt").out)
    found = {item["code"]: item for item in preferred["findings"]}
    assert found["OA204"]["runtime"] == "ort-nxrt"
    assert "of these compute floating-point numbers: Shrink" in found["OA204"]["message"]
    answer = command(*verify, "--require", "ort-nxrt", "--runtime", "ort-nxrt")
    assert answer.code == 3
    assert "ort-nxrt was required and ran in part only" in json.loads(answer.out)["reason"]


@needs_plugin
def test_any_plugin_is_named_with_its_library(onnx_file):
    (by_package,) = select(("ort:cpu_ep@nxrt_ep_cpu",))
    session = by_package.open(read_artifact(onnx_file(TAKEN)))
    assert (by_package.name, session.placement.nodes_by_provider) == ("ort:cpu_ep@nxrt_ep_cpu", {"cpu_ep": 3})


@needs_plugin
def test_plugin_in_a_file_of_its_own_and_no_folder_in_its_name(onnx_file):
    """In a process of its own: a library is registered once a process, under one name."""
    import nxrt_ep_cpu

    path = nxrt_ep_cpu.get_library_path()
    code = (
        "import sys; from onnx_attest.export.artifact import read_artifact; from pathlib import Path\n"
        "from onnx_attest.verify.runtimes.registry import *\n"
        "(one,) = select((sys.argv[1],)); print(one.name, reference_of(one) == sys.argv[1])\n"
        "print(one.open(read_artifact(Path(sys.argv[2]))).placement.nodes_by_provider)"
    )
    command = [sys.executable, "-c", code, f"ort:cpu_ep@{path}", str(onnx_file(TAKEN))]
    found = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    assert found == "ort:cpu_ep@libonnx_runtime_ep_cpu_plugin.so True\n{'cpu_ep': 3}\n"


@needs_plugin
def test_provider_that_a_plugin_does_not_have_is_named():
    (other,) = select(("ort:gpu_ep@nxrt_ep_cpu",))
    assert "offers no provider gpu_ep here; there are CPUExecutionProvider" in other.availability().reason


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("no_such_package", "No module named 'no_such_package'"),
        ("/nowhere/libnone.so", "no file /nowhere/libnone.so"),
    ],
)
def test_plugin_that_is_not_there_is_skipped_with_the_reason(library, words):
    (runtime,) = select((f"ort:some_ep@{library}",))
    assert runtime.availability().usable is False
    assert words in runtime.availability().reason


def test_provider_by_name_and_options():
    (runtime,) = select(("ort:XnnpackExecutionProvider,intra_op_num_threads=2",))
    assert runtime.name == "ort:XnnpackExecutionProvider,intra_op_num_threads=2"
    assert (runtime.provider, runtime.provider_options) == (
        "XnnpackExecutionProvider",
        {"intra_op_num_threads": "2"},
    )
    found = runtime.availability()
    assert found.usable or "this build of ONNX Runtime has no XnnpackExecutionProvider" in found.reason


def test_cpu_provider_by_its_own_name(onnx_file):
    (runtime,) = select(("ort:CPUExecutionProvider",))
    assert runtime.open(read_artifact(onnx_file(TAKEN))).placement.used == ("CPUExecutionProvider",)


@pytest.mark.parametrize(
    "reference", ["ort:", "ort:@lib.so", "ort:some_ep@", "ort:some_ep,option", "ort:some_ep,=1"]
)
def test_malformed_provider_is_refused(reference):
    with pytest.raises(UsageError, match="give ort:PROVIDER or ort:PROVIDER@LIBRARY, then ,key=value"):
        select((reference,))


def test_reference_is_the_name_unless_it_says_more():
    assert reference_of(OrtRuntime("ort-cpu")) == "ort-cpu"


def test_arithmetic_on_shapes_is_no_fallback(onnx_file):
    text = """g (float[n, 4] x) => (float[m] y)
              { s = Shape (x) p = ReduceProd <keepdims = 1> (s) f = Cast <to = 1> (p) y = Exp (f) }"""
    file = ModelFile.of(read_artifact(onnx_file(text)), None)
    nodes = [("Shape", ""), ("ReduceProd", ""), ("Cast", ""), ("Exp", ""), ("FusedGemm", "made_by_ort")]
    assert floating(nodes, file) == ("Cast", "Exp", "FusedGemm made_by_ort")


def test_copies_between_devices_are_counted_in_subgraphs_too(tmp_path):
    inside = onnx.helper.make_graph(
        [onnx.helper.make_node("MemcpyFromHost", ["x"], ["b"])],
        "inside",
        [],
        [onnx.helper.make_empty_tensor_value_info("b")],
    )
    nodes = [
        onnx.helper.make_node("MemcpyToHost", ["x"], ["a"]),
        onnx.helper.make_node("Exp", ["a"], ["c"]),
        onnx.helper.make_node("If", ["c"], ["d"], then_branch=inside, else_branch=inside),
    ]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [])), tmp_path / "copies.onnx")
    assert copies_in(tmp_path / "copies.onnx") == 3
    placement = with_copies(Placement(), lambda folder: tmp_path / "copies.onnx")
    assert placement.details == {"memcpy_nodes": "3"}


def test_number_of_copies_that_is_not_known_says_why():
    def refuse(folder):
        raise RuntimeError("compiled nodes\ncannot be saved")

    assert with_copies(Placement(), refuse).details == {
        "memcpy_nodes": "unknown: compiled nodes cannot be saved"
    }
