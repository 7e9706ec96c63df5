"""The exporter check: the module in float64 against the file's graph in float64 (DESIGN.md section 4, step 1).

A file rounds its constants, which hides an error of 1e-9 in a scale. So the module's double twin is exported as well:

* the *twin* must give what the module gives in float64, within the rounding of float64 (and of what the module itself
  computes in a shorter format);
* each constant of the file must be the twin's, rounded;
* the *file's* graph, with the twin's constants in place of its own, must give what the module gives.

No runtime takes part: that all of them agree proves nothing if they run the same wrong graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from onnx_attest.export.artifact import Artifact
from onnx_attest.export.lower import ExportError
from onnx_attest.export.twin import Twin, twin_of
from onnx_attest.verify.arithmetic import OF_DTYPE, PROFILES
from onnx_attest.verify.blame import EXPORTER
from onnx_attest.verify.cell import POLICIES, Cell, Subject, cell_record, describe, first_empty_row, no_bound
from onnx_attest.verify.constants import COMPUTED_ROUNDINGS, Beside, Pair, mended
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.gates import Judgement, judge
from onnx_attest.verify.oracle.bounded import Bounded, is_floating
from onnx_attest.verify.oracle.graph import HIDES, GraphOracle
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError, is_short
from onnx_attest.verify.records import CaseRecord, Verdict
from onnx_attest.verify.runtimes.base import Tensors, UnavailableError
from onnx_attest.verify.runtimes.torch_eager import TorchSession, module_of
from onnx_attest.verify.segments import Cuts, Listened, alike, at_places, cuts_of

LONGEST = 64
"""Cases with a longer axis are left to the runtimes: the file's graph is the same at any size."""
_FP64 = PROFILES["fp64"]
_STEP = 2.0**-20  # of the finite difference; its own error, of second order, is a millionth of the estimate
_EXPLAINED = 0.99
_CODES = {"attribute": "OA112", "cast": "OA114", "written": "OA115"}


