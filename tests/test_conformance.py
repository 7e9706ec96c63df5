"""Conformance: the cases, their references and features, the judgement, the search for small inputs, matrix and diff."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from misbehaving import Misbehaving

from onnx_attest.errors import UsageError
from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.conformance import confirmed as known
from onnx_attest.verify.conformance.attention_model import Shape, attention
from onnx_attest.verify.conformance.beyond import beyond
from onnx_attest.verify.conformance.case import OPERATORS, Case
from onnx_attest.verify.conformance.confirmed import Confirmed
from onnx_attest.verify.conformance.difference import difference
from onnx_attest.verify.conformance.document import document
from onnx_attest.verify.conformance.execution import Ran, run_case
from onnx_attest.verify.conformance.job import run_conformance
from onnx_attest.verify.conformance.judging import Judged, judged
from onnx_attest.verify.conformance.kinds import kinds
from onnx_attest.verify.conformance.matrix import (
    ConformanceReport,
    RuntimeRun,
    encode_report,
    lines_of,
    read_report,
)
from onnx_attest.verify.conformance.reference import References, evaluated, reference_of
from onnx_attest.verify.conformance.result import Result, changes_of
from onnx_attest.verify.conformance.smallest import smallest
from onnx_attest.verify.conformance.suite import suite
from onnx_attest.verify.conformance.text import shown
from onnx_attest.verify.conformance.words import kind_of_words, shortened_words
from onnx_attest.verify.gates import Tolerance
from onnx_attest.verify.node_cases import COMPUTED_IN
from onnx_attest.verify.records import ConformanceRecord
from onnx_attest.verify.runtimes.isolated import isolate, processes_of
from onnx_attest.verify.runtimes.registry import select

DOCS = Path(__file__).parents[1] / "docs"
OTHERWISE = {
    "beyond_gelu_tanh_float64": "the body's constants are float32",
    "beyond_attention_no_key": "the body reshapes to a size of 0",
    "beyond_attention_no_key_3d": "the body reshapes to a size of 0",
}
"""Cases in which ONNX's function body does not compute, or not in float64, what its text says."""


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {case.name: case for case in (*suite(), *beyond())}


@pytest.fixture(scope="module")
def committed() -> ConformanceReport:
    return read_report(DOCS / "conformance.json")


# --- the cases --------------------------------------------------------------------------------------------------


def test_the_suite_has_every_operator_in_both_forms(cases):
    """About 400 cases: a renamed module or operator would empty it without failing anything else."""
    of_onnx = [case for case in cases.values() if case.origin == "onnx"]
    assert len(of_onnx) >= 390
    assert {case.operator for case in of_onnx} == set(OPERATORS)
    # TensorScatter is the only one without a function body.
    assert {case.operator for case in of_onnx if case.form == "expanded"} == set(OPERATORS) - {
        "TensorScatter"
    }


def test_operators_that_the_oracle_lacks_are_judged_by_their_function_body(cases):
    for name in ("flexattention", "linear_attention_gated"):
        reference = reference_of(cases[name], "fp32")
        assert reference.kind == "expanded"
        assert cases[name].operator in reference.lacks


def test_onnx_and_the_oracle_agree_on_the_suite(cases):
    odds = {name: found for name, case in cases.items() if (found := References(case).at_odds)}
    assert odds == {}


def test_names_are_given_once():
    names = [case.name for case in (*suite(), *beyond())]
    assert len(names) == len(set(names))


def test_our_cases_are_valid_onnx(cases):
    for case in cases.values():
        if case.origin == "beyond":
            onnx.checker.check_model(case.model, full_check=True)


def test_the_oracle_and_onnx_function_body_agree_beyond_the_suite(cases):
    """What is right there nobody but the oracle says: so it is held against ONNX's own body of each operator."""
    bodies = {
        name: dict(case.references).get("expanded") for name, case in cases.items() if case.origin == "beyond"
    }
    differing = set()
    for name, body in bodies.items():
        case = cases[name]
        if case.form == "operator" and body is not None and not _same(case, body):
            differing.add(name)
    assert differing == set(OTHERWISE)


