"""The first line of the summary: what the run came to, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    ClaimRecord,
    HeadroomRecord,
    RelationRecord,
    RunRecord,
    StabilityRecord,
    Verdict,
)
from onnx_attest.verify.report.formats import listed
from onnx_attest.verify.report.grouping import of_kind, with_verdict
from onnx_attest.verify.report.outcomes import HasVerdict, is_known, shown
from onnx_attest.verify.report.tables import escaped
from onnx_attest.verify.verdicts import worst

_ORDER = ("passed", "failed", "errored", "inconclusive", "failed (known)", "errored (known)", "skipped")


@dataclass(frozen=True)
class Told:
    """What a run came to, in words that are not escaped.

    Attributes:
        verdict: the run's own; of a run without its last record, what is known so far, and never `passed`.
        counts: what became of its cells, and of all else that failed in some way.
        end: the exit code, or that the run did not finish.
    """

    verdict: Verdict
    counts: tuple[str, ...]
    end: str


def told(records: Sequence[AnyRecord]) -> Told:
    """Return what the run came to."""
    run = last_run(records)
    verdict = _verdict_so_far(records) if run is None else run.verdict
    end = "no run record: the run did not finish" if run is None else f"exit code {run.exit_code}"
    return Told(verdict, tuple(filter(None, _counts(records, run))), end)


def headline(records: Sequence[AnyRecord]) -> str:
    """Return verdict, counts and exit code: `**passed**: 812 cells passed, 34 failed (known); exit code 0`.

    The verdict and the exit code are the run's own. Without a run record the run did not reach its end: then
    the line says so, and never `passed`.
    """
    said = told(records)
    return f"**{said.verdict}**: " + escaped("; ".join((*said.counts, said.end)))


def last_run(records: Iterable[AnyRecord]) -> RunRecord | None:
    """Return the run record, None if there is none."""
    runs = of_kind(records, RunRecord)
    return runs[-1] if runs else None


def _verdict_so_far(records: Iterable[AnyRecord]) -> Verdict:
    verdicts = [one.verdict for one in with_verdict(records) if not is_known(one)]
    return worst([*verdicts, "inconclusive"])


def _counts(records: Sequence[AnyRecord], run: RunRecord | None) -> tuple[str, ...]:
    """Return what became of the cells, and of softmax checks, exports and statements those that failed in some way."""
    cells = of_kind(records, CellRecord)
    stability = _in_words(one for one in of_kind(records, StabilityRecord) if _went_wrong(one))
    headroom = _in_words(one for one in of_kind(records, HeadroomRecord) if _went_wrong(one))
    claims = _in_words(one for one in of_kind(records, ClaimRecord) if _went_wrong(one))
    relations = _relations(of_kind(records, RelationRecord))
    missing = _in_words(one for one in of_kind(records, ArtifactRecord) if one.verdict != "passed")
    return (
        _in_words(cells, "cells ") if cells else _counts_of(run),
        f"stability {stability}" if stability else "",
        f"headroom {headroom}" if headroom else "",
        f"relations {relations}" if relations else "",
        f"exports {missing}" if missing else "",
        f"claims {claims}" if claims else "",
    )


def _relations(records: Sequence[RelationRecord]) -> str:
    """Return what became of the relations that somebody asks for."""
    words = Counter(f"{one.verdict} (known)" if one.known else one.verdict for one in records if one.asked_by)
    return ", ".join(f"{words[word]} {word}" for word in _ORDER if words[word])


def _went_wrong(record: StabilityRecord | HeadroomRecord | ClaimRecord) -> bool:
    return record.verdict not in ("passed", "skipped")


def _counts_of(run: RunRecord | None) -> str:
    """Return the run's own counts: the records may have been filtered, and then hold no cells."""
    if run is None or not any(run.cells.values()):
        return "no cells"
    known = f" ({run.known} failures known)" if run.known else ""
    return (
        "cells: " + ", ".join(f"{count} {verdict}" for verdict, count in run.cells.items() if count) + known
    )


def _in_words(records: Iterable[HasVerdict | ClaimRecord], noun: str = "") -> str:
    records = list(records)
    counts = Counter(map(shown, records))
    words = [f"{counts[word]} {word}" for word in _ORDER if counts[word]]
    if words:
        words[0] = words[0].replace(" ", f" {noun}", 1)
    # Skipped is last in the order, so what stands behind it in brackets belongs to it.
    skipped = [one for one in records if one.verdict == "skipped"]
    runtimes = [one.runtime for one in skipped if not isinstance(one, ArtifactRecord)]
    return ", ".join(words) + (f" ({listed(runtimes)})" if runtimes else "")
