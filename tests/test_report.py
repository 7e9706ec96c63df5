"""Reports are pure functions of records: unknown is never 0, skipped never passed, known never counted."""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from some_records import (
    REASON,
    big_run,
    case,
    cell,
    csv_rows,
    environment,
    export,
    finding,
    headroom_record,
    known_failure,
    not_run,
    one_of_each,
    relations,
    run,
    softmax,
    table_rows,
    timing,
)

from onnx_attest.errors import UsageError
from onnx_attest.verify.records import (
    AnyRecord,
    CellRecord,
    MachineRecord,
    StabilityRecord,
    encode,
    read_records,
)
from onnx_attest.verify.report import accuracy, headroom, latency, render, stability, write_reports
from onnx_attest.verify.report.by_kind import FILE_OF, csv_of
from onnx_attest.verify.report.formats import extreme, number, ratio, seconds, sentence, share, shortened
from onnx_attest.verify.report.latency import latency_csv
from onnx_attest.verify.report.outcomes import failed_gates, shown, shown_together
from onnx_attest.verify.report.summary import WIDTH, summary
from onnx_attest.verify.report.tables import Table, escaped, to_csv, to_markdown
from onnx_attest.verify.report.views import ON_REQUEST

FILES = {
    "summary.md",
    "report.html",
    "junit.xml",
    "github.md",
    "accuracy.md",
    "stability.md",
    "relations.md",
    "latency.md",
    "claims.md",
    "power.md",
    "time.md",
    *FILE_OF.values(),
}
SCREEN_LINES = 45
CUDA_NEVER = "The CUDA path has never been executed in this run"
DOCS = Path(__file__).parent.parent / "docs" / "reports.md"


def accuracy_totals(*records: AnyRecord) -> list[dict[str, str]]:
    return table_rows(accuracy.accuracy(records), "By export and runtime")


def softmax_totals(*records: AnyRecord) -> list[dict[str, str]]:
    return table_rows(stability.stability(records), "By export and runtime")


def timings(*records: AnyRecord) -> list[dict[str, str]]:
    return table_rows(latency.latency(records), "By export, runtime and shape")


# Numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (float("nan"), "n/a"),
        (float("inf"), "n/a"),
        (0, "0"),
        (12345, "12345"),
        (0.0111111, "0.0111"),
        (4.1234e-7, "4.12e-07"),
    ],
)
def test_number_has_three_digits_and_unknown_is_not_zero(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (2.5e-4, "250 us"),
        (9.996e-4, "1 ms"),
        (0.01534, "15.3 ms"),
        (0.9996, "1 s"),
        (75.0, "75 s"),
        (1234.5, "1230 s"),
        (1.5e-8, "0.015 us"),
    ],
)
def test_seconds_choose_the_unit_after_rounding(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(1.0004, ">1"), (0.9996, "<1"), (1.0, "1"), (1.02, "1.02")])
def test_rounding_moves_no_ratio_onto_its_limit(value: float, text: str) -> None:
    assert ratio(value) == text


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (0.99999, "1 - 1.0e-05"), (0.5, "0.5")])
def test_rounding_makes_no_share_whole(value: float, text: str) -> None:
    assert share(value) == text


def test_extreme_counts_what_is_not_known() -> None:
    assert extreme([0.25, None, 0.5], max) == "0.5 (1 n/a)"


def test_extreme_of_nothing_known_is_not_a_number() -> None:
    assert extreme([None, None], sum) == "n/a"


def test_shortened_text_says_so() -> None:
    assert shortened("abcdefghij", 8) == "abcd ..."


def test_a_sentence_ends_once_or_says_what_is_left_out() -> None:
    assert sentence("It is. ", 20) == "It is."
    assert sentence("No stop", 20) == "No stop."
    assert sentence("The row is not in the place", 20) == "The row is not i ..."


# Tables


@pytest.mark.parametrize(
    "text", ["a|b", r"C:\x|y", "`x` | <class 'int'>", "2*x*y", "\\", "|", "1.10", "line one\nline two"]
)
def test_no_text_breaks_a_table(text: str) -> None:
    read = table_rows(to_markdown(Table("t", ("a", "b"), (("left", text), ("x", "y")))))
    assert read == [{"a": "left", "b": text.replace("\n", " ")}, {"a": "x", "b": "y"}]


def test_backticks_are_escaped() -> None:
    assert escaped("`Softmax`") == r"\`Softmax\`"


def test_control_characters_of_a_terminal_are_dropped() -> None:
    assert escaped("\x1b[31mred\x1b[m\ttext\u2028end") == "[31mred [m text end"


def test_an_empty_table_says_none() -> None:
    assert to_markdown(Table("Cells", ("a",), (), "a note")) == "## Cells\n\nNone.\n\na note\n"


