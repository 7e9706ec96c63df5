"""Views for machines and for a screen: valid whatever the records hold, and all of them with the records' own numbers."""

from __future__ import annotations

import html
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import numpy as np
import pytest
from some_records import (
    big_run,
    case,
    cell,
    csv_rows,
    export,
    finding,
    headroom_record,
    known_failure,
    not_run,
    one_of_every_kind,
    relations,
    run,
    softmax,
    timing,
)

from onnx_attest.verify import console
from onnx_attest.verify.commands.github import append
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import (
    AnyRecord,
    CellRecord,
    ClaimRecord,
    Record,
    encode,
)
from onnx_attest.verify.report import render
from onnx_attest.verify.report.by_kind import FILE_OF
from onnx_attest.verify.report.document import Document, schema, schema_text
from onnx_attest.verify.report.formats import number, ratio
from onnx_attest.verify.report.github import LIMIT, first_lines, github
from onnx_attest.verify.report.html.packing import unpack
from onnx_attest.verify.report.marks import marked
from onnx_attest.verify.report.outcomes import shown, shown_together
from onnx_attest.verify.report.summary import CUDA_NEVER, lists, summary
from onnx_attest.verify.report.terminal import terminal
from onnx_attest.verify.report.views import FORMATS

SCHEMA = Path(__file__).parent.parent / "docs" / "schema" / "records.schema.json"
REFERENCE = Path(__file__).parent.parent / "reports" / "reference" / "records.jsonl"
ODD = "a\x00\x1b[31m\ufffe\uffff]]><!-- & <b>\"'\u202e|`*#\r\nb é \U0001f600"
"""What XML and Markdown forbid or take for markup, a terminal's control sequence, and letters that are none of these."""


# --- made when asked for ----------------------------------------------------------------------------------------


def test_a_view_is_made_when_it_is_asked_for_and_no_other(monkeypatch) -> None:
    made: list[str] = []

    def view(name: str) -> Any:
        return lambda records: made.append(name) or name

    monkeypatch.setattr("onnx_attest.verify.report.views.VIEWS", {name: view(name) for name in ("a", "b")})
    views = render(big_run())
    assert ("a" in views, "c" in views, list(views), made) == (True, False, ["a", "b"], [])
    assert (views["b"], made) == ("b", ["b"])


def test_each_short_name_is_a_view() -> None:
    assert set(FORMATS.values()) <= set(render([]))


# --- report.json ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema())


def test_report_json_holds_the_verdict_and_every_record_as_it_is() -> None:
    records = one_of_every_kind()
    read = json.loads(render(records)["report.json"])
    assert (read["schema"], read["verdict"], read["exit_code"]) == (1, "passed", 0)
    assert read["records"] == [json.loads(line) for line in encode(records).splitlines()]


def test_report_json_of_a_run_that_did_not_finish_says_so() -> None:
    read = json.loads(render([cell()])["report.json"])
    assert (read["verdict"], read["exit_code"], read["reason"]) == (
        "inconclusive",
        None,
        "the run did not finish",
    )


@pytest.mark.pinned  # another msgspec may write the same schema otherwise
def test_the_published_schema_is_the_one_of_the_records() -> None:
    assert SCHEMA.read_text() == schema_text(), "docs/reports.md says how to make it"


def test_the_schema_is_a_schema_and_knows_every_kind(validator) -> None:
    validator.check_schema(schema())
    assert {one.__name__ for one in get_args(AnyRecord)} < set(schema()["$defs"])


@pytest.mark.parametrize("record", one_of_every_kind(), ids=lambda record: type(record).__name__)
def test_the_schema_takes_each_kind_of_record(validator, record: AnyRecord) -> None:
    validator.validate(json.loads(encode([record])))


def test_the_schema_takes_what_a_run_wrote(validator) -> None:
    """One record of each kind and set of fields of the committed report: an earlier version wrote it."""
    lines = [json.loads(line) for line in REFERENCE.read_text().splitlines()]
    unlike = {(line["kind"], line.get("verdict"), *sorted(line.get("gates", ()))): line for line in lines}
    for line in unlike.values():
        validator.validate(line)


