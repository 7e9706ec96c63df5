"""The verification as a whole: quiet on the catalogue, loud on each kind of fault, and honest about what it cannot say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from onnx_attest.export.artifact import Artifact, digest, manifest_path, read_artifact
from onnx_attest.verify.api import Report, VerificationError, verify
from onnx_attest.verify.engine import Plan, verify_artifact
from onnx_attest.verify.known import Known
from onnx_attest.verify.records import CellRecord, FindingRecord, StabilityRecord
from onnx_attest.verify.runtimes.base import Availability, Placement, UnavailableError
from onnx_attest.verify.runtimes.registry import select

HERE = ("torch", "ort-cpu", "ort-cpu-noopt", "onnx-reference")
SOUND = [
    "sdpa-decomposed-18", "self-attention-decomposed-18", "self-attention-attention-23", "self-attention-attention-24",
    "mha-decomposed-18", "mha-attention-23", "mha-attention-24", "causal-decomposed-18", "causal-attention-23",
    "causal-attention-24",
]  # fmt: skip


@pytest.fixture(scope="session")
def swept(exported: dict[str, Artifact]) -> dict[str, list[Any]]:
    """The records of every artifact of the catalogue on every runtime that needs no GPU."""
    plan = Plan(runtimes=select(HERE))
    return {stem: list(verify_artifact(artifact, plan)) for stem, artifact in exported.items()}


def cells(records) -> list[CellRecord]:
    return [record for record in records if isinstance(record, CellRecord)]


def findings(records) -> list[FindingRecord]:
    return [record for record in records if isinstance(record, FindingRecord)]


def unexpected(records, *, empty_rows: bool) -> list[tuple[str, str, str]]:
    """Return the cells that did not pass and are not known not to, of the cases with or without rows without any key."""
    return [
        (cell.runtime, cell.case.id, cell.reason)
        for cell in cells(records)
        if cell.verdict != "passed" and not cell.known and (cell.case.mask == "empty-row") is empty_rows
    ]


@pytest.mark.parametrize("stem", SOUND)
def test_no_violation_on_correct_kernels(swept, stem):
    assert unexpected(swept[stem], empty_rows=False) == []
    assert {cell.runtime for cell in cells(swept[stem])} == {"exporter", *HERE}


@pytest.mark.pinned
@pytest.mark.parametrize("stem", SOUND)
def test_rows_without_any_key_are_what_the_contract_or_the_list_of_known_failures_says(swept, stem):
    assert unexpected(swept[stem], empty_rows=True) == []


@pytest.mark.parametrize("stem", SOUND)
def test_no_alarm_on_correct_softmax(swept, stem):
    looked_at = [record for record in swept[stem] if isinstance(record, StabilityRecord)]
    assert {record.runtime for record in looked_at} == set(HERE)
    assert [(r.runtime, r.case.id, r.reason) for r in looked_at if r.verdict != "passed"] == []


@pytest.mark.parametrize("stem", SOUND)
def test_bound_is_not_vacuous(swept, stem):
    """A bound that nothing comes near proves nothing: somewhere the error is a hundredth of it."""
    ratios = [
        cell.gates["proof"]["max_err_over_tau"]
        for cell in cells(swept[stem])
        if cell.verdict == "passed" and cell.runtime != "exporter"
    ]
    assert 1e-3 < max(ratios) <= 1


@pytest.mark.parametrize("stem", SOUND)
def test_masked_garbage_changes_no_bit(swept, stem):
    looked_at = [r for r in swept[stem] if isinstance(r, StabilityRecord) and r.case.mask == "padding"]
    assert {record.poison for record in looked_at} <= {"same"}
    assert bool(looked_at) is not stem.startswith("causal")  # which takes no mask


def test_counter_example_without_the_maximum_breaks_on_every_runtime(swept):
    broken = {cell.runtime for cell in cells(swept["sdpa-naive-decomposed-18"]) if cell.verdict == "failed"}
    assert broken == set(HERE)
    found = findings(swept["sdpa-naive-decomposed-18"])
    assert {item.code for item in found} == {"OA303", "OA401", "OA109", "OA409", "OA420"}
    # OA420 is of the graph alone; OA409 warns of logits that no case has.
    assert {item.known for item in found if item.code not in ("OA409", "OA420")} == {"counter-example"}


def test_counter_example_without_the_scale_fails_wherever_a_scale_matters(swept):
    by_case = {}
    for cell in cells(swept["sdpa-unscaled-decomposed-18"]):
        if cell.runtime == "exporter":
            assert cell.verdict == "passed"  # the file is what the module computes
        else:
            by_case.setdefault(cell.case.name, set()).add(cell.verdict)
    assert by_case.pop("single") == {"passed"}  # one key has all the weight
    assert by_case.pop("constant") == {"passed"}  # equal logits stay equal
    assert set(map(frozenset, by_case.values())) == {frozenset({"failed"})}
    assert {cell.known for cell in cells(swept["sdpa-unscaled-decomposed-18"]) if cell.verdict == "failed"} == {"counter-example"}  # fmt: skip


@pytest.mark.pinned
@pytest.mark.parametrize("stem", ["self-attention-decomposed-18", "mha-decomposed-18"])
def test_empty_row_below_opset_23_is_the_exporters_fault_although_all_runtimes_agree(swept, stem):
    """K1, microsoft/onnxscript#2654."""
    failed = [cell for cell in cells(swept[stem]) if cell.verdict == "failed"]
    assert {(cell.runtime, cell.case.mask) for cell in failed} == {
        (name, "empty-row") for name in ("exporter", *HERE[1:])
    }
    found = {item.code: item for item in findings(swept[stem])}
    assert found["OA305"].blame == "exporter"
    assert found["OA305"].message.startswith(
        "the row without any key, [0, 0, 18], is the mean of V; the contract declares 0"
    )
    assert found["OA108"].blame == "exporter"


