"""The verdict of each export on each runtime: what a person looks at first."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_attest.verify.records import AnyRecord, ArtifactRecord
from onnx_attest.verify.report.formats import UNKNOWN
from onnx_attest.verify.report.grouping import Subject, grouped, judged, of_kind, subject, subject_on_runtime
from onnx_attest.verify.report.outcomes import NOT_RUN, shown_together
from onnx_attest.verify.report.reasons import EXPORT
from onnx_attest.verify.report.tables import Table


def matrix(records: Sequence[AnyRecord]) -> Table:
    """Return one row for each export and one column for each runtime.

    An entry adds up cells and softmax rows. Width is scarce: a dtype that all exports share stands in the note,
    and the verdicts of the exports themselves are a column only where one of them did not pass.
    """
    entries = grouped(judged(records), subject_on_runtime)
    exports = {subject(one): one.verdict for one in of_kind(records, ArtifactRecord)}
    subjects = tuple(dict.fromkeys((*exports, *(about for about, _ in entries))))
    runtimes = tuple(dict.fromkeys(runtime for _, runtime in entries))
    # What ran nowhere has no column: the reasons stand below, and most machines lack most runtimes.
    ran = {runtime for (_, runtime), held in entries.items() if shown_together(held) != "skipped"}
    idle = tuple(runtime for runtime in runtimes if runtime not in ran) if ran else ()
    runtimes = tuple(runtime for runtime in runtimes if runtime not in idle)
    fields = Subject._fields if len({one.dtype for one in subjects}) > 1 else Subject._fields[:-1]
    with_exports = any(verdict != "passed" for verdict in exports.values())
    rows = []
    for one in subjects:
        export = (exports.get(one, UNKNOWN),) if with_exports else ()
        words = (shown_together(entries.get((one, runtime), ())) for runtime in runtimes)
        rows.append((*one[: len(fields)], *export, *words))
    columns = (*fields, *((EXPORT,) if with_exports else ()), *runtimes)
    return Table("", columns, tuple(rows), _note(subjects, rows, idle))


def _note(subjects: Sequence[Subject], rows: Sequence[Sequence[str]], idle: Sequence[str]) -> str:
    dtypes = {one.dtype for one in subjects}
    shared = f"Every export is {dtypes.pop()}." if len(dtypes) == 1 else ""
    absent = f"Where there is a {NOT_RUN}, nothing was recorded of that export on that runtime."
    skipped = f"Skipped everywhere, so without a column: {', '.join(idle)}." if idle else ""
    return " ".join(filter(None, (shared, skipped, absent if any(NOT_RUN in row for row in rows) else "")))