def test_the_schema_takes_a_report_and_refuses_what_is_none(validator) -> None:
    report = json.loads(render(one_of_every_kind())["report.json"])
    validator.validate(report)
    for wrong in (
        {},
        report | {"verdict": "fine"},
        report | {"records": [{"kind": "cell"}]},
        {**json.loads(encode([cell()])), "opset": "24"},
        {**json.loads(encode([cell()])), "kind": "row"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(wrong)


# --- CSV --------------------------------------------------------------------------------------------------------


def test_each_kind_of_record_has_a_csv() -> None:
    assert set(FILE_OF) == set(get_args(AnyRecord))


@pytest.mark.parametrize("kind", FILE_OF, ids=lambda kind: kind.__name__)
def test_a_csv_has_a_line_for_each_record_of_its_kind(kind: type[Record]) -> None:
    records = one_of_every_kind()
    lines = csv_rows(render(records)[FILE_OF[kind]])
    assert len(lines) == sum(isinstance(one, kind) for one in records) > 0


def test_a_csv_holds_what_is_in_a_record_of_a_record() -> None:
    (line,) = csv_rows(render(one_of_every_kind())["conformance.csv"])
    assert (line["smallest.inputs.x"], line["smallest.reason"]) == ("float32[2] 1, 2", "3 bounds off")


# --- junit.xml --------------------------------------------------------------------------------------------------


def parsed(records: Iterable[AnyRecord]) -> ET.Element:
    return ET.fromstring(render(records)["junit.xml"].encode())


def outcomes(root: ET.Element) -> dict[str, tuple[str, str, str]]:
    """Return tag, type and message of each test case by its name; no tag if it passed."""
    found = {}
    for one in root.iter("testcase"):
        inside = [child for child in one if child.tag != "properties"]
        assert len(inside) <= 1
        found[one.attrib["name"]] = (
            (inside[0].tag, inside[0].attrib["type"], inside[0].attrib["message"]) if inside else ("", "", "")
        )
    return found


def only_outcome(record: AnyRecord) -> tuple[str, str, str]:
    records: list[AnyRecord] = [cell(model="another"), record]
    root = parsed([*records, *conclude(records, duration_s=1.0)])
    (suite,) = [suite for suite in root if "another" not in suite.attrib["name"]]
    (found,) = outcomes(suite).values()
    return found


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        (cell(), ("", "", "")),
        (cell(verdict="failed", reason="why"), ("failure", "failed", "why")),
        (cell(verdict="errored", reason="why"), ("error", "errored", "why")),
        (cell(verdict="inconclusive", reason="why"), ("error", "inconclusive", "why")),
        (not_run(reason="no device"), ("skipped", "skipped", "no device")),
        (
            known_failure(reason="why"),
            ("skipped", "known failure", "known failure (counter-example): why"),
        ),
        (cell(verdict="failed", reason=""), ("failure", "failed", "no reason was recorded")),
        (export(verdict="failed", reason="why"), ("failure", "failed", "why")),
        (softmax(verdict="failed", reason="why"), ("failure", "failed", "why")),
        (headroom_record(verdict="failed", reason="why"), ("failure", "failed", "why")),
        (
            headroom_record(verdict="failed", reason="why", known="issue"),
            ("skipped", "known failure", "known failure (issue): why"),
        ),
        (relations()[0], ("failure", "failed", "no reason was recorded")),
        (
            msgspec.structs.replace(relations()[0], verdict="inconclusive", reason="why"),
            ("skipped", "inconclusive", "inconclusive, and does not count: why"),
        ),
        (
            timing(verdict="errored", reason="why"),
            ("skipped", "errored", "errored, and does not count: why"),
        ),
    ],
    ids=lambda value: "",
)
def test_each_verdict_has_its_outcome(record: AnyRecord, outcome: tuple[str, str, str]) -> None:
    assert only_outcome(record) == outcome


@pytest.mark.parametrize("record", [relations()[1], headroom_record(), timing(twin=True)])
def test_what_nobody_acts_on_is_no_test_case(record: AnyRecord) -> None:
    assert len(list(parsed([cell(), record, run()]).iter("testcase"))) == 1


def claim(verdict: str, **changes: Any) -> ClaimRecord:
    return ClaimRecord(claim=3, runtime="torch", verdict=verdict, reason="why", **changes)


