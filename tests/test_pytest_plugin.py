"""The pytest plugin, in test suites of their own: what fails, what is skipped, who goes before whom, and the report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx.parser
import pytest

from onnx_attest.verify.configuration.keys import PYTEST, taken_by
from onnx_attest.verify.pytest_plugin.joined import joined
from onnx_attest.verify.pytest_plugin.settings import KINDS, Settings
from onnx_attest.verify.records import (
    CaseRecord,
    CellRecord,
    EnvironmentRecord,
    FindingRecord,
    RunRecord,
    read_records,
)
from onnx_attest.verify.report.brief import brief

pytest_plugins = ["pytester"]

RIGHT = "double (float[n, 4] x) => (float[n, 4] y) { y = Add (x, x) }"
# The opset-11 Softmax of onnx's reference evaluator is wrong (K7), so this graph has a runtime that fails.
WRONG = "old (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax (x) }"
UNKNOWN = "det (float[n, 3, 3] x) => (float[n] y) { y = Det(x) }"
NOWHERE = "ort:NopeExecutionProvider"

TESTS = """
import pytest
from onnx_attest.verify import VerificationError

def test_right(onnx_attest):
    assert onnx_attest("right.onnx", runtimes=["onnx-reference"]).verdict == "passed"

def test_wrong(onnx_attest):
    onnx_attest("wrong.onnx", runtimes=["onnx-reference"])

def test_wrong_is_caught(onnx_attest):
    with pytest.raises(VerificationError, match="OA"):
        onnx_attest("wrong.onnx", runtimes=["onnx-reference"])

def test_absent(onnx_attest):
    onnx_attest("right.onnx", runtimes=["NOWHERE"])

def test_absent_beside_another(onnx_attest):
    onnx_attest("right.onnx", runtimes=["NOWHERE", "onnx-reference"])

def test_required(onnx_attest):
    onnx_attest("right.onnx", runtimes=["onnx-reference"], require=["NOWHERE"], allow_inconclusive=True)

def test_inconclusive(onnx_attest):
    onnx_attest("unknown.onnx", runtimes=["onnx-reference"])

def test_inconclusive_and_allowed(onnx_attest):
    onnx_attest("unknown.onnx", runtimes=["onnx-reference"], allow_inconclusive=True)
