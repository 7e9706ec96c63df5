"""The examples run as they stand, and the workflow asks for nothing that there is not."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
import yaml

from onnx_attest.verify.cli import app
from onnx_attest.verify.records import CellRecord, EnvironmentRecord, RunRecord, read_records

EXAMPLES = Path(__file__).parent.parent / "examples"
WORKFLOW = yaml.safe_load((EXAMPLES / "github-workflow.yml").read_text())


def process(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    python = [sys.executable, *map(str, arguments)]
    return subprocess.run(python, cwd=folder, text=True, capture_output=True, check=False, timeout=600)


# --- the workflow -----------------------------------------------------------------------------------------------


def lines_of_the_workflow() -> list[list[str]]:
    steps = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    return [shlex.split(line) for step in steps for line in step.get("run", "").splitlines()]


def test_the_workflow_calls_commands_with_options_that_there_are():
    called = [words[1:] for words in lines_of_the_workflow() if words[0] == "onnx-attest"]
    assert {words[0] for words in called} == {"doctor", "verify", "report"}
    group = typer.main.get_command(app)
    for name, *words in called:
        command = group.commands[name]  # type: ignore[attr-defined]
        parsed = command.make_context(name, list(words), resilient_parsing=False)
        assert parsed.args == []


def test_the_workflow_calls_pytest_with_options_that_there_are(pytester):
    (words,) = [words[1:] for words in lines_of_the_workflow() if words[0] == "pytest"]
    pytester.makepyfile("def test_nothing(): pass")
    pytester.runpytest_subprocess("-p", "no:cacheprovider", *words).assert_outcomes(passed=1)


def test_the_workflow_verifies_with_a_requirement_and_keeps_what_it_wrote():
    steps = WORKFLOW["jobs"]["attest"]["steps"]
    verify = next(words for words in lines_of_the_workflow() if words[1] == "verify")
    assert "--require" in verify
    (kept,) = [step["with"]["path"] for step in steps if "upload-artifact" in step.get("uses", "")]
    assert verify[verify.index("--output") + 1].startswith(kept)
    summary = next(words for words in lines_of_the_workflow() if words[1] == "report")
    assert (summary[2], summary[-1]) == (verify[verify.index("--output") + 1], "--github-summary")
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]) for step in steps if "uses" in step)


pytest_plugins = ["pytester"]


# --- the programs -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the file that export_script.py wrote, and its report of the runtime that is deployed to."""
    folder = tmp_path_factory.mktemp("examples")
    exported = process(folder, EXAMPLES / "export_script.py", "attention.onnx")
    assert exported.returncode == 0, exported.stderr
    command = ("-m", "onnx_attest", "verify", "attention.onnx", "--runtime", "ort-cpu", "-o", "report")
    assert process(folder, *command, "--time-budget", "20").returncode == 0
    return folder


def deploy(
    folder: Path, model: str = "attention.onnx", report: str = "report"
) -> subprocess.CompletedProcess[str]:
    x = np.ones((1, 5, 48), np.float32)
    np.savez(folder / "inputs.npz", x=x, mask=np.ones((1, 5, 5), bool))
    return process(folder, EXAMPLES / "deploy.py", model, report, "inputs.npz", "outputs.npz")


@pytest.mark.slow
def test_a_verified_file_is_served(verified):
    cells = [record for record in read_records(verified / "report") if isinstance(record, CellRecord)]
    assert {cell.case.axes["seq_len"] for cell in cells if cell.case} > {1, 7}  # the length is dynamic
    answer = deploy(verified)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("served on CPUExecutionProvider")
    with np.load(verified / "outputs.npz") as outputs:
        assert [array.shape for array in outputs.values()] == [(1, 5, 48)]


