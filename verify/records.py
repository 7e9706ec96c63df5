"""What a verification leaves behind: one record a line, numbers with their units in the names.

Records are the only thing that reports are made of. A number that is not known is None, with
the reason in a field beside it; NaN and infinity do not occur.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.export.decoding import decoded
from onnx_attest.export.reading import MIB, bytes_of

SCHEMA = 1
Verdict = Literal["passed", "failed", "inconclusive", "skipped", "errored"]


Profile = Literal["one large", "all equal", "given"]
"""Of the logits of a row: one beside zeros, all the same, or those of a case."""
AskedBy = Literal["contract", "graph in float64", ""]
"""Who says that a relation has to hold; "": nobody."""


class CaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One set of inputs, enough of it to make them again.

    Attributes:
        name: why the case exists, `traced-1` or `overflow` for example.
        axes: size of every symbolic axis.
        logit_std: the standard deviation of the attention logits that the inputs were scaled to; None where the
            graph has no attention that the oracle recognises, and the inputs are unscaled.
    """

    name: str
    axes: dict[str, int]
    distribution: str = "gauss"
    logit_std: float | None = None
    mask: str | None = None
    seed: int = 0

    @property
    def id(self) -> str:
        """A readable key, also what the patterns of `known.toml` match."""
        sizes = ",".join(f"{axis}={size}" for axis, size in self.axes.items())
        std = "" if self.logit_std is None else f",logit_std={self.logit_std:g}"
        mask = "" if self.mask is None else f",mask={self.mask}"
        other = "" if self.distribution == "gauss" else f",{self.distribution}"
        return f"{self.name}[{sizes}{mask}{std}{other}]"


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What all records share."""

    schema: int = SCHEMA


class EnvironmentRecord(Record, tag="environment", frozen=True, kw_only=True):
    """The machine and its software, without anything that names the machine or a person.

    Attributes:
        packages: installed version of each package that can influence a number.
        runtimes: why each runtime is usable ("") or not (the reason).
        variables: the environment variables that influence numbers or threads.
        gpus: NVIDIA's, each with its driver, as nvidia-smi names them.
        configuration: the settings that are not the defaults, from the configuration and from options, by their key;
            docs/configuration.md has the keys.
    """

    onnx_attest: str
    python: str
    system: str
    machine: str
    cpu: str
    cpu_features: tuple[str, ...]
    cores: int
    memory_bytes: int | None
    packages: dict[str, str]
    runtimes: dict[str, str]
    variables: dict[str, str]
    command: tuple[str, ...]
    recorded_at: str
    gpus: tuple[str, ...] = ()
    configuration: dict[str, str] = {}


class ArtifactRecord(Record, tag="artifact", frozen=True, kw_only=True):
    """One ONNX file, or the reason why there is none (`verdict` errored or skipped).

    Attributes:
        sha256: what the file is known by: its digest, or, if weights lie beside it, that of a list of the digests of all
            its parts (`export.beside.identity_of`).
        beside: the sha256 of each file that its weights lie in, by the place that it names.
    """

    model: str
    variant: str
    opset: int | None
    dtype: str
    verdict: Verdict
    reason: str = ""
    sha256: str | None = None
    beside: dict[str, str] = {}
    size_bytes: int | None = None
    empty_rows: str = "unknown"
    arithmetic: str = "unknown"
    operators: dict[str, int] = {}
    axes: dict[str, tuple[str | int | None, ...]] = {}
    versions: dict[str, str] = {}
    traced: dict[str, int] = {}
    reference: str = ""
    findings: tuple[str, ...] = ()


class CellRecord(Record, tag="cell", frozen=True, kw_only=True):
    """One artifact on one runtime with one case.

    Attributes:
        arithmetic: the profile that the bound was made for.
        known: the public issue, or `counter-example`, if a failure was expected; it does not count then.
        session: what else the runtime's session says of how it runs: precision, threads.
        session_options: that the user chose for a session of ONNX Runtime.
        gates: for each gate its numbers; `proof` has max_err_over_tau, `noise` RMS z and the largest |z| with their
            limits, and how many rows of the outputs are unlike each other, `direction` the size of each fault looked
            for, its t, and the least size that is told. A gate that was not held has no entry.
        effective_bits: p - log2(RMS z), p being the bits of the declared format; p or more: it computes in more.
        ran_as: the tightest arithmetic whose bound holds, None if none does or it was not looked for.
        max_abs_err: largest |actual - expected| over all outputs; None if a form gate failed before.
        worst_output, worst_index, worst_actual, worst_expected: where the largest error over tau is. The two
            values are strings, because they may be nan or inf.
    """

    model: str
    variant: str
    opset: int | None
    dtype: str
    artifact_sha256: str
    runtime: str
    runtime_version: str
    case: CaseRecord | None
    arithmetic: str = "unknown"
    verdict: Verdict
    reason: str = ""
    known: str = ""
    provider_requested: tuple[str, ...] = ()
    provider_used: tuple[str, ...] = ()
    nodes_by_provider: dict[str, int] = {}
    session: dict[str, str] = {}
    session_options: dict[str, str] = {}
    gates: dict[str, dict[str, float | None]] = {}
    effective_bits: float | None = None
    ran_as: str | None = None
    max_abs_err: float | None = None
    max_rel_err: float | None = None
    worst_output: str = ""
    worst_index: tuple[int, ...] = ()
    worst_actual: str = ""
    worst_expected: str = ""
    findings: tuple[str, ...] = ()


class StabilityRecord(Record, tag="stability", frozen=True, kw_only=True):
    """The softmax rows of one attention on one runtime with one case (NUMERICS.md section 5).

    Every figure is the worst over the rows, except where the name says otherwise; `u` is the unit roundoff of the
    declared arithmetic.

    Attributes:
        source: how the weights were seen: `output` (the model returns them), `probe` (an extra graph output on a
            copy of the file), `identity` (V replaced by the identity).
        weight_err_over_limit, kl_over_limit, row_sum_err_over_limit, lse_err_over_limit: at most 1 on a correct
            kernel; lse is None where the logits are not seen.
        overflow_margin: natural logarithm of the largest number of the dtype, less the largest logit before the shift.
        exp_flushed: number of unmasked weights that are exactly 0 although the true weight is not.
        mask_leak: sum of the weights on masked keys.
        poison: `same` if outputs stay bitwise equal when masked keys and values become huge, `differs`, or `not tried`.
        condition: relative change of the output for a relative change of the logits, s sum p|V-o||q||K| / |o|;
            None where it is not known.
    """

    model: str
    variant: str
    opset: int | None
    dtype: str
    artifact_sha256: str
    runtime: str
    case: CaseRecord
    attention: str
    source: str
    verdict: Verdict
    reason: str = ""
    known: str = ""
    rows: int
    empty_rows: int
    finite_ratio: float
    row_sum_err_u: float | None = None
    row_sum_err_over_limit: float | None = None
    weight_err_over_limit: float | None = None
    kl_over_limit: float | None = None
    lse_err_over_limit: float | None = None
    p_max: float | None = None
    entropy_min: float | None = None
    effective_keys_min: float | None = None
    condition: float | None = None
    largest_logit: float | None = None
    overflow_margin: float | None = None
    exp_flushed: int | None = None
    mask_leak: float | None = None
    mask_leak_over_limit: float | None = None
    poison: str = "not tried"
    findings: tuple[str, ...] = ()


class HeadroomRecord(Record, tag="headroom", frozen=True, kw_only=True):
    """Where one softmax of a file, cut out as a graph of its own, breaks on one runtime as its logits grow.

    Broken is a row of weights that is not finite, or does not sum to one within the rounding of a sum.

    Attributes:
        softmax: name of the node that gives the weights.
        form: its operators.
        shifted: whether each row's maximum is subtracted before the exponential.
        keys: in a row.
        profile: of the logits in a row; `given` are those of the case, scaled.
        kept: dtype that exponentials and their sum are kept in, seen from the weights.
        predicted_logit: largest logit of the row that breaks first, by formula from `kept` and the logits; None if no
            number of the dtype breaks it.
        broke_at_logit: the same as measured; None if it did not break up to `tried_to_logit`.
        given_largest_logit: of the case's logits that no mask hides; None if they are not known.
        headroom_log2: log2 of the factor from the given logits to the break; of the profiles that are not the given
            one, from the largest given logit. None where there is no break, or no positive logit to start from.
        agrees: whether prediction and measurement are within 1 %; None if nothing was measured.
    """

    model: str
    variant: str
    opset: int | None
    dtype: str
    artifact_sha256: str
    runtime: str
    case: CaseRecord
    softmax: str
    form: str
    shifted: bool
    verdict: Verdict
    reason: str = ""
    known: str = ""
    profile: Profile | None = None
    keys: int | None = None
    kept: str = ""
    predicted_logit: float | None = None
    broke_at_logit: float | None = None
    tried_to_logit: float | None = None
    given_largest_logit: float | None = None
    headroom_log2: float | None = None
    agrees: bool | None = None
    findings: tuple[str, ...] = ()


class RelationRecord(Record, tag="relation", frozen=True, kw_only=True):
    """One relation between a runtime's own outputs, on one small case (docs/relations.md).

    Attributes:
        exactness: how exact it has to be: `bitwise`, `rounding` (within the sum of the bounds of both runs), or
            `reported`: a semantic choice, not judged.
        asked_by: who says that it has to hold: `contract`, `graph in float64`, or "": nobody, then what was found is a
            fact about the file on this runtime, and its verdict does not count.
        holds: `bitwise`, `rounding`, `no`, or `unknown`: not bit by bit, and no bound says anything.
        runs: of the file, the first one included.
        elements, differing: how many were compared, and how many are not the same bits.
    """

    model: str
    variant: str
    opset: int | None
    dtype: str
    artifact_sha256: str
    runtime: str
    relation: str
    exactness: Literal["bitwise", "rounding", "reported"]
    asked_by: AskedBy
    case: CaseRecord
    arithmetic: str
    verdict: Verdict
    reason: str = ""
    known: str = ""
    holds: Literal["bitwise", "rounding", "no", "unknown"]
    runs: int
    elements: int
    differing: int
    max_difference: float | None = None
    max_difference_over_bound: float | None = None
    findings: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether its verdict is one of the run's; that the same inputs give the same bits proves nothing alone."""
        return bool(self.asked_by) and not (self.relation == "run-twice" and self.verdict == "passed")


