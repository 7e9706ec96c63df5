"""Two runs held against each other: a regression is told, noise is not, and what differs around it is said."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mpmath
import msgspec
import numpy as np
import pytest

from onnx_attest.verify.commands.compare import beside_baseline
from onnx_attest.verify.compare import Change, Comparison, compare
from onnx_attest.verify.compare.distributions import coin_tail, f_tail, incomplete_beta, student_tail
from onnx_attest.verify.compare.render import as_markdown, as_object
from onnx_attest.verify.compare.shifts import FALSE_ALARMS, RESOLUTION_BITS
from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CaseRecord,
    CellRecord,
    ClaimRecord,
    EnvironmentRecord,
    FindingRecord,
    HeadroomRecord,
    LatencyRecord,
    MachineRecord,
    PowerRecord,
    RelationRecord,
    StabilityRecord,
    encode,
)

P = 24
WHERE: dict[str, Any] = {"model": "mha", "variant": "attention", "opset": 23, "dtype": "float32"}
FILE: dict[str, Any] = {**WHERE, "artifact_sha256": "ab" * 32}
ON_ORT: dict[str, Any] = {**FILE, "runtime": "ort-cpu"}
PAIRS = 20


def case(number: int = 0, seed: int = 0, rows: int = 12) -> CaseRecord:
    return CaseRecord(name=f"case-{number}", axes={"seq_len": rows}, seed=seed)


def cell(number: int = 0, rms_z: float | None = None, rows: int = 12, **changes: Any) -> CellRecord:
    bits = None if rms_z is None else P - math.log2(rms_z)
    noise = {} if rms_z is None else {"noise": {"rms_z": rms_z, "unlike_rows": float(rows)}}
    fields = {
        "runtime_version": "1.31.1",
        "case": case(number),
        "arithmetic": "fp32",
        "verdict": "passed",
        "effective_bits": bits,
        "gates": {"proof": {"max_err_over_tau": 0.01}, **noise},
    }
    return CellRecord(**ON_ORT | fields | changes)


ROWS = (1, 3, 12, 37, 111)


def verification(
    seed: int, *, times: float = 1.0, only: int | None = None, cases: int = 20
) -> list[AnyRecord]:
    """Cells of one file: z of each row Gaussian, of another scale in each case, which both runs share."""
    draw = np.random.default_rng(seed)
    records: list[AnyRecord] = []
    for number in range(cases):
        rows = ROWS[number % len(ROWS)]
        worse = times if only in (None, number) else 1.0
        rms = (0.3 + 0.1 * number) * worse * math.sqrt(float(np.mean(draw.normal(size=rows) ** 2)))
        records.append(cell(number, rms, rows, case=case(number, seed, rows)))
    return records


def regressions(old: Sequence[AnyRecord], new: Sequence[AnyRecord]) -> tuple[Change, ...]:
    return compare(old, new).regressions


def only(changes: Sequence[Change]) -> Change:
    assert len(changes) == 1, changes
    return changes[0]


# --- the distributions ------------------------------------------------------------------------------------------


def exact_beta(x: float, a: float, b: float) -> float:
    """Return I_x(a, b) by its series (DLMF 8.17.8), all of whose terms are positive, in 40 digits."""
    with mpmath.workdps(40):
        if x > a / (a + b):
            return float(1 - beta_series(1 - mpmath.mpf(x), b, a))
        return float(beta_series(mpmath.mpf(x), a, b))


def beta_series(x: Any, a: float, b: float) -> Any:
    front = x**a * (1 - x) ** b / (a * mpmath.beta(a, b))
    return front * mpmath.hyp2f1(a + b, 1, a + 1, x, maxterms=10**6)


@pytest.mark.parametrize("a", [0.5, 1.0, 3.5, 60.0, 5000.0])
@pytest.mark.parametrize("b", [0.5, 2.0, 55.5, 5000.0])
@pytest.mark.parametrize("x", [1e-6, 0.02, 0.5, 0.97, 1 - 1e-9])
def test_the_incomplete_beta_function_is_right(a: float, b: float, x: float) -> None:
    assert incomplete_beta(x, a, b) == pytest.approx(exact_beta(x, a, b), rel=1e-9, abs=1e-280)


def test_the_incomplete_beta_function_at_its_ends() -> None:
    assert (incomplete_beta(0.0, 2, 3), incomplete_beta(1.0, 2, 3)) == (0.0, 1.0)


@pytest.mark.parametrize("degrees", [1, 2, 20])
def test_the_tail_of_students_t_is_the_integral_of_its_density(degrees: int) -> None:
    def density(t: Any) -> Any:
        front = mpmath.gamma((degrees + 1) / 2) / mpmath.sqrt(degrees * mpmath.pi) / mpmath.gamma(degrees / 2)
        return front * (1 + t * t / degrees) ** (-(degrees + 1) / 2)

    assert student_tail(3.0, degrees) == pytest.approx(
        float(mpmath.quad(density, [3, 10, mpmath.inf])), rel=1e-6
    )


def test_the_tail_of_f_is_that_of_t_squared() -> None:
    assert f_tail(9.0, 1, 7) == pytest.approx(2 * student_tail(3.0, 7), rel=1e-12)


def test_a_coin() -> None:
    assert coin_tail(3, 3) == 1 / 8
    assert coin_tail(0, 5) == 1


# --- errors -----------------------------------------------------------------------------------------------------


def test_noise_is_no_regression_and_no_improvement_20_times_out_of_20() -> None:
    for pair in range(PAIRS):
        assert compare(verification(2 * pair), verification(2 * pair + 1)).changes == ()


def scatter_of_the_mean(cases: int) -> float:
    """Return the standard deviation of the mean difference in bits of two verifications.

    The logarithm of a mean square over w rows has the variance psi'(w / 2), bits are half of its binary logarithm, and a
    difference has that of both.
    """
    variances = [2 * float(mpmath.psi(1, rows / 2)) / (2 * math.log(2)) ** 2 for rows in ROWS]
    return math.sqrt(sum(variances) / len(ROWS) / cases)


def test_a_kernel_3_bits_worse_is_told_20_times_out_of_20() -> None:
    for pair in range(PAIRS):
        change = only(regressions(verification(2 * pair), verification(2 * pair + 1, times=8.0)))
        assert (change.kind, change.quantity, change.runtime) == ("error", "effective_bits", "ort-cpu")
        # Further than 4 deviations from 3 is one of 20 means in a thousand such tests.
        assert change.amount == pytest.approx(-3, abs=4 * scatter_of_the_mean(change.records))


def test_a_kernel_3_bits_better_is_told_and_does_not_count() -> None:
    found = compare(verification(0, times=8.0), verification(1))
    assert [change.direction for change in found.changes] == ["better"]
    assert (found.verdict, found.exit_code) == ("passed", 0)


def test_a_loss_in_one_case_alone_is_told_with_the_case() -> None:
    number = 4  # of 111 rows
    for pair in range(PAIRS):
        change = only(regressions(verification(2 * pair), verification(2 * pair + 1, times=8.0, only=number)))
        assert (change.case, change.records) == (case(number, rows=111).id, 1)


def test_of_one_row_alone_3_bits_say_nothing_and_ten_do() -> None:
    """F of one row against one is above r^2 with a probability of 2 / pi atan(1 / r): 8 % at 8, 0.06 % at 2^10."""
    assert regressions([cell(0, 0.5, 1)], [cell(0, 0.5 * 2**3, 1)]) == ()
    assert only(regressions([cell(0, 0.5, 1)], [cell(0, 0.5 * 2**10, 1)])).amount == pytest.approx(-10)


def test_a_single_case_of_many_rows_is_judged_where_there_is_only_one() -> None:
    change = only(regressions([cell(0, 0.5, 111)], [cell(0, 4.0, 111)]))
    assert change.message == "3.00 effective bits fewer in this case, 25.0 before and 22.0 now"


def test_a_loss_below_what_a_deviation_is_known_to_is_none() -> None:
    less = 2 ** (RESOLUTION_BITS * 0.9)
    old = [cell(number, 0.5) for number in range(20)]
    assert compare(old, [cell(number, 0.5 * less) for number in range(20)]).changes == ()
    more = 2 ** (RESOLUTION_BITS * 1.1)
    assert only(regressions(old, [cell(number, 0.5 * more) for number in range(20)])).kind == "error"


def test_without_bits_the_error_over_its_bound_is_compared() -> None:
    def run(seed: int, times: float) -> list[AnyRecord]:
        draw = np.random.default_rng(seed)
        ratios = times * 0.01 * np.exp(0.3 * draw.normal(size=12))
        return [cell(n, gates={"proof": {"max_err_over_tau": float(r)}}) for n, r in enumerate(ratios)]

    assert compare(run(0, 1.0), run(1, 1.0)).changes == ()
    change = only(regressions(run(0, 1.0), run(1, 8.0)))
    assert change.quantity == "max_err_over_tau"
    assert change.amount == pytest.approx(3, abs=0.6)


def test_what_was_exactly_right_and_is_not_any_more_is_told() -> None:
    def run(error: float, cases: int) -> list[AnyRecord]:
        return [cell(n, gates={"proof": {"max_err_over_tau": error}}) for n in range(cases)]

    change = only(regressions(run(0.0, 12), run(0.1, 12)))
    assert (change.quantity, change.records) == ("exactly right", 12)
    assert only(compare(run(0.1, 12), run(0.0, 12)).changes).direction == "better"
    # Three throws of a coin come out alike in one of eight times.
    assert compare(run(0.0, 3), run(0.1, 3)).changes == ()


def test_another_declared_arithmetic_is_not_compared_and_said() -> None:
    old = verification(0)
    new = [msgspec.structs.replace(one, arithmetic="tf32") for one in verification(1, times=8.0)]
    found = compare(old, new)
    assert found.changes == ()
    assert (
        "declared fp32 before and tf32 now"
        in found.not_compared["errors of mha attention 23 float32 on ort-cpu"]
    )


def test_errors_of_known_failures_are_not_compared() -> None:
    new = [
        msgspec.structs.replace(one, verdict="failed", known="issue") for one in verification(1, times=8.0)
    ]
    assert all(change.kind == "verdict" for change in compare(verification(0), new).changes)


# --- verdicts ---------------------------------------------------------------------------------------------------


def judged(verdict: str, known: str = "", **changes: Any) -> list[AnyRecord]:
    return [cell(verdict=verdict, known=known, **changes)]


@pytest.mark.parametrize(
    ("before", "after", "direction", "counts"),
    [
        (("passed", ""), ("failed", ""), "worse", True),
        (("passed", ""), ("errored", ""), "worse", True),
        (("passed", ""), ("inconclusive", ""), "worse", True),
        (("inconclusive", ""), ("failed", ""), "worse", True),
        (("failed", "issue"), ("failed", ""), "worse", True),
        (("passed", ""), ("failed", "issue"), "worse", False),
        (("failed", ""), ("errored", ""), "other", False),
        (("failed", ""), ("passed", ""), "better", False),
        (("failed", "issue"), ("passed", ""), "better", False),
        (("failed", "issue"), ("errored", "issue"), "other", False),
    ],
)
def test_a_verdict_that_changed(
    before: tuple[str, str], after: tuple[str, str], direction: str, counts: bool
) -> None:
    change = only(compare(judged(*before), judged(*after)).changes)
    assert (change.kind, change.direction, change.counts) == ("verdict", direction, counts)


def test_cases_whose_verdict_changed_alike_are_told_once() -> None:
    old: list[AnyRecord] = [cell(number) for number in range(5)]
    new: list[AnyRecord] = [cell(number, verdict="failed", reason="why") for number in range(5)]
    change = only(regressions(old, new))
    assert (change.records, change.message) == (5, "passed before, failed now in 5 cases: why")


def test_what_is_not_run_any_more_is_said_with_its_reason_and_is_no_regression() -> None:
    found = compare(judged("passed"), judged("skipped", reason="no such device"))
    assert found.vanished == {"mha attention 23 float32 on ort-cpu": "1 cells: no such device"}
    assert (found.changes, found.compared["cells"]) == ((), 0)


def test_what_one_run_alone_has_is_said() -> None:
    found = compare([cell(), cell(1, runtime="torch")], [cell(), cell(1, runtime="openvino-cpu")])
    assert set(found.vanished) == {"mha attention 23 float32 on torch"}
    assert set(found.appeared) == {"mha attention 23 float32 on openvino-cpu"}


def test_runs_with_nothing_in_common_prove_nothing() -> None:
    found = compare([cell()], [cell(model="other")])
    assert (found.verdict, found.exit_code) == ("inconclusive", 3)
    assert "are the same" not in as_markdown(found)


def test_relations_in_common_prove_nothing_of_cells_that_are_not() -> None:
    found = compare([cell(), *relation("bitwise")], [cell(1), *relation("bitwise")])
    assert found.compared["relations"]
    assert (found.verdict, found.exit_code) == ("inconclusive", 3)


def test_an_export_that_fails_now_counts() -> None:
    change = only(
        regressions(
            [ArtifactRecord(**WHERE, verdict="passed")],
            [ArtifactRecord(**WHERE, verdict="errored", reason="no")],
        )
    )
    assert (change.kind, change.message) == ("export", "passed before, errored now: no")


def test_a_statement_that_is_refuted_counts_and_one_that_cannot_be_told_does_not() -> None:
    def claim(verdict: str) -> list[AnyRecord]:
        return [ClaimRecord(claim=3, runtime="torch", verdict=verdict, setting="d_k 64")]

    assert only(regressions(claim("passed"), claim("failed"))).message.startswith(
        "statement 3, d_k 64: passed before"
    )
    assert regressions(claim("passed"), claim("inconclusive")) == ()


# --- softmax ----------------------------------------------------------------------------------------------------


def rows(number: int = 0, error: float = 0.1, **changes: Any) -> StabilityRecord:
    fields = {
        "case": case(number),
        "attention": "attention_0",
        "source": "output",
        "verdict": "passed",
        "rows": 12,
        "empty_rows": 0,
        "finite_ratio": 1.0,
        "weight_err_over_limit": error,
        "poison": "same",
    }
    return StabilityRecord(**ON_ORT | fields | changes)


def test_errors_of_weights_are_told_from_their_noise() -> None:
    def run(seed: int, times: float) -> list[AnyRecord]:
        draw = np.random.default_rng(seed)
        return [rows(n, float(times * 0.1 * np.exp(0.3 * draw.normal()))) for n in range(15)]

    for pair in range(PAIRS):
        assert compare(run(2 * pair, 1.0), run(2 * pair + 1, 1.0)).changes == ()
        change = only(regressions(run(2 * pair, 1.0), run(2 * pair + 1, 8.0)))
        assert (change.kind, change.quantity) == ("stability", "weight_err_over_limit")


def test_masked_keys_that_reach_the_outputs_now_count() -> None:
    change = only(regressions([rows()], [rows(poison="differs")]))
    assert (change.quantity, change.before, change.after) == ("poison", "same", "differs")
    assert only(compare([rows(poison="differs")], [rows()]).changes).direction == "better"


def test_softmaxes_belong_together_by_their_order_whatever_their_nodes_are_called() -> None:
    old = [rows(attention="softmax_1"), rows(attention="softmax_2")]
    new = [rows(attention="node_a"), rows(attention="node_b", verdict="failed", reason="NaN")]
    change = only(regressions(old, new))
    assert (change.kind, change.quantity) == ("stability", "verdict")


def breaks(at: float | None, **changes: Any) -> HeadroomRecord:
    fields = {
        "case": case(),
        "softmax": "node_softmax",
        "form": "Softmax",
        "shifted": True,
        "verdict": "passed",
        "profile": "one large",
        "keys": 37,
        "broke_at_logit": at,
        "tried_to_logit": 3e38,
    }
    return HeadroomRecord(**ON_ORT | fields | changes)


def test_a_softmax_that_breaks_earlier_counts() -> None:
    change = only(regressions([breaks(None)], [breaks(88.72)]))
    assert (
        change.message
        == "node_softmax, one large logits: holds up to 3e+38 before, breaks at a logit of 88.72 now"
    )
    assert only(regressions([breaks(88.72)], [breaks(11.09)])).amount == pytest.approx(
        math.log2(11.09 / 88.72)
    )
    assert only(compare([breaks(11.09)], [breaks(88.72)]).changes).direction == "better"


def test_a_break_within_what_one_is_measured_to_is_the_same() -> None:
    assert compare([breaks(88.72)], [breaks(88.0)]).changes == ()


def test_a_break_at_logits_that_were_not_tried_before_is_none() -> None:
    assert compare([breaks(None, tried_to_logit=50.0)], [breaks(88.72)]).changes == ()


def test_breaks_of_given_logits_are_compared_on_the_same_inputs_alone() -> None:
    old = [breaks(None, profile="given")]
    assert regressions(old, [breaks(88.72, profile="given")]) != ()
    assert regressions(old, [breaks(88.72, profile="given", case=case(seed=1))]) == ()


# --- relations --------------------------------------------------------------------------------------------------


def relation(holds: str, verdict: str = "passed", **changes: Any) -> list[AnyRecord]:
    fields = {
        "relation": "batch-singles",
        "exactness": "rounding",
        "asked_by": "contract",
        "case": case(),
        "arithmetic": "fp32",
        "verdict": verdict,
        "holds": holds,
        "runs": 2,
        "elements": 10,
        "differing": 0,
    }
    return [RelationRecord(**ON_ORT | fields | changes)]


def test_a_relation_that_stopped_to_hold_counts() -> None:
    found = regressions(relation("rounding"), relation("no", "failed"))
    assert {change.quantity for change in found} == {"verdict", "batch-singles"}
    assert (
        found[1].message
        == "batch-singles: within rounding before, not at all now (asked for by the contract)"
    )


def test_a_relation_that_nobody_asks_for_does_not_count() -> None:
    found = compare(relation("rounding", asked_by=""), relation("no", asked_by=""))
    assert [(change.direction, change.counts) for change in found.changes] == [("other", False)]


def test_bit_for_bit_by_chance_is_compared_on_the_same_inputs_alone() -> None:
    assert compare(relation("bitwise"), relation("rounding", case=case(seed=1))).changes == ()
    assert only(compare(relation("bitwise"), relation("rounding")).changes).counts is False


# --- findings ---------------------------------------------------------------------------------------------------


def finding(code: str = "OA401", severity: str = "error", **changes: Any) -> FindingRecord:
    fields = {"runtime": "ort-cpu", "code": code, "severity": severity, "message": "it", "next_step": "do"}
    return FindingRecord(**WHERE | fields | changes)


def test_new_findings_and_those_that_are_gone() -> None:
    found = compare([cell(), finding("OA402", "warning")], [cell(), finding()])
    assert [(one.quantity, one.direction, one.counts) for one in found.changes] == [
        ("OA401", "worse", True),
        ("OA402", "better", False),
    ]


@pytest.mark.parametrize(
    "new",
    [
        finding(severity="warning"),
        finding(known="issue"),
        finding("OA701"),
        finding(severity="note"),
        finding(runtime="torch"),
    ],
)
def test_findings_that_do_not_count(new: FindingRecord) -> None:
    assert regressions([cell()], [cell(), new]) == ()


def test_another_code_for_what_was_wrong_before_does_not_count() -> None:
    assert regressions([cell(), finding("OA301")], [cell(), finding("OA310")]) == ()


def test_the_same_finding_with_other_numbers_is_no_change() -> None:
    assert (
        compare([cell(), finding(message="1.2")], [cell(), finding(message="1.3", case="other")]).changes
        == ()
    )


# --- latency ----------------------------------------------------------------------------------------------------

SITTINGS, ROUNDS = 6, 4
MEDIANS = {"torch": 2e-3, "ort-cpu": 1e-3}


def timings(
    seed: int,
    *,
    slower: float = 0.0,
    torch_slower: float = 0.0,
    machine: float = 1.0,
    noise: float = 0.02,
    reopened: float = 0.01,
    versions: tuple[str, str] = ("2.13.0", "1.31.1"),
) -> list[AnyRecord]:
    """One group, as `measure` leaves it: a factor a sitting for each process, one a round for all of them."""
    draw = np.random.default_rng(seed)
    of_round = machine * np.exp(
        0.1 * draw.normal(size=(SITTINGS, ROUNDS))
    )  # neighbours slow all of a round alike

    def samples(median: float) -> dict[str, Any]:
        of_process = np.exp(reopened * draw.normal(size=(SITTINGS, 1)))
        own = np.exp(noise * draw.normal(size=(SITTINGS, ROUNDS)))
        numbers = np.arange(SITTINGS * ROUNDS)
        return {
            "latency_s": tuple((median * of_round * of_process * own).ravel().tolist()),
            "block_sizes": (1,) * numbers.size,
            "block_rounds": tuple(numbers.tolist()),
            "block_sittings": tuple((numbers // ROUNDS).tolist()),
            "threads": 1,
        }

    def record(runtime: str, slow: float, *, twin: bool = False) -> LatencyRecord:
        version = versions[list(MEDIANS).index(runtime)]
        about = {"runtime": runtime, "runtime_version": version, "axes": {"seq_len": 512}, "twin": twin}
        return LatencyRecord(**FILE | about | samples(MEDIANS[runtime] * (1 + slow)), verdict="passed")

    return [
        MachineRecord(library="NumPy", flops=10**9, **samples(5e-3)),
        record("torch", torch_slower),
        record("ort-cpu", slower),
        record("torch", torch_slower, twin=True),
    ]


def test_noise_of_times_is_no_difference_20_times_out_of_20() -> None:
    for pair in range(PAIRS):
        found = compare(timings(2 * pair), timings(2 * pair + 1))
        assert (found.changes, found.compared["timings"]) == ((), 2)


def test_a_runtime_20_percent_slower_is_told_20_times_out_of_20() -> None:
    for pair in range(PAIRS):
        change = only(regressions(timings(2 * pair), timings(2 * pair + 1, slower=0.2)))
        assert (change.kind, change.runtime) == ("latency", "ort-cpu")
        assert change.amount == pytest.approx(1.2, abs=0.08)


def test_a_runtime_that_is_faster_does_not_count() -> None:
    change = only(compare(timings(0, slower=0.2), timings(1)).changes)
    assert (change.direction, change.counts) == ("better", False)


def test_a_machine_that_is_slower_as_a_whole_is_no_regression() -> None:
    for pair in range(PAIRS):
        assert compare(timings(2 * pair), timings(2 * pair + 1, machine=1.5)).changes == ()


def test_a_reference_that_is_faster_itself_makes_no_other_slower() -> None:
    """Beside torch, ONNX Runtime seems slower then; the machine's product says that it is not."""
    for pair in range(PAIRS):
        found = compare(timings(2 * pair, torch_slower=0.3), timings(2 * pair + 1))
        assert [(one.runtime, one.direction) for one in found.changes] == [("torch", "better")]