def _same(case: Case, body: onnx.ModelProto) -> bool:
    arithmetic = PROFILES[COMPUTED_IN[case.dtype]]
    own = evaluated(case.model, case.inputs, arithmetic)
    reference = reference_of(replace(case, model=body, references=(("expanded", body),)), arithmetic.name)
    if reference.outputs is None:
        return False
    for name, one in own.items():
        other = reference.outputs[name]
        if one.value.shape != other.value.shape:
            return False
        finite = np.isfinite(one.value)
        if not np.array_equal(one.value[~finite], other.value[~finite], equal_nan=True):
            return False
        allowed = (one.errors() + other.errors() + 2.0**-45 * np.abs(one.value))[finite]
        if np.any(np.abs(one.value[finite] - other.value[finite]) > allowed):
            return False
    return True


# --- features ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "features"),
    [
        (attention("a", Shape(queries=5, keys=7), is_causal=1), {"causal, L < S"}),
        (attention("a", Shape(queries=7, keys=7), is_causal=1), {"causal, L = S"}),
        (attention("a", Shape(queries=9, keys=7), is_causal=1), {"causal, L > S"}),
        (attention("a", Shape(past=2), is_causal=1), {"causal with a past", "past and present"}),
        (attention("a", Shape(kv_heads=2)), {"grouped heads"}),
        (attention("a", Shape(kv_heads=1)), {"one head of K and V"}),
        (attention("a", Shape(symbolic=("kv_heads", "heads"))), {"symbolic number of heads"}),
        (attention("a", Shape(keys=0)), {"S = 0"}),
        (attention("a", shown=2), {"qk_matmul_output_mode 2"}),
        (attention("a", mask=np.ones((1, 7), bool)), {"boolean mask", "mask of 2 axes", "mask broadcast over queries"}),
        (attention("a", opset=24, mask=np.ones((5, 4), np.float32)), {"mask shorter than the keys"}),
        (attention("a", mask=np.zeros((5, 7), bool)), {"empty row: boolean mask"}),
        (attention("a", mask=np.full((5, 7), -np.inf, np.float32)), {"empty row: float mask of -inf"}),
        (attention("a", opset=24, lengths=(0, 7)), {"empty row: nonpad_kv_seqlen"}),
        (attention("a", opset=25, left_window_size=0, is_causal=1), {"window"}),
        (
            attention("a", mask=np.arange(7) > np.arange(5)[:, None], is_causal=1),
            {"empty row: several together"},
        ),
    ],
)  # fmt: skip
def test_features_are_read_off_the_case(case, features):
    assert features <= set(case.features)


def test_a_window_empties_no_row_that_sees_itself():
    case = attention("a", opset=25, left_window_size=0, right_window_size=0)
    assert [name for name in case.features if name.startswith("empty")] == []


# --- judging ----------------------------------------------------------------------------------------------------


def softmax_case(expected=None, tolerance=None) -> tuple[Case, np.ndarray]:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 13]> g (float[2, 3] x) => (float[2, 3] y) { y = Softmax (x) }'
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    exact = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(-1, keepdims=True)
    given = None if expected is None else {"y": expected}
    case = Case(
        "c",
        "onnx",
        "Softmax",
        "operator",
        ("last axis",),
        model,
        (("operator", model),),
        {"x": x},
        given,
        tolerance,
    )
    return case, exact.astype(np.float32)  # fmt: skip


def judge(case: Case, y: np.ndarray) -> Judged:
    return judged(case, Ran({"y": y}), reference_of(case, "fp32"))


def test_right_numbers_are_right():
    case, exact = softmax_case()
    assert judge(case, exact).outcome == "right"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda y: y * np.float32(1 + 1e-5),
        lambda y: y.astype(np.float64),
        lambda y: y.T.copy(),
        lambda y: np.where(y > 0.6, np.float32(np.nan), y),
        lambda y: np.full_like(y, 1 / 3),
    ],
)
def test_wrong_numbers_dtypes_shapes_and_nans_are_wrong(spoil):
    case, exact = softmax_case()
    found = judge(case, spoil(exact))
    assert (found.outcome, bool(found.reason)) == ("wrong", True)


def test_the_tolerance_may_pass_what_is_wrong():
    case, exact = softmax_case(softmax_case()[1], Tolerance(1e-7, 1e-3))
    found = judge(case, exact * np.float32(1 + 1e-4))
    assert (found.outcome, found.by_tolerance) == ("wrong", "within")


