"""One case with a long attention on all runtimes: each runs it whole, and is judged by its rows, block after block.

The oracle goes over the rows once for all runtimes of one arithmetic; of what it gives no more than a block is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.cell import Cell, Stage, Subject, judged_cell, outputs_of, undeclared_nan
from onnx_attest.verify.findings import Finding
from onnx_attest.verify.gates import Judgement, Worst, check_shapes, exceeds, judge, together
from onnx_attest.verify.noise import Noise, bits_of, noise_of, noise_together
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.by_rows import ByRows
from onnx_attest.verify.records import CaseRecord
from onnx_attest.verify.sampling.held import Held
from onnx_attest.verify.sampling.sample import CONFIDENCE, LEAST_ROWS, ROWS, SAMPLED_FROM, Rows, Sample

_ORACLE = "oracle"


@dataclass(frozen=True, eq=False)
class Long:
    """A case that is verified by its rows.

    Attributes:
        make: the graph on the case's inputs, for a key that runtimes of one arithmetic share.
        keys: of each stage, by its name.
        wanted: rows to verify; None: all, or as many as `rows_wanted` says.
        on_step: told who does what.
    """

    subject: Subject
    case: CaseRecord
    inputs: Mapping[str, NDArray[Any]]
    make: Callable[[str], ByRows]
    keys: Mapping[str, str]
    wanted: int | None = None
    on_step: Callable[[str, str], None] = lambda who, what: None


@dataclass(eq=False)
class _Judged:
    """What is known of a stage's outputs so far."""

    stage: Stage
    held: Held
    parts: list[Judgement] = field(default_factory=list)
    noises: list[Noise] = field(default_factory=list)
    beyond: list[Finding] = field(default_factory=list)
    undeclared: str = ""


def judged_by_rows(long: Long, stages: Sequence[Stage], one: ByRows) -> tuple[list[Cell], Sample]:
    """Return the cells of the stages, in their order, and which rows were verified; `one` is the graph for the first.

    Raises:
        UnsupportedOperatorError: the graph cannot be evaluated by rows after all.
    """
    evaluators = {long.keys[stages[0].name]: one}
    wanted = long.wanted or rows_wanted(one)
    sample = Sample.of(one.count, wanted, long.case.seed)
    cells: dict[str, Cell] = {}
    judged: list[_Judged] = []
    for stage in stages:
        long.on_step(stage.name, long.case.id)
        got = _run(long, stage, one, sample)
        if isinstance(got, Cell):
            cells[stage.name] = got
        else:
            judged.append(_Judged(stage, got))
    for key in dict.fromkeys(long.keys[own.stage.name] for own in judged):
        evaluator = evaluators.pop(key, None) or long.make(key)
        theirs = [own for own in judged if long.keys[own.stage.name] == key]
        _judge_all(long, evaluator, theirs)
        for own in theirs:
            cells[own.stage.name] = _cell(long, own, evaluator, sample)
    return [cells[stage.name] for stage in stages], sample


def rows_wanted(by_rows: ByRows) -> int:
    """Return how many rows are verified if nobody says: all, or of many scores so few that it takes no longer."""
    if by_rows.scores <= SAMPLED_FROM:
        return by_rows.count
    of_a_row = by_rows.scores // by_rows.count
    return min(ROWS, max(LEAST_ROWS, SAMPLED_FROM // of_a_row))


def _run(long: Long, stage: Stage, by_rows: ByRows, sample: Sample) -> Held | Cell:
    """Return what is compared of a runtime's outputs, or the cell of one that gave nothing to compare."""
    outputs = outputs_of(long.subject, stage, long.case, long.inputs)
    if isinstance(outputs, Cell):
        return outputs
    shapes = {name: layout.shape for name, layout in by_rows.layout.items()}
    if form := check_shapes(outputs, shapes, long.subject.signature.dtypes):
        misshapen = Judgement(tuple(form), None, None, None, Worst())
        return judged_cell(long.subject, stage, long.case, misshapen)
    return Held.of(outputs, by_rows.layout, sample)


def _judge_all(long: Long, by_rows: ByRows, judged: Sequence[_Judged]) -> None:
    rows = np.unique(np.concatenate([own.held.rows for own in judged])).astype(np.intp)
    for block in _blocks(rows, by_rows.block):
        long.on_step(_ORACLE, f"{long.case.id}, rows {block[0]:,} to {block[-1]:,}")
        exact = by_rows.at(block)
        for own in judged:
            there = own.held.among(block)
            if there.any():
                part = exact if there.all() else _taken(exact, np.flatnonzero(there), by_rows)
                _judge(long, own, own.held.part(block[there]), part, by_rows, block[there])
    others = by_rows.others()
    for own in judged:
        if others:
            own.parts.append(judge(own.held.others, others, long.subject.signature.dtypes))


def _blocks(rows: Rows, size: int) -> Iterator[Rows]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _taken(exact: Mapping[str, Bounded], places: Rows, by_rows: ByRows) -> dict[str, Bounded]:
    return {
        name: one.moved(lambda array, axis=by_rows.layout[name].axis: array.take(places, axis))  # type: ignore[misc]
        for name, one in exact.items()
    }


def _judge(
    long: Long,
    own: _Judged,
    actual: Mapping[str, NDArray[Any]],
    exact: Mapping[str, Bounded],
    by_rows: ByRows,
    rows: Rows,
) -> None:
    subject, at = long.subject, partial(_place, by_rows, rows)
    part = judge(actual, exact, subject.signature.dtypes, at)
    own.parts.append(part)
    own.undeclared = own.undeclared or undeclared_nan(subject, long.inputs, exact, at)
    if part.max_err_over_tau is None:
        return
    if by_rows.has_deviations:
        own.noises.append(noise_of(actual, exact, own.stage.arithmetic))
    if subject.tolerance is not None:
        own.beyond += exceeds(actual, exact, subject.tolerance, at)


def _place(by_rows: ByRows, rows: Rows, name: str, index: tuple[int, ...]) -> tuple[int, ...]:
    """Return where an element of some rows is in the whole output."""
    axis = by_rows.layout[name].axis if name else None
    if axis is None or len(index) <= axis:
        return index
    return (*index[:axis], int(rows[index[axis]]), *index[axis + 1 :])


def _cell(long: Long, own: _Judged, by_rows: ByRows, sample: Sample) -> Cell:
    judgement = together(own.parts)
    bits = bits_of(noise_together(own.noises), own.stage.arithmetic) if own.noises else None
    numbers = {
        "verified": float(len(own.held.rows)),
        "of": float(sample.count),
        "always": float(sample.fixed),
        "drawn": float(sample.drawn),
        "odd": float(own.held.odd),
        "confidence": CONFIDENCE,
        "share": sample.share,
    }
    return judged_cell(
        long.subject, own.stage, long.case, judgement, more=tuple(own.beyond[:1]), undeclared=own.undeclared,
        bits=bits, rows=numbers,
    )  # fmt: skip