def test_a_reference_of_another_version_is_no_yardstick() -> None:
    new = timings(1, slower=0.2, torch_slower=0.2, versions=("2.14.0", "1.31.1"))
    told = {one.runtime: one.message for one in regressions(timings(0), new)}
    assert set(told) == {"torch", "ort-cpu"}
    assert all("beside the machine's product of matrices" in message for message in told.values())


def test_times_of_a_noisy_machine_show_nothing() -> None:
    found = compare(timings(0, reopened=0.3), timings(1, slower=0.2, reopened=0.3))
    assert found.changes == ()


def test_without_a_noise_floor_nothing_is_compared_and_that_is_said() -> None:
    old = [one for one in timings(0) if not (isinstance(one, LatencyRecord) and one.twin)]
    found = compare(old, timings(1, slower=0.2))
    assert (found.changes, found.compared["timings"]) == ((), 0)
    assert set(found.not_compared) == {"latency of 2 timings"}


def test_times_of_other_machines_are_not_compared_and_that_is_said() -> None:
    old, new = ([environment(cores=cores), *timings(cores)] for cores in (2, 8))
    found = compare(old, new)
    assert "different machines" in found.not_compared["latency"]


def test_a_timing_that_breaks_off_now_counts() -> None:
    broken = [
        msgspec.structs.replace(
            one,
            verdict="errored",
            reason="it hung",
            latency_s=(),
            block_sizes=(),
            block_rounds=(),
            block_sittings=(),
        )
        if isinstance(one, LatencyRecord) and one.runtime == "ort-cpu"
        else one
        for one in timings(1)
    ]
    change = only(regressions(timings(0), broken))
    assert (change.kind, change.message) == ("latency", "seq_len=512: passed before, errored now: it hung")


