"""How verdicts add up, and the exit code."""

from __future__ import annotations

import pytest

from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import CaseRecord, CellRecord, RunRecord
from onnx_attest.verify.verdicts import exit_code, worst


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (["passed", "passed"], "passed"),
        (["passed", "skipped"], "passed"),
        (["passed", "inconclusive"], "inconclusive"),
        (["inconclusive", "errored"], "errored"),
        (["errored", "failed", "passed"], "failed"),
        (["skipped"], "inconclusive"),
        ([], "inconclusive"),
    ],
)
def test_worst(parts, whole):
    assert worst(parts) == whole


@pytest.mark.parametrize(
    ("verdict", "absent", "code"),
    [
        ("passed", False, 0), ("passed", True, 3), ("failed", True, 1), ("errored", False, 1), ("inconclusive", False, 3),
    ],
)  # fmt: skip
def test_exit_code(verdict, absent, code):
    assert exit_code(verdict, required_absent=absent) == code


def cell(verdict, runtime="ort-cpu", known="", reason="", artifact="a"):
    return CellRecord(
        model="m", variant="decomposed", opset=18, dtype="float32", artifact_sha256=artifact, runtime=runtime,
        runtime_version="1", case=CaseRecord(name="c", axes={}), verdict=verdict, known=known, reason=reason,
    )  # fmt: skip


def run_of(*cells, required=()) -> RunRecord:
    return conclude(cells, required=required, duration_s=1.0)[-1]


def test_known_failures_do_not_count():
    run = run_of(cell("passed"), cell("failed", known="counter-example"))
    assert (run.verdict, run.exit_code, run.known) == ("passed", 0, 1)


def test_known_failures_alone_prove_nothing():
    assert run_of(cell("failed", known="counter-example")).verdict == "inconclusive"


def test_required_runtime_that_ran_is_silent():
    assert run_of(cell("passed"), required=("ort-cpu",)).exit_code == 0


def test_required_runtime_that_was_skipped_proves_nothing():
    run = run_of(cell("passed"), cell("skipped", "ort-cuda", reason="no library"), required=("ort-cuda",))
    assert (run.verdict, run.exit_code) == ("inconclusive", 3)
    assert "ort-cuda was required and did not run: no library" in run.reason


def test_required_runtime_must_run_every_artifact():
    run = run_of(cell("passed"), cell("passed", "torch", artifact="b"), required=("ort-cpu",))
    assert run.exit_code == 3


def test_failure_comes_before_a_required_absence():
    run = run_of(cell("failed"), cell("skipped", "ort-cuda", reason="no library"), required=("ort-cuda",))
    assert (run.verdict, run.exit_code) == ("failed", 1)


def test_inconclusive_run_says_why():
    run = run_of(cell("inconclusive", reason="no operator Conv"))
    assert (run.exit_code, run.reason) == (3, "no operator Conv")