class TimedRecord(Record, frozen=True, kw_only=True):
    """Raw timings of one participant of a measurement, block after block; statistics are derived from them.

    Attributes:
        group: the measurement. Its participants were timed in rounds, each in one block of a round, in random order.
        latency_s: of all calls of all blocks.
        block_sizes: calls of each block.
        block_rounds: the round of each block, counted through the measurement.
        block_sittings: the sitting of each block: for each, everything was opened anew.
        threads: that the runtime was given.
        affinity: the processors that its process could use.
        busy_s: processor time of its process for all blocks.
        others_s: processor time of all other programs during them, and what a host took away; None where unknown.
        preempted: how often another program was put in its place during them.
    """

    group: int = 0
    threads: int | None = None
    affinity: tuple[int, ...] = ()
    latency_s: tuple[float, ...] = ()
    block_sizes: tuple[int, ...] = ()
    block_rounds: tuple[int, ...] = ()
    block_sittings: tuple[int, ...] = ()
    busy_s: float | None = None
    others_s: float | None = None
    preempted: int = 0


class LatencyRecord(TimedRecord, tag="latency", frozen=True, kw_only=True):
    """Timings of one artifact on one runtime at one shape.

    Attributes:
        twin: it is the same runtime again in a second process, for the noise floor: no result of its own.
        session_s: to open it for the first time.
        first_call_s: the first call at this shape after that.
        copies_s: of inputs to a device and outputs back, which no call holds; None where it computes in main memory.
        warm_up_s: each call after the first one until they took the same time.
        warm: whether they came to.
        resident_bytes: that its process held before it was opened.
        opened_bytes: and with it, before its first call.
        peak_bytes: the most that it held from then to the end of the warm-up.
        flops: multiplications and additions of the graph's matrix products for one call, see `flops.py`.
        bytes_least: inputs, weights and outputs, each once.
        bytes_by_node: what goes in and out of each node.
        not_counted: operators whose products are in none of these numbers.
    """

    model: str
    variant: str
    opset: int | None
    dtype: str
    artifact_sha256: str
    runtime: str
    runtime_version: str
    axes: dict[str, int]
    verdict: Verdict
    reason: str = ""
    twin: bool = False
    provider_used: tuple[str, ...] = ()
    session_s: float | None = None
    first_call_s: float | None = None
    copies_s: float | None = None
    warm_up_s: tuple[float, ...] = ()
    warm: bool | None = None
    resident_bytes: int | None = None
    opened_bytes: int | None = None
    peak_bytes: int | None = None
    flops: int | None = None
    bytes_least: int | None = None
    bytes_by_node: int | None = None
    not_counted: tuple[str, ...] = ()

    @property
    def session_bytes(self) -> int | None:
        """What its process came to hold when it was opened."""
        return _more(self.resident_bytes, self.opened_bytes)

    @property
    def call_bytes(self) -> int | None:
        """The most that calls held beyond the session and the inputs."""
        return _more(self.opened_bytes, self.peak_bytes)