def test_columns_are_aligned_for_a_terminal() -> None:
    lines = to_markdown(Table("", ("a", "long heading"), (("value", "1"),))).splitlines()
    assert len({len(line) for line in lines}) == 1


def test_csv_keeps_every_digit_and_leaves_the_unknown_empty() -> None:
    assert to_csv(("a", "b", "c"), [{"a": 0.1 + 0.2, "b": None}]) == "a,b,c\n0.30000000000000004,,\n"


# Verdicts


@pytest.mark.parametrize(
    ("records", "word"),
    [
        ([], "-"),
        ([cell()], "passed"),
        ([not_run()], "skipped"),
        ([cell(), not_run()], "passed"),
        ([cell(), cell(verdict="failed")], "failed"),
        ([cell(), known_failure()], "failed (known)"),
        ([known_failure()], "failed (known)"),
        ([known_failure(), not_run()], "failed (known)"),
        ([known_failure(), cell(verdict="failed")], "failed"),
        ([known_failure(), cell(verdict="errored")], "errored"),
        ([known_failure(), cell(verdict="inconclusive")], "inconclusive"),
        ([cell(), softmax(verdict="failed")], "failed"),
        ([cell(), softmax(verdict="failed", known="a/b#1")], "failed (known)"),
        ([cell(), known_failure(verdict="errored")], "errored (known)"),
        ([cell(), known_failure(findings=("OA803",))], "failed"),  # passed, against known.toml
    ],
)
def test_known_failures_do_not_count_but_are_named(
    records: list[CellRecord | StabilityRecord], word: str
) -> None:
    assert shown_together(records) == word


def test_known_excuses_no_other_verdict() -> None:
    assert shown(cell(verdict="passed", known="counter-example")) == "passed"


@pytest.mark.parametrize(
    ("numbers", "failed"),
    [
        ({"max_err_over_tau": 1.01}, True),
        ({"max_err_over_tau": 1.0}, False),
        ({"max_err_over_tau": None}, False),
        ({"rms_z": 1.5, "rms_z_limit": 1.44}, True),
        ({"rms_z": 0.5, "rms_z_limit": 1.44}, False),
        ({"rms_z": 0.5, "rms_z_limit": None}, False),
    ],
)
def test_a_gate_failed_if_a_number_is_beyond_its_limit(
    numbers: dict[str, float | None], failed: bool
) -> None:
    assert bool(failed_gates(cell(gates={"gate": numbers}))) == failed


@pytest.mark.parametrize(("code", "gates"), [("OA301", ("proof",)), ("OA303", ("form",)), ("OA401", ())])
def test_a_gate_without_a_number_is_told_by_the_finding(code: str, gates: tuple[str, ...]) -> None:
    assert failed_gates(cell(gates={"proof": {"max_err_over_tau": None}}, findings=(code,))) == gates


# accuracy.md


def test_accuracy_has_one_row_for_each_export_and_runtime() -> None:
    rows = accuracy_totals(cell(), cell(case=case("b")), cell(runtime="torch"), cell(opset=23))
    assert [(row["runtime"], row["opset"]) for row in rows] == [
        ("ort-cpu", "24"),
        ("torch", "24"),
        ("ort-cpu", "23"),
    ]


def test_accuracy_counts_what_passed_of_all() -> None:
    (row,) = accuracy_totals(cell(), cell(verdict="failed"), cell(verdict="errored"))
    assert row["cells passed/total"] == "1/3"


def test_skipped_is_not_shown_as_passed() -> None:
    (row,) = accuracy_totals(not_run())
    assert (row["verdict"], row["cells passed/total"], row["max error/bound"]) == ("skipped", "0/1", "n/a")


def test_worst_case_has_the_largest_error_over_its_bound() -> None:
    worse = cell(case=case("worse"), gates={"proof": {"max_err_over_tau": 0.5}})
    (row,) = accuracy_totals(cell(), worse, cell())
    assert (row["worst case"], row["max error/bound"]) == (worse.case and worse.case.id, "0.5")


def test_a_failure_without_a_number_is_worse_than_any_number() -> None:
    nan = cell(case=case("nan"), verdict="failed", gates={"form": {"nan_mismatches": 1}})
    (row,) = accuracy_totals(cell(gates={"proof": {"max_err_over_tau": 9.0}}), nan)
    assert (row["worst case"].split("[")[0], row["max error/bound"]) == ("nan", "9 (1 n/a)")


def test_provider_is_the_one_used_not_the_one_asked_for() -> None:
    (row,) = accuracy_totals(cell(provider_requested=("CUDAExecutionProvider",)))
    assert row["provider used"] == "CPUExecutionProvider"


