"""The verification of one artifact, step by step, as a stream of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.arithmetic import profile
from onnx_attest.verify.asked_got import compare_asked_and_got
from onnx_attest.verify.blame import MODULE, blamed_cells
from onnx_attest.verify.cases import case_of_axes, plan_cases
from onnx_attest.verify.cell import Cell, Identity, Stage, Subject, absent_cell, describe, run_cell
from onnx_attest.verify.expected import Expected
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.gates import Tolerance
from onnx_attest.verify.known import Known, built_in, find_known
from onnx_attest.verify.oracle.graph import Evaluation
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.probe import with_weights
from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CaseRecord,
    CellRecord,
    FindingRecord,
    StabilityRecord,
)
from onnx_attest.verify.runtimes.base import Placement, Runtime, Session, Tensors, UnavailableError
from onnx_attest.verify.runtimes.registry import RUNTIMES
from onnx_attest.verify.signature import Signature, read_signature
from onnx_attest.verify.stability import Look, choose_look, look_at_softmax


@dataclass(frozen=True, eq=False)
class Plan:
    """How to verify.

    Attributes:
        runtimes: in the order of the reports.
        axes: sizes that the user gave instead of the sweep.
        inputs: tensors that the user gave instead of any.
        arithmetic: the declared arithmetic, where it is not the manifest's.
        fail_fast: stop at the first unexpected failure.
        atol, rtol: an extra gate for those who must meet a number; never a substitute for the bound.
        seed: of the run.
        threads: of each runtime, None for its own choice.
    """

    runtimes: tuple[Runtime, ...] = RUNTIMES
    axes: dict[str, int] | None = None
    inputs: Tensors | None = None
    arithmetic: str | None = None
    known: tuple[Known, ...] = field(default_factory=built_in)
    fail_fast: bool = False
    atol: float | None = None
    rtol: float | None = None
    seed: int = 0
    threads: int | None = None
    on_cell: Callable[[str], None] = lambda cell: None


def verify_artifact(artifact: Artifact, plan: Plan) -> Iterator[AnyRecord]:
    """Yield the records of one artifact: the artifact itself, its cells, its softmax, its findings.

    Raises:
        UsageError: the file cannot be read, or the inputs given do not fit it.
    """
    signature = read_signature(artifact)
    subject = _subject(artifact, signature, plan)
    about_file = compare_asked_and_got(artifact, signature)
    yield _artifact_record(artifact, subject, about_file)
    yield from (_finding_record(subject, item) for item in about_file)
    yield from _Verification(artifact, subject, plan).records()


def _subject(artifact: Artifact, signature: Signature, plan: Plan) -> Subject:
    declared = plan.arithmetic or (artifact.manifest.arithmetic if artifact.manifest else "fp32")
    tolerance = None if plan.atol is plan.rtol is None else Tolerance(plan.atol or 0.0, plan.rtol or 0.0)
    return Subject(
        Identity.of(artifact, signature), signature, Expected(signature), profile(declared), tolerance
    )


def _artifact_record(artifact: Artifact, subject: Subject, found: Sequence[Finding]) -> ArtifactRecord:
    manifest, signature = artifact.manifest, subject.signature
    wrong = [item for item in found if item.severity == "error"]
    identity = subject.identity.fields()
    return ArtifactRecord(
        **{name: identity[name] for name in ("model", "variant", "opset", "dtype")},
        verdict="failed" if wrong else "passed",
        reason="; ".join(item.message for item in wrong),
        sha256=artifact.sha256,
        size_bytes=artifact.path.stat().st_size,
        empty_rows=signature.contract.empty_rows,
        arithmetic=subject.arithmetic.name,
        operators=signature.got.operators,
        axes=signature.got.axes,
        versions=manifest.versions if manifest else {},
        traced=dict(signature.contract.traced) if manifest else {},
        reference=subject.expected.source if not subject.expected.reason else "",
        findings=tuple(dict.fromkeys(item.code for item in found)),
    )


def _finding_record(subject: Subject, item: Finding, **where: Any) -> FindingRecord:
    identity = subject.identity.fields()
    return FindingRecord(
        code=item.code, severity=item.severity, message=item.message, next_step=item.next_step, blame=item.blame,
        node=item.node, **({name: identity[name] for name in ("model", "variant", "opset", "dtype")} | where),
    )  # fmt: skip


class _Verification:
    """The cells of one artifact: every case on every runtime that opens it."""

    def __init__(self, artifact: Artifact, subject: Subject, plan: Plan) -> None:
        self._artifact, self._subject, self._plan = artifact, subject, plan
        self._cells: list[Cell] = []
        self._softmax: list[tuple[StabilityRecord, list[Finding]]] = []
        self._looks: dict[str, Look | None] = {}

    def records(self) -> Iterator[AnyRecord]:
        stages = [self._open(runtime) for runtime in self._plan.runtimes]
        yield from (
            _finding_record(self._subject, finding("OA203", text), runtime=stage.runtime)
            for stage in stages
            if (text := stage.placement.elsewhere())
        )
        self._cells += [absent_cell(self._subject, stage) for stage in stages if stage.session is None]
        ready = [stage for stage in stages if stage.session is not None]
        for case in self._cases() if ready else ():
            self._run_case(case, ready)
            if self._plan.fail_fast and self._failed():
                break
        order = {runtime.name: index for index, runtime in enumerate(self._plan.runtimes)}
        cells = sorted(map(self._excused, self._cells), key=lambda cell: order[cell.record.runtime])
        softmax = [(self._excused_softmax(record), found) for record, found in self._softmax]
        softmax.sort(key=lambda item: order[item[0].runtime])
        yield from (cell.record for cell in cells)
        yield from (record for record, _ in softmax)
        yield from self._findings(cells, softmax)

    def _open(self, runtime: Runtime) -> Stage:
        version = runtime.availability().version
        try:
            session = runtime.open(self._artifact, threads=self._plan.threads)
        except UnavailableError as error:
            return Stage(runtime.name, version, verdict="skipped", reason=str(error), code="OA201")
        except Exception as error:  # noqa: BLE001 - a runtime that refuses the file is an errored cell
            return Stage(runtime.name, version, verdict="errored", reason=describe(error), code="OA304")
        return Stage(runtime.name, version, session, placement=session.placement)

    def _cases(self) -> list[CaseRecord]:
        contract, plan = self._subject.signature.contract, self._plan
        if plan.inputs is not None:
            return [CaseRecord(name="loaded", axes=_axes_of(plan.inputs, self._subject.signature))]
        attention = self._subject.expected.has_attention(self._subject.arithmetic)
        if plan.axes is not None:
            return case_of_axes(contract, plan.axes, seed=plan.seed, attention=attention)
        return plan_cases(contract, seed=plan.seed, attention=attention)

    def _run_case(self, case: CaseRecord, stages: Sequence[Stage]) -> None:
        subject = self._subject
        given = self._plan.inputs
        inputs = given if given is not None else subject.expected.inputs(case, subject.arithmetic)
        evaluation = self._evaluate(inputs)
        for stage in stages:
            self._plan.on_cell(f"{subject.identity.model} {subject.identity.variant} {stage.runtime}")
            cell = run_cell(subject, stage, case, inputs, evaluation)
            self._cells.append(cell)
            if not isinstance(evaluation, str) and cell.outputs is not None and stage.session is not None:
                self._look(stage, case, inputs, cell.outputs, evaluation)

    def _evaluate(self, inputs: Tensors) -> Evaluation | str:
        if self._subject.expected.reason:
            return self._subject.expected.reason
        try:
            return self._subject.expected.evaluate(inputs, self._subject.arithmetic)
        except UnsupportedOperatorError as error:
            return str(error)

    def _look(
        self, stage: Stage, case: CaseRecord, inputs: Tensors, outputs: Tensors, evaluation: Evaluation
    ) -> None:
        assert stage.session is not None
        if not evaluation.attentions:
            return
        if stage.runtime not in self._looks:
            self._looks[stage.runtime] = self._choose_look(stage.runtime, evaluation, inputs)
        look = self._looks[stage.runtime]
        if look is not None:
            self._softmax += look_at_softmax(
                self._subject, stage.runtime, stage.session, look, case, inputs, outputs, evaluation
            )

    def _choose_look(self, name: str, evaluation: Evaluation, inputs: Tensors) -> Look | None:
        contract = self._subject.signature.contract
        direct = choose_look(contract, evaluation.attentions, name, None, ())
        if direct is not None:
            return direct
        session, names = self._probed(name, evaluation, inputs)
        return choose_look(contract, evaluation.attentions, name, session, names)

    def _probed(
        self, name: str, evaluation: Evaluation, inputs: Tensors
    ) -> tuple[Session | None, tuple[str, ...]]:
        subject = self._subject
        attentions = evaluation.attentions
        if subject.expected.source == "specification":  # its names are not the file's
            attentions = subject.expected.evaluate_graph(inputs, subject.arithmetic, "unknown").attentions
        if len(attentions) != len(evaluation.attentions):
            return None, ()
        model, names = with_weights(subject.signature.model, attentions)
        runtime = next(runtime for runtime in self._plan.runtimes if runtime.name == name)
        try:
            return runtime.open(self._artifact, model=model, threads=self._plan.threads), names
        except Exception:  # noqa: BLE001 - no way to see this softmax; the missing rows are counted in the report
            return None, ()

    def _excused(self, cell: Cell) -> Cell:
        record = cell.record
        if record.case is None or record.verdict not in ("passed", "failed", "errored"):
            return cell
        known = self._known(record)
        if known is None:
            return cell
        if record.verdict != "passed":
            return replace(cell, record=msgspec.structs.replace(record, known=known.issue))
        stale = finding("OA803", f"{known.issue} was expected here and did not happen: {known.note}")
        failed = msgspec.structs.replace(record, verdict="failed", reason=stale.message, findings=("OA803",))
        return replace(cell, record=failed, findings=(stale,))

    def _excused_softmax(self, record: StabilityRecord) -> StabilityRecord:
        known = self._known(record) if record.verdict == "failed" else None
        return record if known is None else msgspec.structs.replace(record, known=known.issue)

    def _known(self, record: CellRecord | StabilityRecord) -> Known | None:
        assert record.case is not None
        return find_known(self._plan.known, record.model, record.variant, record.runtime, record.case)

    def _failed(self) -> bool:
        cells = (self._excused(cell).record for cell in self._cells)
        return any(record.verdict in ("failed", "errored") and not record.known for record in cells)

    def _findings(
        self, cells: Sequence[Cell], softmax: Sequence[tuple[StabilityRecord, list[Finding]]]
    ) -> Iterator[FindingRecord]:
        blamed = blamed_cells([cell.record for cell in cells])
        found = _Grouped()
        for index, cell in enumerate(cells):
            for item in cell.findings:
                party = blamed.get(index, "") or item.blame
                found.add(
                    cell.record.runtime, replace(item, blame=party), cell.record.case, cell.record.known
                )
        for record, items in softmax:
            for item in items:
                found.add(record.runtime, item, record.case, record.known)
        for (runtime, _, _, known), (item, case, count) in found.groups.items():
            more = f" (and in {count - 1} more cases)" if count > 1 else ""
            yield _finding_record(
                self._subject,
                replace(item, message=item.message + more),
                runtime=runtime,
                case=case,
                known=known,
            )
        yield from self._exporter(cells, blamed)
        for party, code, message in _PARTIES:
            guilty = [cells[index].record for index, blamed_party in blamed.items() if blamed_party == party]
            if guilty:
                yield self._summary(code, message, party, guilty)

    def _exporter(self, cells: Sequence[Cell], blamed: dict[int, str]) -> Iterator[FindingRecord]:
        """Yield one finding for the file where all ONNX runtimes agree with each other and not with the module."""
        guilty = [cells[index].record for index, party in blamed.items() if party == "exporter"]
        if guilty:
            runtimes = ", ".join(dict.fromkeys(record.runtime for record in guilty))
            yield self._summary(
                "OA108", _EXPORTER_MESSAGE[runtimes == MODULE].format(runtimes), "exporter", guilty
            )

    def _summary(self, code: str, message: str, party: str, guilty: Sequence[CellRecord]) -> FindingRecord:
        known = guilty[0].known if all(record.known for record in guilty) else ""
        case = guilty[0].case
        return _finding_record(
            self._subject, finding(code, message, blame=party), case=case.id if case else "", known=known
        )


_EXPORTER_MESSAGE = {
    False: "{} run the file and fail alike; torch, which runs the module, passes",
    True: "{} runs the module and does not give what the file computes; all runtimes that run the file agree with it",
}


_PARTIES = (
    ("module", "OA109", "torch, which runs the module, fails with all runtimes that run the file"),
    ("optimiser", "OA601", "wrong with ONNX Runtime's graph optimisations on, right with them off"),
)


class _Grouped:
    """Findings that say the same of several cases, told once."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str, str, str], tuple[Finding, str, int]] = {}

    def add(self, runtime: str, item: Finding, case: CaseRecord | None, known: str) -> None:
        key = (runtime, item.code, item.blame, known)
        first, where, count = self.groups.get(key, (item, case.id if case else "", 0))
        self.groups[key] = (first, where, count + 1)


def _axes_of(inputs: Tensors, signature: Signature) -> dict[str, int]:
    return {
        axis: inputs[spec.name].shape[index]
        for spec in signature.contract.inputs
        for index, axis in enumerate(spec.axes)
        if isinstance(axis, str)
    }


__all__ = ["Placement", "Plan", "verify_artifact"]
