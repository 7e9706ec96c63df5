"""The configuration: what it takes, what it refuses in one line, who goes before whom, and what the report says of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from onnx_attest.errors import UsageError
from onnx_attest.verify.cli import app
from onnx_attest.verify.configuration import read_configuration
from onnx_attest.verify.configuration.keys import BY_NAME, KEYS, PYTEST, RUNTIME_KEYS
from onnx_attest.verify.configuration.reading import OWN_FILE, PROJECT_FILE
from onnx_attest.verify.configuration.resolved import resolved
from onnx_attest.verify.configuration.text import markdown, template
from onnx_attest.verify.paths import without_folders
from onnx_attest.verify.records import CellRecord, EnvironmentRecord, read_records
from onnx_attest.verify.report.summary import summary
from onnx_attest.verify.runtimes.configured import limited
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.workers import resident
from onnx_attest.verify.workers.limits import MIB

DOUBLE = "double (float[n, 4] x) => (float[n, 4] y) { y = Add (x, x) }"
REFERENCE = 'runtime = ["onnx-reference"]\n'
DOCS = Path(__file__).parent.parent / "docs" / "configuration.md"


@pytest.fixture
def configure(tmp_path, monkeypatch) -> Callable[..., Path]:
    """Write a configuration, and work in its folder."""

    def write(text: str, name: str = OWN_FILE) -> Path:
        monkeypatch.chdir(tmp_path)
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def uncommented(text: str) -> str:
    """Return a template with each key and each table taken in; the rest of it stays a comment."""
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    return "\n".join(line if " = " in line or line.startswith("[") else f"# {line}" for line in lines)


# --- the table and what is made of it ---------------------------------------------------------------------------


@pytest.mark.parametrize(("in_project", "name"), [(False, OWN_FILE), (True, PROJECT_FILE)])
def test_the_template_holds_every_key_and_each_is_taken(configure, in_project, name):
    text = template(in_project=in_project)
    configure(uncommented(text), name)
    read = read_configuration()
    assert set(read.settings) == set(BY_NAME)
    assert set(read.runtimes["mine"]) == {key.name for key in RUNTIME_KEYS}
    configure(text, name)
    assert (read_configuration().settings, read_configuration().runtimes) == ({}, {})


def options_of(command: str) -> dict[str, str]:
    """Return the long options of a command by the name of their parameter."""
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    return {
        str(parameter.name): max(parameter.opts, key=len).lstrip("-")
        for parameter in found.params
        if any(option.startswith("--") for option in parameter.opts)
    }


def test_each_key_is_an_option_of_each_command_that_takes_it():
    for key in KEYS:
        for command in set(key.commands) - {PYTEST}:
            assert options_of(command)[key.parameter] == key.option, (key.name, command)


NOT_CONFIGURED = {
    "json", "help", "profile", "in_process", "github_summary", "resume", "shard",  # of one call
    "against", "input_shapes", "load_inputs", "length", "seconds",  # of one file
}  # fmt: skip


@pytest.mark.parametrize("command", ["run", "verify"])
def test_each_option_of_the_main_commands_is_a_key_or_belongs_to_one_call(command):
    keys = {key.parameter for key in KEYS if command in key.commands}
    assert set(options_of(command)) - keys - NOT_CONFIGURED == set()


def test_the_documentation_has_the_tables():
    assert markdown() in DOCS.read_text(), "docs/configuration.md says how to make them"


# --- what it refuses --------------------------------------------------------------------------------------------

WRONG = {
    "sed = 3": "onnx-attest.toml: sed: there is no such key; did you mean seed?",
    "runtimes = ['ort-cpu']": "onnx-attest.toml: runtimes: give a table, not ['ort-cpu']",
    "zzz = 3": "onnx-attest.toml: zzz: there is no such key; there are runtime, require, known, seed",
    "runtime = 'ort-cpu'": 'onnx-attest.toml: runtime: give a list of texts, ["...", "..."], not \'ort-cpu\'',
    "runtime = ['ort-cpu', 3]": "onnx-attest.toml: runtime: give a list of texts",
    "seed = 1.5": "onnx-attest.toml: seed: give a whole number, not 1.5",
    "seed = true": "onnx-attest.toml: seed: give a whole number, not True",
    "threads = 0": "onnx-attest.toml: threads: give a whole number of at least 1 and of at most 1024, not 0",
    "thorough = 1": "onnx-attest.toml: thorough: give true or false, not 1",
    "time_limit_s = 0": "onnx-attest.toml: time_limit_s: give a number above 0, not 0",
    "time_budget_s = -1": "onnx-attest.toml: time_budget_s: give a number of at least 0, not -1",
    "atol = inf": "onnx-attest.toml: atol: give a number of at least 0, not inf",
    "known = ''": "onnx-attest.toml: known: give a path, as a text, not ''",
    "session_options = {a = [1]}": "onnx-attest.toml: session_options.a: give a text, a number or a truth value, not [1]",
    "runtime = ['nope']": "unknown runtime nope; there are torch",
    "[tool.onnx-attest]\nsed = 3": "onnx-attest.toml: tool.onnx-attest.sed: there is no such key; did you mean seed?",
    "seed = 3\n[tool.onnx-attest]\nrows = 3": "onnx-attest.toml: seed: it stands outside of [tool.onnx-attest]",
    "seed = ": "onnx-attest.toml is not TOML",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_what_it_cannot_be_is_one_line_that_names_the_key(configure, command, onnx_file, text):
    path = onnx_file(DOUBLE)
    configure(text)
    command("verify", path).assert_refused(WRONG[text])


def test_help_and_the_codes_are_there_whatever_it_says(configure, command):
    configure("sed = 3")
    assert command("verify", "--help").code == 0
    assert command("explain", "OA401").code == 0


# --- who goes before whom ---------------------------------------------------------------------------------------


def verified(command, path: Path, *arguments: object) -> tuple[set[str], EnvironmentRecord]:
    """Return the runtimes of the cells of a verification, and the record of its environment."""
    answer = command("verify", path, "-o", path.parent / "report", *arguments)
    assert answer.code == 0, answer
    records = read_records(path.parent / "report")
    (environment,) = (one for one in records if isinstance(one, EnvironmentRecord))
    return {one.runtime for one in records if isinstance(one, CellRecord)}, environment


def test_it_stands_in_for_options_and_the_report_says_so(configure, command, onnx_file):
    path = onnx_file(DOUBLE)
    configure(REFERENCE + "seed = 5\n")
    runtimes, environment = verified(command, path)
    assert runtimes == {"onnx-reference"}
    assert environment.configuration == {"runtime": "onnx-reference", "seed": "5", "output": "report"}
    assert "Configuration: runtime onnx-reference; seed 5; output report\n" in summary([environment])


def test_an_option_goes_before_it(configure, command, onnx_file):
    path = onnx_file(DOUBLE)
    configure('runtime = ["nope"]\nseed = 5\nrelations_only = true\n')
    runtimes, environment = verified(
        command, path, "--runtime", "onnx-reference", "--seed", "0", "--no-relations-only"
    )
    assert runtimes == {"onnx-reference"}
    assert environment.configuration == {
        "runtime": "onnx-reference", "seed": "0", "relations_only": "false", "output": "report",
    }  # fmt: skip


def test_its_own_file_goes_before_the_project(configure, command, onnx_file):
    path = onnx_file(DOUBLE)
    configure("[tool.onnx-attest]\nseed = 5\n", PROJECT_FILE)
    configure(REFERENCE)
    assert "seed" not in verified(command, path)[1].configuration


def test_without_any_nothing_is_said(command, onnx_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = command("verify", onnx_file(DOUBLE), "--runtime", "onnx-reference", "--json")
    assert json.loads(answer.out)["verdict"] == "passed"
    assert resolved("verify", {}, read_configuration()) == {}


def test_a_required_runtime_is_asked_for_by_the_file_too(configure, command, onnx_file):
    path = onnx_file(DOUBLE)
    configure(REFERENCE + 'require = ["ort:NopeExecutionProvider"]\n')
    answer = command("verify", path)
    assert answer.code == 3
    assert "was required and did not run" in answer.out


@pytest.mark.skipif(not resident.is_told(), reason="needs /proc, which tells what a process holds")
def test_a_runtimes_own_limit_goes_before_the_general_one_and_an_option_before_both(configure):
    configure("time_limit_s = 7\nmemory_limit_mib = 900\n[runtimes.mine]\ntime_limit_s = 9\n")
    found = limited(select(("ort-cpu", "mine")), read_configuration(), time_s=None, memory_bytes=None)
    assert [(one.process.limits.time_s, one.process.limits.memory_bytes) for one in found] == [
        (7, 900 * MIB),
        (9, 900 * MIB),
    ]
    flagged = limited(select(("ort-cpu", "mine")), read_configuration(), time_s=3, memory_bytes=MIB)
    assert {(one.process.limits.time_s, one.process.limits.memory_bytes) for one in flagged} == {(3, MIB)}


def test_a_report_names_no_folder_of_the_machine(configure):
    configure(
        'known = "/home/me/known.toml"\ncustom_ops = ["~/lib/a.so", "lib/b.so"]\n'
        'session_options = { cache = "/var/cache/me/x" }\n'
        '[runtimes.mine]\npython = "/opt/venv/bin/python"\nruntime = "ort-cpu"\n'
    )
    told = resolved("verify", {"output": Path("/data/me/report")}, read_configuration())
    assert told == {
        "known": "known.toml", "output": "report", "session_options": "cache=x", "custom_ops": "a.so, lib/b.so",
        "runtimes.mine": "python=python, runtime=ort-cpu",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/a/b/c.onnx", "c.onnx"), ("--output=/a/b", "--output=b"), ("a/b", "a/b"), ("../a/b", "../a/b"),
        ("ort:x@/a/b.so,k=/c/d", "ort:x@b.so,k=d"), ("/a/b.py:entry", "b.py:entry"), ("~/a", "a"), ("/a", "a"),
        ("x:[2,128,512]", "x:[2,128,512]"), ("C:\\me\\a.onnx", "a.onnx"), ("-1e-3", "-1e-3"), ("/", "/"), ("", ""),
    ],
)  # fmt: skip
def test_absolute_paths_become_names(text, left):
    assert without_folders(text) == left


def test_reading_it_loads_nothing_heavy():
    code = "import sys, onnx_attest.verify.configuration.text; print({'numpy', 'onnx', 'msgspec', 'typer'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert answer.stdout == "set()\n"


# --- init -------------------------------------------------------------------------------------------------------


def test_init_writes_a_file_once(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("init").code == 0
    mine = tmp_path / OWN_FILE
    assert mine.read_text() == template(in_project=False)
    mine.write_text("seed = 3\n")
    command("init").assert_refused("onnx-attest.toml is there already", "--force")
    assert mine.read_text() == "seed = 3\n"
    assert command("init", "--force").code == 0
    assert mine.read_text() == template(in_project=False)


@pytest.mark.parametrize("before", ["", '[project]\nname = "x"\n', '[project]\nname = "x"'])
def test_init_appends_to_a_project(command, tmp_path, monkeypatch, before):
    monkeypatch.chdir(tmp_path)
    (tmp_path / PROJECT_FILE).write_text(before)
    assert json.loads(command("init", "--pyproject", "--json").out) == {"written": PROJECT_FILE}
    text = (tmp_path / PROJECT_FILE).read_text()
    assert text.startswith(before)
    assert tomllib.loads(text) == {**tomllib.loads(before), "tool": {"onnx-attest": {}}}
    command("init", "--pyproject", "--force").assert_refused("has [tool.onnx-attest] already")
    command("init").assert_refused("would hide")
    assert (tmp_path / PROJECT_FILE).read_text() == text


def test_init_refuses_what_it_would_hide_and_what_is_not_there(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("init", "--pyproject").assert_refused("cannot append to pyproject.toml: No such file")
    (tmp_path / PROJECT_FILE).write_text("[broken")
    command("init", "--pyproject").assert_refused("pyproject.toml is not TOML")
    (tmp_path / OWN_FILE).write_text("")
    command("init", "--pyproject").assert_refused("onnx-attest.toml is there")
    assert (tmp_path / PROJECT_FILE).read_text() == "[broken"


def test_a_folder_of_another_kind_is_refused(tmp_path):
    (tmp_path / PROJECT_FILE).mkdir()
    with pytest.raises(UsageError, match=r"cannot read pyproject\.toml"):
        read_configuration(tmp_path)