def test_a_failed_cell_is_listed_with_gate_worst_element_and_findings() -> None:
    failed = cell(
        verdict="failed",
        gates={"proof": {"max_err_over_tau": 7.0}, "noise": {"rms_z": 0.5, "rms_z_limit": 1.4}},
        worst_output="y",
        worst_index=(0, 3),
        worst_actual="nan",
        worst_expected="0.25",
        findings=("OA301", "OA401"),
    )
    (row,) = table_rows(accuracy.accuracy([cell(), failed]), "Cells that did not pass")
    assert (row["gates failed"], row["worst element"], row["findings"]) == (
        "proof",
        "y[0, 3]: actual nan, expected 0.25",
        "OA301, OA401",
    )


def test_known_failures_are_listed_as_such() -> None:
    (row,) = table_rows(accuracy.accuracy([known_failure()]), "Cells that did not pass")
    assert row["verdict"] == "failed (known)"


def test_each_reason_stands_once_with_what_it_holds_for() -> None:
    records = [not_run(), not_run(variant="decomposed"), not_run(model="naive")]
    (row,) = table_rows(accuracy.accuracy(records), "Skipped, errored, not exported")
    assert (row["records"], row["reason"]) == ("3", REASON)


def test_a_failed_export_is_listed_with_its_reason() -> None:
    rows = table_rows(
        accuracy.accuracy([export(verdict="errored", reason="no | such op")]),
        "Skipped, errored, not exported",
    )
    assert [(row["runtime"], row["reason"]) for row in rows] == [("export", "no | such op")]


def test_equal_findings_are_one_row_with_all_their_cases() -> None:
    findings = [finding(case="a"), finding(case="b"), finding(message="another")]
    rows = table_rows(accuracy.accuracy(findings), "Findings")
    assert [row["cases"] for row in rows] == ["a, b", "n/a"]


# stability.md


def test_stability_shows_the_worst_and_counts_the_flushed() -> None:
    (row,) = softmax_totals(softmax(), softmax(row_sum_err_over_limit=0.5, finite_ratio=0.99999))
    shown_figures = (row["row-sum/limit"], row["finite"], row["rows"], row["exp flushed"])
    assert shown_figures == ("0.5", "1 - 1.0e-05", "64", "6")


def test_what_looked_at_no_rows_has_no_figures() -> None:
    (row,) = softmax_totals(softmax(verdict="skipped", reason="weights hidden", rows=0, exp_flushed=0))
    shown_figures = (row["verdict"], row["finite"], row["exp flushed"], row["poison"], row["reason"])
    assert shown_figures == ("skipped", "n/a", "n/a", "n/a", "weights hidden")


def test_one_poisoned_case_that_differs_is_enough() -> None:
    (row,) = softmax_totals(softmax(), softmax(poison="differs"), softmax(poison="not tried"))
    assert row["poison"] == "differs (2/3 tried)"


def test_stability_is_broken_down_by_logit_deviation_in_order() -> None:
    records = [
        softmax(case=case(logit_std=std), p_max=p) for std, p in ((30.0, 0.75), (3.0, 0.5), (None, 0.25))
    ]
    rows = table_rows(stability.stability(records), "By logit deviation")
    assert [(row["logit_std"], row["p_max"]) for row in rows] == [
        ("unscaled", "0.25"),
        ("3", "0.5"),
        ("30", "0.75"),
    ]


def test_the_legend_explains_each_column() -> None:
    text = stability.stability([softmax(), headroom_record()])
    explained = set(re.findall(r"^- ([^:]+): \S", text.partition("## Legend")[2], flags=re.MULTILINE))
    titles = ("By export and runtime", "By logit deviation", "Where it breaks")
    columns = [row for title in titles for row in table_rows(text, title)]
    assert explained == {name for row in columns for name in row}


# latency.md


def blocks(*sittings: Sequence[float], calls: int = 2) -> dict[str, Any]:
    """Return the fields of a record whose blocks took so long, each call of a block alike."""
    flat = [second for sitting in sittings for second in sitting]
    return {
        "latency_s": tuple(second for second in flat for _ in range(calls)),
        "block_sizes": (calls,) * len(flat),
        "block_rounds": tuple(range(len(flat))),
        "block_sittings": tuple(index for index, sitting in enumerate(sittings) for _ in sitting),
    }


STEADY = blocks(*[[1e-3, 1.01e-3, 1e-3, 0.99e-3]] * 3)


def faster(by: float) -> dict[str, Any]:
    return STEADY | {"latency_s": tuple(second / by for second in STEADY["latency_s"])}


def test_latency_shows_median_quantiles_and_number_of_samples() -> None:
    (row,) = timings(timing(latency_s=tuple(index * 1e-4 for index in range(11))))
    shown = {name: row[name] for name in ("median", "p90", "p99", "iqr", "samples")}
    assert shown == {"median": "500 us", "p90": "900 us", "p99": "990 us", "iqr": "500 us", "samples": "11"}