def test_weights_of_torch_seen_through_the_identity_are_those_of_the_formula(swept):
    for stem in ("self-attention-attention-23", "mha-attention-24"):
        looked_at = [r for r in swept[stem] if isinstance(r, StabilityRecord) and r.runtime == "torch"]
        assert {record.source for record in looked_at} == {"identity"}
        assert max(record.weight_err_over_limit for record in looked_at if record.finite_ratio) <= 1


@dataclass(frozen=True)
class Distorted:
    """A runtime that runs ort-cpu and distorts its outputs: what a broken kernel looks like from outside."""

    distort: Any
    name: str = "distorted"

    def arithmetic(self, dtype: str) -> str:
        return "fp32"

    def availability(self) -> Availability:
        return Availability(True, "1")

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Any:
        (ort,) = select(("ort-cpu",))
        return _DistortedSession(ort.open(artifact, model=model, threads=threads), self.distort)


class _DistortedSession:
    placement = Placement()

    def __init__(self, session, distort) -> None:
        self._session, self._distort = session, distort

    def run(self, inputs):
        outputs = self._session.run(inputs)
        for array in outputs.values():
            self._distort(array)
        return outputs


def one_part_in_ten_thousand(array):
    array *= np.float32(1.0001)


def one_nan(array):
    array.reshape(-1)[-1] = np.nan


def raises(array):
    raise RuntimeError("kernel launch failed")


def vanishes(array):
    raise UnavailableError("outputs came back on cpu, not on cuda")