# --- around it --------------------------------------------------------------------------------------------------


def environment(**changes: Any) -> EnvironmentRecord:
    base = EnvironmentRecord(
        onnx_attest="0.1.0",
        python="3.11.7",
        system="Linux 6",
        machine="x86_64",
        cpu="a processor",
        cpu_features=("avx2",),
        cores=2,
        memory_bytes=2**34,
        packages={"onnxruntime": "1.31.1", "numpy": "2.4.6"},
        runtimes={},
        variables={},
        command=("onnx-attest", "run"),
        recorded_at="2026-12-03",
    )
    return msgspec.structs.replace(base, **changes)


def test_the_versions_that_changed_are_said() -> None:
    old = [environment(), cell(), ArtifactRecord(**WHERE, verdict="passed", sha256="ab" * 32)]
    new = [
        environment(packages={"onnxruntime": "1.32.0", "numpy": "2.4.6", "torch": "2.13.0"}),
        cell(runtime_version="1.32.0"),
        ArtifactRecord(**WHERE, verdict="passed", sha256="cd" * 32),
    ]
    assert compare(old, new).versions == {
        "onnxruntime": ("1.31.1", "1.32.0"),
        "torch": (None, "2.13.0"),
        "runtime ort-cpu": ("1.31.1", "1.32.0"),
        "file mha attention 23 float32": ("ab" * 6, "cd" * 6),
    }


