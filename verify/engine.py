"""The verification of one artifact, step by step, as a stream of records."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import product

import msgspec
import numpy as np
import onnx

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.arithmetic import OF_DTYPE, PROFILES, Arithmetic, profile
from onnx_attest.verify.asked_got import compare_asked_and_got, compare_with_original, misdeclared
from onnx_attest.verify.blame import COMPILED, EAGER, EXPORTER, FUSION, MODULE, MODULES
from onnx_attest.verify.by_node import NodeByNode, says_little, says_nothing
from onnx_attest.verify.cases import case_of_axes, longest_axis, plan_cases, without_unreachable
from onnx_attest.verify.cell import (
    Cell,
    Identity,
    Stage,
    Subject,
    absent_cell,
    because,
    describe,
    errored_case,
    not_on_these_inputs,
    run_cell,
    skipped_case,
    with_carried_bits,
    with_pieces,
    without_proof,
)
from onnx_attest.verify.excuse import excuse, excuse_softmax
from onnx_attest.verify.expected import Expected
from onnx_attest.verify.exporter import ExporterCheck, dead_cell, fits
from onnx_attest.verify.finder.find import find
from onnx_attest.verify.finder.found import Found
from onnx_attest.verify.finding_records import finding_record, finding_records
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.footprint import free_bytes, scores_held
from onnx_attest.verify.gates import Tolerance, judge
from onnx_attest.verify.gathered import Gathered, located, tell
from onnx_attest.verify.gauge import COARSEST_SUMS, LARGEST, Gauge, with_deviations
from onnx_attest.verify.headroom.audit import LONGEST, Headroom, worth_telling
from onnx_attest.verify.injection import cross_check
from onnx_attest.verify.interruption import INTERRUPTIONS
from onnx_attest.verify.journal.lines import Journal
from onnx_attest.verify.journal.shard import WHOLE, Shard
from onnx_attest.verify.known import Known, built_in, find_known
from onnx_attest.verify.metamorphic.audit import Audit, disagreements
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.by_rows import ByRows
from onnx_attest.verify.oracle.graph import Evaluation
from onnx_attest.verify.oracle.kernels import VALUES_ALONE
from onnx_attest.verify.oracle.ops.attention import STREAMED_FROM
from onnx_attest.verify.oracle.ops.operator import NoRoomError, UnsupportedOperatorError
from onnx_attest.verify.probe import NoWeightsError, with_weights
from onnx_attest.verify.records import AnyRecord, ArtifactRecord, CaseRecord, HeadroomRecord, RelationRecord
from onnx_attest.verify.relations import Relations
from onnx_attest.verify.runtimes.base import (
    FallbackError,
    ProcessDiedError,
    Runtime,
    Tensors,
    UnavailableError,
)
from onnx_attest.verify.runtimes.isolated import open_copy, prepare
from onnx_attest.verify.runtimes.registry import registered
from onnx_attest.verify.sampling.case import Long, judged_by_rows
from onnx_attest.verify.segments import Places, judge_in_pieces
from onnx_attest.verify.signature import Signature, read_signature
from onnx_attest.verify.stability import Look, direct_look, look_at_softmax
from onnx_attest.verify.static.known import known_of
from onnx_attest.verify.static.rules import static_findings

_NAMED = 3
"""How many of many are named."""


@dataclass(frozen=True)
class Step:
    """What a verification is about to do: what on which artifact (the stem of its file), by which runtime."""

    artifact: str
    runtime: str
    doing: str = ""

    def __str__(self) -> str:
        """Return it as a progress bar shows it."""
        return " ".join(filter(None, (self.artifact, self.runtime, self.doing)))


FILE, ELSEWHERE, ABSENT, NOTES = "file", "elsewhere", "absent", "notes"
"""What belongs to an artifact and to none of its cases, as the journal calls it: known before the cases,"""
AFTER = DEVIATIONS, HEADROOM, RELATIONS, UNREACHED = "deviations", "headroom", "relations", "unreached"
"""and after them."""


@cache
def every_runtime() -> tuple[Runtime, ...]:
    """Return the registered runtimes, always the same tuple: a plan that names none is told from one that names all."""
    return registered()


@dataclass(frozen=True, eq=False)
class Plan:
    """How to verify.

    Attributes:
        runtimes: in the order of the reports.
        axes: sizes that the user gave instead of the sweep.
        inputs: tensors that the user gave instead of any.
        arithmetic: the declared arithmetic of all runtimes, instead of each one's own.
        fail_fast: stop at the first unexpected failure.
        atol, rtol: an extra gate for those who must meet a number; never a substitute for the bound.
        seed: of the run.
        threads: of each runtime, None for its own choice.
        dead: runtimes not to be opened, by the stem of an artifact and their name: why their process died.
        time_budget_s: seconds after which no further case of an artifact is begun.
        thorough: cross-check the deviations of each artifact by injecting noise.
        original: the file that the artifact was made from, by a fusion tool for example; it is the reference then.
        against: hold the file against its module in float64 even if no runtime here runs the module.
        relations_only: no reference: nothing is compared with an exact value or another party; the relations that the
            contract promises give the verdict.
        rows: query rows that a long attention is verified by; None: all, or a sample if there are very many scores.
        on_step: told what comes next.
        configuration: the settings that are not the defaults, for the record of the environment.
        shard: the part of the cases to verify; what belongs to no case alone is done with the first part.
        journal: opens the journal of what is finished, given the names of the units; None: there is none.
    """

    runtimes: tuple[Runtime, ...] = field(default_factory=every_runtime)
    axes: dict[str, int] | None = None
    inputs: Tensors | None = None
    arithmetic: str | None = None
    known: tuple[Known, ...] = field(default_factory=built_in)
    fail_fast: bool = False
    atol: float | None = None
    rtol: float | None = None
    seed: int = 0
    threads: int | None = None
    dead: Mapping[tuple[str, str], str] = field(default_factory=dict)
    against: bool = False
    original: onnx.ModelProto | None = None
    time_budget_s: float | None = None
    thorough: bool = False
    relations_only: bool = False
    rows: int | None = None
    on_step: Callable[[Step], None] = lambda step: None
    configuration: Mapping[str, str] = field(default_factory=dict)
    shard: Shard = WHOLE
    journal: Callable[[tuple[str, ...]], Journal] | None = None


_UNEVEN = ("constant", "integers", "wide")


def verify_artifact(
    artifact: Artifact, plan: Plan, signature: Signature | None = None
) -> Iterator[AnyRecord]:
    """Yield the records of one artifact: the artifact itself, its cells, its softmax, its findings.

    Args:
        artifact: to be verified.
        plan: how.
        signature: of the artifact, if it has been read already.

    Raises:
        UsageError: the file cannot be read, or the inputs given do not fit it.
    """
    signature = signature or read_signature(artifact)
    stem = artifact.path.stem
    prepare([one for one in plan.runtimes if (stem, one.name) not in plan.dead], artifact, plan.threads)
    subject = _subject(artifact, signature, plan)
    found = find(signature.model)
    about_file = [
        *compare_asked_and_got(artifact, signature),
        *static_findings(signature.model, found=found, **known_of(artifact)),
    ]
    if plan.original is not None:
        about_file += compare_with_original(plan.original, signature)
    check, died = None, plan.dead.get((artifact.path.stem, EXPORTER))
    if (
        died is None
        and not plan.relations_only
        and (plan.against or any(runtime.name == MODULE for runtime in plan.runtimes))
    ):
        plan.on_step(Step(artifact.path.stem, EXPORTER, "exporting the module in float64"))
        try:
            check = ExporterCheck.of(artifact, subject)
            about_file += check.about_file() if check else []
        except UnavailableError as error:
            about_file.append(finding("OA113", str(error)))
    before: list[AnyRecord] = [_artifact_record(artifact, subject, about_file)]
    before += [finding_record(subject, subject.located(item)) for item in about_file]
    yield from _Verification(artifact, subject, plan, check, found).records(before)


def _subject(artifact: Artifact, signature: Signature, plan: Plan) -> Subject:
    tolerance = None if plan.atol is plan.rtol is None else Tolerance(plan.atol or 0.0, plan.rtol or 0.0)
    expected = Expected(signature, plan.original)
    if _is_guess(artifact, plan):
        signature, expected = _at_sizes_that_fit(signature, expected)
    guessed = _is_guess(artifact, plan)
    return Subject(Identity.of(artifact, signature), signature, expected, tolerance, guessed)


def _is_guess(artifact: Artifact, plan: Plan) -> bool:
    """Whether nobody says which sizes the file takes: neither a contract nor the user."""
    return artifact.manifest is None and plan.axes is None and plan.inputs is None


_GRANULARITIES = (1, 8, 16, 32, 64)


def _at_sizes_that_fit(signature: Signature, expected: Expected) -> tuple[Signature, Expected]:
    """Return the same with sizes in multiples of what the graph takes, if it takes any of a few.

    A network that halves an image five times has nothing left of seven pixels.
    """
    for granularity in _GRANULARITIES:
        fitting = signature.in_multiples_of(granularity)
        tried = expected.at(fitting)
        if tried.reason or tried.takes_its_own_sizes():
            return fitting, tried
    return signature, expected


def _artifact_record(artifact: Artifact, subject: Subject, found: Sequence[Finding]) -> ArtifactRecord:
    manifest, signature = artifact.manifest, subject.signature
    wrong = [item for item in found if item.severity == "error"]
    identity = subject.identity.fields()
    return ArtifactRecord(
        **{name: identity[name] for name in ("model", "variant", "opset", "dtype")},
        verdict="failed" if wrong else "passed",
        reason="; ".join(item.message for item in wrong),
        sha256=artifact.sha256,
        beside=dict(artifact.beside),
        size_bytes=artifact.path.stat().st_size,
        empty_rows=signature.contract.empty_rows,
        arithmetic=manifest.arithmetic if manifest else "unknown",
        operators=signature.got.operators,
        axes=signature.got.axes,
        versions=manifest.versions if manifest else {},
        traced=dict(signature.contract.traced) if manifest else {},
        reference=subject.expected.source if not subject.expected.reason else "",
        findings=tuple(dict.fromkeys(item.code for item in found)),
    )


class _NoRoom(str):
    """Why the oracle has nothing at sizes that the network was not made for."""

    __slots__ = ()


def _why(error: UnsupportedOperatorError) -> str:
    return _NoRoom(error) if isinstance(error, NoRoomError) else str(error)


class _Verification:
    """The cells of one artifact: every case on every runtime that opens it."""

    def __init__(
        self, artifact: Artifact, subject: Subject, plan: Plan, check: ExporterCheck | None, found: Found
    ) -> None:
        self._artifact, self._subject, self._plan, self._check = artifact, subject, plan, check
        self._found = found
        self._gathered: list[Gathered] = []
        self._now = Gathered()
        self._looks: dict[str, Look] = {}
        self._places: dict[str, Places | None] = {}
        self._nodes = NodeByNode(
            artifact, subject, plan.known, plan.threads, lambda runtime: self._step(runtime, "node by node")
        )
        self._unreached: list[float] = []
        self._related = ""
        self._journal: Journal | None = None
        self._started = time.monotonic()

    def records(self, before: Sequence[AnyRecord]) -> Iterator[AnyRecord]:
        """Yield the records, those about the file itself first, which are given.

        Interrupted, it yields those of the cases that were finished, and then raises the interruption.
        """
        stages = [self._open(runtime) for runtime in self._plan.runtimes]
        ready = [stage for stage in stages if stage.session is not None]
        cases = self._cases() if ready and not self._plan.relations_only else []
        named = {f"case {number}: {case.id}": case for number, case in enumerate(cases, 1)}
        if self._plan.journal is not None:
            self._journal = self._plan.journal(tuple(named) or (RELATIONS,))
        yield from self._kept(FILE, lambda: iter(before))
        yield from self._kept(ELSEWHERE, lambda: self._elsewhere(stages))
        absent = [absent_cell(self._subject, stage) for stage in stages if stage.session is None]
        if died := self._plan.dead.get((self._artifact.path.stem, EXPORTER)):
            absent.append(dead_cell(self._artifact, self._subject, died))
        self._now.cells += [excuse(cell, self._plan.known) for cell in absent]
        self._next(ABSENT)
        if self._plan.relations_only:
            yield from (cell.record for cell in self._cells)
            yield from finding_records(self._subject, self._cells, [])
            yield from self._kept(RELATIONS, lambda: self._audit(ready))
            return
        notes = self._notes(ready)
        if self._journal is not None:
            self._journal.once(NOTES, lambda: notes, list[Finding])
        interruption = None
        try:
            self._run_cases(named, ready)
        except INTERRUPTIONS as error:
            interruption, self._now = error, Gathered()
        order = (EXPORTER, *(runtime.name for runtime in self._plan.runtimes))
        yield from tell(self._subject, self._gathered, order, notes)
        if interruption is not None:
            raise interruption
        if self._plan.shard.is_first:
            yield from self._kept(DEVIATIONS, lambda: self._cross_check(cases))
            if not self._out_of_time() and not self._left_early():
                yield from self._kept(HEADROOM, lambda: self._headroom(ready, cases))
            if self._plan.inputs is None and not self._out_of_time() and not self._left_early():
                yield from self._kept(RELATIONS, lambda: self._audit(ready))
        yield from self._kept(UNREACHED, self._not_reached)

    def _run_cases(self, named: Mapping[str, CaseRecord], ready: Sequence[Stage]) -> None:
        """Run the cases that are this shard's and not finished yet."""
        contract = self._subject.signature.contract
        self._related = _case_for_relations(
            [case for case in named.values() if longest_axis(contract, case.axes) <= LARGEST]
        )
        mine = self._plan.shard.part_of({name: _cost(case) for name, case in named.items()}) if named else ()
        for place, name in enumerate(mine):
            kept = None if self._journal is None else self._journal.kept(name, Gathered)
            if kept is not None:
                self._gathered.append(kept)
            elif self._out_of_time():
                self._leave_out([named[one] for one in mine[place:]], ready)
                self._gathered.append(self._now)  # and not kept: another time there may be time
                self._now = Gathered()
                break
            else:
                self._run_case_or_say_why(named[name], ready)
                self._next(name)
            if self._left_early():
                break

    def _run_case_or_say_why(self, case: CaseRecord, stages: Sequence[Stage]) -> None:
        """Run a case; where the verifier itself fails, each runtime without a verdict is errored, with the message."""
        try:
            self._run_case(case, stages)
        except (
            UsageError,
            NameError,
            ImportError,
        ):  # bad input, or a fault of ours that no file brings about
            raise
        except Exception as error:  # noqa: BLE001 - a graph that nobody foresaw may raise anything; it is recorded
            done = {cell.record.runtime for cell in self._now.cells if cell.record.case == case}
            self._now.cells += [
                errored_case(self._subject, stage, case, error) for stage in stages if stage.name not in done
            ]

    def _next(self, name: str) -> None:
        """Keep what was gathered, which is finished, and gather anew."""
        self._now = located(self._now, self._subject.located)
        if self._journal is not None and self._journal.kept(name, Gathered) is None:
            self._journal.keep(name, self._now)
        self._gathered.append(self._now)
        self._now = Gathered()

    def _kept(self, name: str, make: Callable[[], Iterator[AnyRecord]]) -> list[AnyRecord]:
        """Return what a step yields, or yielded before it was kept in the journal."""
        if self._journal is None:
            return list(make())
        kept: list[AnyRecord] = self._journal.once(name, lambda: list(make()), list[AnyRecord])
        return kept

    def _notes(self, ready: Sequence[Stage]) -> list[Finding]:
        held = self._check is not None or MODULE in {stage.name for stage in ready}
        if self._subject.expected.source != "graph" or held:
            return []
        return [finding("OA110", "no module ran: the reference is the file's own graph")]

    def _not_reached(self) -> Iterator[AnyRecord]:
        if self._unreached:
            stds = ", ".join(f"{std:g}" for std in self._unreached)
            yield finding_record(
                self._subject, finding("OA805", f"logit deviations of {stds} were not reached")
            )

    @property
    def _cells(self) -> list[Cell]:
        """The cells so far."""
        return [cell for part in (*self._gathered, self._now) for cell in part.cells]

    def _left_early(self) -> bool:
        return self._plan.fail_fast and self._failed()

    def _audit(self, stages: Sequence[Stage]) -> Iterator[AnyRecord]:
        """Yield the relations between each runtime's own outputs, on one small case."""
        alive = self._alive(stages)
        if not self._plan.relations_only and any(stage.name == COMPILED for stage in alive):
            alive = [stage for stage in alive if stage.name != COMPILED]
            text = (
                f"{COMPILED} compiles anew for each new size: --relations-only --runtime {COMPILED} asks it"
            )
            yield finding_record(self._subject, finding("OA505", text), runtime=COMPILED)
        if not alive:
            return
        explicit = self._artifact.manifest is not None and not self._subject.guessed
        reference = not self._plan.relations_only
        try:
            audit = Audit(self._subject, explicit=explicit, reference=reference, seed=self._plan.seed)
            asked = audit.about_file()
        except (UnsupportedOperatorError, UsageError) as error:
            yield finding_record(self._subject, finding("OA505", str(error)))
            return
        for item in asked:
            yield finding_record(self._subject, item, case=audit.case.id)
        records: list[RelationRecord] = []
        for stage in alive:
            self._step(stage.name, "relations")
            for record, found in audit.on(stage):
                known = self._known_of(record)
                records.append(msgspec.structs.replace(record, known=known))
                for item in found:
                    yield finding_record(
                        self._subject, item, runtime=stage.name, case=audit.case.id, known=known
                    )
        yield from records
        for item in disagreements(records):
            yield finding_record(self._subject, item, case=audit.case.id)

    def _alive(self, stages: Sequence[Stage]) -> list[Stage]:
        died = {cell.record.runtime for cell in self._cells if "OA309" in cell.record.findings}
        return [stage for stage in stages if stage.name not in died]

    def _headroom(self, stages: Sequence[Stage], cases: Sequence[CaseRecord]) -> Iterator[AnyRecord]:
        """Yield where each softmax of the file breaks on each runtime that runs the file, on one case."""
        alive = [stage for stage in self._alive(stages) if stage.name not in MODULES]
        if not alive or not cases or not self._found.softmaxes:
            return
        contract = self._subject.signature.contract
        smallest = min(cases, key=lambda case: longest_axis(contract, case.axes))
        case = next((case for case in cases if case.id == self._related), smallest)
        if longest_axis(contract, case.axes) > LONGEST:
            text = (
                f"where the softmax breaks was not looked for: no case has at most {LONGEST} along each axis"
            )
            yield finding_record(self._subject, finding("OA407", text))
            return
        headroom = Headroom(self._artifact, self._subject, self._found, case, self._inputs_of(case))
        for stage in alive:
            self._step(stage.name, "headroom of the softmax")
            seen = [
                (msgspec.structs.replace(record, known=self._known_of(record)), items)
                for record, items in headroom.on(stage, self._plan.threads)
            ]
            yield from (record for record, _ in seen)
            for record, item in worth_telling(seen):
                about = self._subject.located(item)
                yield finding_record(
                    self._subject, about, runtime=stage.name, case=case.id, known=record.known
                )

    def _known_of(self, record: RelationRecord | HeadroomRecord) -> str:
        if record.verdict not in ("failed", "errored"):
            return ""
        known = find_known(
            self._plan.known, record.model, record.variant, record.dtype, record.runtime, record.case
        )
        return known.issue if known else ""

    def _out_of_time(self) -> bool:
        budget = self._plan.time_budget_s
        return budget is not None and time.monotonic() - self._started > budget

    def _leave_out(self, cases: Sequence[CaseRecord], stages: Sequence[Stage]) -> None:
        """Record the cases that there was no time for: what was not tested is said."""
        text = f"not begun within the time budget of {self._plan.time_budget_s:g} s"
        for stage, case in product(stages, cases):
            self._now.cells.append(skipped_case(self._subject, stage, case, finding("OA807", text)))

    def _elsewhere(self, stages: Sequence[Stage]) -> Iterator[AnyRecord]:
        for stage in stages:
            if text := stage.placement.elsewhere():
                yield finding_record(self._subject, finding("OA203", text), runtime=stage.name)
            if fallen := stage.placement.fallen:
                more = f" and {len(fallen) - _NAMED} more" if len(fallen) > _NAMED else ""
                text = f"{text}; of these compute floating-point numbers: {', '.join(fallen[:_NAMED])}{more}"
                yield finding_record(self._subject, finding("OA204", text), runtime=stage.name)

    def _open(self, runtime: Runtime) -> Stage:
        version = runtime.availability().version
        arithmetic = profile(self._plan.arithmetic or runtime.arithmetic(self._subject.identity.dtype))
        if reason := self._plan.dead.get((self._artifact.path.stem, runtime.name)):
            return Stage(runtime, version, arithmetic, verdict="errored", reason=reason, code="OA309")
        self._step(runtime.name, "opening the file")
        try:
            session = runtime.open(self._artifact, threads=self._plan.threads)
        except UnavailableError as error:
            code = "OA202" if isinstance(error, FallbackError) else "OA201"
            return Stage(runtime, version, arithmetic, verdict="skipped", reason=str(error), code=code)
        except ProcessDiedError as error:
            return Stage(runtime, version, arithmetic, verdict="errored", reason=str(error), code="OA309")
        except Exception as error:  # noqa: BLE001 - a runtime that refuses the file is an errored cell
            return Stage(
                runtime, version, arithmetic, verdict="errored", reason=describe(error), code="OA304"
            )
        return Stage(runtime, version, arithmetic, session, placement=session.placement)

    def _step(self, runtime: str, doing: str) -> None:
        self._plan.on_step(Step(self._artifact.path.stem, runtime, doing))

    def _cases(self) -> list[CaseRecord]:
        contract, plan = self._subject.signature.contract, self._plan
        if plan.inputs is not None:
            return [CaseRecord(name="loaded", axes=_axes_of(plan.inputs, self._subject.signature))]
        attention = self._subject.expected.has_attention()
        if plan.axes is not None:
            planned = case_of_axes(contract, plan.axes, seed=plan.seed, attention=attention)
        else:
            planned = plan_cases(contract, seed=plan.seed, attention=attention)
        reachable = {
            std: std is None or self._subject.expected.reaches(std) for std in {c.logit_std for c in planned}
        }
        self._unreached = sorted(std for std, reached in reachable.items() if std is not None and not reached)
        return without_unreachable(planned, reachable)

    def _inputs_of(self, case: CaseRecord) -> Tensors:
        given, expected = self._plan.inputs, self._subject.expected
        if given is None:
            return expected.inputs(case)
        expected.refuse_beyond_memory({name: array.shape for name, array in given.items()})
        return given

    def _run_case(self, case: CaseRecord, stages: Sequence[Stage]) -> None:
        inputs = self._inputs_of(case)
        if self._check is not None and fits(case):
            self._step(EXPORTER, case.id)
            self._now.cells.append(excuse(self._check.cell(case, inputs), self._plan.known))
        stages = self._that_fit(case, inputs, stages)
        if not stages or self._run_by_rows(case, inputs, stages):
            return
        relations = self._relations(case, inputs)
        evaluations: dict[str, Evaluation | str] = {}  # runtimes of one arithmetic share theirs
        gauges: dict[str, Gauge | None] = {}
        carried: dict[str, Mapping[str, Bounded]] = {}  # and the deviations end to end
        for stage in stages:
            self._step(stage.name, case.id)
            recomputed = self._recomputed(stage)
            key = self._arithmetic_key(stage)
            if key not in evaluations:
                gauges[key] = self._gauge(case, inputs, stage.arithmetic, recomputed)
                deep = gauges[key] is None and any(key in case.deep for case in self._gathered)
                evaluate = self._without_bounds if deep else self._evaluate
                evaluations[key] = evaluate(inputs, stage.arithmetic, recomputed, gauges[key])
                if self._has_noise_alone(stage, evaluations[key]):
                    gauges[key] = self._gauge(case, inputs, stage.arithmetic, recomputed, anyway=True)
                    evaluations[key] = self._evaluate(inputs, stage.arithmetic, recomputed, gauges[key])
            evaluation = evaluations[key]
            if isinstance(evaluation, _NoRoom) and self._subject.guessed:
                why = finding("OA806", f"nobody says that the file takes these sizes: {evaluation}")
                self._now.cells.append(skipped_case(self._subject, stage, case, why))
                continue
            if not isinstance(evaluation, str):
                self._now.unseen |= dict.fromkeys(evaluation.unseen, case.id)
                shapes = {name: one.value.shape for name, one in evaluation.outputs.items()}
                self._now.misdeclared = self._now.misdeclared or [
                    *misdeclared(self._subject.signature, shapes)
                ]
            gauge = None if isinstance(evaluation, str) else gauges[key]
            cell, outputs = run_cell(self._subject, stage, case, inputs, evaluation, gauge, relations)
            if outputs is not None and stage.name in EAGER and isinstance(evaluation, str):
                # torch has no nodes to be looked into; others are judged node by node below.
                cell, evaluation = self._in_pieces(stage, cell, inputs, outputs, evaluation, deviations=False)
            elif outputs is not None and cell.unbounded:
                whole, bare = evaluation, gauges[key] is None and key not in carried
                cell, evaluation = self._in_pieces(stage, cell, inputs, outputs, evaluation, deviations=bare)
                if bare and isinstance(evaluation, Evaluation) and evaluation is not whole:
                    carried[key] = evaluation.outputs
                if not cell.unbounded:
                    self._now.deep.append(key)
                if key in carried and isinstance(whole, Evaluation):
                    cell = with_carried_bits(cell, stage, outputs, whole.outputs, carried[key])
            if outputs is not None:
                lacking = (
                    cell.unbounded or isinstance(evaluation, str) or says_little(evaluation, stage.arithmetic)
                )
                cell = self._nodes.judged(stage, cell, inputs, outputs, lacking=lacking)
            elif isinstance(evaluation, str) and self._may_not_fit:
                cell = not_on_these_inputs(cell, evaluation)
            if not isinstance(evaluation, str) and says_nothing(evaluation):
                cell = without_proof(cell)
            self._now.cells.append(excuse(cell, self._plan.known))
            if outputs is not None and not isinstance(evaluation, str):
                self._look(stage, case, inputs, outputs, evaluation)
        self._hold_against_original(inputs, gauges)

    def _that_fit(self, case: CaseRecord, inputs: Tensors, stages: Sequence[Stage]) -> list[Stage]:
        """Return the stages whose runtime has room for this case; of the others it is said why they are left out."""
        free, fitting = free_bytes(), []
        shapes = {name: array.shape for name, array in inputs.items()}
        signature = self._subject.signature
        for stage in stages:
            node, needed = scores_held(stage.runtime, signature.model, shapes, signature.floating.itemsize)
            if free is None or needed <= free:
                fitting.append(stage)
                continue
            text = f"it holds all scores of {node} at once: {needed / 1e9:,.0f} GB, and {free / 1e9:,.0f} GB are free"
            self._now.cells.append(skipped_case(self._subject, stage, case, finding("OA810", text)))
        return fitting

    def _run_by_rows(self, case: CaseRecord, inputs: Tensors, stages: Sequence[Stage]) -> bool:
        """Verify a case with a long attention by blocks of its rows, or some of them; False if it is not one."""
        expected = self._subject.expected
        if longest_axis(self._subject.signature.contract, case.axes) ** 2 < STREAMED_FROM or expected.reason:
            return False
        keys = {stage.name: self._arithmetic_key(stage) for stage in stages}
        of_key = {keys[stage.name]: stage for stage in stages}

        def make(key: str) -> ByRows:
            stage = of_key[key]
            return expected.by_rows(inputs, with_deviations(stage.arithmetic), self._recomputed(stage))

        try:
            first = make(keys[stages[0].name])
            if first.scores <= STREAMED_FROM:
                return False
            long = Long(self._subject, case, inputs, make, keys, self._plan.rows, self._step)
            cells, sample = judged_by_rows(long, stages, first)
        except UnsupportedOperatorError:
            return False
        self._now.cells += [excuse(cell, self._plan.known) for cell in cells]
        self._now.unseen |= dict.fromkeys(first.attentions, case.id)
        shapes = {name: layout.shape for name, layout in first.layout.items()}
        self._now.misdeclared = self._now.misdeclared or [*misdeclared(self._subject.signature, shapes)]
        if not sample.is_whole:
            self._now.sampled[case.id] = str(sample)
        return True

    def _arithmetic_key(self, stage: Stage) -> str:
        """Return what runtimes of one exact result share."""
        return f"{stage.arithmetic.name} {stage.name if self._recomputed(stage) else ''}"

    def _has_noise_alone(self, stage: Stage, evaluation: Evaluation | str) -> bool:
        """Whether the bound says nothing and there are no nodes to look at: then the noise is worth its price anywhere."""
        return (
            not isinstance(evaluation, str) and says_nothing(evaluation) and not self._nodes.can_look(stage)
        )

    def _hold_against_original(self, inputs: Tensors, gauges: Mapping[str, Gauge | None]) -> None:
        """Find out, in float64 alone, whether the file computes what the file that it was made from does.

        Where the bound allows anything, the deviations tell: if they told of a runtime, they are asked of the file too.
        """
        if self._subject.expected.source != "original":
            return
        if any(case.remade is not None for case in self._gathered):
            return
        arithmetic = PROFILES[OF_DTYPE[self._subject.identity.dtype]]
        try:
            exact = self._subject.expected.evaluate(inputs, arithmetic).outputs
            mine = self._subject.expected.evaluate_graph(
                inputs, replace(arithmetic, kernel=VALUES_ALONE), self._subject.signature.contract.empty_rows
            ).outputs
        except UnsupportedOperatorError:
            return
        outputs = {name: one.value for name, one in mine.items()}
        judged = judge(outputs, exact, {name: value.dtype for name, value in outputs.items()})
        found = judged.findings
        gauge = gauges.get(f"{arithmetic.name} ")
        if not found and gauge is not None and self._failed():
            found = gauge.measure(outputs).findings
        if found:
            text = f"both in float64, {found[0].message}"
            self._now.remade = finding("OA117", text, blame=FUSION)

    def _in_pieces(
        self,
        stage: Stage,
        cell: Cell,
        inputs: Tensors,
        outputs: Tensors,
        evaluation: Evaluation | str,
        *,
        deviations: bool,
    ) -> tuple[Cell, Evaluation | str]:
        """Return a cell without a bound judged piece by piece, if its graph can be cut, and the oracle's pieces."""
        try:
            if stage.name not in self._places:
                self._places[stage.name] = Places.of(self._artifact, self._subject, stage, self._plan.threads)
            places = self._places[stage.name]
            if places is None:
                return cell, evaluation
            judged = judge_in_pieces(self._subject, stage, places, inputs, outputs, deviations=deviations)
        except Exception as error:  # noqa: BLE001 - the cell stays inconclusive, and says what was tried
            return because(cell, describe(error)), evaluation
        if isinstance(judged, str):
            return because(cell, judged), evaluation
        judgement, pieces = judged
        return with_pieces(self._subject, stage, cell, judgement, len(places.cuts.names) + 1), pieces

    @cached_property
    def _may_not_fit(self) -> bool:
        """Whether inputs are guessed, and the file takes not even the sizes that all others are derived from.

        If it takes those, a dynamic axis that takes no other size is an error of the file; unless it is fed integers,
        which may say where in a table, or how large something is to be.
        """
        numbers = any("int" in spec.dtype for spec in self._subject.signature.contract.inputs)
        return self._subject.guessed and (numbers or not self._subject.expected.takes_its_own_sizes())

    def _recomputed(self, stage: Stage) -> dict[str, Bounded]:
        """Return the constants of the file that torch computes anew: it runs the module."""
        if stage.name not in MODULES or self._check is None or self._subject.expected.source != "graph":
            return {}
        return self._check.recomputed

    def _evaluate(
        self, inputs: Tensors, arithmetic: Arithmetic, constants: dict[str, Bounded], gauge: Gauge | None
    ) -> Evaluation | str:
        if self._subject.expected.reason:
            return self._subject.expected.reason
        try:
            if gauge is not None:
                return gauge.evaluation
            return self._subject.expected.evaluate(inputs, with_deviations(arithmetic), constants=constants)
        except UnsupportedOperatorError as error:
            return _why(error)

    def _without_bounds(
        self, inputs: Tensors, arithmetic: Arithmetic, constants: dict[str, Bounded], gauge: Gauge | None
    ) -> Evaluation | str:
        """Return the exact outputs alone, of a graph whose bound end to end has said nothing before.

        The pieces of the graph, which judge it, have bounds of their own.
        """
        try:
            alone = self._subject.expected.evaluate(
                inputs, replace(arithmetic, kernel=VALUES_ALONE), constants=constants
            )
        except UnsupportedOperatorError as error:
            return _why(error)
        unknown = {
            name: replace(one, error=np.full(one.value.shape, np.inf)) if one.is_float else one
            for name, one in alone.outputs.items()
        }
        return replace(alone, outputs=unknown)

    def _relations(self, case: CaseRecord, inputs: Tensors) -> Relations | None:
        """Return the relations to hold runtimes to, on one case of each artifact: they do not depend on sizes."""
        if case.id != self._related or self._subject.expected.reason:
            return None
        arithmetic = PROFILES[OF_DTYPE[self._subject.identity.dtype]]
        try:
            return Relations(
                self._subject.signature.contract,
                inputs,
                lambda changed: self._subject.expected.evaluate(changed, arithmetic).outputs,
            )
        except UnsupportedOperatorError:  # the cell itself says what is missing
            return None

    def _gauge(
        self,
        case: CaseRecord,
        inputs: Tensors,
        arithmetic: Arithmetic,
        constants: dict[str, Bounded],
        *,
        anyway: bool = False,
    ) -> Gauge | None:
        signature = self._subject.signature
        too_large = not anyway and longest_axis(signature.contract, case.axes) > LARGEST
        # Half precision inside has no pool: see COARSEST_SUMS.
        if too_large or arithmetic.u_acc > COARSEST_SUMS or self._subject.expected.mixes:
            return None
        # Few different numbers, whose sums may be exact, say little about the noise of any graph; nor do saturated ones.
        if not anyway and case.distribution in (_UNEVEN if self._subject.guessed else ("wide",)):
            return None
        evaluate = partial(self._subject.expected.evaluate, inputs, constants=constants)
        return Gauge(evaluate, arithmetic, signature.floating, signature.dtypes, inputs)

    def _look(
        self, stage: Stage, case: CaseRecord, inputs: Tensors, outputs: Tensors, evaluation: Evaluation
    ) -> None:
        if not evaluation.attentions:
            return
        first = stage.name not in self._looks
        if first:
            self._looks[stage.name] = self._choose_look(stage, evaluation, inputs)
        look = self._looks[stage.name]
        if look.reason and not first:  # said once a runtime, not once a case
            return
        seen = look_at_softmax(self._subject, stage, look, case, inputs, outputs, evaluation)
        self._now.softmax += [(excuse_softmax(record, self._plan.known), found) for record, found in seen]

    def _choose_look(self, stage: Stage, evaluation: Evaluation, inputs: Tensors) -> Look:
        contract, expected = self._subject.signature.contract, self._subject.expected
        if expected.mixes:
            return Look(
                "none", reason="the graph has half precision inside, and its weights no limit of one format"
            )
        direct = direct_look(contract, evaluation.attentions, stage.name)
        if direct is not None:
            return direct
        attentions = evaluation.attentions
        if expected.source == "specification":  # its names are not the file's
            try:
                attentions = expected.evaluate_graph(inputs, stage.arithmetic, "unknown").attentions
            except UnsupportedOperatorError as error:
                return Look("none", reason=f"the file's own graph cannot be evaluated: {error}")
            if len(attentions) != len(evaluation.attentions):
                return Look("none", reason="the file writes its attention in a way that is not recognised")
        signature = self._subject.signature
        try:
            copy, names = with_weights(signature.model, attentions, as_in_file=signature.as_in_file)
        except NoWeightsError as error:
            return Look("none", reason=str(error))
        try:
            session = open_copy(stage.runtime, self._artifact, copy, self._plan.threads)
        except Exception as error:  # noqa: BLE001 - the reason becomes the record's
            return Look(
                "none", reason=f"a copy of the file that gives its weights does not open: {describe(error)}"
            )
        return Look("probe", names, session)

    def _cross_check(self, cases: Sequence[CaseRecord]) -> Iterator[AnyRecord]:
        """Yield what noise injection says of the propagated deviations, on one case, if that was asked for."""
        case = next((case for case in cases if case.id == self._related), cases[0] if cases else None)
        if not self._plan.thorough or case is None or self._subject.expected.reason:
            return
        inputs = self._inputs_of(case)
        arithmetic = PROFILES[OF_DTYPE[self._subject.identity.dtype]]
        try:
            text = cross_check(partial(self._subject.expected.evaluate, inputs), arithmetic, case.seed)
        except UnsupportedOperatorError as error:
            text = f"the deviations could not be cross-checked: {error}"
        yield finding_record(self._subject, finding("OA315", text), case=case.id)

    def _failed(self) -> bool:
        return any(
            cell.record.verdict in ("failed", "errored") and not cell.record.known for cell in self._cells
        )


_ANY_CASE = 2.0**16
"""What a case costs beside one more score: it takes as long to begin as 256 tokens take to be verified."""


def _cost(case: CaseRecord) -> float:
    """Return what a case is expected to cost beside the others of its artifact: scores are made for each query and key."""
    sizes = [max(1, size) for size in case.axes.values()]
    return _ANY_CASE + math.prod(sizes) * max(sizes, default=1)


def _case_for_relations(cases: Sequence[CaseRecord]) -> str:
    """Return the id of the case that shows most: under a causal mask, where there is one, else at the usual logits."""
    order = {"mask-causal": 0, "logits": 1, "off-8": 2}
    ranked = sorted(cases, key=lambda case: (order.get(case.name, 3), abs((case.logit_std or 3.0) - 3.0)))
    return ranked[0].id if ranked else ""


def _axes_of(inputs: Tensors, signature: Signature) -> dict[str, int]:
    return {
        axis: inputs[spec.name].shape[index]
        for spec in signature.contract.inputs
        for index, axis in enumerate(spec.axes)
        if isinstance(axis, str)
    }
