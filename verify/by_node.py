"""What node-by-node looks make of a cell: a verdict where the whole graph has no bound, a culprit where it failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.blame import MODULES
from onnx_attest.verify.cell import NEED_NO_BOUND, Cell, Stage, Subject, because, describe
from onnx_attest.verify.excuse import excuse
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.inspection import Inspected, Inspection, pass_at_fault
from onnx_attest.verify.known import Known
from onnx_attest.verify.nodewise import Walk
from onnx_attest.verify.oracle.graph import Evaluation
from onnx_attest.verify.records import Verdict, finite
from onnx_attest.verify.runtimes.base import Tensors

_NAMED = 3
_FEW_ROUNDINGS = 2.0**12


class NodeByNode:
    """The runtimes of one artifact, looked into where their cells ask for it; each is opened so once."""

    def __init__(
        self,
        artifact: Artifact,
        subject: Subject,
        known: tuple[Known, ...],
        threads: int | None,
        on_look: Callable[[str], None],
    ) -> None:
        """Keep what is looked into; `on_look` is told the runtime before it is."""
        self._artifact, self._subject, self._known = artifact, subject, known
        self._threads, self._on_look = threads, on_look
        self._inspections: dict[str, Inspection | str] = {}
        self._guilty: dict[str, Finding | None] = {}

    def judged(self, stage: Stage, cell: Cell, inputs: Tensors, outputs: Tensors, *, lacking: bool) -> Cell:
        """Return a cell that is `lacking` a bound judged by its nodes, and a runtime's first failed one with its culprit."""
        failed = cell.record.verdict == "failed" and stage.name not in self._inspections
        lacking = lacking and cell.record.verdict in ("inconclusive", "passed")
        if not self.can_look(stage) or not (failed or lacking) or excuse(cell, self._known).record.known:
            return cell
        try:
            inspection = self._inspection(stage)
            if isinstance(inspection, str):
                return because(cell, inspection)
            self._on_look(stage.name)
            inspected = inspection.look(inputs, outputs, stage.arithmetic)
            culprit = self._culprit(stage, inspection, inspected, inputs)
        except Exception as error:  # noqa: BLE001 - the cell stays what it is, and says what was tried
            return because(cell, describe(error))
        judge = with_culprit if failed else judged_by_nodes
        return judge(cell, inspected, culprit)

    def can_look(self, stage: Stage) -> bool:
        """Whether a runtime has nodes to look at, and the oracle's are the same ones.

        In half precision ONNX Runtime's CPU keeps float32 between nodes: what it shows is a rounded copy.
        """
        own = self._subject.expected.source == "graph" and not self._subject.expected.mixes
        return stage.name not in MODULES and own and self._subject.identity.dtype in ("float32", "float64")

    def _inspection(self, stage: Stage) -> Inspection | str:
        """Return how to look into a runtime, or why that is not possible."""
        if stage.name not in self._inspections:
            try:
                self._inspections[stage.name] = Inspection.of(
                    self._artifact,
                    self._subject.signature.model,
                    self._subject.expected.graph(),
                    stage.runtime,
                    self._threads,
                )
            except Exception as error:  # noqa: BLE001 - whatever a runtime raises
                text = f"a copy that gives every value does not open: {describe(error)}"
                self._inspections[stage.name] = text
        return self._inspections[stage.name]

    def _culprit(
        self, stage: Stage, inspection: Inspection, inspected: Inspected, inputs: Tensors
    ) -> Finding | None:
        """Return the first bad node, once a runtime: which pass is at fault takes a dozen sessions to find."""
        if not inspected.walk.bad:
            return None
        if stage.name not in self._guilty:
            own = inspection.look_at_own(inputs, inspected, stage.arithmetic)
            ask = partial(
                pass_at_fault,
                self._artifact,
                self._subject.signature.model,
                inspection.file,
                stage.runtime,
                inputs,
                stage.arithmetic,
                self._threads,
            )
            self._guilty[stage.name] = culprit_of(inspected.walk, own, inspection.parting, ask)
        return self._guilty[stage.name]


def says_little(evaluation: Evaluation, arithmetic: Arithmetic) -> bool:
    """Whether the bound end to end is so wide that much could hide in it: thousands of roundings of the largest number.

    It grows with every layer, and a code that may flip early in a quantised graph may flip all that follow.
    """
    for bounded in evaluation.outputs.values():
        if bounded.error is None or not bounded.value.size or not bounded.is_float:
            continue
        size = np.abs(bounded.value[np.isfinite(bounded.value)]).max(initial=0.0)
        allowed = _FEW_ROUNDINGS * max(arithmetic.u, arithmetic.u_out) * size
        if size > 0 and float(np.median(bounded.error)) > allowed:
            return True
    return False


