"""Runtimes that a user configures: variants, limits, other interpreters; and one line for what cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify.configuration.reading import OWN_FILE, PROJECT_FILE
from onnx_attest.verify.records import CellRecord, LatencyRecord, read_records
from onnx_attest.verify.runtimes.base import UnavailableError
from onnx_attest.verify.runtimes.isolated import Isolated, isolate, processes_of, to_be_timed
from onnx_attest.verify.runtimes.registry import reference_of, select, with_session
from onnx_attest.verify.workers import resident
from onnx_attest.verify.workers.limits import MIB, usual_limits

DOUBLE = "double (float[n, 4] x) => (float[n, 4] y) { y = Add (x, x) }"
BUILT_IN = [runtime.name for runtime in select()]


@pytest.fixture
def configure(tmp_path, monkeypatch) -> Callable[..., Path]:
    """Write a configuration, and work in its folder."""

    def write(text: str, name: str = PROJECT_FILE) -> Path:
        monkeypatch.chdir(tmp_path)
        (tmp_path / name).write_text(text)
        return tmp_path

    return write


def only(name: str) -> Isolated:
    (runtime,) = select((name,))
    assert isinstance(runtime, Isolated)
    return runtime


def test_a_variant_of_a_runtime_comes_after_those_there_are(configure):
    configure(
        '[tool.onnx-attest.runtimes."mine"]\nruntime = "ort-cuda"\nprovider_options = {use_tf32 = true, b = 2}\n'
    )
    assert [runtime.name for runtime in select()] == [*BUILT_IN, "mine"]
    adapter = only("mine").runtime
    assert adapter.provider == "CUDAExecutionProvider"
    assert adapter.provider_options == {"use_tf32": "1", "b": "2"}


def test_any_provider_of_onnx_runtime_may_be_what_an_entry_is_a_variant_of(configure):
    configure('[tool.onnx-attest.runtimes."mine"]\nruntime = "ort:XnnpackExecutionProvider"\n')
    mine = only("mine")
    assert mine.runtime.provider == "XnnpackExecutionProvider"
    assert reference_of(mine) == "mine"


def test_a_name_that_there_is_changes_that_runtime_in_its_place(configure):
    configure("[tool.onnx-attest.runtimes.ort-cpu-noopt]\ntime_limit_s = 7\nmemory_limit_mib = 100\n")
    assert [runtime.name for runtime in select()] == BUILT_IN
    changed = only("ort-cpu-noopt")
    assert not changed.runtime.optimise
    assert (changed.process.limits.time_s, changed.process.limits.memory_bytes) == (7, 100 * MIB)


def test_what_is_not_limited_has_the_usual_limits_and_a_flag_wins(configure):
    configure("[tool.onnx-attest.runtimes.mine]\ntime_limit_s = 7\n")
    limits = only("mine").process.limits
    assert (limits.time_s, limits.memory_bytes) == (7, usual_limits().memory_bytes)
    (flagged,) = isolate(select(("mine",)), memory_bytes=MIB)
    assert (flagged.process.limits.time_s, flagged.process.limits.memory_bytes) == (7, MIB)


def test_asking_twice_gives_one_process(configure):
    configure("[tool.onnx-attest.runtimes.mine]\ntime_limit_s = 8\n")
    assert only("mine").process is only("mine").process


@pytest.mark.parametrize("prefix", ["", "tool.onnx-attest."])
def test_a_file_of_its_own_goes_before_the_project(configure, prefix):
    configure("[tool.onnx-attest.runtimes.project]\n")
    configure(f"[{prefix}runtimes.own]\n", OWN_FILE)
    assert [runtime.name for runtime in select()] == [*BUILT_IN, "own"]


def test_a_project_without_a_table_changes_nothing(configure):
    configure("[project]\nname = 'x'\n[tool.other]\na = 1\n")
    assert [runtime.name for runtime in select()] == BUILT_IN


def test_session_options_reach_a_configured_runtime(configure, onnx_file):
    configure('[tool.onnx-attest.runtimes.mine]\nsession_options = {"session.disable_prepacking" = true}\n')
    (changed,) = with_session(select(("mine",)), {"intra_op_num_threads": "1"}, ())
    assert changed.runtime.session_options == {"session.disable_prepacking": "1", "intra_op_num_threads": "1"}
    assert changed.process is only("mine").process


WRONG = {
    'runtimes = 3': ("tool.onnx-attest.runtimes: give a table",),
    '[runtimes]\na = 3': ("runtimes.a: give a table, not 3",),
    '[runtimes.a]\npyton = "x"': ('runtimes."a".pyton: there is no such key; did you mean python?',),
    '[runtimes.a]\npython = "nowhere/python"': ('runtimes."a".python: there is no program nowhere/python',),
    '[runtimes.a]\npython = 3': ('runtimes."a".python: give a text, not 3',),
    '[runtimes.a]\nruntime = "ort-gpu"': ('runtimes."a".runtime: there is no runtime \'ort-gpu\'; there are torch, torch-compile, torch-cuda, ort-cpu',),
    '[runtimes.a]\ntime_limit_s = 0': ('runtimes."a".time_limit_s: give a number above 0, not 0',),
    '[runtimes.a]\ntime_limit_s = nan': ('runtimes."a".time_limit_s: give a number above 0',),
    '[runtimes.a]\nmemory_limit_mib = true': ('runtimes."a".memory_limit_mib: give a number above 0, not True',),
    '[runtimes.a]\nmemory_limit_mib = inf': ('runtimes."a".memory_limit_mib: give a number above 0',),
    '[runtimes.a]\nprovider_options = "x"': ('runtimes."a".provider_options: give a table of options',),
    '[runtimes.a]\nprovider_options = {x = [1]}': ('runtimes."a".provider_options.x: give a text, a number',),
    '[runtimes.a]\nruntime = "torch"\nsession_options = {x = "1"}': ('"a".session_options: these are ONNX Runtime\'s; torch has none',),
    '[runtimes.a': ("onnx-attest.toml is not TOML",),
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_configuration_that_cannot_be_is_one_line_that_names_the_key(configure, command, onnx_file, text):
    path = onnx_file(DOUBLE)
    configure(text.replace("[runtimes", "[tool.onnx-attest.runtimes").replace("runtimes = 3", "[tool.onnx-attest]\nruntimes = 3"), OWN_FILE)  # fmt: skip
    command("verify", path).assert_refused("onnx-attest.toml", *WRONG[text])


def test_limits_that_nothing_keeps_are_refused(command, onnx_file):
    path = onnx_file(DOUBLE)
    command("verify", path, "--time-limit", "0").assert_refused("--time-limit 0: give a number above 0")
    command("verify", path, "--time-limit", "nan").assert_refused("--time-limit nan")
    command("run", "--memory-limit", "-1").assert_refused("--memory-limit -1: give a number above 0")


def test_a_memory_limit_that_cannot_be_watched_is_refused(command, onnx_file, monkeypatch):
    monkeypatch.setattr(resident, "is_told", lambda: False)
    path = onnx_file(DOUBLE)
    command("verify", path, "--memory-limit", "100").assert_refused(
        "--memory-limit: this system does not tell"
    )
    assert usual_limits().memory_bytes is None


@pytest.mark.skipif(not resident.is_told(), reason="needs /proc, which tells what a process holds")
def test_a_memory_limit_below_what_a_runtime_needs_is_an_errored_cell(command, onnx_file):
    answer = command("verify", onnx_file(DOUBLE), "--runtime", "ort-cpu", "--memory-limit", "10", "--json")
    assert answer.code == 1
    (cell,) = json.loads(answer.out)["cells"]
    assert (cell["verdict"], cell["findings"]) == ("errored", ["OA309"])
    assert "the limit is 10 MiB" in cell["reason"]


def test_in_process_starts_none(command, onnx_file, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    answer = command("verify", onnx_file(DOUBLE), "--runtime", "ort-cpu", "--in-process")
    assert answer.code == 0


@pytest.fixture(scope="session")
def other(tmp_path_factory) -> Path:
    """Return the interpreter of an environment that has NumPy and nothing of ours; ours are lent, but onnx_attest is not."""
    import numpy
    import onnxruntime

    folder = tmp_path_factory.mktemp("other")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    for module in (numpy, onnxruntime):
        for found in Path(module.__file__).parent.parent.glob(f"{module.__name__}*"):
            (site / found.name).symlink_to(found)
    return python


def test_another_interpreter_needs_numpy_and_the_runtime_alone(configure, onnx_file, other):
    configure(f'[runtimes.elsewhere]\npython = "{other}"\n', OWN_FILE)
    missing = subprocess.run([other, "-c", "import msgspec"], capture_output=True, check=False)
    assert missing.returncode == 1
    runtime = only("elsewhere")
    with processes_of((runtime,)):
        session = runtime.open(read_artifact(onnx_file(DOUBLE)))
        import numpy as np

        np.testing.assert_array_equal(session.run({"x": np.ones((2, 4), np.float32)})["y"], 2)


def test_what_another_interpreter_lacks_is_said(configure, other):
    configure(f'[runtimes.elsewhere]\npython = "{other}"\nruntime = "torch"\n', OWN_FILE)
    runtime = only("elsewhere")
    with processes_of((runtime,)):
        found = runtime.availability()
    assert (found.usable, found.reason.split(";")[0]) == (False, "No module named 'torch'")


def test_another_interpreter_is_not_run_in_this_process_nor_timed(configure, command, onnx_file, other):
    configure(f'[runtimes.elsewhere]\npython = "{other}"\n', OWN_FILE)
    refused = command("verify", onnx_file(DOUBLE), "--runtime", "elsewhere", "--in-process")
    refused.assert_refused("elsewhere runs under another interpreter")
    with pytest.raises(UnavailableError, match="not timed: elsewhere runs under another interpreter"):
        to_be_timed(only("elsewhere"))


def test_an_interpreter_that_is_none_is_an_errored_cell(configure, command, onnx_file):
    folder = configure("", PROJECT_FILE)
    (folder / "python").write_text("#!/bin/sh\necho not one >&2\nexit 3\n")
    (folder / "python").chmod(0o755)
    configure('[runtimes.broken]\npython = "./python"\n', OWN_FILE)
    answer = command("verify", onnx_file(DOUBLE), "--runtime", "broken", "--json")
    (cell,) = json.loads(answer.out)["cells"]
    assert cell["verdict"] == "errored"
    assert "return code 3 without an answer; the last line on its stderr: not one" in cell["reason"]


@pytest.mark.slow
def test_the_main_job_takes_another_interpreter_too_and_says_that_it_is_not_timed(
    configure, command, other, tmp_path
):
    configure(f'[runtimes.elsewhere]\npython = "{other}"\n', OWN_FILE)
    answer = command(
        "run", "--model", "sdpa", "--variant", "decomposed", "--dtype", "float32", "--no-claims",
        "--runtime", "ort-cpu", "--runtime", "elsewhere", "-o", tmp_path / "report",
    )  # fmt: skip
    assert answer.code == 0, answer
    records = read_records(tmp_path / "report" / "records.jsonl")
    verdicts = {(one.runtime, one.verdict) for one in records if isinstance(one, CellRecord)}
    assert verdicts == {("ort-cpu", "passed"), ("elsewhere", "passed")}
    timed = {(one.runtime, one.verdict) for one in records if isinstance(one, LatencyRecord)}
    assert timed == {("ort-cpu", "passed"), ("elsewhere", "skipped")}


ANOTHER_VERSION = "1.24.4"


@pytest.mark.slow
def test_two_versions_of_onnx_runtime_side_by_side(configure, command, onnx_file, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    installed = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", f"onnxruntime=={ANOTHER_VERSION}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if installed.returncode:
        pytest.skip(f"pip cannot install onnxruntime {ANOTHER_VERSION}: {installed.stderr.strip()[-200:]}")
    configure('[tool.onnx-attest.runtimes."ort-1.24"]\npython = "venv/bin/python"\n')
    path = onnx_file(
        "soft (float[n, 6] x) => (float[n, n] y) { t = Transpose (x) s = MatMul (x, t) y = Softmax (s) }"
    )
    answer = command("verify", path, "--runtime", "ort-cpu", "--runtime", "ort-1.24", "--json", "-o", tmp_path / "report")  # fmt: skip
    cells = json.loads(answer.out)["cells"]
    versions = {cell["runtime"]: cell["runtime_version"] for cell in cells}
    (ours,) = select(("ort-cpu",))
    assert versions == {"ort-cpu": ours.availability().version, "ort-1.24": ANOTHER_VERSION}
    assert {cell["verdict"] for cell in cells} == {"passed"}
    assert "ort-1.24" in (tmp_path / "report" / "summary.md").read_text()