""".replace("NOWHERE", NOWHERE)
OUTCOMES = {"passed": 4, "failed": 3, "skipped": 1}


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """Return a folder with files of each kind, in which tests can be written and run."""
    for name, graph, opset in (("right", RIGHT, 18), ("wrong", WRONG, 11), ("unknown", UNKNOWN, 18)):
        text = f'<ir_version: 10, opset_import: ["": {opset}]> {graph}'
        model = onnx.parser.parse_model(text)
        (pytester.path / f"{name}.onnx").write_bytes(model.SerializeToString())
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest_subprocess("-p", "no:cacheprovider", *arguments, timeout=120)


def records(folder: Path) -> list:
    return read_records(folder)


# --- what it costs a session that does not use it ---------------------------------------------------------------


def test_a_session_without_the_fixture_loads_no_verifier(pytester):
    pytester.makepyfile("""
        import sys
        def test_nothing():
            heavy = {"numpy", "onnx", "torch", "onnxruntime", "msgspec", "typer"}
            assert "onnx_attest.verify.pytest_plugin" in sys.modules
            assert heavy & set(sys.modules) == set()
            assert [name for name in sys.modules if name.startswith("onnx_attest.verify.")] == ["onnx_attest.verify.pytest_plugin"]
    """)
    run(pytester).assert_outcomes(passed=1)


def test_importing_the_plugin_loads_nothing_heavy():
    code = "import sys, onnx_attest.verify.pytest_plugin; print({'numpy', 'onnx', 'torch', 'onnxruntime', 'msgspec'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert answer.stdout == "set()\n"


# --- outcomes ---------------------------------------------------------------------------------------------------


def test_outcomes_messages_and_the_report_of_a_session(suite):
    suite.makepyfile(TESTS)
    result = run(suite, "-rs", "--onnx-attest-report", "report")
    result.assert_outcomes(**OUTCOMES)
    result.stdout.fnmatch_lines([
        "*def test_wrong(onnx_attest):*",
        ">*onnx_attest(\"wrong.onnx\"*",
        "E*VerificationError: failed: *; wrong*",
        "E*OA*onnx-reference, *",
        "E*next: *",
    ])  # fmt: skip
    text = result.stdout.str()
    assert "verify/api.py" not in text  # the traceback ends at the user's own line
    result.stdout.fnmatch_lines([f"SKIPPED*{NOWHERE} did not run: *NopeExecutionProvider*"])
    result.stdout.fnmatch_lines(["*onnx-attest*", f"in 3 tests: {NOWHERE} did not run: *", "report in report: failed: *"])  # fmt: skip
    read = records(suite.path / "report")
    (environment,) = (one for one in read if isinstance(one, EnvironmentRecord))
    assert environment.command[0] == "pytest"
    assert set(environment.runtimes) == {NOWHERE, "onnx-reference"}
    assert {one.model for one in read if isinstance(one, CellRecord)} == {"right", "wrong", "unknown"}
    ends = [one for one in read if isinstance(one, RunRecord)]
    assert [(one.verdict, one.exit_code, one.required) for one in ends] == [("failed", 1, (NOWHERE,))]
    assert read[-1] == ends[0]


@pytest.mark.slow
def test_workers_of_xdist_make_the_same_report(suite):
    suite.makepyfile(TESTS)
    run(suite, "--onnx-attest-report", "alone").assert_outcomes(**OUTCOMES)
    run(suite, "-n", "2", "--onnx-attest-report", "together").assert_outcomes(**OUTCOMES)
    alone, together = records(suite.path / "alone"), records(suite.path / "together")
    assert together[1:-1] == alone[1:-1]
    assert (together[-1].verdict, together[-1].cells) == (alone[-1].verdict, alone[-1].cells)


def test_a_report_that_cannot_be_written_is_said_before_any_test(suite):
    suite.makepyfile(TESTS)
    result = run(suite, "--onnx-attest-report", "right.onnx")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--onnx-attest-report: *right.onnx is a file*"])


def test_a_session_that_verified_nothing_leaves_no_report(suite):
    suite.makepyfile("def test_nothing(): pass")
    result = run(suite, "--onnx-attest-report", "report")
    result.stdout.fnmatch_lines(["no test verified anything: no report is written to report"])
    assert not (suite.path / "report").exists()


# --- who goes before whom ---------------------------------------------------------------------------------------


def test_the_nearest_setting_holds_and_requirements_add_up(suite):
    (suite.path / "onnx-attest.toml").write_text('seed = 1\nthreads = 1\nrows = 9\nruntime = ["nope"]\n')
    suite.makepyfile("""
        import pytest
        pytestmark = pytest.mark.onnx_attest(seed=3, time_budget_s=60, runtimes=["onnx-reference"])

        @pytest.mark.onnx_attest(seed=4, require=["onnx-reference"])
        class TestAll:
            @pytest.mark.onnx_attest(rows=8, input_shapes={"x": (3, 4)})
            def test_it(self, onnx_attest):
                report = onnx_attest("right.onnx", rows=7)
                assert report.records[0].configuration == {
                    "runtime": "onnx-reference", "require": "onnx-reference", "seed": "4", "threads": "2",
                    "time_budget_s": "60", "rows": "7",
                }
                assert [cell.case.axes for cell in report.cells] == [{"n": 3}]
                assert report.run.required == ("onnx-reference",)
    """)
    options = ("--onnx-attest-seed=2", "--onnx-attest-threads=2", "--onnx-attest-require=onnx-reference")
    run(suite, *options).assert_outcomes(passed=1)


def test_options_stand_in_where_a_test_says_nothing(suite):
    suite.makepyfile(
        'def test_it(onnx_attest):\n    assert {c.runtime for c in onnx_attest("right.onnx").cells} == {"onnx-reference"}\n'
        'def test_unknown(onnx_attest):\n    onnx_attest("unknown.onnx")\n'
    )
    options = ("--onnx-attest-runtime=onnx-reference", "--onnx-attest-allow-inconclusive")
    run(suite, *options).assert_outcomes(passed=2)


def test_a_required_runtime_of_the_command_line_is_required_of_every_test(suite):
    suite.makepyfile(
        'def test_it(onnx_attest):\n    onnx_attest("right.onnx", runtimes=["onnx-reference"])\n'
    )
    result = run(suite, f"--onnx-attest-require={NOWHERE}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E*{NOWHERE} was required and did not run: *"])


@pytest.mark.slow
def test_the_configuration_of_the_root_folder_holds_in_every_folder(suite):
    (suite.path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\n[tool.onnx-attest]\nruntime = ["mine"]\n'
        '[tool.onnx-attest.runtimes.mine]\nruntime = "onnx-reference"\ntime_limit_s = 99\n'
    )
    below = suite.mkdir("below")
    (below / "test_it.py").write_text(
        'def test_it(onnx_attest):\n    assert {c.runtime for c in onnx_attest("../right.onnx").cells} == {"mine"}\n'
    )
    suite.chdir()
    import os

    os.chdir(below)
    run(suite).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ('onnx_attest("right.onnx", sed=1)', "onnx_attest(...): sed: there is no such key; did you mean seed?"),
        ('onnx_attest("right.onnx", runtimes="ort-cpu")', "onnx_attest(...): runtimes: give a list of texts"),
        ('onnx_attest("right.onnx", runtimes=["nope"])', "unknown runtime nope; there are torch"),
        ('onnx_attest("nowhere.onnx")', "cannot read nowhere.onnx: No such file"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_one_line_at_the_call(suite, call, said):
    suite.makepyfile(f"def test_it(onnx_attest):\n    {call}\n")
    result = run(suite)
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert said in text
    assert "verify/pytest_plugin" not in text.replace("verify.pytest_plugin", "")


@pytest.mark.parametrize(
    ("marker", "said"), [("seed='x'", "seed: give a whole number, not 'x'"), ("1", "takes settings by name")]
)
def test_a_wrong_marker_is_said(suite, marker, said):
    suite.makepyfile(
        f"import pytest\n@pytest.mark.onnx_attest({marker})\ndef test_it(onnx_attest):\n    onnx_attest('right.onnx')\n"
    )
    assert said in run(suite).stdout.str()


def test_a_wrong_configuration_is_said(suite):
    (suite.path / "onnx-attest.toml").write_text("sed = 1\n")
    suite.makepyfile("def test_it(onnx_attest):\n    pass\n")
    result = run(suite)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["onnx-attest.toml: sed: there is no such key; did you mean seed?"])


def test_every_setting_for_pytest_is_one_of_the_call():
    assert set(Settings.__annotations__) == set(KINDS)
    assert len(KINDS) == len(taken_by(PYTEST))


# --- the pure parts ---------------------------------------------------------------------------------------------


def environment(**more: object) -> EnvironmentRecord:
    fields = {
        "onnx_attest": "0", "python": "3", "system": "s", "machine": "m", "cpu": "c", "cpu_features": (), "cores": 1,
        "memory_bytes": 1, "packages": {}, "runtimes": {}, "variables": {}, "command": (), "recorded_at": "d",
    }  # fmt: skip
    return EnvironmentRecord(**(fields | more))  # type: ignore[arg-type]


def cell(verdict: str, runtime: str = "a", *, opened: bool = True) -> CellRecord:
    return CellRecord(
        model="m", variant="v", opset=18, dtype="float32", artifact_sha256="s", runtime=runtime, runtime_version="1",
        case=CaseRecord(name="c", axes={}) if opened else None, verdict=verdict,  # type: ignore[arg-type]
    )  # fmt: skip


def end(verdict: str, reason: str = "", required: tuple[str, ...] = ()) -> RunRecord:
    code = {"passed": 0, "inconclusive": 3}.get(verdict, 1)
    return RunRecord(verdict=verdict, reason=reason, exit_code=code, cells={}, known=0, required=required, duration_s=1.5)  # type: ignore[arg-type]  # fmt: skip


def test_a_skipped_test_counts_nothing_beside_others_and_alone_proves_nothing():
    right = [environment(runtimes={"a": ""}), cell("passed"), end("passed")]
    absent = [environment(runtimes={"b": "why"}), cell("skipped", "b", opened=False), end("inconclusive", "why")]  # fmt: skip
    both = joined([right, absent], ("pytest", "/home/me/tests"))
    assert both[0] == environment(runtimes={"a": "", "b": "why"}, command=("pytest", "tests"))
    last = both[-1]
    assert isinstance(last, RunRecord)
    assert (last.verdict, last.cells, last.duration_s) == ("passed", {"passed": 1, "skipped": 1}, 3.0)
    alone = joined([absent], ())[-1]
    assert isinstance(alone, RunRecord)
    assert (alone.verdict, alone.exit_code, alone.reason) == ("inconclusive", 3, "why")


def test_what_two_tests_saw_is_told_once_and_settings_that_differ_are_told_both():
    one = [environment(configuration={"seed": "1"}), cell("passed"), end("passed")]
    two = [environment(configuration={"seed": "2"}), cell("passed"), cell("failed", "b"), end("failed")]
    both = joined([one, two, one], ())
    assert [type(record) for record in both] == [EnvironmentRecord, CellRecord, CellRecord, RunRecord]
    assert both[0] == environment(configuration={"seed": "1 or 2"})
    assert both[-1].verdict == "failed"  # type: ignore[union-attr]


def found(code: str, severity: str = "error", **more: str) -> FindingRecord:
    return FindingRecord(code=code, severity=severity, message=f"{code} it is", next_step="Look.", **more)  # type: ignore[arg-type]


def test_the_message_names_the_party_the_node_and_the_next_step_and_is_short():
    findings = [
        found("OA901", "note"), found("OA902", "warning"), found("OA903", known="issue"), found("OA904", runtime="a"),
        found("OA905", blame="kernel", node="soft\n[31m", runtime="a", case="c[n=1]"), found("OA904", runtime="a"),
        found("OA906", runtime="b"),
    ]  # fmt: skip
    lines = brief([cell("failed"), *findings, end("failed")]).splitlines()
    assert lines[0].startswith("failed: 1 cells failed")
    assert lines[1:] == [
        "at fault: kernel", "first bad node: soft [31m",
        "OA905 a, c[n=1]: OA905 it is", "  next: Look.", "OA904 a: OA904 it is (and 1 more)", "  next: Look.",
        "OA906 b: OA906 it is", "  next: Look.", "and 1 more findings",
    ]  # fmt: skip