@dataclass(frozen=True, eq=False)
class ExporterCheck:
    """The module and the graphs of one artifact, ready to be compared on any case.

    Attributes:
        module: in the file's own dtype.
        constants: to evaluate the file's graph with.
        pairs: of the file's and the twin's constants.
        places: where the file's graph and the twin's can be cut, see `segments.cuts_of`; none where not at the same positions.
        note: why there is no twin, "" if there is.
    """

    artifact: Artifact
    subject: Subject
    module: Any
    twin: Twin
    twin_oracle: GraphOracle | None
    file_oracle: GraphOracle
    constants: Mapping[str, Bounded]
    pairs: Sequence[Pair]
    places: tuple[Cuts, Cuts]
    differences: tuple[tuple[str, str, str], ...] = ()
    note: str = ""
    _under: dict[str, GraphOracle] = field(default_factory=dict)

    @staticmethod
    def of(artifact: Artifact, subject: Subject) -> ExporterCheck | None:
        """Return the check of an artifact, None where no module is known (the reports say so elsewhere).

        Raises:
            UnavailableError: the module does not run in float64.
        """
        try:
            module = module_of(artifact)
        except UnavailableError:
            return None
        assert artifact.manifest is not None  # module_of refused it otherwise
        try:
            twin = twin_of(module, artifact.manifest.contract)
        except Exception as error:
            reason = f"the module cannot be copied into float64 and run: {describe(error)}"
            raise UnavailableError(reason) from error
        model, note, pairs, twin_oracle = subject.signature.model, "", list[Pair](), None
        places = cuts_of(model)
        twin_places, differences = places, tuple[tuple[str, str, str], ...]()
        numbers, dtype = twin.numbers(), subject.identity.dtype
        try:
            graph = twin.graph(artifact.manifest.asked.opset)
            folded = twin.folded()
            beside = Beside(model, graph)
            pairs, twin_places = beside.pairs(numbers, folded), cuts_of(graph)
            differences = tuple(beside.differences(dtype, twin.dtypes()))
            twin_oracle = GraphOracle(mended(graph, pairs), parameters=numbers, folded=folded)
        except ExportError as error:
            note = f"no double twin: {error}"
        if broken := [pair.name for pair in pairs if pair.unusable]:
            note = f"no double twin: its constant {broken[0]} is NaN, the file's is a number"
            pairs, twin_oracle = [], None
        file_oracle = GraphOracle(model)
        constants = _meant(file_oracle, pairs, numbers, dtype)
        both = alike(places, twin_places)
        return ExporterCheck(
            artifact,
            subject,
            module,
            twin,
            twin_oracle,
            file_oracle,
            constants,
            pairs,
            both,
            differences,
            note,
        )

    def about_file(self) -> list[Finding]:
        """Return what is found without running anything: constants that are not the module's."""
        found = [
            finding("OA112", text, blame=EXPORTER, node=pair.user)
            for pair in self.pairs
            if (text := pair.difference)
        ]
        found += [
            finding(_CODES[kind], text, blame=EXPORTER if kind != "written" else "", node=node)
            for kind, text, node in self.differences
        ]
        return found + ([finding("OA113", self.note)] if self.note else [])

    @cached_property
    def recomputed(self) -> dict[str, Bounded]:
        """Return the constants that the module computes anew at each run, with how far it may be from the file's."""
        # The exporter passes Python's floats through float32 whatever the file's dtype is, torch does not.
        u = max(PROFILES[OF_DTYPE[self.subject.identity.dtype]].u_out, PROFILES["fp32"].u)
        anew = {}
        for pair in self.pairs:
            # A scale's rounding is within the bound of what it scales, but where float64 is compared with float64.
            if pair.held or pair.difference or not (pair.folded or self.subject.identity.dtype == "float64"):
                continue
            stored, meant = pair.stored.astype(np.float64), pair.meant.astype(np.float64)
            computed = np.isfinite(stored) & np.isfinite(meant) & (np.abs(meant) < HIDES) & ~is_short(meant)
            if computed.any():
                near, far = (np.where(computed, array, 0.0) for array in (stored, meant))
                error = np.abs(near - far) + COMPUTED_ROUNDINGS * u * np.abs(far)
                anew[pair.name] = Bounded(stored, error)
        return anew

    def cell(self, case: CaseRecord, inputs: Tensors) -> Cell:
        """Return the cell of the exporter on a case."""
        wide = {name: _widened(array) for name, array in inputs.items()}
        session = TorchSession(self.twin.module, self.artifact)
        try:
            module, heard = session.run_and_listen(wide)
        except Exception as error:  # noqa: BLE001 - whatever a module raises ends this cell, not the run
            return self._cell(case, "errored", (finding("OA304", describe(error)),))
        try:
            found, judgement = self._judged(module, wide, heard)
        except UnsupportedOperatorError as error:
            return self._cell(case, "inconclusive", (finding("OA802", str(error)),))
        if found and self._is_another_function(inputs, module):
            text = "the module is another function in float64 than in the file's dtype"
            return self._cell(case, "inconclusive", (finding("OA116", text),), judgement)
        if not found and judgement.unbounded:
            return self._cell(case, "inconclusive", (no_bound(judgement),), judgement)
        return self._cell(case, "failed" if found else "passed", found, judgement)

    def _judged(
        self, module: Tensors, inputs: Tensors, heard: Listened
    ) -> tuple[tuple[Finding, ...], Judgement]:
        """Return what is found end to end; where that has no bound, piece by piece, if the graphs can be cut.

        Raises:
            UnsupportedOperatorError: neither way has one.
        """
        try:
            found, judgement = self._compare(module, inputs, None)
        except UnsupportedOperatorError:
            if not self._can_be_cut(heard):
                raise
            return self._compare(module, inputs, heard)
        if not found and judgement.unbounded and self._can_be_cut(heard):
            return self._compare(module, inputs, heard)
        if found and not found[0].node and (place := self._piece_at_fault(module, inputs, heard)):
            text = f"{found[0].message}; from the module's own values before it, {place} is off"
            found = (replace(found[0], message=text, node=self.file_oracle.maker_of(place)),)
        return found, judgement

    def _piece_at_fault(self, module: Tensors, inputs: Tensors, heard: Listened) -> str:
        """Return the value inside the file that is farthest off where nothing compounds, "" if none is known."""
        if not self._can_be_cut(heard):
            return ""
        inside = at_places(self.places[0], heard)
        try:
            seen = self.file_oracle.evaluate(inputs, _FP64, constants=self.constants, observed=inside)
        except UnsupportedOperatorError:
            return ""
        values = {**module, **inside}
        dtypes = {name: array.dtype for name, array in values.items()}
        return self._place(judge(values, {**seen.outputs, **seen.observed}, dtypes), inside)

    def _can_be_cut(self, heard: Listened) -> bool:
        try:
            return bool(at_places(self.places[0], heard))
        except LookupError:
            return False

    def _compare(
        self, module: Tensors, inputs: Tensors, heard: Listened | None
    ) -> tuple[tuple[Finding, ...], Judgement]:
        """Return what is found end to end or, with what the module had inside, piece by piece."""
        inside = {} if heard is None else at_places(self.places[0], heard)
        evaluation = self.file_oracle.evaluate(inputs, _FP64, constants=self.constants, observed=inside)
        file = {**evaluation.outputs, **evaluation.observed}
        values = {**module, **inside}
        dtypes = {name: array.dtype for name, array in values.items()}
        if self.twin_oracle is not None:
            there = {} if heard is None else at_places(self.places[1], heard)
            evaluation = self.twin_oracle.evaluate(inputs, _FP64, observed=there)
            twin = {**evaluation.outputs, **self._as_in_file(evaluation.observed)}
            # What the module computes in a shorter format on purpose is in the twin's bound only.
            file = {name: _wider(bound, twin[name]) for name, bound in file.items() if name in twin}
            judged = judge(values, twin, dtypes)
            if not judged.passed:
                text = f"exported in float64, {_first(judged)}"
                where = self._place(judged, inside)
                return (self._finding(text, self.twin_oracle, {}, module, inputs, where),), judged
        judged = judge(values, file, dtypes)
        if judged.passed:
            return (), judged
        where = self._place(judged, inside)
        return (
            self._finding(_first(judged), self.file_oracle, self.constants, module, inputs, where),
        ), judged

    def _as_in_file(self, observed: Mapping[str, Bounded]) -> dict[str, Bounded]:
        """Return what the twin has at its places, by the file's names."""
        return {
            file.names[index]: observed[name]
            for file, twin in zip(self.places[0].rows, self.places[1].rows, strict=True)
            for index, name in twin.names.items()
            if name in observed
        }

    def _is_another_function(self, inputs: Tensors, double: Tensors) -> bool:
        """Whether the module in the file's own dtype gives what the file does, and in float64 something else."""
        try:
            own = TorchSession(self.module, self.artifact).run(inputs)
            profile = PROFILES[OF_DTYPE[self.subject.identity.dtype]]
            file = self.file_oracle.evaluate(inputs, profile, constants=self.recomputed).outputs
        except Exception:  # noqa: BLE001 - then nothing is known, and the finding stands
            return False
        dtypes = {name: array.dtype for name, array in own.items()}
        wide = {name: array.dtype for name, array in double.items()}
        return judge(own, file, dtypes).passed and not judge(double, file, wide).passed

    @staticmethod
    def _place(judged: Judgement, inside: Tensors) -> str:
        """Return the value inside the file's graph that is farthest off, "" if it is an output."""
        return judged.worst.output if judged.worst.output in inside else ""

    def _empty_row(
        self, oracle: GraphOracle, constants: Mapping[str, Bounded], module: Tensors, inputs: Tensors
    ) -> str:
        """Return what the module gives for a row without any key, if that alone explains how the graph differs."""
        for policy, words in POLICIES.items():
            key = f"{policy} {id(oracle)}"
            if key not in self._under:
                self._under[key] = oracle.under(policy)
            try:
                evaluation = self._under[key].evaluate(inputs, _FP64, constants=constants)
            except UnsupportedOperatorError:
                continue
            row = first_empty_row(evaluation)
            if (
                row
                and judge(
                    module, evaluation.outputs, {name: array.dtype for name, array in module.items()}
                ).passed
            ):
                return f"the row without any key, {row}, is {words} in the module"
        return ""

    def _finding(
        self,
        text: str,
        oracle: GraphOracle,
        constants: Mapping[str, Bounded],
        module: Tensors,
        inputs: Tensors,
        place: str,
    ) -> Finding:
        """Return what is wrong, and what would explain it; else the node whose value is, if it is inside."""
        if row := self._empty_row(oracle, constants, module, inputs):
            return finding("OA111", f"{text}; {row}", blame=EXPORTER)
        suspect = _Suspects(oracle, constants, module, inputs).worst()
        if suspect is None:
            return finding("OA111", text, blame=EXPORTER, node=oracle.maker_of(place))
        message = f"{text}; as if {suspect.label} were times 1 {suspect.error:+.2g}"
        return finding("OA111", message, blame=EXPORTER, node=_user(self.subject, suspect.constant))

    def _cell(
        self,
        case: CaseRecord,
        verdict: Verdict,
        found: tuple[Finding, ...],
        judgement: Judgement | None = None,
    ) -> Cell:
        return _cell(self.subject, self.artifact, case, verdict, found, judgement)