def test_the_tolerance_may_refuse_what_is_right():
    case, exact = softmax_case(softmax_case()[1], Tolerance(0.0, 1e-9))
    found = judge(case, np.nextafter(exact, np.float32(2)))
    assert (found.outcome, found.by_tolerance) == ("right", "beyond")


def test_without_an_oracle_the_case_itself_judges():
    case, exact = softmax_case(softmax_case()[1], Tolerance(1e-7, 1e-3))
    alone = replace(case, references=())
    assert reference_of(alone, "fp32").kind == "second-hand"
    assert judge(alone, exact).outcome == "right"
    assert judge(alone, exact * np.float32(1.1)).outcome == "wrong"


def test_without_anybody_nothing_is_concluded():
    case, exact = softmax_case()
    assert judge(replace(case, references=()), exact).outcome == "inconclusive"


def test_an_infinite_bound_proves_nothing():
    """1025 numbers whose sum may stall in bfloat16 arithmetic."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 13]> g (float[1, 1025] x) => (float[1, 1] y) { y = ReduceSum (x) }'
    )
    x = np.ones((1, 1025), np.float32)
    case = Case("c", "beyond", "Softmax", "operator", ("a",), model, (("operator", model),), {"x": x})
    found = judged(case, Ran({"y": np.array([[1025]], np.float32)}), reference_of(case, "bf16-acc"))
    assert found.outcome == "inconclusive"


def test_what_a_runtime_says_is_its_refusal():
    case, _ = softmax_case()
    assert judged(case, Ran(words="no kernel"), reference_of(case, "fp32")) == Judged("refused", "no kernel")


# --- running ----------------------------------------------------------------------------------------------------


def test_a_crash_ends_one_case_and_not_the_run(cases):
    """The runtime's process is ended by each case it runs: all of them are `crashed`, and the next one has its say."""
    chosen = [cases[name] for name in ("gelu_default_1", "gelu_tanh_1")]
    report = run_conformance([Misbehaving("abort"), *select(("onnx-reference",))], ("Gelu",), cases=chosen)
    assert report.totals("misbehaving") == {"crashed": 2}
    assert report.totals("onnx-reference") == {"right": 2}
    assert all("SIGABRT" in one.reason for one in report.details)


def test_words_hold_no_path_of_this_machine(cases):
    (runtime,) = isolate(select(("ort-cpu",)))
    with processes_of((runtime,)):
        ran = run_case(runtime, cases["flexattention"].model, cases["flexattention"].inputs)
    assert ran.outputs is None
    assert "FlexAttention" in ran.words
    assert "/" not in ran.words.replace("function/op", "")


def test_runtimes_that_run_modules_are_left_out_and_absent_ones_listed(cases):
    broken = replace(select(("ort-cpu",))[0], name="absent", provider="NoSuchProvider")
    report = run_conformance([*select(("torch",)), broken], ("Gelu",), cases=[cases["gelu_tanh_1"]])
    assert "torch" in report.left_out
    assert "NoSuchProvider" in report.runtimes["absent"].skipped
    assert Result(report, (), required=("absent",)).exit_code == 3


# --- the smallest input -----------------------------------------------------------------------------------------


def ignoring_causality(case: Case) -> Judged:
    """What a runtime that ignores is_causal does: wrong where a later key is hidden and its value is another."""
    q, k = case.inputs["Q"], case.inputs["K"]
    wrong = q.shape[2] and k.shape[2] > 1
    return Judged("wrong" if wrong else "right", "Y is off")


def test_all_axes_shrink_together_and_one_by_one():
    case = attention("a", Shape(kv_heads=2), is_causal=1, mask=np.ones((2, 4, 5, 7), bool))
    best = smallest(case, Judged("wrong", "Y is off"), ignoring_causality).case
    shapes = {name: array.shape for name, array in best.inputs.items()}
    assert shapes == {
        "Q": (1, 1, 1, 1), "K": (1, 1, 2, 1), "V": (1, 1, 2, 1), "attn_mask": (1, 1, 1, 2),
    }  # fmt: skip
    assert float(np.abs(best.inputs["Q"]).max()) == 0
    onnx.checker.check_model(best.model, full_check=True)


