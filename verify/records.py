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

SCHEMA = 1
Verdict = Literal["passed", "failed", "inconclusive", "skipped", "errored"]


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


class ArtifactRecord(Record, tag="artifact", frozen=True, kw_only=True):
    """One ONNX file, or the reason why there is none (`verdict` errored or skipped)."""

    model: str
    variant: str
    opset: int | None
    dtype: str
    verdict: Verdict
    reason: str = ""
    sha256: str | None = None
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
        gates: for each gate its numbers; `proof` has max_err_over_tau, `noise` RMS z and the largest |z| with their
            limits, `direction` the size of each fault looked for, its t, and the least size that is told. A gate that was not held has no entry.
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


class LatencyRecord(Record, tag="latency", frozen=True, kw_only=True):
    """Timings of one artifact on one runtime at one shape; raw samples, statistics are derived from them."""

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
    provider_used: tuple[str, ...] = ()
    threads: int | None = None
    session_s: float | None = None
    first_call_s: float | None = None
    warm_up_calls: int = 0
    latency_s: tuple[float, ...] = ()


class ClaimRecord(Record, tag="claim", frozen=True, kw_only=True):
    """One measurement of a statement of the chapter on one runtime.

    Attributes:
        claim: the statement's number in the chapter.
        setting: what was varied, `d_k 64` or `1024 equal scores` for example.
        measured: what was measured, by a name that says the unit; None where there is no number, and `reason` says why.
    """

    claim: int
    runtime: str
    verdict: Verdict
    reason: str = ""
    dtype: str = "float32"
    model: str = ""
    setting: str = ""
    measured: dict[str, float | None] = {}


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


class FindingRecord(Record, tag="finding", frozen=True, kw_only=True):
    """A coded statement with its evidence and the next step."""

    code: str
    severity: Literal["error", "warning", "note"]
    message: str
    next_step: str
    blame: str = ""
    node: str = ""
    model: str = ""
    variant: str = ""
    opset: int | None = None
    dtype: str = ""
    runtime: str = ""
    case: str = ""
    known: str = ""


class RunRecord(Record, tag="run", frozen=True, kw_only=True):
    """The last line: what it all came to."""

    verdict: Verdict
    reason: str
    exit_code: int
    cells: dict[str, int]
    known: int
    required: tuple[str, ...] = ()
    duration_s: float


AnyRecord = (
    EnvironmentRecord
    | ArtifactRecord
    | CellRecord
    | StabilityRecord
    | LatencyRecord
    | ClaimRecord
    | PowerRecord
    | FindingRecord
    | RunRecord
)

_DECODER = msgspec.json.Decoder(AnyRecord)


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
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}; give a records.jsonl or its folder"
        ) from error
    if not lines:
        raise UsageError(f"{file} holds no record; give the records.jsonl of a run")
    return [_decode(line, number, file) for number, line in enumerate(lines, 1)]


def _decode(line: bytes, number: int, file: Path) -> AnyRecord:
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{file}, line {number} is not a record: {error}") from error
