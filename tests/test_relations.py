"""The gate exact: kept bit by bit by what is right, broken by what depends on what it should not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from onnx_attest.models.contract import Contract, TensorSpec
from onnx_attest.verify import verify
from onnx_attest.verify.oracle.bounded import exact
from onnx_attest.verify.power.experiment import Bench
from onnx_attest.verify.relations import Relations
from onnx_attest.verify.runtimes.registry import select


class Altered:
    """A correct session whose outputs are changed on the way out."""

    placement = None

    def __init__(self, session, change):
        self._session, self._change, self.calls = session, change, 0

    def run(self, inputs):
        self.calls += 1
        return self._change(self, dict(inputs), self._session.run(inputs))


def nothing(session, inputs, outputs):
    return outputs


def another_each_time(session, inputs, outputs):
    outputs["output"][0, 0, 0] += np.float32(1e-6 * session.calls)
    return outputs


def a_constant_added(session, inputs, outputs):
    return {**outputs, "output": outputs["output"] + np.float32(1e-6)}


def leaks_the_future(session, inputs, outputs):
    outputs["output"][:, 0] += np.float32(1e-6) * inputs["V"][:, -1]
    return outputs


def leaks_another_sequence(session, inputs, outputs):
    outputs["output"][0] += np.float32(1e-6) * inputs["V"][-1]
    return outputs


def raises_the_second_time(session, inputs, outputs):
    if session.calls > 1:
        raise RuntimeError("no more memory")
    return outputs


@pytest.fixture(scope="module")
def held(exported):
    bench = Bench(exported["sdpa-decomposed-18"], select(("ort-cpu",))[0])
    case = next(case for case in bench.cases if case.name == "mask-causal")
    inputs = bench.inputs(case)
    return bench, inputs, Relations(bench.signature.contract, inputs, bench.exact)


def broken(held, change):
    bench, inputs, relations = held
    session = Altered(bench.open(bench.signature.model), change)
    return [item.message.partition(":")[0] for item in relations.check(session, session.run(inputs))]


def test_a_right_runtime_keeps_all(held):
    assert len(held[2]) == 7
    assert broken(held, nothing) == []


def test_a_runtime_that_does_not_repeat_itself(held):
    assert "run twice" in broken(held, another_each_time)


def test_what_is_not_linear_in_the_values(held):
    assert broken(held, a_constant_added) == ["V times -1", "V times 2"]


def test_a_future_token_that_shows(held):
    assert broken(held, leaks_the_future) == ["the last entry of seq_len replaced"]


def test_another_sequence_that_shows(held):
    assert "the last entry of batch replaced" in broken(held, leaks_another_sequence)


def test_a_runtime_that_raises_only_then(held):
    assert len(broken(held, raises_the_second_time)) == 7


def test_only_what_holds_of_the_function_is_asked(exported):
    bench = Bench(exported["mha-decomposed-18"], select(("ort-cpu",))[0])
    case = next(case for case in bench.cases if case.name == "traced")
    inputs = bench.inputs(case)  # tokens, and no causal mask: each token sees the last one
    relations = Relations(bench.signature.contract, inputs, bench.exact)
    assert [relation.name for relation in relations] == ["run twice", "the last entry of batch replaced"]


@pytest.mark.parametrize("stem", ["sdpa-decomposed-18", "causal-attention-23"])
def test_every_runtime_is_held_to_them_on_one_case(exported, stem):
    report = verify(exported[stem], runtimes=["torch", "ort-cpu", "onnx-reference"])
    told = [cell for cell in report.cells if "exact" in cell.gates]
    assert sorted(cell.runtime for cell in told) == ["onnx-reference", "ort-cpu", "torch"]
    assert {cell.gates["exact"]["broken"] for cell in told} == {0.0}
    assert report.verdict == "passed"


def test_values_that_are_alike_at_every_key_hide_no_dependence(exported):
    """The mean of equal values is that value but for rounding, whoever asks: a query that is replaced may round anew."""
    bench = Bench(exported["sdpa-decomposed-18"], select(("ort-cpu",))[0])
    case = next(case for case in bench.cases if case.name == "off-8")
    inputs = bench.inputs(case)
    inputs["V"] = np.broadcast_to(inputs["V"][:, :1], inputs["V"].shape).copy()
    relations = Relations(bench.signature.contract, inputs, bench.exact)
    session = bench.open(bench.signature.model)
    assert relations.check(session, session.run(inputs)) == []


def test_one_enormous_sequence_hides_no_dependence(exported):
    bench = Bench(exported["sdpa-decomposed-18"], select(("ort-cpu",))[0])
    case = next(case for case in bench.cases if case.name == "off-8")
    inputs = bench.inputs(case)
    inputs["V"][0] *= np.float32(1e13)
    relations = Relations(bench.signature.contract, inputs, bench.exact)
    session = bench.open(bench.signature.model)
    assert relations.check(session, session.run(inputs)) == []


def test_a_short_format_hides_no_dependence():
    """Of some hundred thousand numbers in bfloat16 a replaced one may be what it was: found with a cache, every time."""
    contract = Contract(
        (TensorSpec("x", ("batch", "n", 4), role="data"),), (TensorSpec("y", ("batch", "n", 4)),),
        {"batch": 3, "n": 9000},
    )  # fmt: skip
    x = np.random.default_rng(7).standard_normal((3, 9000, 4)).astype(ml_dtypes.bfloat16)
    relations = Relations(contract, {"x": x}, lambda inputs: {"y": exact(inputs["x"])})
    (relation,) = [one for one in relations if one.name == "the last entry of batch replaced"]
    assert not relation.untouched["y"][-1].any()
    assert relation.untouched["y"][:-1].all()


@pytest.mark.parametrize(
    ("operator", "output"),
    [("Relu(x)", "float[N,8]"), ("Round(x)", "float[N,8]"), ("ArgMax<axis=0,keepdims=0>(x)", "int64[8]")],
)
def test_what_makes_different_numbers_one_hides_no_dependence(tmp_path, operator, output):
    """Two entries below zero are one behind a ReLU, and the largest of many is rarely the last: chance, not the graph."""
    path = tmp_path / "one.onnx"
    text = f'<ir_version: 10, opset_import: ["" : 18]> g (float[N,8] x) => ({output} y) {{ y = {operator} }}'
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    report = verify(path, runtimes=["ort-cpu"])
    assert {cell.verdict for cell in report.cells} == {"passed"}
    assert any("exact" in cell.gates for cell in report.cells)