def test_past_and_new_keys_are_cut_from_their_own_part_of_the_mask():
    mask = np.zeros((5, 10), bool)
    mask[:, 3:] = True  # the past hidden, what is new seen
    case = attention("a", Shape(past=3), mask=mask)
    best = smallest(
        case,
        Judged("wrong", "x"),
        lambda one: Judged("wrong" if not one.inputs["attn_mask"].all() else "right", "x"),
    )
    assert best.case.inputs["attn_mask"].tolist() == [[False, True]]  # fmt: skip


def test_the_last_entries_are_tried_too():
    case, _ = softmax_case()
    best = smallest(
        case, Judged("wrong", "x"), lambda one: Judged("wrong" if 5.0 in one.inputs["x"] else "right", "x")
    )
    assert best.case.inputs["x"].tolist() == [[5.0]]


def test_heads_stay_whole_groups():
    case = attention("a", Shape(kv_heads=2))
    tried = []
    smallest(case, Judged("wrong", "x"), lambda one: tried.append(one) or Judged("right"))
    assert {one.inputs["Q"].shape[1] % one.inputs["K"].shape[1] for one in tried} == {0}


def test_what_says_something_else_is_another_refusal():
    case, _ = softmax_case()
    best = smallest(case, Judged("refused", "no size 3"), lambda one: Judged("refused", "another thing"))
    assert best.case.inputs["x"].shape == (2, 3)


def test_arrays_are_told_in_a_line():
    assert shown(np.zeros((2, 3), np.float32)) == "float32[2,3] = 0"
    assert shown(np.array([True, False])) == "bool[2] = true false"
    assert shown(np.zeros((0, 3), np.float16)) == "float16[0,3] (empty)"
    assert shown(np.arange(40.0)) == "float64[40], 0 to 39"


# --- words ------------------------------------------------------------------------------------------------------


def test_words_lose_what_hides_them():
    text = (
        "Fail: [ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Attention node. Name:'' "
        "Status Message: /src/onnxruntime/core/attention_helper.h:55 void f(const T*, int) [with T = float] "
        "batch_size > 0 was false. Batch size must be greater than 0"
    )
    assert shortened_words(text) == (
        "Attention: attention_helper.h:55: batch_size > 0 was false. Batch size must be greater than 0"
    )


def test_long_words_keep_their_end():
    assert shortened_words("a" * 500 + " the point").endswith("the point")


def test_kinds_of_words_ignore_numbers():
    assert kind_of_words("Y[0, 3] is 1.5e-3, exact 2") == kind_of_words("Y[1, 2, 2] is -4, exact 0.25")
    assert kind_of_words("no Expand(13)") != kind_of_words("no Mul(14)")


# --- matrix and difference --------------------------------------------------------------------------------------


def row(case: str, outcome: str, *features: str, runtime="r", **fields) -> ConformanceRecord:
    return ConformanceRecord(
        case=case, origin="onnx", operator="Attention", form="operator", features=features, opset=23, dtype="float32",
        runtime=runtime, runtime_version="1", arithmetic="fp32", outcome=outcome, reference="operator",
        reason="" if outcome == "right" else f"{outcome} 7", **fields,
    )  # fmt: skip


def report(*records: ConformanceRecord, version="1", operators=("Attention",)) -> ConformanceReport:
    return ConformanceReport(
        versions={"onnx": "1"}, machine="", left_out={}, operators=operators, cases=lines_of(records),
        runtimes={one.runtime: RuntimeRun(version) for one in records},
        details=tuple(one for one in records if one.outcome != "right"),
    )  # fmt: skip


def counts(found: ConformanceReport) -> dict[str, tuple[dict[str, int], int]]:
    return {cell.feature: (cell.counts, cell.explained) for cell in found.cells()}


def test_a_right_case_clears_what_it_asks_for():
    found = report(row("a", "right", "opset 23"), row("b", "wrong", "opset 23", "window"))
    assert counts(found) == {"opset 23": ({"right": 1}, 1), "window": ({"wrong": 1}, 0)}


