"""What people need to verify the session they really run: options, inputs by a function, a budget of time."""

from __future__ import annotations

import pytest

from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime
from onnx_attest.verify.runtimes.registry import select, with_session

MODEL = "g (float[n, 4] x) => (float[n, 4] y) { y = Tanh (x) }"


def test_session_options_reach_the_session():
    (runtime,) = with_session(
        select(("ort-cpu",)),
        {"intra_op_num_threads": "1", "graph_optimization_level": "ORT_ENABLE_BASIC", "session.set_denormal_as_zero": "1"},
        (),
    )  # fmt: skip
    options = runtime._options(None)
    assert options.intra_op_num_threads == 1
    assert options.graph_optimization_level.name == "ORT_ENABLE_BASIC"
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("no_such_thing=1", "ONNX Runtime has no 'no_such_thing'"),
        ("intra_op_num_threads=many", "intra_op_num_threads=many"),
        ("enable_profiling", "not of the form key=value"),
    ],
)
def test_an_option_that_is_none_is_one_line_and_2(command, onnx_file, option, message):
    answer = command("verify", onnx_file(MODEL), "--runtime", "ort-cpu", "--session-option", option)
    assert answer.code == 2
    assert message in answer.err


def test_options_of_a_session_need_onnx_runtime(command, onnx_file):
    answer = command(
        "verify",
        onnx_file(MODEL),
        "--runtime",
        "onnx-reference",
        "--session-option",
        "intra_op_num_threads=1",
    )
    assert (answer.code, "none of the runtimes named is" in answer.err) == (2, True)


def test_a_library_that_does_not_load_is_an_error_of_the_runtime(command, onnx_file):
    answer = command(
        "verify", onnx_file(MODEL), "--runtime", "ort-cpu", "--custom-ops", "/no/such/library.so"
    )
    assert answer.code == 1
    assert "/no/such/library.so" in answer.out


def test_cases_that_there_was_no_time_for_are_skipped_and_said(command, onnx_file):
    answer = command("verify", onnx_file(MODEL), "--runtime", "ort-cpu", "--time-budget", "0")
    assert answer.code == 3
    assert "not begun within the time budget of 0 s" in " ".join(answer.out.split())


def test_inputs_of_a_function(command, onnx_file, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\ndef inputs():\n    return {'x': np.ones((5, 4), np.float32)}\n"
        "\ndef wrong():\n    return [1]\n"
    )
    path = onnx_file(MODEL)
    assert command("verify", path, "--load-inputs", f"{tmp_path}/mine.py:inputs").code == 0
    refused = command("verify", path, "--load-inputs", f"{tmp_path}/mine.py:wrong")
    assert (refused.code, "return a dictionary of arrays" in refused.err) == (2, True)
    missing = command("verify", path, "--load-inputs", f"{tmp_path}/mine.py:other")
    assert (missing.code, "AttributeError" in missing.err) == (2, True)


def test_thorough_cross_checks_the_deviations(command, onnx_file):
    answer = command("verify", onnx_file(MODEL), "--runtime", "ort-cpu", "--thorough", "--json")
    assert '"OA315"' in answer.out
    assert "spreads" in answer.out


def test_the_plain_runtime_has_no_options():
    assert OrtRuntime("ort-cpu").session_options == {}