def _more(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


class MachineRecord(TimedRecord, tag="machine", frozen=True, kw_only=True):
    """The machine's own product of two matrices, timed in the same rounds: what a processor does at most, and whether it stayed so.

    Attributes:
        library: that multiplied.
        flops: of one call.
        reason: why there are no timings.
    """

    library: str
    flops: int
    reason: str = ""


class ClaimRecord(Record, tag="claim", frozen=True, kw_only=True):
    """One measurement of a statement of the chapter on one runtime.

    Attributes:
        claim: the statement's number in the chapter.
        known: the public issue, if the runtime was expected to fail; it does not count then.
        setting: what was varied, `d_k 64` or `1024 equal scores` for example.
        at: the number that was varied, 64 for example, where the setting has one: where a picture puts the record.
        measured: what was measured, by a name that says the unit; None where there is no number, and `reason` says why.
        series: what a picture is drawn from, by a name that says the unit: numbers of the same length that belong
            together, or a square matrix row by row.
    """

    claim: int
    runtime: str
    verdict: Verdict
    reason: str = ""
    known: str = ""
    dtype: str = "float32"
    model: str = ""
    setting: str = ""
    at: float | None = None
    measured: dict[str, float | None] = {}
    series: dict[str, tuple[float, ...]] = {}


CORRECT = "none"
"""The class of what is not a fault: a rewriting of the file that computes the same, up to rounding."""


class PowerRecord(Record, tag="power", frozen=True, kw_only=True):
    """One mutant of a file on one runtime, over all cases (`onnx-attest power`).

    Attributes:
        fault: class of the fault; `none` for the file itself and for its correct rewritings.
        size: of the fault, None where its class has none.
        cases: on which the runtime ran it.
        manifest: those in which it changes the outputs by more than u|o|.
        killed: manifest ones in which a gate found something; for `none`, all in which one did.
        beyond_pool, beyond_pool_killed: of those, the ones whose effect exceeds the pool's worst error.
        strong, strong_killed: the same at four times that.
        undone: the runtime computed as if there were no fault: its optimiser took it out.
        errored: the runtime refused.
        second_hand: the effect is what the runtime made of it, since the oracle cannot evaluate the mutant.
        found_by: in how many cases each finding code told it.
        survivors: ids of manifest cases in which nothing was found.
        strongest_survivor: the largest effect of them, in units of the pool's worst error.
    """

    model: str
    variant: str
    opset: int | None
    dtype: str
    artifact_sha256: str
    runtime: str
    arithmetic: str
    fault: str
    label: str
    node: str = ""
    size: float | None = None
    above_resolution: bool = True
    reason: str = ""
    cases: int = 0
    manifest: int = 0
    killed: int = 0
    beyond_pool: int = 0
    beyond_pool_killed: int = 0
    strong: int = 0
    strong_killed: int = 0
    undone: int = 0
    errored: int = 0
    second_hand: int = 0
    found_by: dict[str, int] = {}
    survivors: tuple[str, ...] = ()
    strongest_survivor: float | None = None


Outcome = Literal["right", "wrong", "refused", "crashed", "inconclusive"]
"""Of a conformance case: as defined, not so, an exception, the end of the process, ran and nothing could be said."""


class SmallestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest input found that still shows what a runtime does with a case.

    Attributes:
        model: its nodes in ONNX's text form; how many, if they are more than a few.
        inputs: each as text, its dtype and shape first.
        reason: what the runtime does with it.
        ratio: of the error to its bound, None where there is no bound or no difference.
    """

    model: str
    inputs: dict[str, str]
    reason: str
    ratio: float | None = None


class ConformanceRecord(Record, tag="conformance", frozen=True, kw_only=True):
    """One case, of ONNX's suite or beyond it, on one runtime (`onnx-attest conformance`).

    Attributes:
        origin: `onnx` for ONNX's own suite, `beyond` for the cases of this package.
        form: `operator`, or `expanded`: its function body in its place.
        features: what the case asks of the operator; rows of the matrix.
        arithmetic: the profile that the bound was made for.
        reason: what is wrong, or the runtime's own words.
        reference: whose word it is: the oracle's on the `operator` or on the `expanded` graph; `second-hand`: nobody's
            but the case's own expected outputs; `none`.
        oracle_lacks: why the oracle has no word on the case's own graph, "" if it has.
        max_err_over_tau: None where there is no bound, or a form gate failed before.
        by_tolerance: whether the outputs are within the tolerance that ONNX gives the case: `within`, `beyond`, `none`.
        case_at_odds: how the case's expected outputs differ from the oracle's, "" if they agree.
        smallest: the smallest input that shows it; None where none was looked for, since all is right or another case
            of the same kind has it.
    """

    case: str
    origin: Literal["onnx", "beyond"]
    operator: str
    form: Literal["operator", "expanded"]
    features: tuple[str, ...]
    opset: int
    dtype: str
    runtime: str
    runtime_version: str
    arithmetic: str
    outcome: Outcome
    reason: str = ""
    reference: Literal["operator", "expanded", "second-hand", "none"]
    oracle_lacks: str = ""
    max_err_over_tau: float | None = None
    by_tolerance: Literal["within", "beyond", "none"] = "none"
    case_at_odds: str = ""
    smallest: SmallestRecord | None = None


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A node beside another one, or that node itself.

    Attributes:
        side: `before`: the other one takes its value; `behind`: it takes the other one's; `here`: the node itself.
        node: its name, "" for an input, a constant or an output of the graph.
        operator: or `input`, `constant`, `output`.
        value: the name of what goes from one to the other.
    """

    side: Literal["before", "here", "behind"]
    node: str
    operator: str
    value: str

    def __str__(self) -> str:
        """Return it in words."""
        what = f"{self.operator} {self.node}".rstrip()
        return f"{self.side} {what}" + (f" ({self.value})" if self.value else "")


class FindingRecord(Record, tag="finding", frozen=True, kw_only=True):
    """A coded statement with its evidence and the next step.

    Attributes:
        around: the node with those beside it in the file, if the finding names one that the file has.
    """

    code: str
    severity: Literal["error", "warning", "note"]
    message: str
    next_step: str
    blame: str = ""
    node: str = ""
    around: tuple[Neighbour, ...] = ()
    model: str = ""
    variant: str = ""
    opset: int | None = None
    dtype: str = ""
    runtime: str = ""
    case: str = ""
    known: str = ""


class RunRecord(Record, tag="run", frozen=True, kw_only=True):
    """The last line: what it all came to.

    Attributes:
        part: what of a whole run this is, in words: a shard, or what there was when it was interrupted; "" for all of it.
    """

    verdict: Verdict
    reason: str
    exit_code: int
    part: str = ""
    cells: dict[str, int]
    known: int
    required: tuple[str, ...] = ()
    duration_s: float


class TimeRecord(Record, tag="time", frozen=True, kw_only=True):
    """Where the time of a task went, or that of the run around the tasks.

    Attributes:
        task: the model and dtype; "" for the run itself, whose stages are its own.
        process: number of the process that did it, from 0; tasks of one process follow each other.
        seconds: by stage and kind of work, each instant counted once, see `verify.seams`.
    """

    task: str
    process: int = 0
    seconds: dict[str, dict[str, float]]


class EvidenceRecord(Record, tag="evidence", frozen=True, kw_only=True):
    """What one CUDA runtime of another machine made of the files of this run; no part of this run's verdict.

    Attributes:
        machine: the folder of its records.
        recorded_at: the day.
        files, of_files: how many of this run's files it ran, by their digests.
        cells: how many of each verdict, known failures apart.
        ran_as: how many cells showed which arithmetic.
    """

    machine: str
    gpus: tuple[str, ...]
    recorded_at: str
    runtime: str
    runtime_version: str
    files: int
    of_files: int
    cells: dict[str, int]
    ran_as: dict[str, int]


AnyRecord = (
    EnvironmentRecord
    | EvidenceRecord
    | ArtifactRecord
    | CellRecord
    | StabilityRecord
    | HeadroomRecord
    | RelationRecord
    | LatencyRecord
    | MachineRecord
    | ClaimRecord
    | PowerRecord
    | ConformanceRecord
    | FindingRecord
    | TimeRecord
    | RunRecord
)

_DECODER = msgspec.json.Decoder(AnyRecord)
_LARGEST, _LONGEST = 512 * MIB, 16 * MIB
"""Bytes of a file of records and of one of them: a run of six models on thirteen runtimes leaves 16 MB, the longest 0.1."""


def finite(number: float | None) -> float | None:
    """Return the number as a plain float, None if it is NaN or infinite: JSON has neither."""
    return float(number) if number is not None and math.isfinite(number) else None


def encode(records: Iterable[AnyRecord]) -> bytes:
    """Return the records as JSON lines."""
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def read_records(path: Path) -> list[AnyRecord]:
    """Return the records of a file, or of the `records.jsonl` of a folder.

    Raises:
        UsageError: no such file, an empty one, or a line that is not a record (its number is in the message).
    """
    file = path
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            file = path / "records.jsonl"
        lines = bytes_of(file, _LARGEST).splitlines()
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}; give a records.jsonl or its folder"
        ) from error
    if not lines:
        raise UsageError(f"{file} holds no record; give the records.jsonl of a run")
    return [_decode(line, number, file) for number, line in enumerate(lines, 1)]


def _decode(line: bytes, number: int, file: Path) -> AnyRecord:
    if len(line) > _LONGEST:
        raise UsageError(f"{file}, line {number} is not a record: it is longer than {_LONGEST // MIB} MiB")
    try:
        return decoded(_DECODER.decode, line)
    except msgspec.DecodeError as error:
        raise UsageError(f"{file}, line {number} is not a record: {error}") from error
