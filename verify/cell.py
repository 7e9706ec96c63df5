"""One cell: an artifact on a runtime with one case, run, judged and recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.expected import Expected
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.gates import Judgement, Place, Tolerance, exceeds, judge
from onnx_attest.verify.gauge import Gauge
from onnx_attest.verify.neighbours import Neighbours
from onnx_attest.verify.noise import Measured, bits_of, noise_of
from onnx_attest.verify.oracle.bounded import Bounded, is_floating
from onnx_attest.verify.oracle.graph import Evaluation
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.records import CaseRecord, CellRecord, Verdict, finite
from onnx_attest.verify.relations import Relations
from onnx_attest.verify.runtimes.base import (
    Placement,
    ProcessDiedError,
    Runtime,
    Session,
    Tensors,
    UnavailableError,
)
from onnx_attest.verify.signature import Signature

_EMPTY = "every output is empty at these sizes, or NaN: there is no number to compare"
NEED_NO_BOUND = ("OA310", "OA311", "OA501")
"""Codes of gates that judge the outputs end to end without the bound: what they found stands."""
POLICIES = {"zero": "0", "mean": "the mean of V", "nan": "NaN"}
"""What a row without any key gives by the policies there are."""


@dataclass(frozen=True)
class Identity:
    """What names an artifact in every record about it."""

    model: str
    variant: str
    opset: int | None
    dtype: str
    artifact_sha256: str

    @staticmethod
    def of(artifact: Artifact, signature: Signature) -> Identity:
        """Return the identity of an artifact; without a manifest, what the file itself shows."""
        manifest = artifact.manifest
        form = "attention" if "Attention" in signature.got.operators else "decomposed"
        return Identity(
            artifact.name,
            manifest.variant if manifest else form,
            signature.got.opset,
            signature.floating.name,
            artifact.sha256,
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields as the records call them."""
        return dict(vars(self))


class Identified(Protocol):
    """What findings can be about."""

    @property
    def identity(self) -> Identity: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class Subject:
    """An artifact under test with all that its cells share.

    Attributes:
        guessed: whether nobody says what the file takes, so that it may not be made for the inputs of a case.
    """

    identity: Identity
    signature: Signature
    expected: Expected
    tolerance: Tolerance | None = None
    guessed: bool = False

    def located(self, item: Finding) -> Finding:
        """Return a finding with what is around the node that it names; the file may not have it, a runtime's own graph does."""
        if not item.node or item.around or item.severity == "note":
            return item
        return replace(item, around=self._neighbours.of(item.node))

    @cached_property
    def _neighbours(self) -> Neighbours:
        return Neighbours(self.signature.model)


@dataclass(frozen=True, eq=False)
class Stage:
    """One runtime, ready to run an artifact, or the reason why not."""

    runtime: Runtime
    version: str
    arithmetic: Arithmetic
    session: Session | None = None
    verdict: Verdict = "passed"
    reason: str = ""
    code: str = ""
    placement: Placement = field(default_factory=Placement)

    @property
    def name(self) -> str:
        """The runtime's name."""
        return self.runtime.name


@dataclass(frozen=True, eq=False)
class Cell:
    """A record with the findings behind its codes.

    Attributes:
        unbounded: whether the bound says nothing of some elements.
    """

    record: CellRecord
    findings: tuple[Finding, ...] = ()
    unbounded: bool = False


def absent_cell(subject: Subject, stage: Stage) -> Cell:
    """Return the one cell of a runtime that could not be opened: skipped or errored, with the reason."""
    return _not_run(subject, stage, None, stage.verdict, finding(stage.code, stage.reason))


def skipped_case(subject: Subject, stage: Stage, case: CaseRecord, why: Finding) -> Cell:
    """Return the cell of a case that was not run, and why."""
    return _not_run(subject, stage, case, "skipped", why)