def _cell(
    subject: Subject,
    artifact: Artifact,
    case: CaseRecord | None,
    verdict: Verdict,
    found: tuple[Finding, ...],
    judgement: Judgement | None = None,
) -> Cell:
    versions = artifact.manifest.versions if artifact.manifest else {}
    who = {"runtime": EXPORTER, "arithmetic": "fp64", "runtime_version": versions.get("torch", "unknown")}
    reason = "; ".join(item.message for item in found)
    record = cell_record(subject, who, case, verdict, reason, found, judgement)
    if judgement is not None and (worst := judgement.worst).output:
        # The module is what is right here: seen from it, the graph's value is the actual one.
        record = msgspec.structs.replace(
            record, worst_actual=f"{worst.expected:.17g}", worst_expected=f"{worst.actual:.17g}"
        )
    return Cell(record, found)


def dead_cell(artifact: Artifact, subject: Subject, reason: str) -> Cell:
    """Return the one cell of an exporter check that took its process along."""
    return _cell(subject, artifact, None, "errored", (finding("OA309", reason),))


def fits(case: CaseRecord) -> bool:
    """Whether a case is one of those that the exporter check takes."""
    return max(case.axes.values(), default=1) <= LONGEST


def _widened(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float64) if is_floating(array.dtype) else array