def test_the_interval_of_a_median_needs_sittings() -> None:
    alone, several = timings(timing(latency_s=(2e-4,)), timing(**STEADY, runtime="ort-cpu-noopt"))
    assert (alone["median"], alone["interval"]) == ("200 us", "n/a")
    assert several["interval"] == "995 us .. 1.01 ms"


def test_a_difference_is_shown_beyond_the_noise_floor_only() -> None:
    torch = timing(runtime="torch", **STEADY)
    twin = timing(runtime="torch", twin=True, **faster(1.02))
    rows = timings(
        torch,
        timing(**faster(2)),
        timing(runtime="a", **faster(1.015)),
        timing(runtime="b", **faster(0.8)),
        twin,
    )
    assert [row["shown"] for row in rows] == ["n/a", "faster", "no difference shown", "slower"]
    (floor,) = table_rows(latency.latency([torch, twin]), "A runtime against itself")
    assert (floor["runtime"], floor["ratio to itself"], floor["noise floor"]) == ("torch", "0.98", "2.0%")


def test_without_a_twin_no_difference_is_claimed() -> None:
    rows = timings(timing(runtime="torch", **STEADY), timing(**faster(2)))
    assert (rows[-1]["ratio to torch"], rows[-1]["shown"]) == ("0.5x", "n/a")


def test_torch_of_another_group_is_no_reference() -> None:
    rows = timings(timing(runtime="torch", **STEADY), timing(group=1, **faster(2)))
    assert rows[-1]["ratio to torch"] == "n/a"


def test_work_is_set_against_the_machines_own() -> None:
    machine = MachineRecord(library="NumPy", flops=10**9, threads=2, **blocks(*[[0.01] * 3] * 2))
    (row,) = table_rows(
        latency.latency([timing(flops=5 * 10**7, **STEADY), machine]), "By export, runtime and shape"
    )
    assert (row["GFLOP/s"], row["of the machine"]) == ("50", "0.5")
    (row,) = table_rows(latency.latency([machine]), "The machine")
    assert row["GFLOP/s"] == "100"
    (row,) = timings(timing(flops=5 * 10**7, **STEADY))
    assert (row["GFLOP/s"], row["of the machine"]) == ("50", "n/a")


def test_memory_is_what_came_on_top() -> None:
    (row,) = timings(timing(resident_bytes=2**30, opened_bytes=2**30 + 2**20, peak_bytes=2**30 + 4 * 2**20))
    assert (row["session memory"], row["call memory"]) == ("1 MiB", "3 MiB")


def test_growth_is_fitted_over_the_lengths() -> None:
    records = [
        timing(
            axes={"batch": 1, "seq_len": n},
            group=n,
            opened_bytes=0,
            peak_bytes=1000 * n,
            **faster(1024**2 / n**2),
        )
        for n in (256, 512, 1024)
    ]
    (row,) = table_rows(latency.latency(records), "Growth with length")
    assert (row["lengths"], row["exponent of memory"]) == ("256, 512, 1024", "1")
    assert row["exponent of time"].startswith("2 (")


# Which variant to ship


def shipped(*records: AnyRecord) -> list[dict[str, str]]:
    return table_rows(latency.latency(records), "Which variant to ship")


def test_the_fastest_that_passed_is_marked_and_those_not_told_from_it() -> None:
    records = (
        timing(artifact_sha256="slow", variant="decomposed", opset=18, **STEADY),
        timing(artifact_sha256="fast", variant="attention", opset=23, **faster(2)),
        timing(artifact_sha256="as-fast", variant="attention", opset=24, **faster(1.99)),
        timing(artifact_sha256="slow", variant="decomposed", opset=18, twin=True, **faster(1.02)),
    )
    cells = (cell(artifact_sha256=sha, verdict="passed") for sha in ("slow", "fast", "as-fast"))
    (row,) = shipped(*records, *cells)
    assert row["decomposed-18"] == "1 ms"
    assert row["attention-23"] == "500 us (fastest)"
    assert row["attention-24"] == "503 us (no difference shown to it)"


@pytest.mark.parametrize("known", ["", "a public issue"])
def test_one_that_failed_is_never_marked(known: str) -> None:
    records = (
        timing(artifact_sha256="slow", variant="decomposed", opset=18, **STEADY),
        timing(artifact_sha256="wrong", variant="attention", opset=23, **faster(9)),
        cell(artifact_sha256="slow", verdict="passed"),
        cell(artifact_sha256="wrong", verdict="passed"),
        cell(artifact_sha256="wrong", verdict="failed", known=known),
    )
    (row,) = shipped(*records)
    assert row["decomposed-18"] == "1 ms (fastest)"
    assert row["attention-23"] == "111 us (failed)"


