"""What was found: reasons, failures that were expected, the findings, and what their codes mean."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from onnx_attest.verify.records import AnyRecord, FindingRecord
from onnx_attest.verify.report.accuracy import FINDINGS, NOT_RUN, not_run, statements
from onnx_attest.verify.report.formats import listed
from onnx_attest.verify.report.grouping import grouped, judged, of_kind
from onnx_attest.verify.report.html.explanations import explanations
from onnx_attest.verify.report.html.markup import Markup, joined, tag
from onnx_attest.verify.report.html.tables import figure, filled, folded
from onnx_attest.verify.report.outcomes import Judged, is_known
from onnx_attest.verify.report.pictures.neighbours import neighbourhood
from onnx_attest.verify.report.tables import Column

Expected = Sequence[Judged]
_MOST = 60
"""Nodes that are drawn: a page of hundreds would be read by nobody."""


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
        _around((*counted, *known)),
        folded("Findings that were expected", filled("Expected findings", FINDINGS, statements(known))),
        folded("Notes", filled("Notes", FINDINGS, statements(notes))),
        filled("Skipped, errored, not exported", NOT_RUN, not_run(records)),
        explanations(records),
    )


def _around(found: Sequence[FindingRecord]) -> Markup:
    """Return what is around each node that a finding names, once; a cell of the matrix shows its own again."""
    named = grouped((one for one in found if one.around), _place)
    drawn = [
        tag("div", figure(neighbourhood(f"around-{index}", same[0])), data_around=place)
        for index, (place, same) in enumerate(islice(named.items(), _MOST))
    ]
    left = f"and {len(named) - _MOST} more nodes, see findings.csv" if len(named) > _MOST else None
    return folded("Around the nodes that are named", *drawn, tag("p", left) if left else None)


def _place(one: FindingRecord) -> str:
    """Return what the script finds the picture by, see cell.js."""
    return "|".join((one.model, one.variant, str(one.opset), one.dtype, one.node))


EXPECTED: tuple[Column[Expected], ...] = (
    Column("model", "name of the module", lambda same: same[0].model),
    Column("known", "public issue, or counter-example", lambda same: same[0].known),
    Column("records", "cells, softmax rows and softmaxes that failed so", lambda same: str(len(same))),
    Column("runtimes", "on which", lambda same: listed(one.runtime for one in same)),
    Column("reason", "of the first", lambda same: next((one.reason for one in same if one.reason), "")),
)
