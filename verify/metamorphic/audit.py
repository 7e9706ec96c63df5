"""Relations on runtimes: one record a relation and runtime, judged where something says that it has to hold.

Who says so: the file's contract; without one, and where the reference is not switched off, the file's own graph in
float64. Bounds are those of the file's own graph: their values are never compared with a runtime's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from onnx_attest.models.contract import MaskKind
from onnx_attest.verify.arithmetic import OF_DTYPE, PROFILES, Arithmetic
from onnx_attest.verify.cases import USUAL_STD, longest_axis, make_inputs
from onnx_attest.verify.cell import Stage, Subject, describe
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.gauge import LARGEST
from onnx_attest.verify.metamorphic.bases import Bases
from onnx_attest.verify.metamorphic.evidence import Evidence, Outputs, Runner, Slacks
from onnx_attest.verify.metamorphic.found import relations_of
from onnx_attest.verify.metamorphic.layout import layout_of
from onnx_attest.verify.metamorphic.relation import ABOUT, Relation
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.kernels import VALUES_ALONE
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.records import AskedBy, CaseRecord, RelationRecord, Verdict, finite
from onnx_attest.verify.runtimes.base import ProcessDiedError, Tensors

BATCH = 8
"""Sequences of the case, see `batch-singles`."""
FEW = 2
"""The same for images and what else has a long axis whatever the case."""
_MORE = 2
"""Tokens beyond the traced number: a file that works at that number only shows."""
_CONTRACT: AskedBy = "contract"
_GRAPH: AskedBy = "graph in float64"


@dataclass(frozen=True, eq=False)
class Asked:
    """A relation, and who says that it has to hold, "" if nobody does."""

    relation: Relation
    by: AskedBy
    broken: str = ""


class Audit:
    """The relations of one artifact."""

    def __init__(self, subject: Subject, *, explicit: bool, reference: bool, seed: int = 0) -> None:
        """Find them.

        Args:
            subject: the artifact.
            explicit: whether its contract was written for it.
            reference: whether the graph in float64 may say which relations hold.
            seed: of the inputs.
        """
        self._subject, self._reference = subject, reference
        self._contract = subject.signature.contract
        self._seed = seed
        self._slacks: dict[tuple[Arithmetic, bytes], Slacks] = {}
        widest = subject.expected.coarsest or PROFILES[OF_DTYPE[subject.identity.dtype]]
        self._of_codes = any(
            "Quantize" in name or "QLinear" in name for name in subject.signature.got.operators
        )
        layout = layout_of(self._contract, subject.signature.model)
        self._bases = Bases(layout, self._inputs, widest, explicit, {})
        self.relations = relations_of(self._bases)

    @cached_property
    def case(self) -> CaseRecord:
        """Sizes of all runs that do not change them: a batch of 8, and more tokens than were traced."""
        kinds = self._contract.mask_kinds()
        plain = "all" if "all" in kinds else (kinds[0] if kinds else None)
        expected = self._subject.expected
        std = None
        if not expected.reason and expected.has_attention() and expected.reaches(USUAL_STD):
            std = USUAL_STD
        return CaseRecord(name="relations", axes=self._axes(), mask=plain, logit_std=std, seed=self._seed)

    def _axes(self) -> dict[str, int]:
        contract, step = self._contract, self._contract.granularity
        sizes = {}
        large = longest_axis(contract, contract.traced) > LARGEST
        for axis in contract.symbolic_axes():
            batch = FEW if large else BATCH
            wanted = batch if contract.is_batch(axis) else contract.traced[axis] + _MORE * step
            sizes[axis] = min(wanted, contract.longest.get(axis, wanted))
        return sizes

    def _inputs(self, mask: MaskKind | None) -> Tensors:
        case = self.case
        if mask is not None:
            case = CaseRecord(
                name=case.name, axes=case.axes, mask=mask, logit_std=case.logit_std, seed=case.seed
            )
        if self._subject.expected.reason:
            return make_inputs(self._contract, case, dtype=self._subject.signature.floating)
        return self._subject.expected.inputs(case)

    @cached_property
    def asked(self) -> list[Asked]:
        """The relations, each with who says that it has to hold."""
        held = self._in_float64() if self._reference and not self._subject.expected.reason else {}
        found = []
        for one in self.relations:
            of_graph = held.get(one.name)
            broken = of_graph.text if of_graph is not None and of_graph.holds == "no" else ""
            by: AskedBy = _CONTRACT if one.promised else ""
            if not by and of_graph is not None and of_graph.holds in ("bitwise", "rounding"):
                by = _GRAPH
            found.append(Asked(one, "" if one.exactness == "reported" else by, broken))
        return found

    def _in_float64(self) -> Mapping[str, Evidence]:
        """Return which relations the specification, or the graph, has in float64, within what float64 itself rounds."""
        evaluate, fp64 = self._subject.expected.evaluate, PROFILES["fp64"]
        values = replace(fp64, kernel=VALUES_ALONE)

        def run(inputs: Mapping[str, Any]) -> Outputs:
            return {name: one.value for name, one in evaluate(inputs, values).outputs.items()}

        runner = Runner(run, lambda inputs: _slacks(evaluate(inputs, fp64).outputs))
        held = {}
        for one in self.relations:
            try:
                held[one.name] = runner.examine(one)
            except UnsupportedOperatorError:
                continue
        return held

    def about_file(self) -> list[Finding]:
        """Return what the contract promises and the graph lacks in float64."""
        return [
            finding("OA504", f"{one.relation.name}: {ABOUT[one.relation.name].statement}; {one.broken}")
            for one in self.asked
            if one.by == _CONTRACT and one.broken and one.relation.exactness != "reported"
        ]

    def on(self, stage: Stage) -> Iterator[tuple[RelationRecord, tuple[Finding, ...]]]:
        """Yield what a runtime makes of each relation.

        A runtime that takes its process along ends here: the relation that it died over is errored.
        """
        assert stage.session is not None
        bound = None if self._subject.expected.reason else self._bounds(stage.arithmetic)
        runner = Runner(stage.session.run, bound)
        for asked in self.asked:
            try:
                evidence = runner.examine(asked.relation)
            except ProcessDiedError as error:
                found = (finding("OA309", str(error)),)
                yield self._record(stage, asked, "errored", str(error), found), found
                return
            except Exception as error:  # noqa: BLE001 - whatever a runtime raises ends this relation, not the run
                yield self._raised(stage, asked, describe(error))
                continue
            yield self._judged(stage, asked, evidence)

    def _bounds(self, arithmetic: Arithmetic) -> Callable[[dict[str, Any]], Slacks]:
        """Return how far a correct runtime's outputs may be from exact, by the file's own graph."""
        expected, policy = self._subject.expected, self._contract.empty_rows

        def bounds(inputs: dict[str, Any]) -> Slacks:
            # Runtimes of one arithmetic share them: most inputs do not depend on what a runtime gave before.
            key = arithmetic, _digest(inputs)
            if key not in self._slacks:
                try:
                    self._slacks[key] = _slacks(expected.evaluate_graph(inputs, arithmetic, policy).outputs)
                except UnsupportedOperatorError:
                    self._slacks[key] = {
                        name: np.asarray(np.inf) for name in self._subject.signature.got.outputs
                    }
            return self._slacks[key]

        return bounds

    def _raised(self, stage: Stage, asked: Asked, reason: str) -> tuple[RelationRecord, tuple[Finding, ...]]:
        """Return a relation whose runs raised: an error of the runtime where it was promised, else a fact."""
        if asked.by != _CONTRACT or not self._bases.explicit:
            return self._record(stage, asked, "skipped", f"it does not run: {reason}", ()), ()
        found = (finding("OA304", f"{asked.relation.name}: {reason}"),)
        return self._record(stage, asked, "errored", reason, found), found

    def _judged(
        self, stage: Stage, asked: Asked, evidence: Evidence
    ) -> tuple[RelationRecord, tuple[Finding, ...]]:
        relation = asked.relation
        said = f"{relation.name}: {evidence.text}"
        found: tuple[Finding, ...] = ()
        verdict: Verdict = "passed"
        reason = ""
        if not asked.by:
            verdict, reason = "inconclusive", evidence.text or "nobody says that it has to hold"
        elif asked.broken and self._of_codes:
            # What is rounded to codes is not twice as large for twice the input; that is the file's, not the runtime's.
            verdict, reason = "inconclusive", f"the quantised graph itself does not keep it: {asked.broken}"
        elif relation.exactness == "bitwise" and evidence.holds != "bitwise":
            verdict, found = "failed", (finding("OA501", said),)
        elif evidence.holds == "no":
            verdict, found = "failed", (finding("OA502", said),)
        elif evidence.holds == "unknown":
            verdict, reason = "inconclusive", evidence.text
        reason = "; ".join(item.message for item in found) or reason
        return self._record(stage, asked, verdict, reason, found, evidence), found

    def _record(
        self,
        stage: Stage,
        asked: Asked,
        verdict: Verdict,
        reason: str,
        found: Sequence[Finding],
        evidence: Evidence | None = None,
    ) -> RelationRecord:
        seen = evidence or Evidence("unknown", 0, 0, 0.0, None)
        return RelationRecord(
            **self._subject.identity.fields(),
            runtime=stage.name,
            relation=asked.relation.name,
            exactness=asked.relation.exactness,
            asked_by=asked.by,
            case=self.case,
            arithmetic=stage.arithmetic.name,
            verdict=verdict,
            reason=reason,
            holds=seen.holds,
            runs=len(asked.relation.steps),
            elements=seen.elements,
            differing=seen.differing,
            max_difference=finite(seen.largest) if evidence else None,
            max_difference_over_bound=finite(seen.over_bound),
            findings=tuple(item.code for item in found),
        )


def _digest(inputs: Mapping[str, Any]) -> bytes:
    """Return a digest of inputs, of their errors too where they have any."""
    found = hashlib.blake2b(digest_size=16)
    for name, one in sorted(inputs.items()):
        parts = (one.value, np.asarray(one.errors())) if isinstance(one, Bounded) else (one,)
        for part in parts:
            found.update(f"{name} {part.dtype.name} {part.shape}".encode())
            found.update(np.ascontiguousarray(part).view(np.uint8).data if part.size else b"")
    return found.digest()


def _slacks(outputs: Mapping[str, Any]) -> Slacks:
    return {name: np.broadcast_to(one.errors(), one.value.shape) for name, one in outputs.items()}


def disagreements(records: Sequence[RelationRecord]) -> Iterator[Finding]:
    """Yield the relations that nobody asks for and that some runtimes have and others do not: one of them is wrong."""
    names = dict.fromkeys(record.relation for record in records)
    for name in names:
        seen = [one for one in records if one.relation == name and not one.asked_by]
        kept = [one.runtime for one in seen if one.holds in ("bitwise", "rounding")]
        broken = [one for one in seen if one.holds == "no"]
        if kept and broken and seen[0].exactness != "reported":
            lacking = ", ".join(one.runtime for one in broken)
            text = f"{name}: holds on {', '.join(kept)} and not on {lacking}: {broken[0].reason}"
            yield finding("OA503", text)