def run_cell(
    subject: Subject,
    stage: Stage,
    case: CaseRecord,
    inputs: Mapping[str, NDArray[Any]],
    evaluation: Evaluation | str,
    gauge: Gauge | None = None,
    relations: Relations | None = None,
) -> tuple[Cell, Tensors | None]:
    """Return the cell of a runtime on a case, and the outputs it gave.

    Args:
        subject: the artifact.
        stage: the runtime.
        case: for the record.
        inputs: of the case.
        evaluation: the oracle's, or why there is none.
        gauge: for the gates noise and direction; None leaves them out.
        relations: for the gate exact; None leaves it out.
    """
    assert stage.session is not None
    found: tuple[Finding, ...]
    outputs = outputs_of(subject, stage, case, inputs)
    if isinstance(outputs, Cell):
        return outputs, None
    if isinstance(evaluation, str):
        found = (finding("OA802", evaluation),)
        return Cell(_record(subject, stage, case, "inconclusive", evaluation, found), found), outputs
    judgement = judge(outputs, evaluation.outputs, subject.signature.dtypes)
    found = judgement.findings
    if found and case.mask == "empty-row":
        found = _name_policy(subject, stage.arithmetic, outputs, inputs, evaluation, judgement)
    measured, ran_as = None, None
    if gauge is not None and judgement.max_err_over_tau is not None:
        measured = gauge.measure(outputs)
        ran_as = gauge.ran_as(outputs, judgement, measured)
        found = _with_measured(found, measured, stage.arithmetic, ran_as)
    if judgement.max_err_over_tau is None:  # of another form: relations are about elements of the right one
        relations = None
    try:
        broken = [] if relations is None else relations.check(stage.session, outputs)
    except ProcessDiedError as error:
        return _died(subject, stage, case, error), None
    found = (*found, *broken)
    if subject.tolerance is not None and judgement.max_err_over_tau is not None:
        found = (*found, *exceeds(outputs, evaluation.outputs, subject.tolerance))
    verdict: Verdict = "failed" if found else "passed"
    reason = "; ".join(item.message for item in found)
    unbounded = not judgement.findings and judgement.unbounded > 0
    if not found:
        verdict, reason, found = _nothing_found(subject, case, inputs, evaluation, judgement)
    record = _measured(_record(subject, stage, case, verdict, reason, found, judgement), measured, ran_as)
    if gauge is None and judgement.max_err_over_tau is not None:
        record = _with_bits(record, outputs, evaluation.outputs, stage.arithmetic)
    if relations is not None:
        exact = {"relations": float(len(relations)), "broken": float(len(broken)), "broken_limit": 0.0}
        record = msgspec.structs.replace(record, gates={**record.gates, "exact": exact})
    return Cell(record, found, unbounded), outputs


def outputs_of(
    subject: Subject, stage: Stage, case: CaseRecord, inputs: Mapping[str, NDArray[Any]]
) -> Tensors | Cell:
    """Return what a runtime gives for a case, or the cell that says why it gives nothing."""
    assert stage.session is not None
    found: tuple[Finding, ...]
    try:
        return stage.session.run(inputs)
    except UnavailableError as error:
        found = (finding("OA202", str(error)),)
        return Cell(_record(subject, stage, case, "skipped", str(error), found), found)
    except ProcessDiedError as error:
        return _died(subject, stage, case, error)
    except Exception as error:  # noqa: BLE001 - whatever a runtime raises ends this cell, not the run
        reason = describe(error)
        found = (finding("OA304", reason),)
        return Cell(_record(subject, stage, case, "errored", reason, found), found)


def judged_cell(
    subject: Subject,
    stage: Stage,
    case: CaseRecord,
    judgement: Judgement,
    *,
    more: tuple[Finding, ...] = (),
    undeclared: str = "",
    bits: float | None = None,
    rows: Mapping[str, float | None] = MappingProxyType({}),
) -> Cell:
    """Return the cell of outputs that were judged by their rows.

    Args:
        subject: the artifact.
        stage: the runtime.
        case: for the record.
        judgement: of the rows.
        more: what else was found.
        undeclared: where the exact result is NaN and nobody says that it may be.
        bits: effective ones.
        rows: numbers about the rows, for the record.
    """
    found = (*judgement.findings, *more)
    verdict: Verdict = "failed" if found else "passed"
    reason = "; ".join(item.message for item in found)
    if not found and undeclared:
        verdict, reason, found = _undeclared(subject, case, undeclared, outside=subject.guessed)
    elif not found and judgement.unbounded:
        found = (no_bound(judgement),)
        verdict, reason = "inconclusive", found[0].message
    record = _record(subject, stage, case, verdict, reason, found, judgement)
    record = msgspec.structs.replace(record, gates={**record.gates, "rows": dict(rows)}, effective_bits=bits)
    return Cell(record, found)