def test_a_run_against_itself_has_no_change() -> None:
    records = [
        environment(),
        *verification(0),
        rows(),
        breaks(88.0),
        *relation("no", "failed"),
        *timings(0),
        finding(),
    ]
    found = compare(records, records)
    assert (found.changes, found.versions, found.appeared, found.vanished) == ((), {}, {}, {})
    assert found.same_inputs == found.compared["cells"] == 20


def test_what_is_compared_elsewhere_is_said() -> None:
    mutant = PowerRecord(**FILE, runtime="ort-cpu", arithmetic="fp32", fault="none", label="itself")
    assert set(compare([cell(), mutant], [cell(), mutant]).not_compared) == {"power"}


def test_each_kind_of_test_has_its_own_small_share_of_false_alarms() -> None:
    assert FALSE_ALARMS <= 1e-3


# --- how it is said ---------------------------------------------------------------------------------------------


def difference() -> Comparison:
    return compare(
        [environment(), *verification(0)], [environment(python="3.12.1"), *verification(1, times=8.0)]
    )


def test_markdown_says_the_verdict_first_and_the_numbers_of_the_changes() -> None:
    lines = as_markdown(difference()).splitlines()
    assert lines[0] == "**failed**: 1 regression; compared: 20 cells; 0 cells on the same inputs"
    change = difference().changes[0]
    assert f"- Errors, mha attention 23 float32 on ort-cpu {change.case}: {change.message}" in lines
    assert "- Python: 3.11.7 before, 3.12.1 now" in lines