def test_a_combination_is_blamed_where_each_part_is_right():
    found = report(
        row("a", "right", "o"), row("b", "right", "o", "causal"), row("c", "right", "o", "past"),
        row("d", "wrong", "o", "causal", "past"),
    )  # fmt: skip
    assert counts(found)["causal"] == ({"right": 1, "wrong": 1}, 0)
    assert counts(found)["past"] == ({"right": 1, "wrong": 1}, 0)
    assert counts(found)["o"] == ({"right": 3}, 1)


def test_without_any_right_case_everything_is_suspect():
    assert counts(report(row("a", "wrong", "o", "w"))) == {"o": ({"wrong": 1}, 0), "w": ({"wrong": 1}, 0)}


def test_the_file_is_read_as_it_was_written(tmp_path):
    found = report(
        row("a", "right", "o"), row("b", "wrong", "o", max_err_over_tau=7.5, by_tolerance="within")
    )
    (tmp_path / "c.json").write_bytes(encode_report(found))
    assert read_report(tmp_path / "c.json") == found


def test_a_case_is_a_line_of_the_file():
    """So that a new version of a runtime shows as a diff of the cases that changed."""
    before = encode_report(report(row("a", "right", "o"), row("b", "right", "o"))).splitlines()
    after = encode_report(report(row("a", "right", "o"), row("b", "wrong", "o"))).splitlines()
    assert [line for line in before if b'"case":"a"' in line] == [
        line for line in after if b'"case":"a"' in line
    ]


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"kind": "conformance", "cases": [], "details": [{"case": "x"}], "runtimes": {}}', "[]"],
)
def test_another_file_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(UsageError, match=r"is no conformance\.json"):
        read_report(tmp_path / "c.json")


def test_what_got_worse_is_told_from_what_got_better():
    before = report(row("a", "right", "o"), row("b", "wrong", "o"), row("c", "refused", "o"))
    after = report(row("a", "refused", "o"), row("b", "right", "o"), row("c", "refused", "o"), version="2")
    change = difference(before, after)
    assert [(one.case, one.is_worse) for one in change.cases] == [("a", True), ("b", False)]
    assert change.versions == {"r": ("1", "2")}
    assert [(cell.before, cell.after) for cell in change.cells] == [
        ({"right": 1, "refused": 1, "wrong": 1}, {"right": 1, "refused": 2})
    ]
    assert Result(after, (), change).exit_code == 1


def test_a_wrong_number_is_worse_than_a_refusal():
    change = difference(report(row("a", "refused", "o")), report(row("a", "wrong", "o")))
    assert [one.case for one in change.worse] == ["a"]


def test_a_new_case_is_new_and_not_worse():
    before, after = report(row("a", "right", "o")), report(row("a", "right", "o"), row("b", "wrong", "p"))
    change = difference(before, after)
    assert (change.appeared, change.worse) == (("b",), ())
    assert Result(after, (), change).exit_code == 0
    assert "new cases: b" in changes_of(change)


def test_runtimes_that_only_one_run_has_are_not_compared():
    before, after = report(row("a", "right", "o")), report(row("a", "wrong", "o", runtime="s"))
    change = difference(before, after)
    assert set(change.not_compared) == {"r", "s"}
    assert Result(after, (), change).exit_code == 3


# --- what was confirmed by hand ---------------------------------------------------------------------------------


def entry(case: str, outcome="wrong", says="*") -> Confirmed:
    return Confirmed("a fault", ["r"], [case], outcome, "computed by hand", "1", says=says)


def test_records_of_one_confirmed_kind_are_one():
    found = report(row("a", "wrong", "o"), row("b", "wrong", "o"), row("c", "wrong", "o"))
    both = kinds(found.details, [entry("[a-z]"), entry("?", says="*7")])
    assert [(kind.cases, kind.confirmed is not None) for kind in both] == [(("a", "b", "c"), True)]


def test_an_entry_that_no_longer_occurs_is_stale():
    now_right = report(row("a", "right", "o"))
    assert [kind.title for kind in known.stale(now_right, [entry("a")])] == ["a fault"]
    assert "Confirmed once, and no longer so" in document(now_right, [entry("a")])
    assert "no longer so: a fault" in Result(now_right, [entry("a")]).as_text()


def test_an_entry_is_not_stale_where_its_cases_did_not_run_or_still_fail():
    assert known.stale(report(row("a", "wrong", "o")), [entry("a"), entry("b")]) == []