def _nothing_found(
    subject: Subject,
    case: CaseRecord,
    inputs: Mapping[str, NDArray[Any]],
    evaluation: Evaluation,
    judgement: Judgement,
) -> tuple[Verdict, str, tuple[Finding, ...]]:
    """Return verdict, reason and findings where no gate found anything: passed, if that says something."""
    if undeclared := undeclared_nan(subject, inputs, evaluation.outputs):
        outside = subject.guessed and not _is_the_files_own(subject, evaluation)
        return _undeclared(subject, case, undeclared, outside=outside)
    if not _holds_a_number(evaluation):
        if subject.guessed:  # nobody asked for these sizes: others may show something
            return "skipped", _EMPTY, (finding("OA806", _EMPTY),)
        return "inconclusive", _EMPTY, ()
    if judgement.unbounded:
        unbounded = no_bound(judgement)
        return "inconclusive", unbounded.message, (unbounded,)
    return "passed", "", ()


def _undeclared(
    subject: Subject, case: CaseRecord, text: str, *, outside: bool
) -> tuple[Verdict, str, tuple[Finding, ...]]:
    """Return verdict, reason and finding of a NaN in the exact result; `outside`: the inputs may not be the file's."""
    if case.mask == "empty-row" and subject.signature.contract.guessed:
        # That some row has no key was our idea, and the module gives NaN as the file does: said, and no fault of either.
        text = f"nobody says that a row may be left without any key: {text}"
        return "skipped", text, (finding("OA808", text),)
    code = "OA808" if outside else "OA308"
    return "inconclusive" if outside else "failed", text, (finding(code, text),)


def errored_case(subject: Subject, stage: Stage, case: CaseRecord, error: Exception) -> Cell:
    """Return the cell of a case on which the verifier itself failed, and how."""
    return _not_run(subject, stage, case, "errored", finding("OA812", describe(error)))


def _died(subject: Subject, stage: Stage, case: CaseRecord, death: ProcessDiedError) -> Cell:
    return _not_run(subject, stage, case, "errored", finding("OA309", str(death)))


def _not_run(subject: Subject, stage: Stage, case: CaseRecord | None, verdict: Verdict, why: Finding) -> Cell:
    """Return the cell of what gave no outputs to be judged."""
    return Cell(_record(subject, stage, case, verdict, why.message, (why,)), (why,))


def _with_measured(
    found: tuple[Finding, ...], measured: Measured, declared: Arithmetic, ran_as: str | None
) -> tuple[Finding, ...]:
    """Return what the gates find together.

    A violated bound needs no second witness, but along which direction it is says what is wrong; and an arithmetic that
    would explain all of it makes it a matter of precision.
    """
    more = tuple(item for item in measured.findings if not found or item.code == "OA311")
    if not (found or more) or ran_as in (None, declared.name) or measured.shift is not None:
        return (*found, *more)
    explained = [
        replace(item, message=f"{item.message}; as {ran_as} it would be right", blame="precision")
        for item in (*found, *more)
    ]
    return tuple(explained)


def _measured(record: CellRecord, measured: Measured | None, ran_as: str | None) -> CellRecord:
    if measured is None:
        return record
    noise, limits = measured.noise, measured.limits
    direction = {one.label: finite(one.size) for one in measured.along}
    direction |= {f"{one.label} t": finite(one.t) for one in measured.along}
    direction |= {f"{one.label} least": finite(one.least) for one in measured.along}
    gates = {
        **record.gates,
        "noise": {
            "rms_z": finite(noise.rms_z),
            "rms_z_limit": finite(limits.rms_z),
            "max_z": finite(noise.max_z),
            "max_z_limit": finite(limits.max_z),
            "unlike_rows": float(measured.yardstick.unlike_rows),
        },
        "direction": direction,
    }
    bits = measured.effective_bits
    return msgspec.structs.replace(record, gates=gates, effective_bits=bits, ran_as=ran_as)