def test_markdown_of_what_a_model_says_holds_no_markup() -> None:
    text = as_markdown(compare([cell()], [cell(verdict="failed", reason="<script>|\n# no")]))
    assert "<script>" not in text.replace("\\<", "")
    assert "\n# no" not in text


def test_a_long_list_is_cut_and_says_so_but_regressions_are_not() -> None:
    def run(verdict: str) -> list[AnyRecord]:
        return [cell(model=f"m{number}", verdict=verdict) for number in range(30)]

    assert "and 10 more (--json has all)" in as_markdown(compare(run("failed"), run("passed")))
    assert as_markdown(compare(run("passed"), run("failed"))).count("- Verdicts") == 30


def test_the_object_has_the_numbers_of_the_changes() -> None:
    found, said = difference(), json.loads(msgspec.json.encode(as_object(difference())))
    assert (said["verdict"], said["exit_code"], said["regressions"]) == ("failed", 1, 1)
    assert said["changes"][0]["amount"] == found.changes[0].amount
    assert said["versions"] == {"Python": ["3.11.7", "3.12.1"]}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str, Sequence[AnyRecord]], Path]:
    def write(name: str, records: Sequence[AnyRecord]) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / name / "records.jsonl").write_bytes(encode(records))
        return tmp_path / name

    return write


