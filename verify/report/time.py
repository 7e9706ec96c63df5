"""Where the time of a run went: time.md and time.csv."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from onnx_attest.verify.records import AnyRecord, RunRecord, TimeRecord
from onnx_attest.verify.report.formats import number, seconds
from onnx_attest.verify.report.grouping import of_kind
from onnx_attest.verify.report.tables import Table, Value, escaped, page, to_csv, to_markdown
from onnx_attest.verify.work import KINDS, NOT_OURS

NONE = "Nobody asked where the time of this run went: `onnx-attest run --profile` does."
_LONGEST = 10
"""Tasks that are listed."""
Seconds = dict[str, dict[str, float]]


def time(records: Iterable[AnyRecord]) -> str:
    """Return time.md: the run as a whole, the stages of its tasks by kind of work, and the longest tasks."""
    records = list(records)
    times = of_kind(records, TimeRecord)
    tasks = [record for record in times if record.task]
    whole = _sum(record.seconds for record in tasks)
    if not _total(whole):
        return page("Where the time went", [NONE])
    runs = [record for record in times if not record.task]
    lines = [*_around(runs, of_kind(records, RunRecord)), *_in_tasks(tasks, whole)]
    return page(
        "Where the time went",
        [
            "\n".join(f"- {escaped(line)}" for line in lines),
            to_markdown(_stages(whole)),
            to_markdown(_tasks(tasks)),
            _legend(),
        ],
    )


def time_csv(records: Iterable[AnyRecord]) -> str:
    """Return time.csv: one line a task, stage and kind of work, unrounded."""
    rows: list[dict[str, Value]] = [
        {"task": record.task, "process": record.process, "stage": stage, "kind": kind, "seconds": taken}
        for record in of_kind(records, TimeRecord)
        for stage, kinds in record.seconds.items()
        for kind, taken in kinds.items()
    ]
    return to_csv(("task", "process", "stage", "kind", "seconds"), rows)


def _around(runs: Sequence[TimeRecord], ends: Sequence[RunRecord]) -> Iterator[str]:
    """Yield what the run itself did, one thing after another."""
    for record, end in zip(runs, ends, strict=False):
        parts = ", ".join(
            f"{stage} {seconds(sum(kinds.values()))}" for stage, kinds in record.seconds.items()
        )
        yield f"The run took {seconds(end.duration_s)}: {parts}"


def _in_tasks(tasks: Sequence[TimeRecord], whole: Seconds) -> Iterator[str]:
    total, kinds = _total(whole), _by_kind(whole)
    processes = len({record.process for record in tasks})
    yield f"Its {len(tasks)} tasks took {seconds(total)} in {processes} process{'es' * (processes > 1)}, all added up"
    share = sum(kinds.get(kind, 0.0) for kind in NOT_OURS)
    yield f"Exporting and the runtimes' own inference: {_percent(share, total)} of that"


def _stages(whole: Seconds) -> Table:
    total, present = _total(whole), [kind for kind in KINDS if kind in _by_kind(whole)]
    ranked = sorted(whole.items(), key=lambda item: -sum(item[1].values()))
    rows = [_row(stage, kinds, present, total) for stage, kinds in [*ranked, ("all", _by_kind(whole))]]
    note = "Seconds; each instant is counted once, for the innermost stage and kind that was going on."
    return Table("Stages of the tasks", ("stage", *present, "all", "share"), tuple(rows), note)


def _row(stage: str, kinds: dict[str, float], present: Sequence[str], total: float) -> tuple[str, ...]:
    taken = sum(kinds.values())
    cells = (number(kinds[kind]) if kind in kinds else "" for kind in present)
    return (stage or "between stages", *cells, number(taken), _percent(taken, total))


def _tasks(tasks: Sequence[TimeRecord]) -> Table:
    longest = sorted(tasks, key=lambda record: -_total(record.seconds))[:_LONGEST]
    rows = [(record.task, str(record.process), number(_total(record.seconds))) for record in longest]
    return Table("Longest tasks", ("task", "process", "seconds"), tuple(rows))


def _legend() -> str:
    return "\n".join(f"- {escaped(kind)}: {escaped(meaning)}" for kind, meaning in KINDS.items())


def _sum(parts: Iterable[Seconds]) -> Seconds:
    whole: Seconds = {}
    for part in parts:
        for stage, kinds in part.items():
            into = whole.setdefault(stage, {})
            for kind, taken in kinds.items():
                into[kind] = into.get(kind, 0.0) + taken
    return whole


def _by_kind(whole: Seconds) -> dict[str, float]:
    return _sum({"": kinds} for kinds in whole.values()).get("", {})


def _total(whole: Seconds) -> float:
    return sum(sum(kinds.values()) for kinds in whole.values())


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "n/a"