def test_a_file_right_on_another_runtime_is_not_verified_on_this_one() -> None:
    here, there = timing(**faster(5)), timing(runtime="openvino-cpu", **STEADY)
    rows = shipped(here, there, cell(artifact_sha256="ab", runtime="openvino-cpu", verdict="passed"))
    assert {row["runtime"]: row["attention-24"] for row in rows} == {
        "ort-cpu": "200 us (not verified)",
        "openvino-cpu": "1 ms (fastest)",
    }


def test_nothing_verified_nothing_recommended() -> None:
    text = latency.latency([timing(**STEADY)])
    assert "so nothing is recommended" in text
    assert "fastest)" not in text


def test_torch_is_nothing_to_ship() -> None:
    assert "Which variant to ship" not in latency.latency([timing(runtime="torch", **STEADY)])


def test_ratio_is_to_torch_with_the_same_model_and_sizes() -> None:
    rows = timings(timing(runtime="torch", latency_s=(6e-4,) * 3), timing(), timing(axes={"batch": 1}))
    assert [row["ratio to torch"] for row in rows] == ["1x", "0.5x", "n/a"]


def test_ratio_prefers_torch_on_the_same_export() -> None:
    other = timing(runtime="torch", variant="decomposed", latency_s=(9e-4,))
    rows = timings(other, timing(runtime="torch", latency_s=(6e-4,)), timing())
    assert rows[-1]["ratio to torch"] == "0.5x"


@pytest.mark.parametrize("difference", [{"dtype": "float16"}, {"threads": 8}, {"model": "naive"}])
def test_no_ratio_between_unlike_measurements(difference: dict[str, Any]) -> None:
    rows = timings(timing(runtime="torch", **difference), timing())
    assert rows[-1]["ratio to torch"] == "n/a"


def test_no_samples_no_number() -> None:
    (row,) = timings(timing(verdict="errored", reason="out of memory", latency_s=()))
    measured = (
        "threads",
        "session",
        "first call",
        "median",
        "p90",
        "samples",
        "ratio to torch",
        "call memory",
    )
    assert {row[name] for name in measured} == {"n/a"}


def test_no_samples_but_the_reason() -> None:
    (row,) = timings(timing(verdict="errored", reason="out of memory", latency_s=()))
    assert row["reason"] == "out of memory"


def test_latency_states_its_limits() -> None:
    assert "compare ratios, not absolute times" in latency.latency([])


# The same numbers in Markdown and CSV


def test_accuracy_in_markdown_and_csv_is_the_same() -> None:
    records = [cell(), cell(max_abs_err=8.75e-7), cell(gates={"proof": {"max_err_over_tau": 0.123456}})]
    (row,) = accuracy_totals(*records)
    lines = csv_rows(csv_of(CellRecord, records))
    pairs = {"max error/bound": "gates.proof.max_err_over_tau", "max_abs_diff": "max_abs_err"}
    assert {name: number(max(float(line[field]) for line in lines)) for name, field in pairs.items()} == {
        name: row[name] for name in pairs
    }


def test_stability_in_markdown_and_csv_is_the_same() -> None:
    records = [softmax(), softmax(row_sum_err_u=7.654321)]
    (row,) = softmax_totals(*records)
    largest = max(float(line["row_sum_err_u"]) for line in csv_rows(csv_of(StabilityRecord, records)))
    assert row["row-sum err (u)"] == number(largest)


def test_latency_in_markdown_and_csv_is_the_same() -> None:
    records = [timing(runtime="torch", latency_s=(7e-4, 8e-4)), timing()]
    from_csv = [
        (seconds(float(line["median_s"])), f"{number(float(line['median_over_torch']))}x")
        for line in csv_rows(latency_csv(records))
    ]
    assert from_csv == [(row["median"], row["ratio to torch"]) for row in timings(*records)]


def test_csv_holds_the_raw_samples_unrounded() -> None:
    samples = (0.1 + 0.2, 1 / 3)
    (line,) = csv_rows(latency_csv([timing(latency_s=samples)]))
    assert tuple(map(float, line["latency_s"].split())) == samples


def test_csv_has_the_fields_even_without_records() -> None:
    assert csv_of(CellRecord, []).rstrip().split(",") == list(CellRecord.__struct_fields__)


def test_csv_columns_keep_the_order_of_the_fields() -> None:
    header = csv_of(CellRecord, [cell(gates={}), cell(gates={"form": {"nan_mismatches": 0.0}})]).split("\n")[
        0
    ]
    assert header.index("gates.form.nan_mismatches") < header.index("max_abs_err")


# summary.md


def first_line(*records: AnyRecord) -> str:
    return summary(records).splitlines()[0]


def test_first_line_is_the_verdict_in_words() -> None:
    records: list[AnyRecord] = [cell(), cell(), known_failure(), not_run(), run()]
    assert first_line(*records) == (
        "**passed**: 2 cells passed, 1 failed (known), 1 skipped (ort-cuda); exit code 0"
    )