def says_nothing(evaluation: Evaluation) -> bool:
    """Whether the bound end to end is as large as what it bounds: all zeros would be within it.

    Where it is infinite the cell is inconclusive as it is, or judged by its pieces.
    """
    for bounded in evaluation.outputs.values():
        if bounded.error is None or not bounded.value.size or not bounded.is_float:
            continue
        size = float(np.abs(bounded.value[np.isfinite(bounded.value)]).max(initial=0.0))
        if 0 < size <= float(np.median(bounded.error)) < np.inf:
            return True
    return False


def judged_by_nodes(cell: Cell, inspected: Inspected, culprit: Finding | None) -> Cell:
    """Return a cell without a verdict end to end, or with one that says little, judged by its nodes."""
    walk = inspected.walk
    kept = tuple(item for item in cell.findings if item.code in NEED_NO_BOUND)
    found = kept if inspected.changed or culprit is None else (culprit, *kept)
    open_questions = _open_questions(inspected)
    if cell.record.verdict == "passed" and not found and open_questions:
        return cell  # the bound end to end holds, wide as it is
    verdict: Verdict = "failed" if found else "inconclusive" if open_questions else "passed"
    if verdict == "inconclusive":
        found = (finding("OA802" if inspected.changed or walk.missing else "OA307", open_questions),)
    worst = walk.worst
    proof = {
        "max_err_over_tau": finite(worst.ratio if worst else 0.0),
        "pieces": float(len(walk.seen)),
    }
    record = msgspec.structs.replace(
        cell.record,
        verdict=verdict,
        reason="; ".join(item.message for item in found),
        findings=tuple(dict.fromkeys(item.code for item in found)),
        gates={**cell.record.gates, "proof": proof},
        worst_output=worst.output if worst else "",
    )
    return replace(cell, record=record, findings=found, unbounded=False)


def with_culprit(cell: Cell, inspected: Inspected, culprit: Finding | None) -> Cell:
    """Return a failed cell with the first bad node named, or with the note that no node is at fault."""
    if inspected.changed:
        return cell
    if culprit is not None:
        item = culprit
    elif not _open_questions(inspected) and {one.code for one in cell.findings} <= {"OA310"}:
        item = finding(
            "OA314", f"all {len(inspected.walk.seen)} values that were looked at are within their own bounds"
        )
    else:
        return cell
    found = (*cell.findings, item)
    codes = tuple(dict.fromkeys(one.code for one in found))
    return replace(cell, record=msgspec.structs.replace(cell.record, findings=codes), findings=found)


def culprit_of(
    walk: Walk, own: Walk | None, parting: tuple[str, str], passes: Callable[[], str]
) -> Finding | None:
    """Return the finding about the first bad node, None if no node is bad.

    Args:
        walk: of the file's graph.
        own: of the graph that the runtime made of it, None if it runs the file as it is.
        parting: the first value in which those two graphs differ, and the node that gives it in the file.
        passes: names the pass of the optimiser that is at fault, asked only if it is the rewriting.
    """
    if not walk.bad:
        return None
    if own is not None and not own.bad:
        first, name = walk.bad[0], passes()
        by = f"; without the pass {name} it is right" if name else "; no single pass is known that mends it"
        text = f"{first.output}, which {first.node} ({first.operator}) gives in the file: {_words(first.findings)}"
        more = f"; every node of the graph that was made of it is within its bound{by}"
        value, node = parting
        if value:
            more += f"; in float64 the two graphs differ from {value} on, which {node} gives"
        return finding("OA313", text + more, blame="optimiser", node=node or first.node)
    bad = walk.bad if own is None else own.bad
    first = bad[0]
    others = {one.node for one in bad} - {first.node}
    more = f" (and {len(others)} more nodes)" if others else ""
    text = f"the first bad node is {first.node} ({first.operator}): {_words(first.findings)}{more}"
    return finding("OA313", text, blame="kernel", node=first.node)


def _words(findings: tuple[Finding, ...]) -> str:
    return findings[0].message


def _open_questions(inspected: Inspected) -> str:
    """Return what was not proven of the nodes, "" if all was."""
    walk = inspected.walk
    if inspected.changed:
        return (
            f"a copy of the graph that gives every value gives other bits for {', '.join(inspected.changed)}"
        )
    if walk.missing:
        reasons = list(dict.fromkeys(walk.missing.values()))
        more = f" and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
        return f"{len(walk.missing)} nodes have no exact result: {'; '.join(reasons[:_NAMED])}{more}"
    without = [one for one in walk.seen if one.unbounded]
    if without:
        count = sum(one.unbounded for one in without)
        first = f"{without[0].node} ({without[0].operator})"
        more = f", {len(without) - 1} more nodes" if len(without) > 1 else ""
        return f"{count} elements have no bound in this case, even node by node: {first}{more}"
    return ""