def test_the_command_exits_with_1_for_a_regression_and_0_for_noise(folder, command) -> None:
    old = folder("old", verification(0))
    assert command("compare", old, folder("noise", verification(1))).code == 0
    answer = command("compare", old, folder("worse", verification(2, times=8.0)))
    assert (answer.code, answer.out.splitlines()[0][:10]) == (1, "**failed**")
    assert json.loads(command("compare", old, old.parent / "worse", "--json").out)["exit_code"] == 1


def test_the_command_writes_to_a_file(folder, command, tmp_path) -> None:
    answer = command("compare", folder("old", [cell()]), folder("new", [cell()]), "-o", tmp_path / "a.md")
    assert (answer.code, answer.out) == (0, "")
    assert (tmp_path / "a.md").read_text().startswith("**passed**: no regression")
    command("compare", tmp_path / "old", tmp_path / "new", "-o", tmp_path / "no" / "a.md").assert_refused(
        "-o"
    )


def test_records_that_cannot_be_read_are_refused(folder, command, tmp_path) -> None:
    command("compare", folder("old", [cell()]), tmp_path / "nowhere").assert_refused("nowhere")
    (tmp_path / "bad.jsonl").write_text("{}\n")
    command("compare", tmp_path / "old", tmp_path / "bad.jsonl").assert_refused("line 1 is not a record")


