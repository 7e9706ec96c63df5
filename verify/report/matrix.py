"""The verdict of each export on each runtime: what a person looks at first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx_attest.verify.records import AnyRecord, ArtifactRecord
from onnx_attest.verify.report.formats import UNKNOWN
from onnx_attest.verify.report.grouping import Subject, grouped, judged, of_kind, subject, subject_on_runtime
from onnx_attest.verify.report.outcomes import NOT_RUN, shown_together
from onnx_attest.verify.report.reasons import EXPORT
from onnx_attest.verify.report.tables import Table


@dataclass(frozen=True)
class Entries:
    """The matrix before it is written.

    Attributes:
        exports: verdict of each export itself, `n/a` where none was recorded.
        runtimes: that have a column.
        idle: that were skipped everywhere. What ran nowhere has no column: most machines lack most runtimes.
        words: the verdict of each export on each runtime.
    """

    exports: Mapping[Subject, str]
    runtimes: tuple[str, ...]
    idle: tuple[str, ...]
    words: Mapping[tuple[Subject, str], str]

    @property
    def with_exports(self) -> bool:
        """Whether the verdicts of the exports say something: one of those recorded did not pass."""
        return any(verdict not in ("passed", UNKNOWN) for verdict in self.exports.values())


def entries(records: Sequence[AnyRecord]) -> Entries:
    """Return the verdict of each export on each runtime; each adds up cells and softmax rows."""
    held = grouped(judged(records), subject_on_runtime)
    recorded = {subject(one): one.verdict for one in of_kind(records, ArtifactRecord)}
    subjects = dict.fromkeys((*recorded, *(about for about, _ in held)))
    words = {key: shown_together(mine) for key, mine in held.items()}
    ran = {runtime for (_, runtime), word in words.items() if word != "skipped"}
    runtimes = tuple(dict.fromkeys(runtime for _, runtime in held))
    return Entries(
        {one: recorded.get(one, UNKNOWN) for one in subjects},
        tuple(runtime for runtime in runtimes if runtime in ran) if ran else runtimes,
        tuple(runtime for runtime in runtimes if runtime not in ran) if ran else (),
        words,
    )


def matrix(records: Sequence[AnyRecord]) -> Table:
    """Return one row for each export and one column for each runtime.

    Width is scarce: a dtype that all exports share stands in the note, and the verdicts of the exports themselves are a
    column only where one of them did not pass.
    """
    found = entries(records)
    fields = Subject._fields if len({one.dtype for one in found.exports}) > 1 else Subject._fields[:-1]
    with_exports = found.with_exports
    rows = []
    for one, verdict in found.exports.items():
        export = (verdict,) if with_exports else ()
        words = (found.words.get((one, runtime), NOT_RUN) for runtime in found.runtimes)
        rows.append((*one[: len(fields)], *export, *words))
    columns = (*fields, *((EXPORT,) if with_exports else ()), *found.runtimes)
    return Table("", columns, tuple(rows), _note(tuple(found.exports), rows, found.idle))


def _note(subjects: Sequence[Subject], rows: Sequence[Sequence[str]], idle: Sequence[str]) -> str:
    dtypes = {one.dtype for one in subjects}
    shared = f"Every export is {dtypes.pop()}." if len(dtypes) == 1 else ""
    absent = f"Where there is a {NOT_RUN}, nothing was recorded of that export on that runtime."
    skipped = f"Skipped everywhere, so without a column: {', '.join(idle)}." if idle else ""
    return " ".join(filter(None, (shared, skipped, absent if any(NOT_RUN in row for row in rows) else "")))
