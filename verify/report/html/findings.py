"""What was found: reasons, failures that were expected, the findings, and what their codes mean."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_attest.verify.records import AnyRecord, FindingRecord
from onnx_attest.verify.report.accuracy import FINDINGS, NOT_RUN, not_run, statements
from onnx_attest.verify.report.formats import listed
from onnx_attest.verify.report.grouping import grouped, judged, of_kind
from onnx_attest.verify.report.html.explanations import explanations
from onnx_attest.verify.report.html.markup import Markup, joined, tag
from onnx_attest.verify.report.html.tables import filled, folded
from onnx_attest.verify.report.outcomes import Judged, is_known
from onnx_attest.verify.report.tables import Column

Expected = Sequence[Judged]


def findings(records: Sequence[AnyRecord]) -> Markup:
    """Return the section: what counts first, then what was expected, then what each code means."""
    found = of_kind(records, FindingRecord)
    counted = [one for one in found if not is_known(one) and one.severity != "note"]
    counted.sort(key=lambda one: one.severity != "error")
    known = [one for one in found if is_known(one)]
    notes = [one for one in found if not is_known(one) and one.severity == "note"]
    expected = grouped(filter(is_known, judged(records)), lambda one: (one.model, one.known)).values()
    return joined(
        filled("Errors and warnings", FINDINGS, statements(counted))
        or tag("p", "No errors and no warnings."),
        filled("Known failures, which do not count", EXPECTED, expected),
        folded("Findings that were expected", filled("Expected findings", FINDINGS, statements(known))),
        folded("Notes", filled("Notes", FINDINGS, statements(notes))),
        filled("Skipped, errored, not exported", NOT_RUN, not_run(records)),
        explanations(records),
    )


EXPECTED: tuple[Column[Expected], ...] = (
    Column("model", "name of the module", lambda same: same[0].model),
    Column("known", "public issue, or counter-example", lambda same: same[0].known),
    Column("records", "cells, softmax rows and softmaxes that failed so", lambda same: str(len(same))),
    Column("runtimes", "on which", lambda same: listed(one.runtime for one in same)),
    Column("reason", "of the first", lambda same: next((one.reason for one in same if one.reason), "")),
)