def test_a_baseline_that_cannot_be_read_is_refused_before_the_run(command, tmp_path) -> None:
    command("run", "--baseline", tmp_path / "nowhere").assert_refused("nowhere")
    command("verify", tmp_path / "no.onnx", "--baseline", tmp_path / "nowhere").assert_refused("nowhere")


@pytest.mark.parametrize(
    ("code", "times", "expected"), [(0, 1.0, 0), (0, 8.0, 1), (1, 1.0, 1), (3, 1.0, 3), (3, 8.0, 1)]
)
def test_a_regression_fails_a_run_and_a_failing_run_stays_what_it_is(
    code: int, times: float, expected: int
) -> None:
    text, fields, after = beside_baseline(verification(0), verification(1, times=times), code)
    assert after == expected
    assert (f"With the baseline: exit code {after}." in text) == (after != code)
    assert fields["comparison"]["verdict"] == ("failed" if times > 1 else "passed")


def test_without_a_baseline_a_run_is_what_it_is() -> None:
    assert beside_baseline(None, verification(0), 3) == ("", {}, 3)


DOUBLE = "double (float[n, 4] x) => (float[n, 4] y) { y = Add(x, x) }"


def test_verify_beside_the_report_that_it_replaces(command, onnx_file, tmp_path) -> None:
    arguments = ("verify", onnx_file(DOUBLE), "--runtime", "onnx-reference", "-o", tmp_path / "report")
    assert command(*arguments).code == 0
    answer = command(*arguments, "--baseline", tmp_path / "report")
    assert answer.code == 0
    assert "Beside the baseline: **passed**: no regression" in answer.out
    said = json.loads(command(*arguments, "--baseline", tmp_path / "report", "--json").out)
    assert said["comparison"]["same_inputs"] == said["comparison"]["compared"]["cells"] > 0