def _meant(
    file: GraphOracle, pairs: Sequence[Pair], parameters: NDArray[np.float64], dtype: str
) -> dict[str, Bounded]:
    """Return the constants to evaluate the file with: the twin's where there is one, else its own with their rounding."""
    meant = {
        pair.name: Bounded(
            pair.meant.astype(np.float64) if not pair.difference else pair.stored.astype(np.float64)
        )
        for pair in pairs
    }
    u = PROFILES[OF_DTYPE[dtype]].u_out
    unpaired = {name: own for name, own in file.constants.items() if own.is_float and name not in meant}
    return meant | {name: _rounded(own, parameters, u) for name, own in unpaired.items()}


def _rounded(constant: Bounded, parameters: NDArray[np.float64], u: float) -> Bounded:
    """Return a constant with the rounding of the file's dtype, unless the module holds that very number."""
    value = constant.value
    exact = np.isin(value, parameters) | ~np.isfinite(value) | is_short(value) | (np.abs(value) > HIDES)
    if exact.all():
        return constant
    return Bounded(value, COMPUTED_ROUNDINGS * u * np.where(exact, 0.0, np.abs(value)))


def _wider(file: Bounded, twin: Bounded) -> Bounded:
    if file.value.shape != twin.value.shape or (file.error is None and twin.error is None):
        return file
    return Bounded(file.value, np.broadcast_to(file.errors() + twin.errors(), file.value.shape))


