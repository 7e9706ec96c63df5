"""The chapter's statements: quiet on the runtimes here, and each measure can fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from onnx_attest.models.entry import resolve
from onnx_attest.verify import job
from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.claims import STATEMENTS, growth, measures
from onnx_attest.verify.claims.experiments import CLAIMS, EXPERIMENTS, run_claims
from onnx_attest.verify.claims.fit import fitted_exponent
from onnx_attest.verify.claims.laboratory import Files
from onnx_attest.verify.claims.statements import markdown
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.headroom.kept import kept_in
from onnx_attest.verify.metamorphic.evidence import Evidence
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import CellRecord, ClaimRecord, RunRecord
from onnx_attest.verify.report import render
from onnx_attest.verify.runtimes.base import Availability, Runtime, Tensors
from onnx_attest.verify.runtimes.registry import select

FP32 = PROFILES["fp32"]
RUNTIMES = ("torch", "ort-cpu", "onnx-reference")
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Meddling:
    """A runtime whose outputs are changed."""

    runtime: Runtime
    change: Callable[[Tensors, Tensors], Tensors]

    @property
    def name(self) -> str:
        return self.change.__name__

    def arithmetic(self, dtype: str) -> str:
        return self.runtime.arithmetic(dtype)

    def availability(self) -> Availability:
        return self.runtime.availability()

    def open(self, artifact, *, model=None, threads=None):
        session = self.runtime.open(artifact, model=model, threads=threads)
        return SimpleNamespace(
            placement=session.placement, run=lambda inputs: self.change(inputs, session.run(inputs))
        )


def averaging(inputs: Tensors, outputs: Tensors) -> Tensors:
    """Give all keys the same weight, as fixed weights may."""
    weights = outputs["weights"]
    return outputs | {"weights": np.full_like(weights, 1 / weights.shape[-1])}


def counting(inputs: Tensors, outputs: Tensors) -> Tensors:
    """Add to each row where it stands, as an embedding of positions does."""
    output = outputs["output"]
    return outputs | {"output": output + np.arange(output.shape[1], dtype=np.float32)[:, None] / 100}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("claims"))


@pytest.fixture(scope="module")
def claimed(files: Files) -> list[ClaimRecord]:
    return list(run_claims(Plan(runtimes=select(RUNTIMES)), files))


@pytest.fixture(scope="module")
def refuted(files: Files) -> list[ClaimRecord]:
    (honest,) = select(("ort-cpu",))
    plan = Plan(runtimes=(Meddling(honest, averaging), Meddling(honest, counting)))
    return list(run_claims(plan, files, (4, 9, 10, 11)))


def of(records: list[ClaimRecord], claim: int) -> list[ClaimRecord]:
    return [record for record in records if record.claim == claim]


def test_every_statement_holds_on_every_runtime(claimed):
    assert [(r.claim, r.runtime, r.setting, r.reason) for r in claimed if r.verdict != "passed"] == []
    assert {(record.claim, record.runtime) for record in claimed} == {
        (claim, runtime) for claim in EXPERIMENTS for runtime in RUNTIMES
    }
    assert list(STATEMENTS) == list(range(1, 12)) == sorted([*EXPERIMENTS, growth.CLAIM])


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
    records = list(run_claims(plan, Files(tmp_path)))
    assert {(record.verdict, record.reason) for record in records} == {("errored", "ended by SIGSEGV")}


def test_the_page_of_the_statements_is_up_to_date():
    """`python -c "from onnx_attest.verify.claims.statements import markdown; print(markdown(), end='')" > docs/claims.md`."""
    assert (Path(__file__).parent.parent / "docs" / "claims.md").read_text() == markdown()


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
    first = measures.saturation(bare, scaled, {})
    assert not first.wrong
    assert measures.saturation(scaled, bare, {}).wrong == "the entropy is no lower without it"
    no_further = measures.saturation(bare, scaled, first.numbers).wrong
    assert no_further == (
        "entropy does not fall without the scale; jacobian_median does not fall without the scale; "
        "p_max does not rise without the scale"
    )


def test_the_norm_of_the_jacobian_is_that_of_the_matrix():
    p = softmax(RNG.standard_normal((3, 7)))
    norms = [np.linalg.norm(np.diag(row) - np.outer(row, row)) for row in p]
    numbers = measures.saturation(p, p, {}).numbers
    assert numbers["jacobian_mean"] == pytest.approx(np.mean(norms), rel=1e-12)
    assert numbers["jacobian_median"] == pytest.approx(np.median(norms), rel=1e-12)


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


def test_weights_that_are_not_from_the_input_are_told():
    first, second = (softmax(RNG.standard_normal((1, 5, 5))) for _ in range(2))
    allowed = np.full(first.shape, 1e-6)
    assert not measures.from_the_input(first, second, first + 5e-7, allowed).wrong
    fixed = measures.from_the_input(first, first + 5e-7, first, allowed)
    assert fixed.wrong == "a row of weights is the same for another input"
    one_row = np.where(np.arange(5)[:, None] == 2, first, second)
    assert measures.from_the_input(first, one_row, first, allowed).numbers["rows_that_differ"] == 0.8
    assert measures.from_the_input(first, one_row, first, allowed).wrong
    restless = measures.from_the_input(first, second, first + 2e-6, allowed)
    assert restless.wrong == "the same input gives other weights"


@pytest.mark.parametrize(
    ("holds", "causal", "verdict"),
    [
        ("bitwise", False, "passed"), ("rounding", False, "passed"), ("no", False, "failed"),
        ("unknown", False, "inconclusive"), ("no", True, "passed"), ("rounding", True, "failed"),
        ("unknown", True, "inconclusive"),
    ],
)  # fmt: skip
def test_rows_that_do_not_follow_their_tokens_are_told(holds, causal, verdict):
    evidence = Evidence(holds, 10, 3, 0.5, 2.0, "element [0] is 2 then, it has to be 1")
    assert measures.in_any_order(evidence, causal=causal).verdict == verdict


def test_edges_that_no_mask_shows_are_told():
    mask = np.tril(np.ones((1, 4, 4), bool))
    weights = np.where(mask, 1.0, 0.0) / np.arange(1, 5)[:, None]
    assert not measures.edges(weights, mask, FP32).wrong
    assert measures.edges(weights, mask, FP32).numbers["edges"] == 10
    leaking = measures.edges(np.where(mask, weights, 1e-9), mask, FP32)
    assert leaking.wrong == "the edges are not those that the mask shows"
    assert "sums to 1 only within" in measures.edges(weights * 1.01, mask, FP32).wrong


@pytest.mark.parametrize(
    ("claim", "change", "setting", "reason"),
    [
        (4, "averaging", "d_k 16", "the entropy is no lower without it"),
        (9, "averaging", "two inputs of 9 tokens", "a row of weights is the same for another input"),
        (10, "counting", "no mask", "element [0, 0, 0] of output"),
        (11, "averaging", "causal mask", "the edges are not those that the mask shows"),
    ],
)
def test_a_runtime_that_refutes_a_statement_is_told(refuted, claim, change, setting, reason):
    (failed,) = (one for one in of(refuted, claim) if (one.runtime, one.setting) == (change, setting))
    assert failed.verdict == "failed"
    assert failed.reason.startswith(reason)


SIZES = (512, 724, 1024, 1448, 2048)


def test_the_exponent_of_a_power_is_found_and_its_interval_holds_it():
    exact = fitted_exponent(SIZES, [3e-9 * n**2 for n in SIZES])
    assert exact is not None
    assert exact == pytest.approx((2.0, 2.0, 2.0), abs=1e-9)
    rng, inside = np.random.default_rng(3), 0
    for _ in range(400):
        costs = [n**1.5 * math.exp(0.1 * rng.standard_normal()) for n in SIZES]
        fitted = fitted_exponent(SIZES, costs)
        assert fitted is not None
        inside += fitted.low <= 1.5 <= fitted.high
    assert inside / 400 == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 400))
    assert fitted_exponent(SIZES, [1.0, 2.0, 0.0, 0.0, 0.0]) is None  # two points are on any line


@pytest.mark.parametrize(
    ("power", "verdict", "reason"),
    [
        (2, "passed", ""),
        (1, "inconclusive", "the time grows as n^1.00"),
        (3, "inconclusive", "the time grows as n^3.00"),
    ],
)
def test_a_time_that_does_not_grow_as_the_square_is_told(power, verdict, reason):
    measured = measures.time_growth({n: 1e-9 * n**power for n in SIZES}, 64)
    assert (measured.verdict, measured.unclear) == (verdict, reason)
    assert measured.numbers["gflop_per_s_at_longest"] == pytest.approx(4 * 64 * 2048 ** (2 - power))


def test_an_interval_that_is_too_wide_is_told():
    scattered = {n: 1e-9 * n**2 * factor for n, factor in zip(SIZES, (1, 5, 1, 5, 1), strict=True)}
    assert measures.time_growth(scattered, 64).unclear == "the interval of the time is too wide to tell"


def test_memory_is_weighed_in_score_matrices():
    whole, rows = ({n: 4.0 * n**power for n in SIZES} for power in (2, 1))
    assert measures.memory_growth(whole, fused=False).verdict == "passed"
    assert measures.memory_growth(whole, fused=False).numbers["score_matrices"] == 1
    assert (
        measures.memory_growth(whole, fused=True).unclear
        == "the memory grows as n^2.00; the scores are held whole"
    )
    assert measures.memory_growth(rows, fused=True).verdict == "passed"
    assert (
        measures.memory_growth(rows, fused=False).unclear
        == "the memory grows as n^1.00; the scores are never held whole"
    )
    nothing = measures.memory_growth(dict.fromkeys(SIZES, 0.0), fused=True)
    assert (nothing.verdict, nothing.note) == ("passed", "too little to fit an exponent to")


@pytest.mark.slow
def test_costs_are_measured_on_a_runtime(tmp_path):
    """Time is whatever the machine gives; the memory of one call hardly depends on what else runs there."""
    plan = Plan(runtimes=select(("ort-cpu", "torch")))
    records = list(growth.run_growth(plan, tmp_path, 1, (1024, 1448, 2048)))
    forms = ("written out", "fused")
    assert [(one.runtime, one.setting) for one in records] == [
        (runtime, f"{form}, {cost}") for runtime in ("ort-cpu", "torch") for cost in ("time", "memory") for form in forms
    ]  # fmt: skip
    held = {(one.runtime, one.setting): one.measured.get("score_matrices") for one in records}
    if held["ort-cpu", "written out, memory"] is None:
        pytest.skip(records[2].reason)  # not Linux
    assert held["ort-cpu", "written out, memory"] >= 1
    assert held["torch", "written out, memory"] >= 1
    assert held["torch", "fused, memory"] < 0.5
    assert all(one.series["n"] == (1024, 1448, 2048) for one in records)
    assert all(cost > 0 for one in records for cost in one.series.get("fastest_s", (1,)))


def test_a_run_measures_costs_only_with_the_latency_and_only_where_the_chapter_is_tested(
    tmp_path, monkeypatch
):
    plan, asked = Plan(runtimes=select(("ort-cpu",))), []
    monkeypatch.setattr(job, "run_growth", lambda plan, folder, threads: asked.append(threads) or iter(()))

    def costs(model: str, *, latency: bool) -> list[ClaimRecord]:
        return list(job._costs(job.Job([resolve(model)], plan, tmp_path, latency=latency), tmp_path))

    assert [one.reason for one in costs("sdpa", latency=False)] == [growth.NOT_TIMED]
    assert costs("mha", latency=False) == costs("mha", latency=True) == asked == []
    assert costs("sdpa", latency=True) == []
    assert asked == [job.threads(plan)]


def test_costs_that_cannot_be_measured_say_why(tmp_path):
    (record,) = growth.not_measured(Plan(runtimes=select(("ort-cpu",))))
    assert (record.claim, record.verdict) == (2, "skipped")
    assert "--no-latency" in record.reason
    records = list(growth.run_growth(Plan(runtimes=select(("ort-cuda",))), tmp_path, 1, (64, 96, 128)))
    assert {one.verdict for one in records if "memory" in one.setting} == {"skipped"}  # a device has its own


def record(**fields: object) -> ClaimRecord:
    return ClaimRecord(
        **({"claim": 5, "runtime": "ort-cpu", "verdict": "passed", "setting": "33 keys"} | fields)
    )


def test_a_statement_that_fails_fails_the_run_and_one_that_holds_does_not_pass_it():
    def verdict(*records: ClaimRecord | CellRecord) -> str:
        *_, run = conclude(records, duration_s=0.0)
        assert isinstance(run, RunRecord)
        return run.verdict

    assert verdict(record(verdict="failed")) == "failed"
    assert verdict(record(verdict="errored")) == "errored"
    assert verdict(record()) == verdict(record(verdict="skipped")) == "inconclusive"
    cell = CellRecord(
        model="mha", variant="attention", opset=24, dtype="float32", artifact_sha256="ab", runtime="ort-cpu",
        runtime_version="1", case=None, verdict="passed", provider_used=(),
    )  # fmt: skip
    assert verdict(cell, record(verdict="inconclusive")) == "passed"  # a clock does not decide
    assert verdict(cell, record(verdict="failed")) == "failed"


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
