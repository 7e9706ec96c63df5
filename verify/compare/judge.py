"""The comparison of two runs: what belongs together, and what each part says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from onnx_attest.verify.compare.change import Change, Comparison
from onnx_attest.verify.compare.errors import errors
from onnx_attest.verify.compare.findings import findings
from onnx_attest.verify.compare.latency import latency
from onnx_attest.verify.compare.match import (
    Pair,
    Place,
    matched,
    matched_softmaxes,
    of_artifacts,
    of_cells,
    of_claims,
    of_kind,
    of_relations,
    of_timings,
    place,
    same_inputs,
)
from onnx_attest.verify.compare.relations import relations
from onnx_attest.verify.compare.softmaxes import headroom, stability
from onnx_attest.verify.compare.verdicts import RANK, verdict_changes
from onnx_attest.verify.compare.versions import versions
from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    ClaimRecord,
    ConformanceRecord,
    FindingRecord,
    HeadroomRecord,
    LatencyRecord,
    PowerRecord,
    RelationRecord,
    StabilityRecord,
)
from onnx_attest.verify.report.grouping import grouped

_ORDER = ("worse", "better", "other")


def compare(old: Iterable[AnyRecord], new: Iterable[AnyRecord]) -> Comparison:
    """Return what is other in a later run than in an earlier one.

    A pure function of both. Records belong together by model, variant, opset, dtype, runtime and case, which is its
    name and sizes and not its seed.
    """
    old, new = list(old), list(new)
    artifacts = matched(*_both(old, new, ArtifactRecord), of_artifacts)
    cells = matched(*_both(old, new, CellRecord), of_cells)
    softmaxes = matched_softmaxes(*_both(old, new, StabilityRecord))
    breaks = matched_softmaxes(*_both(old, new, HeadroomRecord))
    related = matched(*_both(old, new, RelationRecord), of_relations)
    claims = matched(*_both(old, new, ClaimRecord), of_claims)
    both = [pair for pair in cells.pairs if _ran(pair.old) and _ran(pair.new)]
    ran = frozenset(place(pair.new) for pair in both)
    times = matched(_results(old), _results(new), of_timings)
    timings, timed, not_timed = latency(old, new)
    changes = [
        *verdict_changes("export", artifacts.pairs),
        *verdict_changes("verdict", cells.pairs),
        *verdict_changes("stability", softmaxes.pairs),
        *verdict_changes("headroom", breaks.pairs),
        *verdict_changes("relation", related.pairs, lambda record: bool(record.asked_by)),
        *verdict_changes("latency", times.pairs, lambda record: record.verdict == "errored"),
        *verdict_changes("claim", claims.pairs, lambda record: record.verdict != "inconclusive"),
        *errors(cells.pairs),
        *stability(softmaxes.pairs),
        *headroom(breaks.pairs),
        *relations(related.pairs),
        *findings(*_both(old, new, FindingRecord), ran),
        *timings,
    ]
    pairs: dict[str, Sequence[Pair[Any]]] = {
        "exports": artifacts.pairs,
        "cells": both,
        "softmaxes": softmaxes.pairs,
        "breaks": breaks.pairs,
        "relations": related.pairs,
        "claims": claims.pairs,
    }
    return Comparison(
        versions=versions(old, new),
        compared={name: len(found) for name, found in pairs.items()} | {"timings": timed},
        same_inputs=sum(same_inputs(pair.old, pair.new) for pair in both),
        changes=tuple(sorted(changes, key=_rank)),
        appeared=_lonely((*_run_only(cells.pairs, new=True), *cells.appeared)),
        vanished=_lonely((*_run_only(cells.pairs, new=False), *cells.vanished)),
        not_compared=not_timed | _other_arithmetic(both) | _others(old, new),
    )


def _both(old: Sequence[AnyRecord], new: Sequence[AnyRecord], kind: type[Any]) -> tuple[list[Any], list[Any]]:
    return of_kind(old, kind), of_kind(new, kind)


def _results(records: Sequence[AnyRecord]) -> list[LatencyRecord]:
    return [one for one in of_kind(records, LatencyRecord) if not one.twin]


def _ran(record: CellRecord) -> bool:
    return record.verdict in RANK


def _rank(change: Change) -> tuple[bool, int]:
    return not change.counts, _ORDER.index(change.direction)


def _run_only(pairs: Sequence[Pair[CellRecord]], *, new: bool) -> Iterable[CellRecord]:
    """Return cells that both have and that only one has run; told with the reason of the one that did not."""
    for pair in pairs:
        if _ran(pair.new) != _ran(pair.old) and _ran(pair.new) == new:
            yield pair.old if new else pair.new


def _lonely(cells: Sequence[CellRecord]) -> dict[str, str]:
    """Return which files on which runtimes one run alone has verified, and in how many cases."""
    told: dict[str, str] = {}
    for where, members in grouped(cells, place).items():
        about = _name(where)
        reasons = Counter(one.reason for one in members if one.verdict == "skipped" and one.reason)
        why = f": {reasons.most_common(1)[0][0]}" if reasons else ""
        told[about] = f"{len(members)} cells{why}"
    return told


def _name(where: Place) -> str:
    return " ".join(str(part) for part in where[:4] if part) + f" on {where.runtime}"


def _other_arithmetic(pairs: Sequence[Pair[CellRecord]]) -> dict[str, str]:
    other = [pair for pair in pairs if pair.old.arithmetic != pair.new.arithmetic]
    return {
        f"errors of {_name(where)}": f"declared {members[0].old.arithmetic} before and {members[0].new.arithmetic} now: "
        "their bounds and bits are of different sizes"
        for where, members in grouped(other, lambda pair: place(pair.new)).items()
    }


def _others(old: Sequence[AnyRecord], new: Sequence[AnyRecord]) -> dict[str, str]:
    """Return the kinds of records that are held against each other elsewhere, or nowhere."""
    kinds: dict[str, tuple[type[Any], str]] = {
        "conformance": (ConformanceRecord, "onnx-attest conformance --against does"),
        "power": (PowerRecord, "which faults are caught is compared by hand, in power.csv"),
    }
    return {name: why for name, (kind, why) in kinds.items() if of_kind(old, kind) and of_kind(new, kind)}
