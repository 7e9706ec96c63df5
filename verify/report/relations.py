"""What each runtime makes of the relations between its own outputs: relations.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx_attest.verify.records import AnyRecord, RelationRecord
from onnx_attest.verify.report.formats import UNKNOWN, extreme, number
from onnx_attest.verify.report.grouping import grouped, of_kind
from onnx_attest.verify.report.tables import Column, fill, legend, page, to_markdown

Rows = Sequence[RelationRecord]


def relations(records: Iterable[AnyRecord]) -> str:
    """Return relations.md: what has to hold and does or not, what was found to hold, and what the columns mean."""
    seen = of_kind(records, RelationRecord)
    asked = grouped((one for one in seen if one.asked_by), on_runtime).values()
    facts = grouped((one for one in seen if not one.asked_by), of_export).values()
    broken = [one for one in seen if one.asked_by and one.verdict != "passed"]
    tables = (
        fill("Not kept", BROKEN, broken),
        fill("What has to hold", ASKED, asked, ASKED_NOTE),
        fill("What was found to hold", FACTS, facts, FACTS_NOTE),
    )
    columns = list({column.name: column for column in (*ASKED, *FACTS)}.values())
    return page("Relations", (*map(to_markdown, tables), f"## Legend\n\n{legend(columns)}"))


ASKED_NOTE = (
    "The contract promises it, or the graph has it in float64. A relation needs no other party: each runtime is held "
    "against itself. docs/relations.md says what each relation is, and to what they are all blind."
)
FACTS_NOTE = (
    "Facts about the file on these runtimes; nobody says that they have to hold, and they do not count."
)


def on_runtime(record: RelationRecord) -> tuple[str, str, str]:
    """Return what the records of a row of what has to hold share."""
    return record.relation, record.exactness, record.runtime


def of_export(record: RelationRecord) -> tuple[str, str, int | None, str, str]:
    """Return what the records of a row of facts share."""
    return record.model, record.variant, record.opset, record.dtype, record.relation


def _known(record: RelationRecord) -> str:
    return f"{record.verdict} (known)" if record.known else record.verdict


def _counted(records: Rows, holds: str) -> str:
    return str(sum(one.holds == holds for one in records))


def _answers(records: Rows) -> str:
    answers = grouped(records, lambda one: HOLDS[one.holds])
    if len(answers) == 1:
        return next(iter(answers))
    return "; ".join(f"{word}: {', '.join(one.runtime for one in held)}" for word, held in answers.items())


HOLDS = {"bitwise": "bitwise", "rounding": "within rounding", "no": "does not hold", "unknown": "not known"}
_RELATION: Column[Rows] = Column("relation", "see docs/relations.md", lambda rows: rows[0].relation)
ASKED: tuple[Column[Rows], ...] = (
    _RELATION,
    Column("exactness", "how exact it has to be", lambda rows: rows[0].exactness),
    Column("runtime", "what is held against itself", lambda rows: rows[0].runtime),
    Column("files", "how many were asked", lambda rows: str(len(rows))),
    Column("bitwise", "on how many of them it holds bit by bit", lambda rows: _counted(rows, "bitwise")),
    Column("rounding", "on how many within the bounds", lambda rows: _counted(rows, "rounding")),
    Column("broken", "on how many it does not hold", lambda rows: _counted(rows, "no")),
    Column("unknown", "on how many nothing can be said", lambda rows: _counted(rows, "unknown")),
    Column(
        "difference/bound",
        "largest difference over the sum of both runs' bounds, at most 1 on a correct runtime",
        lambda rows: extreme((one.max_difference_over_bound for one in rows), max, number),
    ),
)
FACTS: tuple[Column[Rows], ...] = (
    Column("model", "name of the module", lambda rows: rows[0].model),
    Column("variant", "form of the graph", lambda rows: rows[0].variant),
    Column("opset", "opset of the file", lambda rows: str(rows[0].opset or UNKNOWN)),
    Column("dtype", "floating dtype of the graph", lambda rows: rows[0].dtype),
    _RELATION,
    Column("holds", "bit by bit, within rounding, or not; by runtime where they differ", _answers),
)
BROKEN: tuple[Column[RelationRecord], ...] = (
    Column("model", "name of the module", lambda one: one.model),
    Column("variant", "form of the graph", lambda one: one.variant),
    Column("dtype", "floating dtype of the graph", lambda one: one.dtype),
    Column("runtime", "what is held against itself", lambda one: one.runtime),
    Column("relation", "see docs/relations.md", lambda one: one.relation),
    Column("verdict", "known failures do not count", _known),
    Column(
        "reason",
        "the first element that tells against it, or why nothing can be said",
        lambda one: one.reason,
    ),
)
