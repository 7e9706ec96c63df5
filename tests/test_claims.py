"""The chapter's statements: quiet on the runtimes here, and each measure can fail."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.claims import STATEMENTS, measures
from onnx_attest.verify.claims.experiments import CLAIMS, EXPERIMENTS, run_claims
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.headroom.kept import kept_in
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import ClaimRecord, RunRecord
from onnx_attest.verify.report import render
from onnx_attest.verify.runtimes.registry import select

FP32 = PROFILES["fp32"]
RUNTIMES = ("torch", "ort-cpu", "onnx-reference")
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def claimed(tmp_path_factory: pytest.TempPathFactory) -> list[ClaimRecord]:
    folder: Path = tmp_path_factory.mktemp("claims")
    return list(run_claims(Plan(runtimes=select(RUNTIMES)), folder))


def of(records: list[ClaimRecord], claim: int) -> list[ClaimRecord]:
    return [record for record in records if record.claim == claim]


def test_every_statement_holds_on_every_runtime(claimed):
    assert [(r.claim, r.runtime, r.setting, r.reason) for r in claimed if r.verdict != "passed"] == []
    assert {(record.claim, record.runtime) for record in claimed} == {
        (claim, runtime) for claim in STATEMENTS for runtime in RUNTIMES
    }
    assert set(STATEMENTS) == set(EXPERIMENTS) >= {1, 3, 5, 6, 7, 8}


def test_the_naive_softmax_breaks_where_the_arithmetic_seen_says(claimed):
    for record in of(claimed, 6):
        assert abs(record.measured["breaks_at"] / record.measured["predicted"] - 1) <= 0.01
    kept = {(record.runtime, record.dtype): record.reason.split()[-1] for record in of(claimed, 6)}
    assert kept["torch", "float16"] == kept["onnx-reference", "float16"] == "float16"
    assert kept["ort-cpu", "float16"] == "float32"  # computed with casts
    by_setting = {r.setting: r.measured["predicted"] for r in of(claimed, 6) if r.dtype == "float32"}
    assert by_setting["one large score of 64"] == pytest.approx(88.72, abs=0.01)
    assert by_setting["1024 equal scores"] == pytest.approx(81.79, abs=0.01)


def test_the_training_stalls_without_the_scale(claimed):
    (record,) = (record for record in of(claimed, 4) if record.setting.startswith("training"))
    assert record.runtime == "torch"
    assert record.measured["last_gradient"] < 1e-3 * record.measured["last_gradient_scaled"]


def test_what_does_not_open_or_dies_is_said(tmp_path):
    plan = Plan(runtimes=select(("onnx-reference",)), dead={(CLAIMS, "onnx-reference"): "ended by SIGSEGV"})
    records = list(run_claims(plan, tmp_path))
    assert {(record.verdict, record.reason) for record in records} == {("errored", "ended by SIGSEGV")}


def test_scores_that_are_no_products_are_told():
    Q, K = (RNG.standard_normal((1, 5, 8)).astype(np.float32) for _ in range(2))
    right = Q @ K.swapaxes(1, 2)
    assert not measures.products(right, Q, K, 1.0, FP32).wrong
    assert "times its bound off" in measures.products(right * np.float32(1 + 1e-4), Q, K, 1.0, FP32).wrong
    assert measures.products(right.swapaxes(1, 2), Q, K, 1.0, FP32).wrong


def test_directions_of_other_queries_are_told():
    Q, K = (RNG.standard_normal((1, 9, 8)) for _ in range(2))
    Q, K = (array / np.linalg.norm(array, axis=-1, keepdims=True) for array in (Q, K))
    scores = Q @ K.swapaxes(1, 2)
    assert not measures.directions(scores, Q, K).wrong
    assert measures.directions(-scores, Q, K).wrong


def gaussian_scores(d_k: int, scale: float = 1.0) -> np.ndarray:
    Q, K = (RNG.standard_normal((4, 128, d_k)) for _ in range(2))
    return np.asarray(scale * Q @ K.swapaxes(1, 2))


def test_variances_of_a_wrong_scale_are_told():
    bare, scaled = gaussian_scores(64), gaussian_scores(64, 1 / 8)
    assert not measures.variances(bare, scaled, 64).wrong
    assert (
        measures.variances(bare, scaled * 1.1, 64).wrong == "variance_scaled is not 1 within four deviations"
    )
    assert measures.variances(bare, scaled, 128).wrong


def test_the_deviation_of_the_variance_is_that_of_its_estimates():
    """The derived deviation against 400 estimates."""
    rng = np.random.default_rng(1)
    estimates = []
    for _ in range(400):
        Q, K = (rng.standard_normal((1, 32, 16)) for _ in range(2))
        estimates.append(float(((Q @ K.swapaxes(1, 2)) ** 2).mean() / 16))
    derived = measures.variances(gaussian_scores(16)[:1, :32, :32], gaussian_scores(16)[:1, :32, :32], 16)
    assert derived.numbers["sd_of_the_estimate"] == pytest.approx(np.std(estimates), rel=0.15)


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))


def test_saturation_that_does_not_come_is_told():
    bare, scaled = softmax(gaussian_scores(64)), softmax(gaussian_scores(64, 1 / 8))
    first = measures.saturation(bare, scaled, None)
    assert not first.wrong
    assert measures.saturation(scaled, bare, None).wrong
    assert measures.saturation(bare, scaled, first.numbers["entropy"]).wrong  # no further than before


def test_the_norm_of_the_jacobian_is_that_of_the_matrix():
    p = softmax(RNG.standard_normal((3, 7)))
    matrices = [np.diag(row) - np.outer(row, row) for row in p]
    norms = measures.saturation(p, p, None).numbers["jacobian"]
    assert norms == pytest.approx(np.mean([np.linalg.norm(matrix) for matrix in matrices]), rel=1e-12)


@pytest.mark.parametrize(("scaled", "bare", "wrong"), [(1.0, 0.0, False), (0.5, 0.0, True), (1.0, 0.9, True)])
def test_learning(scaled, bare, wrong):
    assert bool(measures.learning(scaled, bare)) is wrong


def test_rows_that_do_not_sum_to_one_are_told():
    weights = softmax(RNG.standard_normal((4, 33))).astype(np.float32)
    assert not measures.row_sums(weights, FP32).wrong
    assert measures.row_sums(weights * np.float32(1 + 1e-5), FP32).wrong


def breaks_above(limit: float):
    return lambda score: score < limit


def test_overflow_elsewhere_than_predicted_is_told():
    stable = breaks_above(math.inf)
    right = measures.overflow(breaks_above(88.72), stable, "float32", 1)
    assert (right.wrong, right.numbers["breaks_at"]) == ("", pytest.approx(88.72, abs=0.02))
    assert "breaks at 80" in measures.overflow(breaks_above(80.0), stable, "float32", 1).wrong
    assert (
        "the stable softmax fails"
        in measures.overflow(breaks_above(88.72), breaks_above(90), "float32", 1).wrong
    )
    rewritten = measures.overflow(breaks_above(math.inf), stable, "float16", 1)
    assert (rewritten.wrong, rewritten.numbers["breaks_at"]) == ("", None)
    assert "rewrites the naive form" in rewritten.note


def test_the_format_of_the_exponentials_is_seen():
    scores = RNG.standard_normal((8, 64))
    once = softmax(scores).astype(np.float16)
    exponentials = np.exp(scores.astype(np.float16))
    steps = exponentials / exponentials.sum(-1, keepdims=True, dtype=np.float16)
    exact = [softmax(scores), softmax(scores.astype(np.float16).astype(np.float64))]
    assert kept_in(once, exact) == "float32"
    assert kept_in(steps, exact) == "float16"
    assert kept_in(once.astype(np.float32), exact) == "float32"


def test_an_output_outside_the_values_is_told():
    V = RNG.standard_normal((2, 9, 4)).astype(np.float32)
    inside = np.broadcast_to(V.mean(1, keepdims=True), V.shape)
    assert not measures.hull(inside, V, FP32).wrong
    assert "leaves the range" in measures.hull(inside + np.float32(5), V, FP32).wrong


def test_tokens_that_are_not_seen_or_should_not_be_are_told():
    everyone, past = np.ones((4, 4), bool), np.tril(np.ones((4, 4), bool))
    assert not measures.reach(everyone, causal=False).wrong
    assert not measures.reach(past, causal=True).wrong
    assert measures.reach(past, causal=False).wrong == "a token does not reach a row that sees it"
    assert measures.reach(everyone, causal=True).wrong == "a token reaches a row before it"


def record(**fields: object) -> ClaimRecord:
    return ClaimRecord(
        **({"claim": 5, "runtime": "ort-cpu", "verdict": "passed", "setting": "33 keys"} | fields)
    )


def test_a_statement_that_fails_fails_the_run_and_one_that_holds_does_not_pass_it():
    def verdict(*records: ClaimRecord) -> str:
        *_, run = conclude(records, duration_s=0.0)
        assert isinstance(run, RunRecord)
        return run.verdict

    assert verdict(record(verdict="failed")) == "failed"
    assert verdict(record(verdict="errored")) == "errored"
    assert verdict(record()) == verdict(record(verdict="skipped")) == "inconclusive"


def test_claims_are_shown_with_their_statement_and_what_did_not_run():
    records = [
        record(measured={"row_sum_err_u": 1.5, "limit_u": 38.0}),
        record(runtime="ort-cuda", verdict="skipped", reason="no | device"),
        record(claim=99, measured={"x": None}, reason="nothing known"),
    ]
    text = render(records)["claims.md"]
    assert "## 5. Each row of the weights sums to 1." in text
    assert "| ort-cpu | 33 keys | 1.5" in text
    assert "- ort-cuda skipped: no \\| device" in text
    assert "## 99. a statement that this version does not know" in text
    assert "n/a" in text
    assert "No statement of the chapter was tested" in render([])["claims.md"]
    assert render(records)["claims.csv"].startswith("schema,claim,runtime,verdict,")
    assert "claims 1 failed" in render([record(verdict="failed")])["summary.md"]