def test_first_line_takes_verdict_and_exit_code_from_the_run() -> None:
    records: list[AnyRecord] = [cell(), run(verdict="inconclusive", exit_code=3)]
    assert first_line(*records) == "**inconclusive**: 1 cells passed; exit code 3"


def test_first_line_names_what_failed_besides_the_cells() -> None:
    records: list[AnyRecord] = [
        cell(),
        softmax(verdict="failed"),
        headroom_record(verdict="failed"),
        export(verdict="errored"),
        run(verdict="failed", exit_code=1),
    ]
    assert first_line(*records) == (
        "**failed**: 1 cells passed; stability 1 failed; headroom 1 failed; exports 1 errored; exit code 1"
    )


def test_first_line_of_a_run_that_skipped_only_an_export() -> None:
    assert first_line(export(verdict="skipped"), run()) == (
        "**passed**: no cells; exports 1 skipped; exit code 0"
    )


def test_first_line_without_cell_records_has_the_counts_of_the_run() -> None:
    line = first_line(run(cells={"passed": 812, "failed": 34, "errored": 0}, known=34))
    assert line == "**passed**: cells: 812 passed, 34 failed (34 failures known); exit code 0"


def test_a_run_that_did_not_finish_is_not_passed() -> None:
    assert first_line(cell()) == "**inconclusive**: 1 cells passed; no run record: the run did not finish"


def test_a_failure_shows_in_a_run_that_did_not_finish() -> None:
    assert first_line(cell(verdict="failed")).startswith("**failed**: ")


def test_no_records_prove_nothing() -> None:
    assert first_line() == "**inconclusive**: no cells; no run record: the run did not finish"


def test_the_reason_of_the_run_and_what_was_required_follow() -> None:
    text = summary(
        [run(verdict="inconclusive", reason="ort-cuda is absent", exit_code=3, required=("ort-cuda",))]
    )
    assert text.splitlines()[2] == "Why: ort-cuda is absent. Required: ort-cuda."


def test_matrix_has_a_word_for_each_export_and_runtime() -> None:
    records: list[AnyRecord] = [
        cell(),
        softmax(),
        known_failure(),
        cell(model="naive", runtime="torch", verdict="failed"),
    ]
    assert table_rows(summary(records)) == [
        {"model": "mha", "variant": "attention", "opset": "24", "ort-cpu": "passed", "torch": "-"},
        {
            "model": "naive",
            "variant": "attention",
            "opset": "24",
            "ort-cpu": "failed (known)",
            "torch": "failed",
        },
    ]


def test_matrix_has_a_column_for_dtypes_that_differ() -> None:
    rows = table_rows(summary([cell(), cell(dtype="float16")]))
    assert [row["dtype"] for row in rows] == ["float32", "float16"]


def test_matrix_names_the_dtype_that_all_share() -> None:
    assert "Every export is float32." in summary([cell(), cell(model="naive")])


def test_matrix_adds_up_cells_and_softmax_rows() -> None:
    (row,) = table_rows(summary([cell(), softmax(verdict="failed")]))
    assert row["ort-cpu"] == "failed"


def test_matrix_shows_an_export_that_failed() -> None:
    rows = table_rows(summary([export(), cell(), export(model="naive", verdict="errored", reason="boom")]))
    assert [(row["model"], row["export"], row["ort-cpu"]) for row in rows] == [
        ("mha", "passed", "passed"),
        ("naive", "errored", "-"),
    ]


def test_summary_says_once_why_a_runtime_was_skipped() -> None:
    assert summary([not_run(), not_run(variant="decomposed"), not_run(model="naive")]).count(REASON) == 1


def test_summary_says_once_for_each_model_what_a_known_failure_shows() -> None:
    known = [
        finding(model="naive", known="counter-example", message=f"overflow {index}") for index in range(3)
    ]
    lines = [line for line in summary(known).splitlines() if "overflow" in line]
    assert lines == ["- naive (counter-example): overflow 0"]


def test_a_known_failure_that_did_not_happen_is_a_finding() -> None:
    text = summary([finding(code="OA803", known="counter-example", model="naive")])
    assert "Findings:\n- OA803 error, naive" in text


def test_a_known_failure_without_a_finding_shows_its_reason() -> None:
    text = summary([known_failure(reason="NaN at 3 places", known="a/b#1")])
    assert "- naive (a/b#1): NaN at 3 places" in text


def test_findings_stand_by_severity_with_the_next_step() -> None:
    text = summary([finding(code="OA106", severity="warning"), finding(model="mha"), finding(model="naive")])
    assert re.findall(r"^- OA.*$", text, flags=re.MULTILINE) == [
        "- OA301 error, mha and 1 more: error over the bound. Next: look at node 3",
        "- OA106 warning, the run: error over the bound. Next: look at node 3",
    ]


