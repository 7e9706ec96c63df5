"""The command line as its users meet it: exit codes, streams, one JSON object, and what it must not import."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnx_attest.verify import console
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import encode
from onnx_attest.verify.runtimes.registry import select

DOUBLE = "double (float[n, 4] x) => (float[n, 4] y) { y = Add(x, x) }"
# The opset-11 Softmax of onnx's reference evaluator is wrong (K7), so this graph has a runtime that fails.
OLD_SOFTMAX = "old (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax (x) }"
UNKNOWN_TO_ORACLE = "det (float[n, 3, 3] x) => (float[n] y) { y = Det(x) }"
COMMANDS = ("run", "export", "verify", "bench", "conformance", "report", "explain", "doctor")

# Runs a command and says which of the heavy packages it has imported.
IMPORTED = """
import sys
sys.argv = ["onnx-attest", *sys.argv[1:]]
try:
    from onnx_attest.verify.cli import main
    main()
finally:
    print(*{"torch", "onnxruntime", "onnx"} & set(sys.modules), file=sys.stderr)
"""


def process(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    python = [sys.executable, "-m", "onnx_attest", *map(str, arguments)]
    return subprocess.run(python, text=True, stderr=subprocess.PIPE, check=False, timeout=60, **options)


def imported_by(*arguments: object) -> set[str]:
    python = [sys.executable, "-c", IMPORTED, *map(str, arguments)]
    answer = subprocess.run(python, text=True, capture_output=True, check=False, timeout=60)
    assert answer.returncode == 0, answer.stderr
    return set(answer.stderr.split())


@pytest.fixture
def records(tmp_path: Path) -> Path:
    (tmp_path / "records.jsonl").write_bytes(encode(conclude([], duration_s=1.0)))
    return tmp_path


# --- what it imports --------------------------------------------------------------------------------------------


def test_help_imports_no_heavy_package():
    assert imported_by("--help") == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_imports_no_heavy_package(name):
    assert imported_by(name, "--help") == set()


@pytest.mark.parametrize("arguments", [("explain",), ("explain", "OA401"), ("--version",)])
def test_explanation_imports_no_heavy_package(arguments):
    assert imported_by(*arguments) == set()


def test_report_imports_no_torch_and_no_runtime(records):
    assert imported_by("report", records) & {"torch", "onnxruntime"} == set()


def test_verification_on_other_runtimes_imports_no_torch(onnx_file):
    assert "torch" not in imported_by("verify", onnx_file(DOUBLE), "--runtime", "onnx-reference")


# --- exit codes -------------------------------------------------------------------------------------------------


def test_help_names_every_command(command):
    answer = command("--help")
    assert (answer.code, answer.err) == (0, "")
    assert [name for name in COMMANDS if name not in answer.out] == []


def test_verified_is_0(command, onnx_file):
    answer = command("verify", onnx_file(DOUBLE), "--runtime", "onnx-reference")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("**passed**")


def test_failed_is_1(command, onnx_file):
    answer = command("verify", onnx_file(OLD_SOFTMAX, opset=11), "--runtime", "onnx-reference")
    assert answer.code == 1
    assert answer.out.startswith("**failed**")


ONE_LENGTH = "g (float[n, 48] x) => (float[1, 48] y) <float[1, 5] w = {1, 1, 1, 1, 1}> { y = MatMul (w, x) }"
"""Not a constant shape, which a static rule would tell before anything runs (OA121)."""


def test_runtime_that_raises_is_1(command, onnx_file):
    answer = command(
        "verify", onnx_file(ONE_LENGTH), "--runtime", "onnx-reference", "--input-shapes", "x:[7,48]"
    )
    assert answer.code == 1
    assert answer.out.startswith("**errored**")


def test_guessed_sizes_that_the_file_does_not_take_are_no_fault(command, onnx_file):
    answer = command("verify", onnx_file(ONE_LENGTH), "--runtime", "onnx-reference")
    assert answer.code == 3
    assert "the file does not run on these inputs" in " ".join(answer.out.split())


def test_nothing_to_compare_with_is_3(command, onnx_file):
    answer = command("verify", onnx_file(UNKNOWN_TO_ORACLE), "--runtime", "onnx-reference")
    assert answer.code == 3
    assert answer.out.startswith("**inconclusive**")
    assert "Det" in answer.out


@pytest.mark.parametrize("arguments", [(), ("frobnicate",), ("verify",), ("verify", "x.onnx", "--frob")])
def test_wrong_command_line_is_2(command, arguments):
    answer = command(*arguments)
    assert answer.code == 2
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frobnicate"], ["No such command", "--help"]),
        (["verify"], ["Missing argument", "--help"]),
        (["verify", "x.onnx", "--frob"], ["No such option", "--help"]),
        (["verify", "x.onnx", "--seed", "x"], ["--seed", "integer"]),
        (["verify", "x.onnx", "--threads", "0"], ["--threads"]),
        (["verify", "x.onnx", "--threads", "99999999"], ["--threads"]),
        (["export", "mha", "--opset", "0"], ["--opset"]),
        (["verify", "x.onnx", "--input-shapes"], ["--input-shapes", "argument"]),
        (["export"], ["name a model", "--list"]),
        (["export", "nope"], ["unknown model 'nope'", "mha"]),
        (["export", "mha", "--variant", "nope"], ["unknown variant nope", "attention"]),
        (["export", "mha", "--dtype", "nope"], ["unknown dtype 'nope'", "float32"]),
        (["run", "--model", "nope"], ["unknown model 'nope'", "mha"]),
        (["run", "--variant", "nope"], ["unknown variant nope", "attention"]),
        (["run", "--runtime", "nope"], ["unknown runtime nope", "ort-cpu"]),
        (["run", "--model", "mha", "--model", "mha"], ["two models are called mha"]),
        (["verify", "x.onnx", "--runtime", "nope"], ["unknown runtime nope", "ort-cpu"]),
        (["verify", "x.onnx", "--require", "nope"], ["unknown runtime nope", "ort-cpu"]),
        (["explain", "OA999"], ["unknown code 'OA999'", "OA101"]),
    ],
)  # fmt: skip
def test_wrong_argument_is_said_in_one_line(command, arguments, words):
    command(*arguments).assert_refused(*words)


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [("--arithmetic", "fp8", "fp32"), ("--against", "nope", "mha"), ("--atol", "nan", "finite"), ("--rtol", "inf", "finite"),
     ("--atol", "-1", "finite")],
)  # fmt: skip
def test_wrong_value_for_a_good_file_is_said_in_one_line(command, onnx_file, option, value, word):
    command("verify", onnx_file(DOUBLE), "--runtime", "onnx-reference", option, value).assert_refused(
        value, word
    )


# --- K8: a runtime that is not there ----------------------------------------------------------------------------


@pytest.fixture
def no_cuda() -> str:
    """Return why CUDA does not work here; skip where it does."""
    (cuda,) = select(("ort-cuda",))
    found = cuda.availability()
    if found.usable:
        pytest.skip(f"needs a machine without CUDA; ort-cuda {found.version} works here")
    return found.remark


def test_absent_cuda_is_skipped_with_the_loaders_reason(command, onnx_file, no_cuda):
    answer = command("verify", onnx_file(DOUBLE), "--runtime", "onnx-reference", "--runtime", "ort-cuda", "--json")  # fmt: skip
    (cell,) = [cell for cell in json.loads(answer.out)["cells"] if cell["runtime"] == "ort-cuda"]
    assert (answer.code, cell["verdict"], cell["reason"]) == (0, "skipped", no_cuda)


def test_no_number_is_labelled_cuda(command, onnx_file, no_cuda):
    answer = command("verify", onnx_file(DOUBLE), "--json")
    numbers = [
        cell["max_abs_err"] for cell in json.loads(answer.out)["cells"] if cell["runtime"] == "ort-cuda"
    ]
    assert numbers == [None]


def test_required_cuda_is_3(command, onnx_file, no_cuda):
    answer = command(
        "verify", onnx_file(DOUBLE), "--runtime", "onnx-reference", "--require", "ort-cuda", "--json"
    )
    result = json.loads(answer.out)
    assert (answer.code, result["exit_code"], result["verdict"]) == (3, 3, "inconclusive")
    assert no_cuda in result["reason"]
    assert "OA804" in [item["code"] for item in result["findings"]]


def test_required_cuda_hides_no_failure(command, onnx_file, no_cuda):
    answer = command(
        "verify", onnx_file(OLD_SOFTMAX, opset=11), "--runtime", "onnx-reference", "--require", "ort-cuda"
    )
    assert answer.code == 1


def test_cuda_alone_proves_nothing(command, onnx_file, no_cuda):
    answer = command("verify", onnx_file(DOUBLE), "--runtime", "ort-cuda")
    assert answer.code == 3
    assert "passed" not in answer.out


# --- JSON -------------------------------------------------------------------------------------------------------


def test_json_is_one_object_with_the_records_own_fields(command, onnx_file):
    answer = command("verify", onnx_file(DOUBLE), "--runtime", "onnx-reference", "--json")
    result = json.loads(answer.out)
    assert {"verdict", "exit_code", "cells", "findings"} <= set(result)
    assert (result["verdict"], result["exit_code"], answer.code) == ("passed", 0, 0)
    assert {"model", "runtime", "case", "gates", "verdict"} <= set(result["cells"][0])


def test_json_has_where_each_softmax_breaks(command, onnx_file):
    graph = "g (float[n, 8] x) => (float[n, 8] p) <int64[1] l = {-1}> { e = Exp (x) t = ReduceSum (e, l) p = Div (e, t) }"
    answer = command("verify", onnx_file(graph), "--runtime", "onnx-reference", "--json")
    found = json.loads(answer.out)["headroom"]
    assert [record["profile"] for record in found] == ["one large", "all equal", "given"]
    assert found[0]["broke_at_logit"] == pytest.approx(88.72, abs=0.05)


def test_json_of_a_failure_holds_the_findings(command, onnx_file):
    answer = command("verify", onnx_file(OLD_SOFTMAX, opset=11), "--runtime", "onnx-reference", "--json")
    result = json.loads(answer.out)
    assert (answer.code, result["exit_code"], result["verdict"]) == (1, 1, "failed")
    assert {"code", "severity", "blame", "node", "message", "next_step"} <= set(result["findings"][0])


@pytest.mark.parametrize(
    ("arguments", "key"),
    [(["explain"], "codes"), (["explain", "oa401"], "codes"), (["export", "--list"], "models"), (["doctor"], "runtimes")],
)  # fmt: skip
def test_other_commands_give_one_json_object_too(command, arguments, key):
    assert json.loads(command(*arguments, "--json").out)[key]


def test_what_a_users_module_prints_is_not_in_the_result(command, tmp_path):
    file = tmp_path / "talks.py"
    file.write_text("print('imported')\ndef factory():\n    print('called')\n    return 1\n")
    answer = command("export", f"{file}:factory", "--json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("imported\ncalled\nonnx-attest: error: ")


def test_usage_error_leaves_stdout_empty_with_json(command):
    command("verify", "missing.onnx", "--json").assert_refused("missing.onnx")


# --- streams and interruptions ----------------------------------------------------------------------------------


@contextlib.contextmanager
def reader_that_left():
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@pytest.mark.parametrize("arguments", [("explain",), ("explain", "--json"), ("explain", "OA401")])
def test_reader_that_left_is_no_error_and_no_verdict(arguments):
    with reader_that_left() as pipe:
        answer = process(*arguments, stdout=pipe)
    assert (answer.returncode, answer.stderr) == (console.PIPE_CLOSED, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
@pytest.mark.parametrize("argument", ["explain", "--help"])
def test_full_disk_behind_stdout_is_said_in_one_line(argument):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        answer = process(argument, stdout=full)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "No space left on device" in answer.stderr


def test_closed_streams_are_no_error(tmp_path):
    shell = f"{sys.executable} -m onnx_attest explain >&- 2>&-"
    assert subprocess.run(shell, shell=True, check=False, timeout=60).returncode == 0


def test_interruption_is_130_and_one_line(tmp_path):
    file = tmp_path / "interrupts.py"
    # A shell starts what it runs in the background with the signal ignored; a person at a terminal does not.
    file.write_text(
        "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def factory():\n    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    answer = process("export", f"{file}:factory", "-o", tmp_path, stdout=subprocess.PIPE)
    assert (answer.returncode, answer.stdout) == (130, "")
    assert answer.stderr.startswith("onnx-attest: error: interrupted")
    assert answer.stderr.count("\n") == 1


def test_interruption_leaves_no_report_and_no_scratch_folder(command, onnx_file, tmp_path, monkeypatch):
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onnx_attest.verify.api.verify_artifact", interrupt)
    path = onnx_file(DOUBLE)
    assert command("verify", path, "-o", tmp_path / "report").code == 130
    assert list(tmp_path.iterdir()) == [path]


# --- the border's own functions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "spread"),
    [
        (["--input-shapes", "x:[1]"], ["--input-shapes", "x:[1]"]),
        (["--input-shapes", "x:[1]", "y:[2]"], ["--input-shapes", "x:[1]", "--input-shapes", "y:[2]"]),
        (["--input-shapes", "x:[1]", "f.onnx"], ["--input-shapes", "x:[1]", "f.onnx"]),
        (["--input-shapes", "x:[1]", "--seed", "2"], ["--input-shapes", "x:[1]", "--seed", "2"]),
        (["f.onnx", "y:[2]"], ["f.onnx", "y:[2]"]),
    ],
)
def test_several_shapes_after_one_flag(given, spread):
    assert console.spread_lists(given, ["--input-shapes"]) == spread


def test_several_shapes_after_one_flag_reach_the_verification(command, onnx_file):
    path = onnx_file("g (float[a, 4] x, float[b, 4] z) => (float[c, 4] y) { y = Concat <axis = 0> (x, z) }")
    answer = command(
        "verify", path, "--input-shapes", "x:[3,4]", "z:[5,4]", "--runtime", "onnx-reference", "--json"
    )
    (cell,) = json.loads(answer.out)["cells"]
    assert (cell["verdict"], cell["case"]["axes"]) == ("passed", {"a": 3, "b": 5})


def test_error_of_several_lines_becomes_one(capsys):
    with pytest.raises(SystemExit):
        console.fail("first\n  second\n", 2)
    assert capsys.readouterr().err == "onnx-attest: error: first second\n"
