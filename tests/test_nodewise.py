"""Node by node: quiet on what is right, the first bad node named where something is wrong, and who made it so."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify import verify
from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.injection import injected_over_propagated
from onnx_attest.verify.inspection import Inspection
from onnx_attest.verify.nodewise import walk
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.passes import PASSES, guilty_pass
from onnx_attest.verify.probe import with_every_output
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime

FP32 = PROFILES["fp32"]
OPTIMISED, AS_WRITTEN = OrtRuntime("ort-cpu"), OrtRuntime("ort-cpu-noopt", optimise=False)
BLOCK = """<ir_version: 10, opset_import: ["": 18]>
g (float[n, 8] x) => (float[n, 8] y) <float[8, 8] w, float[8] b, float[8] s> {
  [first] p = MatMul (x, w)
  [second] a = Add (p, b)
  [third] l = LayerNormalization <epsilon = 0.00001> (a, s)
  [fourth] e = Erf (l)
  [fifth] y = Mul (e, l)
}"""
RNG = np.random.default_rng(5)
WEIGHTS = {
    "w": RNG.standard_normal((8, 8)).astype(np.float32),
    "b": RNG.standard_normal(8).astype(np.float32),
    "s": RNG.standard_normal(8).astype(np.float32),
}
X = {"x": RNG.standard_normal((3, 8)).astype(np.float32)}


def model(**changed):
    parsed = onnx.parser.parse_model(BLOCK)
    del parsed.graph.initializer[:]
    parsed.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in (WEIGHTS | changed).items()
    )
    return parsed


@pytest.fixture
def artifact(tmp_path):
    onnx.save(model(), tmp_path / "block.onnx")
    return read_artifact(tmp_path / "block.onnx")


def values_of(artifact, graph):
    return AS_WRITTEN.open(artifact, model=with_every_output(graph)).run(X)


def test_every_node_of_a_right_runtime_is_within_its_bound(artifact):
    seen = walk(GraphOracle(model()), X, values_of(artifact, model()), FP32)
    assert [one.node for one in seen.seen] == ["first", "second", "third", "fourth", "fifth"]
    assert (seen.bad, seen.missing) == ((), {})


def test_the_first_bad_node_is_the_one_that_was_changed(artifact):
    """What follows it passes on what it is given, and is right."""
    wrong = model(b=WEIGHTS["b"] * np.float32(1.001))
    bad = walk(GraphOracle(model()), X, values_of(artifact, wrong), FP32).bad
    assert [one.node for one in bad] == ["second"]


def test_an_operator_that_the_oracle_lacks_is_missing_and_the_rest_is_judged():
    graph = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
    g (float[3, 8] x) => (float y) {
      [a] t = Transpose (x)  [b] p = MatMul (x, t)  [c] d = Det (p)  [d] y = Abs (d) }""")
    probed = onnx.load_model_from_string(with_every_output(graph))
    evaluator = ReferenceEvaluator(probed)
    values = dict(zip(evaluator.output_names, map(np.asarray, evaluator.run(None, X)), strict=True))
    seen = walk(GraphOracle(graph), X, values, FP32)
    assert list(seen.missing) == ["c"]
    assert [one.node for one in seen.seen] == ["a", "b", "d"]


@pytest.mark.parametrize("runtime", [OPTIMISED, AS_WRITTEN], ids=lambda runtime: runtime.name)
def test_looking_changes_nothing_and_finds_nothing_in_what_is_right(artifact, runtime):
    inspection = Inspection.of(artifact, model(), GraphOracle(model()), runtime, None)
    seen = inspection.look(X, runtime.open(artifact).run(X), FP32)
    assert seen.changed == ()
    assert seen.walk.bad == ()
    assert (inspection.own is None) == (runtime is AS_WRITTEN)


class Rewriter(OrtRuntime):
    """An optimiser with a pass that is wrong: it scales a weight, unless it is switched off."""

    def rewritten(self, artifact, folder, *, threads=None):
        path = super().rewritten(artifact, folder, threads=threads)
        if "GeluFusionL1" in self.disabled:
            return path
        graph = onnx.load(path)
        for tensor in graph.graph.initializer:
            if tensor.name == "b":
                tensor.CopyFrom(numpy_helper.from_array(WEIGHTS["b"] * np.float32(1.1), "b"))
        onnx.save(graph, path)
        return path

    def open(self, artifact, *, model=None, threads=None):
        if model is not None or "GeluFusionL1" in self.disabled or not self.optimise:
            return super().open(artifact, model=model, threads=threads)
        wrong = onnx.load(artifact.path)
        for tensor in wrong.graph.initializer:
            if tensor.name == "b":
                tensor.CopyFrom(numpy_helper.from_array(WEIGHTS["b"] * np.float32(1.1), "b"))
        return super().open(artifact, model=wrong.SerializeToString(), threads=threads)