@pytest.mark.slow
def test_a_file_of_other_bytes_is_not_served(verified):
    data = (verified / "attention.onnx").read_bytes()
    (verified / "other.onnx").write_bytes(
        data + b"\x12\x00"
    )  # an empty field more: it loads, and is another file
    answer = deploy(verified, "other.onnx")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "not served: no case of a file with the digest" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"verdict":"passed"', '"verdict":"failed"', "it failed on ort-cpu"),
        ('"verdict":"passed"', '"verdict":"skipped"', "no case of a file with the digest"),
        ('"runtime":"ort-cpu"', '"runtime":"ort-cuda"', "no case of a file with the digest"),
        ('"exit_code":0', '"exit_code":3', "the run as a whole is passed"),
        ('"runtime_version":"', '"runtime_version":"0.', "verified on 0."),
        ('"kind":"run"', '"kind":"time"', "did not reach its end"),
        ('"part":""', '"part":"shard 1/3"', "it is not the whole verification: shard 1/3"),
        ('"session_options":{}', '"session_options":{"a.b":"1"}', "and none are set here"),
    ],
)
def test_a_report_that_is_not_good_news_serves_nothing(verified, tmp_path, old, new, said):
    text = (verified / "report" / "records.jsonl").read_text()
    assert old in text
    (tmp_path / "records.jsonl").write_text(text.replace(old, new))
    answer = deploy(verified, report=str(tmp_path))
    assert (answer.returncode, answer.stdout) == (1, "")
    assert said in answer.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [("serve_bundle", ()), ("serve_bundle", "abcd"), ("deploy", "abc"), ("cross_runtime", ())],
)
def test_a_program_called_in_another_way_says_how(tmp_path, name, words):
    answer = process(tmp_path, EXAMPLES / f"{name}.py", *words)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert f"python {name}.py " in answer.stderr
    assert "Traceback" not in answer.stderr


def test_what_cannot_be_read_is_served_in_no_program(tmp_path):
    for program in (
        ("serve_bundle.py", "nowhere", "i.npz", "o.npz"),
        ("deploy.py", "nowhere", "r", "i", "o"),
    ):
        answer = process(tmp_path, EXAMPLES / program[0], *program[1:])
        assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (1, "", 1), answer
        assert "not served: " in answer.stderr
        assert "nowhere" in answer.stderr


@pytest.mark.slow
def test_a_file_on_all_runtimes(verified):
    answer = process(verified, EXAMPLES / "cross_runtime.py", "attention.onnx", "everywhere")
    assert re.search(r"^ort-cpu +\d+ passed$", answer.stdout, re.MULTILINE), answer
    assert re.search(r"^torch +1 skipped$", answer.stdout, re.MULTILINE), answer  # it was given no module
    run = read_records(verified / "everywhere")[-1]
    assert isinstance(run, RunRecord)
    assert (answer.returncode, answer.stdout.splitlines()[-1]) == (
        run.exit_code,
        f"{run.verdict}; every number is in everywhere",
    )
    missing = process(verified, EXAMPLES / "cross_runtime.py", "nowhere.onnx")
    assert (missing.returncode, missing.stdout) == (2, "")


# --- the project ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_sample_project_verifies_what_it_ships(tmp_path):
    project = shutil.copytree(EXAMPLES / "sample_project", tmp_path / "project")
    answer = process(
        project, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-n", "2", "--onnx-attest-report", "report",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "ort-cuda did not run" in answer.stdout or "5 passed" in answer.stdout
    records = read_records(project / "report")
    (environment,) = [record for record in records if isinstance(record, EnvironmentRecord)]
    assert environment.configuration["seed"] == "7"
    cells = [record for record in records if isinstance(record, CellRecord)]
    shipped, changed = dict.fromkeys(cell.artifact_sha256 for cell in cells)
    assert {cell.verdict for cell in cells if cell.artifact_sha256 == shipped} <= {"passed", "skipped"}
    # The file that a test holds to be wrong is in the report as what it is.
    assert "failed" in {cell.verdict for cell in cells if cell.artifact_sha256 == changed}
    assert isinstance(records[-1], RunRecord)
    assert records[-1].verdict == "failed"
