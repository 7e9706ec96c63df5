"""What the cases of an artifact come to: gathered case by case, as plain data, and told together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec

from onnx_attest.verify.blame import FUSION
from onnx_attest.verify.cell import Cell, Identified
from onnx_attest.verify.finding_records import finding_record, finding_records
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.records import AnyRecord, StabilityRecord
from onnx_attest.verify.stability import SoftmaxSeen


class Gathered(msgspec.Struct, kw_only=True):
    """What one case came to, on all runtimes.

    Attributes:
        cells: one a runtime, and the exporter's.
        softmax: what was seen of it, with its findings.
        unseen: attentions whose weights were too many to be looked at, and the case.
        sampled: what is to be said of a case that was judged by a sample of its rows.
        misdeclared: outputs of another shape than the file declares.
        remade: how the file differs from the one that it was made from.
        deep: arithmetics in which the bound end to end says nothing: later cases are judged by pieces at once.
    """

    cells: list[Cell] = []
    softmax: list[SoftmaxSeen] = []
    unseen: dict[str, str] = {}
    sampled: dict[str, str] = {}
    misdeclared: list[str] = []
    remade: Finding | None = None
    deep: list[str] = []


def located(gathered: Gathered, locate: Callable[[Finding], Finding]) -> Gathered:
    """Return the same with each finding as `locate` has it."""
    return msgspec.structs.replace(
        gathered,
        cells=[replace(cell, findings=tuple(map(locate, cell.findings))) for cell in gathered.cells],
        softmax=[(record, list(map(locate, items))) for record, items in gathered.softmax],
    )


def tell(
    subject: Identified, cases: Sequence[Gathered], order: Sequence[str], notes: Sequence[Finding] = ()
) -> Iterator[AnyRecord]:
    """Yield the records of all cases: cells and softmax by runtime, then what they come to.

    Args:
        subject: the artifact.
        cases: in their order, what belongs to none of them first.
        order: of the parties.
        notes: findings about the artifact that come before those about single cases.
    """
    places = {name: place for place, name in enumerate(order)}
    cells = [cell for case in cases for cell in case.cells]
    cells.sort(key=lambda cell: places[cell.record.runtime])
    softmax = sorted(_once(cases), key=lambda seen: places[seen[0].runtime])
    yield from (cell.record for cell in cells)
    yield from (record for record, _ in softmax)
    remade = next((case.remade for case in cases if case.remade is not None), None)
    yield from finding_records(subject, cells, softmax, FUSION if remade is not None else "")
    yield from (finding_record(subject, item) for item in (remade, *notes) if item is not None)
    unseen: dict[str, str] = {}
    for case in cases:
        unseen |= case.unseen
    for node, where in unseen.items():
        text = f"the weights of {node or 'an attention'} were not looked at: there are too many to be held"
        yield finding_record(subject, finding("OA407", text, node=node), case=where)
    for where, text in (item for case in cases for item in case.sampled.items()):
        yield finding_record(subject, finding("OA809", text), case=where)
    for text in next((case.misdeclared for case in cases if case.misdeclared), []):
        yield finding_record(subject, finding("OA119", text))


def _once(cases: Sequence[Gathered]) -> Iterator[tuple[StabilityRecord, list[Finding]]]:
    """Yield what was seen of the softmax; why a runtime shows none, once and not for every case."""
    told: dict[str, Gathered] = {}
    for case in cases:
        for record, items in case.softmax:
            if record.source != "none" or told.setdefault(record.runtime, case) is case:
                yield record, items