def test_a_rewriting_that_is_wrong_is_blamed_by_its_pass(artifact):
    """No node of the rewritten graph is off: it computes another function, rightly."""
    report = verify(artifact, inputs=X, plan=Plan(runtimes=(Rewriter("ort-cpu"),)))
    (found,) = [item for item in report.findings if item.code == "OA313"]
    assert (found.blame, found.node) == ("optimiser", "second")
    assert "without the pass GeluFusionL1 it is right" in found.message


class Kernel(OrtRuntime):
    """A runtime whose kernel for one node is wrong, whoever looks."""

    def open(self, artifact, *, model=None, threads=None):
        graph = onnx.load(artifact.path) if model is None else onnx.load_model_from_string(model)
        for node in graph.graph.node:
            for attribute in node.attribute:
                if attribute.name == "epsilon":
                    attribute.f = 0.1
        return super().open(artifact, model=graph.SerializeToString(), threads=threads)


def test_a_kernel_that_is_wrong_is_named(artifact):
    report = verify(artifact, inputs=X, plan=Plan(runtimes=(Kernel("ort-cpu-noopt", optimise=False),)))
    (found,) = [item for item in report.findings if item.code == "OA313"]
    assert (found.blame, found.node) == ("kernel", "third")


@pytest.mark.parametrize("guilty", [PASSES[0], PASSES[-1], "TransposeOptimizer"])
def test_one_guilty_pass_is_found_by_halves(guilty):
    assert guilty_pass(lambda off: guilty in off) == guilty


def test_two_guilty_passes_are_not_blamed_on_one():
    assert guilty_pass(lambda off: {PASSES[0], PASSES[-1]} <= set(off)) == ""
    assert guilty_pass(lambda off: False) == ""


def test_a_wide_bound_hides_nothing_behind_it(tmp_path):
    """ORT's QLinearSoftmax multiplies by floor(1 / scale): end to end a code may flip, node by node it may not."""
    graph = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
    g (float[64, 96] x) => (float[64, 96] y)
    <float scale = {0.05}, uint8 zero = {128}, float out = {0.003921569}, uint8 none = {0}> {
      q = QuantizeLinear (x, scale, zero)  d = DequantizeLinear (q, scale, zero)
      p = Softmax <axis = -1> (d)
      [last] c = QuantizeLinear (p, out, none)  y = DequantizeLinear (c, out, none)
    }""")
    onnx.save(graph, tmp_path / "q.onnx")
    x = {"x": (RNG.standard_normal((64, 96)) * 2).astype(np.float32)}
    report = verify(tmp_path / "q.onnx", inputs=x, runtimes=["ort-cpu", "ort-cpu-noopt"])
    verdicts = {cell.runtime: cell.verdict for cell in report.cells}
    assert verdicts == {"ort-cpu": "failed", "ort-cpu-noopt": "passed"}
    named = [item for item in report.findings if item.code == "OA313"]
    assert "QLinearSoftmax" in named[0].message


def test_noise_that_is_injected_spreads_as_far_as_was_propagated():
    ratios = injected_over_propagated(partial(GraphOracle(model()).evaluate, X), FP32, seed=1)
    assert ratios.size == 24
    assert 0.8 < np.median(ratios) < 1.25


@pytest.mark.parametrize("short", ["BFLOAT16", "FLOAT8E4M3FN"])
def test_values_that_numpy_has_no_type_for_are_not_taken_for_others(tmp_path, short):
    """ONNX Runtime gives a float8 as bytes, and no bfloat16 at all; the nodes around it are judged all the same."""
    kind = onnx.TensorProto.DataType.Value(short)
    graph = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 19]>
    g (float[4, 4] x) => (float[4, 4] y, float d) {{
      a = Cast <to = {kind}> (x)  y = Cast <to = 1> (a)  d = Det (x) }}""")
    onnx.save(graph, tmp_path / "short.onnx")
    report = verify(tmp_path / "short.onnx", runtimes=["ort-cpu-noopt"])
    assert report.verdict == "inconclusive"
    assert "the oracle does not have the operator Det" in report.run.reason