def all_judged() -> Iterable[Any]:
    verdicts = ("passed", "failed", "errored", "inconclusive", "skipped")
    for verdict in verdicts:
        for known in ("", "issue"):
            for record in (cell(), softmax(), headroom_record(), relations()[0], claim("passed")):
                yield msgspec.structs.replace(record, verdict=verdict, known=known, reason="why")
        yield export(verdict=verdict)
        yield timing(verdict=verdict)


@pytest.mark.parametrize("beside", [[], [cell(model="another")]], ids=["alone", "beside a cell"])
def test_something_is_red_exactly_if_the_exit_code_is_not_0(beside: list[AnyRecord]) -> None:
    for record in all_judged():
        records = [*beside, record]
        root = parsed([*records, *conclude(records, duration_s=1.0)])
        red = int(root.attrib["failures"]) + int(root.attrib["errors"])
        exit_code = conclude(records, duration_s=1.0)[-1].exit_code
        assert (red > 0) == (exit_code != 0), record
        assert red <= 1, record


def test_a_required_runtime_that_did_not_run_is_a_case_of_its_own() -> None:
    records = [cell(), not_run()]
    root = parsed([*records, *conclude(records, required=["ort-cuda"], duration_s=1.0)])
    tag, kind, message = outcomes(root)["verdict"]
    assert (tag, kind) == ("error", "inconclusive")
    assert "ort-cuda was required and did not run" in message


def test_a_run_that_did_not_finish_is_red() -> None:
    assert outcomes(parsed([cell()]))["verdict"][0] == "error"


def test_timings_decide_where_nothing_else_ran() -> None:
    root = parsed([timing(verdict="errored", reason="it hung"), run(verdict="errored", exit_code=1)])
    assert list(outcomes(root).values()) == [("error", "errored", "it hung")]


def test_counts_of_a_suite_are_those_of_its_cases() -> None:
    root = parsed([*big_run(), cell(verdict="failed", reason="x"), cell(verdict="errored", case=None)])
    for suite in (root, *root):
        cases = list(suite.iter("testcase"))
        counted = {
            "tests": len(cases),
            **{name: len(list(suite.iter(tag))) for name, tag in
               (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))},
        }  # fmt: skip
        assert {name: int(suite.attrib[name]) for name in counted} == counted


def test_a_failure_shows_gates_worst_element_and_the_findings_about_it() -> None:
    bad = cell(
        verdict="failed",
        reason="3 times its bound",
        gates={"proof": {"max_err_over_tau": 3.0}},
        worst_output="y",
        worst_index=(0, 2),
        worst_actual="nan",
        worst_expected="0.5",
    )
    about = {"model": "mha", "variant": "attention", "opset": 24, "dtype": "float32", "runtime": "ort-cpu"}
    records = [bad, finding(**about, case=bad.case.id), finding(**about, message="of another case")]
    (text,) = [one.text for one in parsed(records).iter("failure")]
    assert text == (
        "3 times its bound\nGates failed: proof.\nWorst element: y[0, 2] is nan, exact 0.5.\n"
        "OA301 error: error over the bound Next: look at node 3"
    )


def odd_run() -> list[AnyRecord]:
    """A run in which each text of each record is what no view can take as it is."""

    def with_odd(record: AnyRecord) -> AnyRecord:
        free = {
            "model",
            "variant",
            "runtime",
            "reason",
            "message",
            "next_step",
            "node",
            "attention",
            "softmax",
        }
        changes = dict.fromkeys(free & set(record.__struct_fields__), ODD)
        return msgspec.structs.replace(record, **changes)

    return [with_odd(one) for one in (*one_of_every_kind(), cell(verdict="failed"), cell(verdict="errored"))]


def test_junit_is_xml_whatever_names_and_messages_hold() -> None:
    root = parsed(odd_run())
    messages = [one.attrib["message"] for one in root.iter("failure")]
    assert messages
    assert all("]]><!-- & <b>\"'" in message and message.endswith("b é \U0001f600") for message in messages)
    assert all(char.isprintable() or char == "\n" for text in root.itertext() for char in text)


# --- github.md --------------------------------------------------------------------------------------------------


