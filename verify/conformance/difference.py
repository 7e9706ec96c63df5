"""What is other than in an earlier run: cases that came out otherwise, and the cells of the matrix that this changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnx_attest.verify.conformance.matrix import OUTCOMES, ConformanceReport, MatrixCell
from onnx_attest.verify.records import Outcome


@dataclass(frozen=True)
class CaseChange:
    """A case that came out otherwise on a runtime."""

    case: str
    runtime: str
    before: Outcome
    after: Outcome
    reason: str

    @property
    def is_worse(self) -> bool:
        """Whether it got worse, in the order of OUTCOMES."""
        return OUTCOMES.index(self.after) > OUTCOMES.index(self.before)


@dataclass(frozen=True)
class CellChange:
    """A cell of the matrix with other counts: more cases, or cases that came out otherwise."""

    key: tuple[str, str, str, str]
    before: dict[Outcome, int]
    after: dict[Outcome, int]


@dataclass(frozen=True)
class Difference:
    """An earlier run and a later one.

    Attributes:
        versions: what has another version: before and after.
        cases: those of both runs that came out otherwise.
        cells: those of both runs that changed.
        appeared, gone: cases of one run only.
        not_compared: runtimes of one run only, and why.
        compared: pairs of a case and a runtime that both runs have.
    """

    versions: dict[str, tuple[str, str]]
    cases: tuple[CaseChange, ...]
    cells: tuple[CellChange, ...]
    appeared: tuple[str, ...]
    gone: tuple[str, ...]
    not_compared: dict[str, str]
    compared: int

    @property
    def worse(self) -> tuple[CaseChange, ...]:
        """The cases that got worse."""
        return tuple(change for change in self.cases if change.is_worse)


def difference(before: ConformanceReport, after: ConformanceReport) -> Difference:
    """Return what changed, for the runtimes that ran in both and the operators that were looked at in both."""
    operators = set(before.operators) & set(after.operators)
    both = [name for name in after.ran if name in before.ran]
    then = {line.case: line for line in before.cases if line.operator in operators}
    now = {line.case: line for line in after.cases if line.operator in operators}
    reasons = {(one.case, one.runtime): one.reason for one in after.details}
    pairs = [(name, runtime) for name in now if name in then for runtime in both]
    changed = (
        CaseChange(name, runtime, old, new, reasons.get((name, runtime), ""))
        for name, runtime in pairs
        if (old := then[name].outcomes[runtime]) != (new := now[name].outcomes[runtime])
    )
    return Difference(
        _versions(before, after, both),
        tuple(changed),
        tuple(_cells(before, after, both)),
        tuple(name for name in now if name not in then),
        tuple(name for name in then if name not in now),
        dict(_not_compared(before, after)),
        len(pairs),
    )


def _versions(
    before: ConformanceReport, after: ConformanceReport, both: list[str]
) -> dict[str, tuple[str, str]]:
    then = before.versions | {name: before.runtimes[name].version for name in both}
    now = after.versions | {name: after.runtimes[name].version for name in both}
    return {
        name: (then[name], version) for name, version in now.items() if name in then and then[name] != version
    }


def _cells(before: ConformanceReport, after: ConformanceReport, both: list[str]) -> Iterator[CellChange]:
    then: dict[tuple[str, str, str, str], MatrixCell] = {cell.key: cell for cell in before.cells()}
    for cell in after.cells():
        old = then.get(cell.key)
        same = old is None or (old.counts, old.explained) == (cell.counts, cell.explained)
        if old is not None and cell.runtime in both and not same:
            yield CellChange(cell.key, old.counts, cell.counts)


def _not_compared(before: ConformanceReport, after: ConformanceReport) -> Iterator[tuple[str, str]]:
    for name in before.ran:
        if name not in after.runtimes:
            yield name, "not asked for in this run"
        elif after.runtimes[name].skipped:
            yield name, after.runtimes[name].skipped
    for name in after.ran:
        if name not in before.ran:
            yield name, "the earlier run does not have it"
