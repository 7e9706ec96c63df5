"""`onnx-attest power`: what it injects it catches, what is right it leaves alone, and it says what it could not try."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.power.experiment import Bench
from onnx_attest.verify.power.job import run_power
from onnx_attest.verify.power.mutants import Mutant
from onnx_attest.verify.power.score import lines, score
from onnx_attest.verify.power.summary import above_resolution
from onnx_attest.verify.records import CORRECT, PowerRecord, encode, read_records
from onnx_attest.verify.report import render
from onnx_attest.verify.runtimes.registry import select


@pytest.fixture(scope="module")
def done(exported):
    return run_power(exported["sdpa-decomposed-18"], "ort-cpu")


@pytest.fixture(scope="module")
def faults(done):
    return [record for record in done.records if isinstance(record, PowerRecord)]


def test_the_file_and_its_rewritings_are_left_alone(faults):
    correct = [record for record in faults if record.fault == CORRECT]
    assert len(correct) >= 2
    assert score(faults).false_alarms == 0
    assert score(faults).correct == sum(record.cases for record in correct) > 30


def test_every_fault_beyond_four_times_the_pool_is_caught(faults):
    caught, of = score(faults).strong
    assert caught == of > 300


def test_nearly_all_that_show_are_caught(faults):
    caught, of = score(faults).pairs
    assert caught / of >= 0.9


def test_the_smallest_scale_error_is_named(faults):
    assert score(faults).smallest_scale == 1e-6
    assert list(lines(faults))[-1] == "smallest scale error caught in most cases: 1e-06"


def test_1e_7_is_reported_and_not_scored(faults):
    (record,) = (record for record in faults if record.fault == "scale" and record.size == 1e-7)
    assert not record.above_resolution
    assert record.manifest > 0


def test_what_a_file_cannot_have_has_a_reason(faults):
    missing = {record.fault: record.reason for record in faults if not record.cases}
    assert "causal-missing" in missing
    assert all(missing.values())


def test_a_fault_without_effect_on_a_case_does_not_count(faults):
    (record,) = (record for record in faults if record.label == "-10000 instead of -inf")
    assert (record.manifest, record.undone) == (0, record.cases)


def test_records_survive_and_make_the_same_report(done, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(encode(done.records))
    text = render(read_records(path))["power.md"]
    assert text == render(done.records)["power.md"]
    assert "- false alarms: 0 of " in text
    assert "| scale x (1 + 1e-06)" in text.replace("  ", " ")


def test_the_command_prints_the_figures_as_json(command, exported):
    answer = command("power", exported["sdpa-decomposed-18"].path, "--json")
    told = json.loads(answer.out)
    assert (answer.code, told["verdict"]) == (0, "passed")
    assert told["score"]["false_alarms"] == 0


def test_a_file_that_does_not_pass_itself_exits_1(command, exported):
    answer = command("power", exported["sdpa-naive-decomposed-18"].path)
    assert answer.code == 1


def test_a_file_without_attention_proves_nothing(command, onnx_file):
    path = onnx_file("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    answer = command("power", path, "--json")
    told = json.loads(answer.out)
    assert (answer.code, told["verdict"]) == (3, "inconclusive")
    assert all(record["reason"] for record in told["faults"] if not record["cases"])


def test_bad_input_is_one_line(command, exported, tmp_path):
    command("power", tmp_path / "none.onnx").assert_refused("none.onnx")
    command("power", exported["sdpa-decomposed-18"].path, "--runtime", "abacus").assert_refused("abacus")
    command("power", exported["sdpa-decomposed-18"].path, "--arithmetic", "fp99").assert_refused("fp99")


def test_torch_runs_no_mutants(command, exported):
    command("power", exported["sdpa-decomposed-18"].path, "--runtime", "torch").assert_refused(
        "torch", "module"
    )


@pytest.mark.parametrize(
    ("fault", "arithmetic", "counts"),
    [
        ("products-tf32", "fp32", True),
        ("products-tf32", "tf32", False),
        ("weights-fp16", "fp16-unfused", False),
        ("weights-bf16", "fp16-unfused", True),
        ("logits-bf16", "bf16-unfused", False),
    ],
)
def test_what_an_arithmetic_does_anyway_is_no_fault_in_it(fault, arithmetic, counts):
    mutant = Mutant(fault, None, "", "", True, onnx.ModelProto())
    assert above_resolution(mutant, PROFILES[arithmetic].resolution) is counts


def test_a_size_counts_as_caught_only_if_every_attention_and_every_larger_size_does():
    def scale(size, killed, manifest, node):
        return PowerRecord(
            model="m", variant="v", opset=18, dtype="float32", artifact_sha256="", runtime="r", arithmetic="fp32",
            fault="scale", label="", size=size, node=node, killed=killed, manifest=manifest,
        )  # fmt: skip

    first = [scale(1e-6, 9, 10, "a"), scale(1e-5, 10, 10, "a")]
    assert score(first).smallest_scale == 1e-6
    assert score([*first, scale(1e-6, 4, 10, "b"), scale(1e-5, 9, 10, "b")]).smallest_scale == 1e-5
    assert score([*first, scale(1e-5, 4, 10, "b")]).smallest_scale is None


def test_any_session_can_be_judged(exported):
    bench = Bench(exported["sdpa-decomposed-18"], select(("ort-cpu",))[0])

    class Constant:
        placement = None

        def run(self, inputs):
            computed = bench.computed(inputs, Kernel("naive"))
            return {name: np.zeros_like(value, np.float32) for name, value in computed.items()}

    case = next(case for case in bench.cases if case.name == "traced")
    cell, _ = bench.judge(
        Constant(), case, bench.inputs(case), bench.gauge(bench.inputs(case), PROFILES["fp32"])
    )
    assert cell.verdict == "failed"