def github_text(text: str) -> str:
    """Return what GitHub shows of an entry: escapes and entities taken out."""
    return html.unescape(re.sub(r"\\([\\`|*<_~\[])", r"\1", text))


def github_tables(text: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows of each table by the title it is folded under; the matrix has none."""
    parts = re.split(r"<details>\n<summary>(.*?) \(\d+\)</summary>", text)
    titled = zip(["", *parts[1::2]], parts[0::2], strict=True)
    return {
        title: [
            {github_text(key): github_text(value) for key, value in row.items()} for row in raw_rows(part)
        ]
        for title, part in titled
    }


def raw_rows(part: str) -> list[dict[str, str]]:
    lines = [line for line in part.splitlines() if line.startswith("|")]
    rows = [[entry.strip() for entry in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def failing_run() -> list[AnyRecord]:
    records: list[AnyRecord] = [
        *big_run()[:-1],
        cell(
            verdict="failed",
            reason="3 bounds",
            gates={"proof": {"max_err_over_tau": 3.0625}},
            effective_bits=18.25,
        ),
    ]
    return [*records, *conclude(records, duration_s=1.0)]


def test_github_says_the_verdict_first_and_folds_the_rest() -> None:
    lines = github(failing_run()).splitlines()
    assert lines[0] == "## onnx-attest: ✖ failed"
    assert lines[2].endswith("exit code 1")
    text = github(failing_run())
    assert text.index("| model | variant |") < text.index("<details>")
    assert text.count("<details>") == text.count("</details>") == text.count("</summary>\n\n")


def test_github_shows_the_cells_that_did_not_pass_with_their_numbers() -> None:
    (row,) = github_tables(github(failing_run()))["Cells that did not pass"]
    assert row["verdict"] == "✖ failed"
    assert (row["error/bound"], row["effective bits"], row["reason"]) == ("3.06", "18.2", "3 bounds")


def test_github_shows_odd_names_as_they_are() -> None:
    odd = "a_b_c __init__ ~x~ [y](z) $k$ &amp; <b> `c` *d* | e"
    text = github([cell(verdict="failed", model=odd, reason=odd)])
    (row,) = github_tables(text)["Cells that did not pass"]
    assert (row["export"].removesuffix(" attention 24 float32"), row["reason"]) == (odd, odd)
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", github(odd_run()))


MANY = 4000


@pytest.fixture(scope="module")
def huge() -> list[AnyRecord]:
    """More of everything than GitHub takes, with names and reasons as long as they come."""
    bad = [cell(model=f"m{n}", verdict="failed", reason=f"\U0001f600é{n} " * 500) for n in range(MANY)]
    found = [finding(code="OA301", model=f"m{n}", message="x" * 3000) for n in range(MANY)]
    return [
        *bad,
        *found,
        *(not_run(f"runtime-{n}", reason=f"{n}" * 900) for n in range(300)),
        run(reason="y" * 10**6),
    ]


def test_github_keeps_below_what_a_step_may_have_and_says_what_was_cut(huge: list[AnyRecord]) -> None:
    text = github(huge)
    assert LIMIT - 5000 < len(text.encode()) <= LIMIT
    assert text.count("<details>") == text.count("</details>")
    open_part, *folded = text.split("<details>")
    assert len(raw_rows(open_part)) == MANY + 1  # and the model of what was skipped
    cut = 0
    for part in folded:
        (count,) = re.findall(r"\((\d+)\)</summary>", part)
        beyond = [int(more) for more in re.findall(r"^and (\d+) more", part, re.MULTILINE)]
        lines = len(raw_rows(part)) if "\n| " in part else len(re.findall(r"^- ", part, re.MULTILINE))
        assert lines + sum(beyond) == int(count)
        cut += len(beyond)
    assert cut > 0
    assert re.search(r"^What did not fit at all: .+\.$", text, re.MULTILINE)


@pytest.mark.parametrize("room", [0, 50, 500, 2500, 10_000, 60_000])
def test_github_keeps_to_any_room(huge: list[AnyRecord], room: int) -> None:
    assert len(github(huge, room).encode()) <= room
    assert len(github(failing_run(), room).encode()) <= room


def test_first_lines_say_how_many_there_are_beyond() -> None:
    text = "\n".join(f"line {n}" for n in range(100))
    assert first_lines(text, 10**6) == f"\n{text}"
    cut = first_lines(text, 200)
    assert len(cut.encode()) <= 200
    shown = re.findall(r"^line", cut, re.MULTILINE)
    assert f"and {100 - len(shown)} more lines" in cut
    assert first_lines(text, 10) == first_lines("", 10) == ""


# --- on a terminal ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_gets_verdict_matrix_and_findings_within_its_width(width: int) -> None:
    text = terminal(failing_run(), width, colours=False)
    lines = text.splitlines()
    assert lines[0] == "✖ failed"
    assert max(map(len, lines)) <= width
    assert "\x1b" not in text
    words = " ".join(text.split())
    assert "OA300 error, mha and" not in words  # one of each code
    assert all(f"OA30{n} error, mha" in words for n in range(3))
    for runtime in ("torch", "ort-cpu", "ort-cpu-noopt", "onnx-reference"):
        assert runtime in words


def test_a_matrix_too_wide_comes_in_parts_with_every_entry() -> None:
    records = [cell(runtime=f"runtime-{n}", verdict="failed" if n % 3 == 0 else "passed") for n in range(12)]
    text = terminal([*records, run()], 80, colours=False)
    rows = [line for line in text.splitlines() if line.startswith("mha ")]
    headings = [line for line in text.splitlines() if line.startswith("model ")]
    assert len(rows) == len(headings) > 1
    seen = {
        name: word
        for heading, row in zip(headings, rows, strict=True)
        for name, word in zip(heading.split()[3:], re.findall(r"[●✖] (\w+)", row), strict=True)
    }
    assert seen == {one.runtime: one.verdict for one in records}


def test_a_terminal_has_the_lines_of_the_summary() -> None:
    def words(text: str) -> str:
        return " ".join(text.replace("\\", "").split())

    plain, laid_out = words(summary(failing_run())), words(terminal(failing_run(), 10_000, colours=False))
    for lines in lists(failing_run()).values():
        assert all(words(line) in plain and words(line) in laid_out for line in lines)
    assert words(CUDA_NEVER) in plain
    assert words(CUDA_NEVER) in laid_out


def test_colours_are_only_added() -> None:
    coloured = terminal(failing_run(), 100, colours=True)
    assert "\x1b[1;31m✖ failed" in coloured
    assert (
        re.sub(r"\x1b\[[\d;]*m", "", coloured).split() == terminal(failing_run(), 100, colours=False).split()
    )


def test_no_name_or_message_controls_the_terminal() -> None:
    assert "\x1b" not in terminal(odd_run(), 100, colours=False)
    assert set(re.findall(r"\x1b(?!\[[\d;]*m)", terminal(odd_run(), 100, colours=True))) == set()


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "records.jsonl"
    path.write_bytes(encode(failing_run()))
    return path


class Screen(io.StringIO):
    """What looks like a terminal."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:
        return self._encoding

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "encoding", "laid_out", "coloured"),
    [
        ({}, "utf-8", True, True),
        ({"NO_COLOR": "1"}, "utf-8", True, False),
        ({"TERM": "dumb"}, "utf-8", False, False),
        ({}, "ascii", False, False),
    ],
)
def test_what_a_terminal_gets(monkeypatch, variables, encoding, laid_out, coloured) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm", "COLUMNS": "90"} | variables).items():
        monkeypatch.setenv(name, value)
    screen = Screen(encoding)
    monkeypatch.setattr("sys.stdout", screen)
    console.show_run(failing_run(), is_written=True)
    assert ("✖ failed" in screen.getvalue(), "\x1b[" in screen.getvalue()) == (laid_out, coloured)
    assert (screen.getvalue() == summary(failing_run())) == (not laid_out)