@pytest.mark.parametrize(
    ("record", "executed"),
    [
        (not_run(), False),
        (cell(), False),
        (cell(runtime="ort-cuda", verdict="errored"), False),
        (cell(runtime="ort-cuda", provider_used=("CUDAExecutionProvider",)), True),
        (cell(runtime="ort-cuda-tf32", verdict="failed", provider_used=("CUDAExecutionProvider",)), True),
        (cell(runtime="ort-cuda", verdict="failed"), False),  # fell back to the CPU
    ],
)
def test_summary_says_if_cuda_was_never_executed(record: CellRecord, executed: bool) -> None:
    assert (CUDA_NEVER in summary([record])) == (not executed)


def test_summary_names_versions_and_machine() -> None:
    assert (
        "Environment: torch 2.13.0, onnx 1.23.2, onnxruntime-gpu 1.31.1; Python 3.11.9; Linux; "
        "Some CPU @ 2.0 GHz, 16 cores"
    ) in summary([environment()])


def test_summary_fits_a_screen() -> None:
    lines = summary(big_run()).splitlines()
    assert (len(lines) <= SCREEN_LINES, [line for line in lines if len(line) > WIDTH]) == (True, [])


def test_many_findings_are_cut_and_counted() -> None:
    findings = [finding(code=f"OA{300 + index}") for index in range(20)]
    assert "- and 12 more, see the tables" in summary(findings)


# All views


def subsets() -> Iterable[Sequence[AnyRecord]]:
    yield []
    yield from ([record] for record in one_of_each())
    yield [export(verdict="errored", reason="no such op", opset=None)]
    yield [timing(verdict="skipped", latency_s=(), threads=None, session_s=None)]
    yield [softmax(rows=0, verdict="errored"), cell(case=None, verdict="errored", opset=None)]
    yield one_of_each()


@pytest.mark.parametrize(
    "records", list(subsets()), ids=lambda records: "+".join(type(one).__name__ for one in records)
)
def test_every_view_renders_whatever_records_there_are(records: Sequence[AnyRecord]) -> None:
    views = render(records)
    assert set(views) == FILES | ON_REQUEST
    assert all(views.values())


@pytest.mark.parametrize("name", sorted(FILES | ON_REQUEST))
def test_no_view_prints_nan_inf_or_none(name: str) -> None:
    nothing: dict[str, Any] = {
        "max_abs_err": float("nan"),
        "max_rel_err": float("inf"),
        "gates": {"proof": {}},
    }
    text = render(
        [*one_of_each(), *relations(), cell(verdict="failed", **nothing), softmax(p_max=float("nan"))]
    )[name]
    assert not re.search(r"\b(nan|inf|None)\b", text)


def test_records_read_back_from_a_file_give_the_same_report(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(encode(big_run()))
    assert render(read_records(path)) == render(big_run())


def test_the_documentation_has_a_line_for_each_column() -> None:
    tables = (
        accuracy.TOTALS,
        accuracy.NOT_PASSED,
        accuracy.NOT_RUN,
        accuracy.FINDINGS,
        stability.BY_EXPORT,
        stability.BY_LOGITS,
        headroom.COLUMNS,
        latency.COLUMNS,
        latency.FLOOR_COLUMNS,
        latency.GROWTH_COLUMNS,
        latency.MACHINE_COLUMNS,
    )
    listed = re.findall(r"^- `([^`]+)`: (.+)$", DOCS.read_text().partition("## accuracy.md")[2], re.MULTILINE)
    described = [(column.name, column.meaning) for table in tables for column in table]
    assert listed[: len(described)] == described


# The folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return an earlier report, with an artifact."""
    exported = tmp_path / "exported-before"
    exported.mkdir()
    (exported / "old.onnx").write_bytes(b"old")
    write_reports([run(reason="the old one")], tmp_path / "report", exported)
    return tmp_path / "report"


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    (tmp_path / "exported" / "sub").mkdir(parents=True)
    (tmp_path / "exported" / "sub" / "model.onnx").write_bytes(b"new")
    return tmp_path / "exported"


def fail_renames(monkeypatch: pytest.MonkeyPatch, *failing: int) -> None:
    """Let the renames with these numbers, from 1, find no space."""
    rename, count = os.replace, itertools.count(1)

    def replace(source: Any, target: Any) -> None:
        if next(count) in failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)


def test_a_report_is_records_and_views(tmp_path: Path) -> None:
    write_reports(one_of_each(), tmp_path / "deep" / "report")
    assert set(contents(tmp_path / "deep" / "report")) == {*FILES, "records.jsonl"}


def test_the_records_of_a_report_read_back(tmp_path: Path) -> None:
    write_reports(one_of_each(), tmp_path / "report")
    assert read_records(tmp_path / "report") == one_of_each()


