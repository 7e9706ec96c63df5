"""The chapter's statements and what was measured of them: claims.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx_attest.verify.claims import STATEMENTS
from onnx_attest.verify.records import AnyRecord, ClaimRecord
from onnx_attest.verify.report.formats import UNKNOWN, number
from onnx_attest.verify.report.grouping import grouped, of_kind
from onnx_attest.verify.report.outcomes import shown
from onnx_attest.verify.report.pictures.claims import file_name, pictures
from onnx_attest.verify.report.tables import Table, escaped, page, to_markdown

NONE = "No statement of the chapter was tested in this run: `onnx-attest run --claims` does."


def claims(records: Iterable[AnyRecord]) -> str:
    """Return claims.md: each statement, what its experiment shows, and a table of what was measured."""
    mine = of_kind(records, ClaimRecord)
    by_claim, drawn = grouped(mine, lambda record: record.claim), pictures(mine)
    parts = []
    for claim in sorted(by_claim):
        heading, *shown = _statement(claim, by_claim[claim])
        picture = drawn.get(claim)
        image = [f"![{escaped(picture.alt)}]({file_name(claim)})"] if picture else []
        parts += [heading, *shown[:1], *image, *shown[1:]] if claim in STATEMENTS else [heading, *shown]
    return page("The chapter's statements", parts or [NONE])


def _statement(claim: int, records: Sequence[ClaimRecord]) -> Iterable[str]:
    statement = STATEMENTS.get(claim)
    yield f"## {claim}. {escaped(statement.says) if statement else 'a statement that this version does not know'}"
    if statement:
        yield escaped(statement.shown)
    yield from map(to_markdown, measured_tables(records))
    if lines := not_measured(records):
        yield "\n".join(f"- {escaped(line)}" for line in lines)


def measured_tables(records: Sequence[ClaimRecord]) -> list[Table]:
    """Return what was measured of one statement; experiments that measure other things stand in tables of their own."""
    measured = [record for record in records if record.measured]
    by_names = grouped(measured, lambda record: tuple(record.measured))
    return [_table(names, group) for names, group in by_names.items()]


def not_measured(records: Sequence[ClaimRecord]) -> list[str]:
    """Return a line for each runtime on which a statement has no number, and why."""
    others = (one for one in records if not one.measured)
    return list(dict.fromkeys(f"{one.runtime} {shown(one)}: {one.reason}" for one in others))


def _table(names: Sequence[str], records: Sequence[ClaimRecord]) -> Table:
    dtypes = len({record.dtype for record in records}) > 1
    columns = ("runtime", *(("dtype",) if dtypes else ()), "setting", *names, "verdict", "note")
    rows = tuple(
        (
            record.runtime,
            *((record.dtype,) if dtypes else ()),
            record.setting or UNKNOWN,
            *(number(record.measured[name]) for name in names),
            shown(record),
            record.reason,
        )
        for record in records
    )
    return Table("", columns, rows)
