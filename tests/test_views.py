"""Views for machines and for a screen: valid whatever the records hold, and all of them with the records' own numbers."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest
from some_records import (
    big_run,
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

from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import (
    AnyRecord,
    ClaimRecord,
    Record,
    encode,
)
from onnx_attest.verify.report import render
from onnx_attest.verify.report.by_kind import FILE_OF
from onnx_attest.verify.report.document import schema, schema_text
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