def test_what_is_no_terminal_gets_the_summary(command, records) -> None:
    assert command("report", records).out == summary(failing_run(), is_written=False)


@pytest.mark.parametrize("name", [*FORMATS, "findings.csv", "time.md"])
def test_report_prints_one_view_or_writes_it(command, records, tmp_path, name) -> None:
    view = render(failing_run())[FORMATS.get(name, name)]
    assert command("report", records, "--format", name).out.rstrip("\n") == view.rstrip("\n")
    answer = command("report", records, "--format", name, "-o", tmp_path / "view")
    assert (answer.code, answer.out) == (0, "")
    assert (tmp_path / "view").read_text().rstrip("\n") == view.rstrip("\n")
    assert list(tmp_path.iterdir()).sort() == [records, tmp_path / "view"].sort()


def test_a_view_that_cannot_be_written_is_refused(command, records, tmp_path) -> None:
    command("report", records, "--format", "md", "-o", tmp_path / "no" / "view").assert_refused("-o")
    command("report", records, "--format", "pdf").assert_refused(
        "unknown view 'pdf'", "junit", "findings.csv"
    )


def test_the_summary_of_a_step_is_appended(command, records, tmp_path, monkeypatch) -> None:
    step = tmp_path / "step.md"
    step.write_text("# before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    assert command("report", records, "--github-summary").out == summary(failing_run(), is_written=False)
    assert step.read_text() == f"# before\n\n{github(failing_run())}"


def test_what_a_step_has_already_said_counts_too(command, records, tmp_path, monkeypatch) -> None:
    step = tmp_path / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    step.write_text("x" * (LIMIT - 2000))
    command("report", records, "--github-summary")
    assert LIMIT - 2000 < step.stat().st_size <= LIMIT
    step.write_text("x" * (LIMIT - 10))
    answer = command("report", records, "--github-summary")
    assert (answer.code, step.stat().st_size) == (0, LIMIT - 10)
    assert "is full" in answer.err


def test_what_a_run_is_beside_its_baseline_follows_it(tmp_path) -> None:
    append(failing_run(), tmp_path / "step.md", "Beside the baseline: **failed**")
    assert (tmp_path / "step.md").read_text() == f"\n{github(failing_run())}\nBeside the baseline: **failed**"
    append(failing_run(), None)


def test_without_a_runner_the_flag_is_refused_before_the_work(command, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    command("report", tmp_path, "--github-summary").assert_refused("GITHUB_STEP_SUMMARY", "--format github")
    command("verify", tmp_path / "no.onnx", "--github-summary").assert_refused("GITHUB_STEP_SUMMARY")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    (tmp_path / "records.jsonl").write_bytes(encode(failing_run()))
    command("report", tmp_path, "--github-summary").assert_refused(f"cannot append to {tmp_path}, which")


# --- all say the same -------------------------------------------------------------------------------------------


def numbers_of(one: CellRecord) -> tuple[float | None, float | None]:
    return one.gates.get("proof", {}).get("max_err_over_tau"), one.effective_bits


@pytest.fixture(scope="module")
def drawn() -> list[AnyRecord]:
    """A run of cells of every verdict with indexs of all sizes, known failures and missing indexs among them."""
    draw = np.random.default_rng(20261203)
    records: list[AnyRecord] = []
    for index in range(60):
        verdict = ("passed", "passed", "failed", "errored", "inconclusive", "skipped")[index % 6]
        over = float(10 ** draw.uniform(-9, 9)) if index % 4 else None
        records.append(
            cell(
                model=f"m{index % 3}", runtime=f"r{index % 5}", case=case(f"case-{index}"), verdict=verdict,
                reason=f"reason {index}", known="issue" if index % 7 == 0 else "",
                gates={"proof": {"max_err_over_tau": over}} if over else {},
                effective_bits=float(draw.uniform(5, 25)) if index % 3 else None,
            )
        )  # fmt: skip
    records += [finding(code=f"OA30{n}", message=f"message {n}") for n in range(5)]
    return [*records, *conclude(records, duration_s=2.5)]


def cells_of(records: Sequence[AnyRecord]) -> dict[str, CellRecord]:
    return {one.case.id: one for one in records if isinstance(one, CellRecord) and one.case is not None}


def test_json_agrees_with_the_records(drawn: list[AnyRecord]) -> None:
    read = msgspec.json.decode(render(drawn)["report.json"], type=Document)
    assert list(read.records) == drawn
    assert (read.verdict, read.exit_code) == (drawn[-1].verdict, drawn[-1].exit_code)


def test_csv_agrees_with_the_records(drawn: list[AnyRecord]) -> None:
    views, cells = render(drawn), cells_of(drawn)
    rows = {row["case"]: row for row in csv_rows(views["accuracy.csv"])}
    assert set(rows) == set(cells)
    for name, one in cells.items():
        row = rows[name]
        said = row["gates.proof.max_err_over_tau"], row["effective_bits"]
        assert tuple(float(text) if text else None for text in said) == numbers_of(one)
        assert (row["verdict"], row["known"], row["reason"]) == (one.verdict, one.known, one.reason)
    assert [row["message"] for row in csv_rows(views["findings.csv"])] == [f"message {n}" for n in range(5)]
    (row,) = csv_rows(views["run.csv"])
    assert (row["verdict"], int(row["exit_code"])) == (drawn[-1].verdict, drawn[-1].exit_code)


def test_junit_agrees_with_the_records(drawn: list[AnyRecord]) -> None:
    root, cells = parsed(drawn), cells_of(drawn)
    cases = {one.attrib["name"]: one for one in root.iter("testcase")}
    assert set(cases) == set(cells)
    tags = {
        "passed": "",
        "failed": "failure",
        "errored": "error",
        "inconclusive": "error",
        "skipped": "skipped",
    }
    found = outcomes(root)
    for name, one in cells.items():
        said = {entry.attrib["name"]: float(entry.attrib["value"]) for entry in cases[name].iter("property")}
        assert (said.get("max_err_over_tau"), said.get("effective_bits")) == numbers_of(one)
        excused = one.known and one.verdict != "passed"
        assert found[name][0] == ("skipped" if excused else tags[one.verdict])
        assert one.verdict == "passed" or found[name][2].endswith(one.reason)
    red = [one for one in cells.values() if tags[one.verdict] in ("failure", "error") and not one.known]
    assert int(root.attrib["failures"]) + int(root.attrib["errors"]) == len(red)


def test_the_summary_of_a_step_agrees_with_the_records(drawn: list[AnyRecord]) -> None:
    text, cells = github(drawn), cells_of(drawn)
    tables = github_tables(text)
    rows = {row["case"]: row for title in CELL_TABLES for row in tables[title]}
    bad = {name: one for name, one in cells.items() if one.verdict not in ("passed", "skipped")}
    assert set(rows) == set(bad)
    for name, one in bad.items():
        over, bits = numbers_of(one)
        row = rows[name]
        assert (row["error/bound"], row["effective bits"]) == (ratio(over), number(bits))
        assert (row["verdict"], row["reason"]) == (marked(shown(one)), one.reason)
    matrix = {
        (row["model"], name): word for row in tables[""] for name, word in row.items() if name[0] == "r"
    }
    for (model, runtime), word in matrix.items():
        assert word == marked(
            shown_together(one for one in cells.values() if (one.model, one.runtime) == (model, runtime))
        )
    assert [row["message"] for row in tables["Findings"]] == [f"message {n}" for n in range(5)]


CELL_TABLES = ("Cells that did not pass", "Known failures, which do not count")


def test_html_agrees_with_the_records(drawn: list[AnyRecord]) -> None:
    page = render(drawn)["report.html"]
    packed = re.search(r'<script [^>]*id="data-cell"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert packed is not None
    rows = unpack(json.loads(packed[1]))
    assert rows == [json.loads(encode([one])) for one in drawn if isinstance(one, CellRecord)]


def test_all_views_say_the_same_verdict(drawn: list[AnyRecord]) -> None:
    views, verdict = render(drawn), drawn[-1].verdict
    assert views["summary.md"].startswith(f"**{verdict}**")
    assert views["github.md"].startswith(f"## onnx-attest: {marked(verdict)}\n")
    assert terminal(drawn, 80, colours=False).startswith(f"{marked(verdict)}\n")
    assert json.loads(views["report.json"])["verdict"] == verdict
    assert f'class="verdict {verdict}"' in views["report.html"]


def test_the_last_line_names_files_only_where_there_are_some(command, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(encode(failing_run()))
    assert "accuracy.md" not in command("report", path).out
    assert "give -o FOLDER" in command("report", path).out
    assert "accuracy.md" in summary(failing_run())
    assert "give -o FOLDER" in terminal(failing_run(), 100, colours=False, is_written=False)
