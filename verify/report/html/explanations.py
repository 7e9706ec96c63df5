"""What each finding code that occurs means, in the page itself: it is read where there is no network."""

from __future__ import annotations

from collections.abc import Iterable

from onnx_attest.verify.findings import CODES, Code
from onnx_attest.verify.records import AnyRecord, FindingRecord
from onnx_attest.verify.report.grouping import of_kind
from onnx_attest.verify.report.html.markup import Markup, joined, tag


def occurring(records: Iterable[AnyRecord]) -> list[str]:
    """Return the codes of all findings, and of all records that name one, in order."""
    found = {code for record in records for code in getattr(record, "findings", ())}
    found |= {finding.code for finding in of_kind(records, FindingRecord)}
    return sorted(found)


def explanations(records: Iterable[AnyRecord]) -> Markup:
    """Return the page of each code that occurs, as `onnx-attest explain` prints it."""
    pages = [_page(CODES[code]) for code in occurring(list(records)) if code in CODES]
    if not pages:
        return Markup()
    return joined(tag("h3", "What the codes mean"), pages)


def _page(code: Code) -> Markup:
    return tag(
        "article",
        tag("h4", f"{code.code} {code.title}"),
        tag("p", tag("em", code.severity), ". ", code.why),
        tag("p", tag("strong", "Example."), " ", code.example),
        tag("p", tag("strong", "Remedy."), " ", code.remedy),
        id=f"code-{code.code}",
        class_="code",
    )