@pytest.mark.parametrize(
    ("distort", "verdict", "code", "party"),
    [
        (one_part_in_ten_thousand, "failed", "OA301", "kernel"),
        (one_nan, "failed", "OA303", "kernel"),
        (raises, "errored", "OA304", "kernel"),
        (vanishes, "skipped", "OA202", ""),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_broken_runtime_is_a_row_and_the_others_are_untouched(exported, distort, verdict, code, party):
    plan = Plan(runtimes=(*select(("torch", "ort-cpu")), Distorted(distort)), axes={"batch": 2, "seq_len": 9})
    records = list(verify_artifact(exported["causal-decomposed-18"], plan))
    assert {cell.verdict for cell in cells(records) if cell.runtime == "distorted"} == {verdict}
    assert {cell.verdict for cell in cells(records) if cell.runtime != "distorted"} == {"passed"}
    found = [item for item in findings(records) if item.runtime == "distorted"]
    assert (found[0].code, found[0].blame) == (code, party)


def test_stale_entry_of_known_fails_the_run(exported):
    entry = Known("causal", "*", "ort-cpu", ["given*"], "counter-example", "was broken once")
    plan = Plan(runtimes=select(("ort-cpu",)), axes={"batch": 2, "seq_len": 9}, known=(entry,))
    (cell,) = cells(verify_artifact(exported["causal-decomposed-18"], plan))
    assert (cell.verdict, cell.known, cell.findings) == ("failed", "", ("OA803",))


def test_fail_fast_stops_at_the_first_unexpected_failure(exported):
    plan = Plan(runtimes=(Distorted(one_nan),), fail_fast=True)
    assert len(cells(verify_artifact(exported["causal-decomposed-18"], plan))) == 1


def bare(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_bare_file_is_verified_against_its_own_graph(tmp_path):
    path = bare(tmp_path, """
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n, 6] x) => (float[n, n] y) { t = Transpose (x) s = MatMul (x, t) y = Softmax (s) }
    """)  # fmt: skip
    report = verify(path, runtimes=["torch", "ort-cpu"])
    assert report.verdict == "passed"
    assert {cell.reason for cell in report.cells if cell.runtime == "torch"} == {
        "the file has no manifest, so its module is unknown; name it with --against"
    }


def test_file_alone_says_that_no_module_was_compared(tmp_path):
    path = bare(tmp_path, """
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n, 6] x) => (float[n, 6] y) { y = Softmax (x) }
    """)  # fmt: skip
    assert [item.code for item in verify(path, runtimes=["ort-cpu"]).findings] == ["OA110"]


def test_nan_that_the_file_itself_gives_does_not_pass(tmp_path):
    """A causal mask shifted by one: the first query has no key, and all runtimes agree on NaN."""
    path = bare(tmp_path, """
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n, 6] x) => (float[n, n] y)
    <float hidden = {-inf}, bool[3, 3] all = {1, 1, 1, 1, 1, 1, 1, 1, 1}, int64 below = {-1}, bool yes = {1}> {
      t = Transpose (x)  s = MatMul (x, t)  shape = Shape (s)  ones = Expand (yes, shape)
      allowed = Trilu <upper = 0> (ones, below)  m = Where (allowed, s, hidden)  y = Softmax (m)
    }
    """)  # fmt: skip
    report = verify(path, runtimes=["ort-cpu"])
    assert report.verdict == "failed"
    found = next(item for item in report.findings if item.code == "OA308")
    assert "y[0, 0] is NaN in float64 too" in found.message


@pytest.mark.parametrize(
    ("graph", "code"),
    [
        ("g (float[n, 6] x) => (float[n, 6] y) { y = Log (x) }", "OA808"),
        ("g (float[n, 6] x) => (float[n, 6] y) <float c = {nan}> { y = Add (x, c) }", "OA308"),
    ],
)
def test_nan_of_guessed_inputs_is_no_fault_of_the_file(tmp_path, graph, code):
    """Nobody said that the logarithm takes numbers around zero: it is not failed, and not passed either."""
    report = verify(bare(tmp_path, f'<ir_version: 10, opset_import: ["": 18]> {graph}'), runtimes=["ort-cpu"])
    assert report.verdict == {"OA808": "inconclusive", "OA308": "failed"}[code]
    assert code in {item.code for item in report.findings}


def test_sizes_at_which_nothing_is_left_are_skipped(tmp_path):
    """Half of an axis of one: the cell proves nothing, and takes nothing from what the others prove."""
    report = verify(bare(tmp_path, """
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n, 6] x) => (float[m, 6] y) <float[2] s = {0.5, 1.0}> { y = Resize (x, , s) }
    """), runtimes=["ort-cpu"])  # fmt: skip
    assert report.verdict == "passed"
    assert {cell.case.name for cell in report.cells if cell.verdict == "skipped"} >= {"single"}


@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool"])
def test_sizes_that_have_no_room_for_a_window_are_skipped(tmp_path, operator):
    """ONNX Runtime gives one pooled row where the formula gives none: at a size that nobody named, that is no fault."""
    report = verify(bare(tmp_path, f"""
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n, 3, h, 6] x) => (float[n, 3, m, 6] y) {{ y = {operator} <kernel_shape = [3, 1], strides = [2, 1]> (x) }}
    """), runtimes=["ort-cpu"])  # fmt: skip
    assert report.verdict == "passed"
    skipped = [cell for cell in report.cells if cell.verdict == "skipped"]
    assert {cell.findings for cell in skipped} == {("OA806",)}
    assert all("no room for windows of 3 x 1" in cell.reason for cell in skipped)
    assert skipped
    assert all(cell.case.axes["h"] < 3 for cell in skipped)
    assert all(cell.case.axes["h"] >= 3 for cell in report.cells if cell.verdict == "passed")


def test_outputs_that_are_all_nan_prove_nothing(tmp_path):
    path = bare(tmp_path, """
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n, 6] x) => (float[n, 6] y) { y = Softmax (x) }
    """)  # fmt: skip
    given = {"x": np.full((3, 6), np.nan, np.float32)}
    assert verify(path, runtimes=["ort-cpu"], inputs=given).verdict == "inconclusive"


def test_a_limit_that_numbers_around_zero_do_not_reach_is_reached(tmp_path):
    header = '<ir_version: 10, opset_import: ["": 18]> g (float[n, 6] x) => (float[n, 6] y)'
    capped = bare(tmp_path, header + "<float low = {0}, float high = {6}> { y = Clip (x, low, high) }")
    original = tmp_path / "original.onnx"
    original.write_bytes(onnx.parser.parse_model(header + "{ y = Relu (x) }").SerializeToString())
    report = verify(capped, runtimes=["ort-cpu"], against=original)
    assert {cell.case.name for cell in report.cells if cell.verdict == "failed"} == {"wide"}


def test_integers_that_were_guessed_and_do_not_fit_are_no_error_of_the_file(tmp_path):
    """An index into a table whose size is not known is 0 or 1; of a table of one row there is no row 1."""
    report = verify(bare(tmp_path, """
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n, 6] x, int64[k] i) => (float[k, 6] y) { y = Gather (x, i) }
    """), runtimes=["ort-cpu"])  # fmt: skip
    assert report.verdict == "passed"
    skipped = [cell for cell in report.cells if cell.verdict == "skipped"]
    assert {cell.findings for cell in skipped} == {("OA806",)}


def test_operator_that_the_oracle_lacks_is_inconclusive_and_named(tmp_path):
    path = bare(tmp_path, """
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n, n] x) => (float y) { y = Det (x) }
    """)  # fmt: skip
    report = verify(path, runtimes=["onnx-reference"])
    assert (report.verdict, report.run.exit_code) == ("inconclusive", 3)
    assert report.run.reason == "1 nodes have no exact result: the oracle does not have the operator Det"


def test_size_baked_into_a_reshape_fails_off_the_traced_size(tmp_path):
    path = bare(tmp_path, """
    <ir_version: 10, opset_import: ["": 18]>
    g (float[batch, seq_len, 6] x) => (float[batch, seq_len, 6] y)
    <int64[3] shape = {2, 7, 6}> { y = Reshape (x, shape) }
    """)  # fmt: skip
    report = verify(path, runtimes=["ort-cpu"])
    assert report.verdict == "failed"  # known before anything ran: OA121
    assert {"OA121", "OA304"} <= {item.code for item in report.findings}


def test_unscaled_export_is_held_against_its_specification(exported, tmp_path):
    """A file edited after its export: the scale is gone, the manifest still says what it should compute."""
    source = exported["sdpa-decomposed-18"]
    model = onnx.load(source.path)
    for initializer in model.graph.initializer:
        if (
            onnx.numpy_helper.to_array(initializer).size == 1
            and initializer.data_type == onnx.TensorProto.FLOAT
        ):
            value = onnx.numpy_helper.to_array(initializer)
            if np.isfinite(value):
                wrong = np.asarray(value * np.float32(1 + 1e-4), np.float32)
                initializer.CopyFrom(onnx.numpy_helper.from_array(wrong, initializer.name))
    path = tmp_path / source.path.name
    onnx.save(model, path)
    manifest = msgspec.structs.replace(source.manifest, sha256=digest(path.read_bytes()))
    manifest_path(path).write_bytes(msgspec.json.encode(manifest))
    report = verify(read_artifact(path), runtimes=["torch", "ort-cpu"], input_shapes={"Q": (3, 33, 20)})
    verdicts = Counter((cell.runtime, cell.verdict) for cell in report.cells if cell.case.mask == "all")
    assert verdicts == {("exporter", "failed"): 1, ("torch", "passed"): 1, ("ort-cpu", "failed"): 1}
    assert {item.blame for item in report.findings if item.code == "OA301"} == {"exporter"}


NORMALISED = """
<ir_version: 10, opset_import: ["": 18]>
g (float[n, 6] x) => (float[n, 6] y) <float[6] s = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1}> {
  a = LayerNormalization (x, s)  t = Transpose (a)  l = MatMul (a, t)  p = Softmax (l)  y = MatMul (p, a)
}
"""


@pytest.mark.parametrize("given", [{}, {"input_shapes": {"x": (9, 6)}}], ids=["sweep", "sizes-given"])
def test_logits_behind_a_normalisation_are_said_not_to_be_scaled(tmp_path, given):
    """Scaling the inputs changes nothing there; sizes given by the user ended in an assertion once."""
    report = verify(bare(tmp_path, NORMALISED), runtimes=["ort-cpu"], **given)
    assert "OA805" in {item.code for item in report.findings}
    assert {cell.case.logit_std for cell in report.cells} == {None}


def test_tolerance_is_an_extra_gate(exported):
    plan = Plan(runtimes=select(("ort-cpu",)), axes={"batch": 2, "seq_len": 33}, atol=1e-12)
    (cell,) = cells(verify_artifact(exported["causal-decomposed-18"], plan))
    assert (cell.verdict, cell.findings) == ("failed", ("OA306",))


def test_report_raises_with_the_findings(exported):
    report = verify(
        exported["causal-decomposed-18"], plan=Plan(runtimes=(Distorted(one_nan),), fail_fast=True)
    )
    with pytest.raises(VerificationError, match=r"failed.*\nOA303 distorted single"):
        report.raise_for_verdict()


def test_report_that_passed_raises_nothing(exported):
    report = verify(exported["causal-decomposed-18"], runtimes=["ort-cpu"], input_shapes={"X": (2, 9, 45)})
    assert isinstance(report, Report)
    report.raise_for_verdict()


def test_inputs_of_a_cell_can_be_made_again_alone(exported):
    """Seeds are hashed from the case: verifying one case alone gives the same numbers as the whole sweep."""
    plan = Plan(runtimes=select(("ort-cpu",)))
    whole = {cell.case.id: cell for cell in cells(verify_artifact(exported["causal-decomposed-18"], plan))}
    again = {
        cell.case.id: cell for cell in cells(verify_artifact(exported["causal-decomposed-18"], replace(plan)))
    }
    assert {key: cell.max_abs_err for key, cell in whole.items()} == {
        key: cell.max_abs_err for key, cell in again.items()
    }
