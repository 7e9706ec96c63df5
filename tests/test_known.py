"""Known failures: matched by pattern, and never allowed to rot."""

from __future__ import annotations

import pytest

from onnx_attest.errors import UsageError
from onnx_attest.models import CATALOGUE
from onnx_attest.verify.cases import plan_cases
from onnx_attest.verify.cell import Cell
from onnx_attest.verify.claims import CLAIMS
from onnx_attest.verify.excuse import excuse, excuse_claim
from onnx_attest.verify.known import Known, built_in, find_known, read_known
from onnx_attest.verify.records import CaseRecord, CellRecord, ClaimRecord

CASE = CaseRecord(name="overflow", axes={"batch": 2, "seq_len": 7}, mask="all", logit_std=100.0)


@pytest.mark.parametrize(
    ("changes", "matches"),
    [
        ({}, True),
        ({"model": "other"}, False),
        ({"model": ["x", "m"]}, True),
        ({"variant": "attention"}, False),
        ({"runtime": "ort-*"}, True),
        ({"dtype": "float16"}, False),
        ({"dtype": ["float16", "float32"]}, True),
        ({"runtime": "torch"}, False),
        ({"case": ["traced*"]}, False),
        ({"case": ["traced*", "overflow[batch=2,*"]}, True),
        ({"case": ["*logit_std=100]"]}, True),
    ],
)
def test_patterns(changes, matches):
    fields = {"model": "m", "variant": "*", "runtime": "*", "case": ["overflow*"], "issue": "i", "note": "n"}
    entry = Known(**(fields | changes))
    assert (find_known((entry,), "m", "decomposed", "float32", "ort-cpu", CASE) is entry) is matches


@pytest.mark.parametrize("entry", built_in(), ids=lambda entry: f"{entry.model} {entry.issue}")
def test_every_built_in_entry_is_about_some_cell_of_the_catalogue(entry):
    cells = [
        (model.name, variant, dtype, runtime, case)
        for model in CATALOGUE
        for variant in model.variants
        for dtype in ("float32", "float16", "bfloat16")
        for runtime in ("torch", "ort-cpu", "ort-cuda", "openvino-cpu", "openvino-cpu-default")
        for case in plan_cases(model.contract)
    ]
    assert any(entry.matches(*cell) for cell in cells)


@pytest.mark.parametrize("entry", built_in(), ids=lambda entry: f"{entry.model} {entry.issue}")
def test_every_built_in_entry_names_its_models_and_its_issue(entry):
    """A pattern for all models would excuse a user's own."""
    models = [entry.model] if isinstance(entry.model, str) else entry.model
    assert set(models) <= {CLAIMS, *(model.name for model in CATALOGUE)}
    assert entry.issue in ("counter-example", "not reported yet") or entry.issue.startswith(
        "https://github.com/"
    )


@pytest.mark.parametrize("text", ["[[known]]\nmodel = 3", "known = [", "[[known]]\nmodel = 'm'"])
def test_broken_file_is_a_usage_error(tmp_path, text):
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not a list of known failures"):
        read_known(path)


def test_a_users_file_adds_to_the_built_in_entries(tmp_path):
    path = tmp_path / "known.toml"
    path.write_text(
        "[[known]]\nmodel='m'\nvariant='*'\nruntime='*'\ncase=['*']\nissue='counter-example'\nnote='mine'\n"
    )
    assert [entry.note for entry in read_known(path)][-1] == "mine"
    assert len(read_known(path)) == len(built_in()) + 1


@pytest.mark.parametrize(
    ("verdict", "always", "shown"),
    [
        ("errored", True, ("errored", "i")),
        ("errored", False, ("errored", "i")),
        ("passed", True, ("failed", "")),
        ("passed", False, ("passed", "")),
    ],
)
def test_a_failure_that_depends_on_the_machine_may_stay_away(verdict, always, shown):
    entry = Known(model="m", variant="*", runtime="*", case=["*"], issue="i", note="n", always=always)
    record = CellRecord(
        model="m", variant="", opset=18, dtype="float32", artifact_sha256="", runtime="r", runtime_version="",
        case=None if verdict == "errored" else CASE, verdict=verdict,
    )  # fmt: skip
    excused = excuse(Cell(record), [entry]).record
    assert (excused.verdict, excused.known) == shown


@pytest.mark.parametrize(
    ("runtime", "verdict", "known"),
    [
        ("openvino-cpu-default", "failed", True),
        ("openvino-cpu-default", "passed", False),
        ("ort-cpu", "failed", False),
    ],
)
def test_experiment_is_excused_where_the_runtime_is_known_to_fail(runtime, verdict, known):
    record = excuse_claim(ClaimRecord(claim=1, runtime=runtime, verdict=verdict), built_in())
    assert bool(record.known) is known