def _first(judgement: Judgement) -> str:
    """Return what the gates found, told from the module's side: it is right, and the graph is not."""
    worst = judgement.worst
    if not worst.output:
        return judgement.findings[0].message
    where = f"{worst.output}{list(worst.index)}"
    text = f"the graph's {where} is {worst.expected:.9g}, the module's {worst.actual:.9g}"
    return text if judgement.max_err_over_tau is None else f"{text}: {worst.ratio:.3g} times the bound"


@dataclass(frozen=True)
class _Suspect:
    """A number of the graph that would explain the difference if it were off by a relative `error`.

    Attributes:
        constant: its name, "" for the logits of all softmax.
    """

    label: str
    constant: str
    error: float = 0.0


@dataclass(frozen=True, eq=False)
class _Suspects:
    """The search for the one number of a graph whose error explains how the outputs differ from the module's.

    For each candidate the outputs' derivative D is taken by a finite difference, and the relative error eps that makes
    |o - y - eps D| smallest: eps = <o - y, D> / <D, D>. It is told if undoing it leaves less than 1 %.
    """

    oracle: GraphOracle
    constants: Mapping[str, Bounded]
    module: Tensors
    inputs: Tensors

    def worst(self) -> _Suspect | None:
        with np.errstate(all="ignore"):  # a difference may be beyond all numbers
            try:
                return self._worst()
            except UnsupportedOperatorError:  # what was found piece by piece stands without a suspect
                return None

    def _worst(self) -> _Suspect | None:
        outputs = self._outputs(None, 1.0)
        if any(outputs[name].shape != self.module[name].shape for name in outputs):
            return None
        difference = self._difference(outputs)
        whole = float(difference @ difference)
        if not 0 < whole < np.inf:
            return None
        likely = []
        for suspect in self._candidates():
            moved = self._outputs(suspect, 1 + _STEP)
            if any(
                not np.array_equal(np.isfinite(moved[name]), np.isfinite(outputs[name])) for name in outputs
            ):
                continue  # it breaks, a mask that overflows say: that is no direction
            direction = _flat({name: (moved[name] - outputs[name]) / _STEP for name in outputs})
            length = float(direction @ direction)
            if 0 < length < np.inf:
                error = float(difference @ direction) / length
                left = float(((difference - error * direction) ** 2).sum())
                if left < (1 - _EXPLAINED) * whole:
                    likely.append((not suspect.constant, left, replace(suspect, error=error)))
        for _, _, suspect in sorted(likely, key=lambda one: one[:2]):  # a constant can be looked at
            undone = self._difference(self._outputs(suspect, 1 / (1 + suspect.error)))
            if float(undone @ undone) < (1 - _EXPLAINED) * whole:
                return suspect
        return None

    def _candidates(self) -> Iterator[_Suspect]:
        for name, constant in {**self.oracle.constants, **self.constants}.items():
            value = constant.value
            if constant.is_float and value.size == 1 and 0 < abs(value.reshape(-1)[0]) < HIDES:
                yield _Suspect(f"the constant {name} ({float(value.reshape(-1)[0]):.6g})", name)
        yield _Suspect("the logits", "")

    def _outputs(self, suspect: _Suspect | None, factor: float) -> Tensors:
        constants, logit_factor = dict(self.constants), 1.0
        if suspect is not None and suspect.constant:
            own = constants.get(suspect.constant, self.oracle.constants[suspect.constant])
            constants[suspect.constant] = Bounded(own.value * factor)
        elif suspect is not None:
            logit_factor = factor
        evaluation = self.oracle.evaluate(self.inputs, _FP64, constants=constants, logit_factor=logit_factor)
        return {name: bounded.value for name, bounded in evaluation.outputs.items()}

    def _difference(self, outputs: Tensors) -> NDArray[np.float64]:
        return _flat({name: outputs[name] - self.module[name] for name in outputs})


def _user(subject: Subject, constant: str) -> str:
    nodes = subject.signature.model.graph.node
    return next((node.name for node in nodes if constant and constant in node.input), "")


def _flat(outputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return all numbers in a row, 0 where they are no numbers."""
    parts = [np.asarray(array, np.float64).reshape(-1) for array in outputs.values()]
    whole = np.concatenate(parts) if parts else np.zeros(0)
    return np.where(np.isfinite(whole), whole, 0.0)