def test_an_entry_that_others_shadow_is_stale():
    first, second = entry("a"), entry("?")
    assert known.stale(report(row("a", "wrong", "o")), [first, second]) == [second]


def test_a_broken_table_is_refused():
    with pytest.raises(UsageError, match=r"confirmed\.toml"):
        known.parse('[[confirmed]]\ntitle = "x"\n')


# --- the committed matrix ---------------------------------------------------------------------------------------


def test_every_wrong_crashed_or_refused_case_of_the_committed_matrix_was_confirmed_by_hand(committed):
    found = kinds(committed.details, known.built_in())
    assert [(kind.runtimes, kind.cases) for kind in found if kind.confirmed is None] == []


def test_nothing_that_was_confirmed_is_gone_from_the_committed_matrix(committed):
    assert known.stale(committed, known.built_in()) == []


def test_the_committed_page_is_made_of_the_committed_file(committed):
    assert (DOCS / "conformance.md").read_text() == document(committed, known.built_in())


def test_the_committed_matrix_has_the_cases_that_there_are(committed, cases):
    """Another version of onnx has other cases; with this one, a case that was added needs `make conformance`."""
    if committed.versions["onnx"] != onnx.__version__:
        pytest.skip(f"the matrix was made with onnx {committed.versions['onnx']}, this is {onnx.__version__}")
    assert {line.case for line in committed.cases} == set(cases)


def test_every_wrong_kind_has_a_smallest_input(committed):
    found = kinds(committed.details, known.built_in())
    assert [
        kind.cases for kind in found if kind.outcome == "wrong" and kind.records[0].smallest is None
    ] == []


@pytest.mark.slow
@pytest.mark.pinned
def test_the_runtimes_here_are_as_the_committed_matrix_says(committed):
    report_here = run_conformance(select(("ort-cpu", "ort-cpu-noopt", "onnx-reference")))
    assert changes_of(difference(committed, report_here)).endswith("0 worse, 0 better")


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gelu(tmp_path_factory):
    """A run of one operator on one runtime: a second."""
    report_here = run_conformance(select(("onnx-reference",)), ("Gelu",))
    folder = tmp_path_factory.mktemp("conformance")
    Result(report_here, known.built_in()).save(folder)
    return folder


ONE = ("conformance", "--runtime", "onnx-reference", "--operator", "Gelu")


def test_command_shows_the_matrix_and_exits_0_whatever_is_wrong(command, tmp_path):
    answer = command(*ONE, "-o", tmp_path)
    assert answer.code == 0
    assert "### Gelu" in answer.out
    assert "wrong, onnx-reference: onnx.reference: Gelu's error function is computed in float32" in answer.out
    assert {path.name for path in tmp_path.iterdir()} == {"conformance.md", "conformance.json"}


def test_command_against_itself_changes_nothing(command, gelu):
    answer = command(*ONE, "--against", gelu / "conformance.json")
    assert answer.code == 0
    assert "0 worse, 0 better" in answer.out


def test_command_exits_1_where_a_case_got_worse(command, gelu, tmp_path):
    before = read_report(gelu / "conformance.json")
    better = [
        msgspec.structs.replace(line, outcomes=dict.fromkeys(line.outcomes, "right")) for line in before.cases
    ]
    old = msgspec.structs.replace(before, cases=tuple(better))
    (tmp_path / "old.json").write_bytes(encode_report(old))
    answer = command(*ONE, "--against", tmp_path / "old.json", "--json")
    found = json.loads(answer.out)
    assert (answer.code, found["verdict"], found["exit_code"]) == (1, "failed", 1)
    assert {one["case"] for one in found["changes"]["cases"]} == {
        one.case for one in before.details if one.outcome == "wrong"
    }


def test_command_refuses_unknown_names_and_files(command, tmp_path):
    command("conformance", "--operator", "Conv").assert_refused("unknown operator Conv", "Attention")
    command("conformance", "--runtime", "nobody").assert_refused("unknown runtime nobody")
    command(*ONE, "--against", tmp_path / "none.json").assert_refused("cannot read", "none.json")


def test_command_without_a_runtime_of_graphs_proves_nothing(command):
    answer = command("conformance", "--runtime", "torch", "--operator", "Gelu")
    assert answer.code == 3
    assert "`torch` is left out" in answer.out