def _with_bits(
    record: CellRecord, outputs: Tensors, exact: Mapping[str, Bounded], arithmetic: Arithmetic
) -> CellRecord:
    """Return the record with effective bits, if the exact outputs have deviations."""
    if all(one.variance is None for one in exact.values()):
        return record
    bits = bits_of(noise_of(outputs, exact, arithmetic), arithmetic)
    return msgspec.structs.replace(record, effective_bits=bits)


def with_carried_bits(
    cell: Cell, stage: Stage, outputs: Tensors, exact: Mapping[str, Bounded], carried: Mapping[str, Bounded]
) -> Cell:
    """Return the cell with effective bits from exact outputs, and deviations that were carried through the pieces."""
    both = {
        name: replace(one, variance=carried[name].variance) for name, one in exact.items() if name in carried
    }
    return replace(cell, record=_with_bits(cell.record, outputs, both, stage.arithmetic))


def with_pieces(subject: Subject, stage: Stage, cell: Cell, judgement: Judgement, pieces: int) -> Cell:
    """Return a cell that had no bound end to end, judged by its pieces instead; still without one, it stays."""
    if not judgement.findings and judgement.unbounded:
        return cell
    # What the other gates found end to end stands: they need no bound.
    found = (
        *judgement.findings,
        *(item for item in cell.findings if item.code in NEED_NO_BOUND),
    )
    verdict: Verdict = "failed" if found else "passed"
    reason = "; ".join(item.message for item in found)
    record = _record(subject, stage, cell.record.case, verdict, reason, found, judgement)
    own = {"proof": {**record.gates["proof"], "pieces": float(pieces)}}
    kept = {
        name: numbers
        for name, numbers in cell.record.gates.items()
        if name in ("noise", "direction", "exact")
    }
    return Cell(
        msgspec.structs.replace(
            record, gates={**record.gates, **kept, **own}, effective_bits=cell.record.effective_bits
        ),
        found,
    )


def not_on_these_inputs(cell: Cell, reason: str) -> Cell:
    """Return an errored cell as skipped: neither the runtime nor the oracle can run the file on what we guessed."""
    if cell.record.verdict != "errored":
        return cell
    text = f"the file does not run on these inputs: {reason}; {cell.record.reason}"
    record = msgspec.structs.replace(cell.record, verdict="skipped", reason=text, findings=("OA806",))
    return Cell(record, (finding("OA806", text),))


def without_proof(cell: Cell) -> Cell:
    """Return a passed cell whose bound says nothing as inconclusive, unless its noise or its nodes were judged too."""
    gates = cell.record.gates
    if cell.record.verdict != "passed" or "noise" in gates or "pieces" in gates.get("proof", {}):
        return cell
    found = (finding("OA307", "the bound is as large as the outputs themselves"),)
    record = msgspec.structs.replace(
        cell.record, verdict="inconclusive", reason=found[0].message, findings=(found[0].code,)
    )
    return replace(cell, record=record, findings=found)


def because(cell: Cell, reason: str) -> Cell:
    """Return an inconclusive cell with one more reason why."""
    text = f"{cell.record.reason}; piece by piece: {reason}"
    return replace(cell, record=msgspec.structs.replace(cell.record, reason=text))


def undeclared_nan(
    subject: Subject,
    inputs: Mapping[str, NDArray[Any]],
    exact: Mapping[str, Bounded],
    at: Place = lambda _, index: index,
) -> str:
    """Return where the exact result is NaN although the inputs are numbers and the contract does not say so.

    `at` says where elements are in the whole, if these are parts of outputs.
    """
    if subject.signature.contract.empty_rows == "nan":
        return ""
    if any(is_floating(array.dtype) and np.isnan(array).any() for array in inputs.values()):
        return ""
    for name, reference in exact.items():
        nan = np.isnan(reference.value) if reference.is_float else np.zeros(0, bool)
        if nan.any():
            index = list(at(name, tuple(int(i) for i in np.argwhere(nan)[0])))
            return f"{name}{index} is NaN in float64 too, {int(nan.sum())} such of {nan.size}: the file itself gives it"
    return ""


def _holds_a_number(evaluation: Evaluation) -> bool:
    """Whether any output has an element that is not NaN: of two NaN, neither is right."""
    return any(
        not np.isnan(one.value).all() if one.is_float else one.value.size > 0
        for one in evaluation.outputs.values()
    )