def test_an_iterator_of_records_is_enough(tmp_path: Path) -> None:
    write_reports(iter(one_of_each()), tmp_path / "report")
    assert (tmp_path / "report" / "summary.md").read_text() == summary(one_of_each())


def test_a_new_report_replaces_all_of_the_old_one(old: Path) -> None:
    write_reports([run()], old)
    assert set(contents(old)) == {*FILES, "records.jsonl"}


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    write_reports([run()], tmp_path / "report")
    assert read_records(tmp_path / "report") == [run()]


def test_nothing_is_left_beside_the_report(old: Path, exported: Path) -> None:
    before = contents(exported)
    write_reports([run()], old, exported)
    assert {path.name for path in old.parent.iterdir()} == {"report", exported.name, "exported-before"}
    assert contents(exported) == before, "it is the run's, which may be killed before it is done"


def test_artifacts_are_in_the_report(tmp_path: Path, exported: Path) -> None:
    write_reports([run()], tmp_path / "report", exported)
    assert (tmp_path / "report" / "artifacts" / "sub" / "model.onnx").read_bytes() == b"new"


def test_artifacts_from_a_private_folder_are_shared(tmp_path: Path, exported: Path) -> None:
    exported.chmod(0o700)
    write_reports([run()], tmp_path / "report", exported)
    assert (tmp_path / "report" / "artifacts").stat().st_mode == (tmp_path / "report").stat().st_mode


def test_the_artifacts_of_the_old_report_can_be_kept(old: Path) -> None:
    write_reports([run()], old, old / "artifacts")
    assert (old / "artifacts" / "old.onnx").read_bytes() == b"old"


@pytest.mark.parametrize("failing", [1, 2])
def test_a_swap_that_fails_half_way_keeps_the_old_report(
    old: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    before = contents(old)
    fail_renames(monkeypatch, failing)
    with pytest.raises(UsageError):
        write_reports([cell(), run()], old)
    assert contents(old) == before


def test_a_swap_that_fails_half_way_leaves_nothing_beside(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = set(old.parent.iterdir())
    fail_renames(monkeypatch, 2)
    with pytest.raises(UsageError):
        write_reports([run()], old)
    assert set(old.parent.iterdir()) == beside


def test_a_swap_that_fails_leaves_the_artifacts_where_they_were(
    old: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(exported)
    fail_renames(monkeypatch, 2)
    with pytest.raises(UsageError):
        write_reports([run()], old, exported)
    assert contents(exported) == before


def test_an_old_report_that_cannot_be_put_back_is_kept_and_named(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(old)
    fail_renames(monkeypatch, 2, 3)
    with pytest.raises(UsageError, match="cannot put the earlier report back") as caught:
        write_reports([run()], old)
    kept = re.search(r"it is whole in (\S+);", str(caught.value))
    assert kept is not None
    assert contents(Path(kept[1])) == before


def test_an_interrupted_swap_keeps_the_old_report(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rename, count = contents(old), os.replace, itertools.count(1)

    def replace(source: Any, target: Any) -> None:
        if next(count) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write_reports([run()], old)
    assert contents(old) == before


def test_a_full_disk_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_bytes(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with pytest.raises(UsageError) as caught:
        write_reports([run()], tmp_path / "report")
    assert str(caught.value) == (
        f"cannot write the report {tmp_path / 'report'}: No space left on device; nothing was changed: "
        "make room or choose another folder with -o"
    )


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("mine")
    with pytest.raises(UsageError, match="is a file; give a folder"):
        write_reports([run()], tmp_path / "report")


def test_a_file_in_the_path_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="cannot write the report"):
        write_reports([run()], tmp_path / "file" / "report")


def test_a_folder_that_is_not_a_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"holds no records\.jsonl, so it is not a report"):
        write_reports([run()], tmp_path)


def test_a_report_with_a_foreign_file_is_refused(old: Path) -> None:
    (old / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds notes\.txt, which is no part of a report"):
        write_reports([run()], old)


def test_a_foreign_folder_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError):
        write_reports([run()], tmp_path)
    assert contents(tmp_path) == {"thesis.tex": b"mine"}


def test_artifacts_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder; give the one with the exported files"):
        write_reports([run()], tmp_path / "report", tmp_path / "nowhere")


def test_a_report_is_not_written_into_its_own_artifacts(exported: Path) -> None:
    with pytest.raises(UsageError, match="moved into itself"):
        write_reports([run()], exported / "report", exported)


def test_a_table_of_the_benchmarks_stays(old: Path) -> None:
    (old / "detection.md").write_text("a table")
    write_reports([run()], old)
    assert (old / "detection.md").read_text() == "a table"


def test_a_link_to_a_report_stays_a_link(old: Path) -> None:
    link = old.parent / "latest"
    link.symlink_to(old, target_is_directory=True)
    write_reports([run()], link)
    assert (link.is_symlink(), read_records(old)) == (True, [run()])
