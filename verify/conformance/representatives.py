"""Which records stand for the others: one for each wrong cell of the matrix, one for each way to refuse."""

from __future__ import annotations

from collections.abc import Iterable

from onnx_attest.verify.conformance.words import kind_of_words
from onnx_attest.verify.records import ConformanceRecord

Pair = tuple[str, str]
"""A case and a runtime."""


def representatives(records: Iterable[ConformanceRecord]) -> set[Pair]:
    """Return the records whose smallest input is worth looking for.

    For a cell that is the wrong case with the fewest features, so that it is about one thing; a refusal is known by its
    words, and one case stands for all with the same.
    """
    best: dict[tuple[str, ...], ConformanceRecord] = {}
    for one in records:
        for key in _keys(one):
            if key not in best or _order(one) < _order(best[key]):
                best[key] = one
    return {(one.case, one.runtime) for one in best.values()}


def _keys(one: ConformanceRecord) -> Iterable[tuple[str, ...]]:
    if one.outcome in ("wrong", "crashed"):
        return [(one.runtime, one.outcome, one.operator, one.form, feature) for feature in one.features]
    if one.outcome == "refused":
        return [(one.runtime, one.outcome, one.operator, one.form, kind_of_words(one.reason))]
    return []


def _order(one: ConformanceRecord) -> tuple[int, int, str]:
    return len(one.features), len(one.case), one.case