def _is_the_files_own(subject: Subject, evaluation: Evaluation) -> bool:
    """Whether NaN is made of no input: in a constant, or by a softmax that is left no key. A logarithm is of its inputs."""
    constants = subject.expected.graph().constants.values()
    facts = [one.softmax for one in evaluation.outputs.values() if one.softmax is not None]
    facts += [seen.facts for seen in evaluation.attentions]
    return any(one.empty.any() for one in facts) or any(
        one.is_float and np.isnan(one.value).any() for one in constants
    )


def no_bound(judgement: Judgement) -> Finding:
    """Return the finding that a bound says nothing of some elements."""
    return finding("OA307", f"{judgement.unbounded} elements have no bound in this case")


def describe(error: Exception) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _record(
    subject: Subject,
    stage: Stage,
    case: CaseRecord | None,
    verdict: Verdict,
    reason: str,
    found: tuple[Finding, ...],
    judgement: Judgement | None = None,
) -> CellRecord:
    placement = stage.placement
    who = {
        "runtime": stage.name,
        "arithmetic": stage.arithmetic.name,
        "runtime_version": stage.version,
        "provider_requested": placement.requested,
        "provider_used": placement.used,
        "nodes_by_provider": placement.nodes_by_provider,
        "session": placement.details,
        "session_options": placement.session_options,
    }
    return cell_record(subject, who, case, verdict, reason, found, judgement)


def cell_record(
    subject: Subject,
    who: Mapping[str, Any],
    case: CaseRecord | None,
    verdict: Verdict,
    reason: str,
    found: tuple[Finding, ...],
    judgement: Judgement | None = None,
) -> CellRecord:
    """Return the record of a cell; `who` are its fields about the party that was judged."""
    return CellRecord(
        **subject.identity.fields(),
        **who,
        case=case,
        verdict=verdict,
        reason=reason,
        findings=tuple(dict.fromkeys(item.code for item in found)),
        **({} if judgement is None else _numbers(judgement)),
    )


def _numbers(judgement: Judgement) -> dict[str, Any]:
    worst = judgement.worst
    form_failed = judgement.max_err_over_tau is None
    return {
        "gates": {
            "form": {"failed": float(form_failed)},
            "proof": {"max_err_over_tau": finite(judgement.max_err_over_tau)},
        },
        "max_abs_err": finite(judgement.max_abs_err),
        "max_rel_err": finite(judgement.max_rel_err),
        "worst_output": worst.output,
        "worst_index": worst.index,
        "worst_actual": f"{worst.actual:.9g}" if worst.output else "",
        "worst_expected": f"{worst.expected:.9g}" if worst.output else "",
    }


def _name_policy(
    subject: Subject,
    arithmetic: Arithmetic,
    outputs: Tensors,
    inputs: Mapping[str, NDArray[Any]],
    evaluation: Evaluation,
    judgement: Judgement,
) -> tuple[Finding, ...]:
    """Return OA305 with the policy that the outputs follow, if some other policy than the declared explains them.

    Otherwise the gates' own findings stand: then the fault is not in the empty rows alone.
    """
    declared = subject.signature.contract.empty_rows
    row = first_empty_row(evaluation) or "unknown"
    for policy, words in POLICIES.items():
        if policy == declared or not _follows(subject, arithmetic, outputs, inputs, policy):
            continue
        message = f"the row without any key, {row}, is {words}; the contract declares {POLICIES[declared]}"
        return (finding("OA305", message),)
    return judgement.findings


def _follows(
    subject: Subject,
    arithmetic: Arithmetic,
    outputs: Tensors,
    inputs: Mapping[str, NDArray[Any]],
    policy: str,
) -> bool:
    try:
        other = subject.expected.evaluate_graph(inputs, arithmetic, policy)
    except UnsupportedOperatorError:
        return False
    bounds: dict[str, Bounded] = other.outputs
    return judge(outputs, bounds, subject.signature.dtypes).passed


def first_empty_row(evaluation: Evaluation) -> str:
    """Return where the first row without any key is, "" if there is none."""
    for seen in evaluation.attentions:
        rows = np.argwhere(seen.facts.empty)
        if len(rows):
            return f"{[int(i) for i in rows[0]]}"
    return ""
