"""The command that times files: what it prints and writes, its exit codes, and bad input."""

from __future__ import annotations

import json

import pytest

from onnx_attest.verify.latency import LatencyBudget
from onnx_attest.verify.latency.bench import run_bench
from onnx_attest.verify.records import LatencyRecord, MachineRecord, RunRecord, read_records
from onnx_attest.verify.runtimes.registry import select

MODEL = "g (float[n, 4] x) => (float[n, 4] y) { y = Tanh (x) }"
BUDGET = LatencyBudget(1, 1, rounds=1, block_s=0.0002, seconds=0, warm_up_s=0.001)


@pytest.fixture
def artifact(onnx_file):
    from onnx_attest.export.artifact import read_artifact

    return read_artifact(onnx_file(MODEL))


@pytest.mark.slow
def test_a_file_is_timed_and_reported(command, onnx_file, tmp_path):
    answer = command(
        "bench", onnx_file(MODEL), "--runtime", "ort-cpu", "--length", "5", "--seconds", "0.01", "--threads", "1", "-o", tmp_path / "out"
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert "By export, runtime and shape" in answer.out
    records = read_records(tmp_path / "out")
    (timed,) = [one for one in records if isinstance(one, LatencyRecord) and not one.twin]
    assert (timed.axes, timed.threads, timed.verdict) == ({"n": 5}, 1, "passed")
    assert any(isinstance(one, MachineRecord) for one in records)
    assert isinstance(records[-1], RunRecord)
    assert (tmp_path / "out" / "latency.md").read_text() in answer.out


def test_json_is_the_records(artifact):
    done = run_bench([artifact], select(("ort-cpu",)), threads=1, budget=BUDGET, lengths=(3,))
    told = json.loads(json.dumps(done.as_object()))
    assert told["exit_code"] == 0
    assert [record["kind"] for record in told["records"]][:3] == ["environment", "machine", "latency"]


def test_shapes_instead_of_lengths(artifact):
    done = run_bench([artifact], select(("ort-cpu",)), threads=1, budget=BUDGET, shapes={"x": (7, 4)})
    assert {one.axes["n"] for one in done.records if isinstance(one, LatencyRecord)} == {7}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--length", "4", "--input-shapes", "x:[2,4]"), "give --length or --input-shapes, not both"),
        (("--input-shapes", "z:[2,4]"), "names 'z'; the file's inputs are x"),
        (("--seconds", "0"), "--seconds 0: give a number above 0"),
        (("--seconds", "nan"), "--seconds nan: give a number above 0"),
        (("--runtime", "abacus"), "unknown runtime abacus"),
    ],
)
def test_bad_input_is_one_line_and_2(command, onnx_file, options, message):
    answer = command("bench", onnx_file(MODEL), *options)
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert answer.out == ""


def test_a_file_that_is_none_is_one_line_and_2(command, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"\x00\x01")
    answer = command("bench", tmp_path / "broken.onnx", "--runtime", "ort-cpu")
    assert (answer.code, answer.err.count("\n")) == (2, 1)


def test_a_required_runtime_that_is_absent_is_3(artifact):
    (cuda,) = select(("ort-cuda",))
    if cuda.availability().usable:
        pytest.skip("CUDA works here, so nothing is absent")
    done = run_bench(
        [artifact], select(("ort-cpu", "ort-cuda")), threads=1, budget=BUDGET, lengths=(3,), required=("ort-cuda",)
    )  # fmt: skip
    assert done.exit_code == 3
    assert done.records[-1].reason.startswith("ort-cuda was required and was not timed: ")


def test_what_raises_is_1_and_its_words(onnx_file):
    from onnx_attest.export.artifact import read_artifact

    model = "g (float[n, 4] x, float[m, 4] w) => (float[k, 4] y) { y = Add (x, w) }"
    artifact = read_artifact(onnx_file(model))
    shapes = {"x": (2, 4), "w": (3, 4)}  # they do not broadcast
    done = run_bench([artifact], select(("ort-cpu",)), threads=1, budget=BUDGET, shapes=shapes)
    assert done.exit_code == 1
    assert "ort-cpu: " in done.records[-1].reason
