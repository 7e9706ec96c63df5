"""The run as JUnit XML, which CI systems show: junit.xml.

A test case is whatever has a verdict: exports, cells, softmax rows, relations that somebody asks for, the chapter's
statements, timings, and softmaxes that break too early. One suite is one export on one runtime.

A case is red only if it takes the verdict of the run with it (`verdicts.counting`), so that red cases and the exit code say
the same. JUnit has four outcomes, and a verdict has five:

* failed is a `failure`: something was shown to be wrong. Errored is an `error`.
* Inconclusive is an `error` too: nothing was shown to be wrong, but the exit code is not 0, and a green page beside a red
  job helps nobody.
* Skipped is `skipped` with its reason; so is an expected failure, with its public issue first, and whatever did not pass
  and does not count.

A run that did not pass though no case is red, since a required runtime did not run, has a case of its own.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    ClaimRecord,
    EnvironmentRecord,
    FindingRecord,
    HeadroomRecord,
    LatencyRecord,
    RelationRecord,
    StabilityRecord,
    Verdict,
    finite,
)
from onnx_attest.verify.report.formats import printable, shortened, sizes
from onnx_attest.verify.report.grouping import grouped, of_kind, subject
from onnx_attest.verify.report.headline import last_run, told
from onnx_attest.verify.report.outcomes import HasVerdict, failed_gates
from onnx_attest.verify.report.reasons import NO_REASON
from onnx_attest.verify.verdicts import counting

MESSAGE = 300
"""Of an attribute; the element's text has all of it."""
RED = ("failure", "error")


@dataclass(frozen=True)
class Case:
    """One test case.

    Attributes:
        suite: model, variant, opset, dtype and runtime; or what else there is one of.
        name: within its suite.
        tag: of what stands in it, "" if it passed.
        kind: the verdict behind the tag, `inconclusive` or `known failure` for example.
        message: why.
        text: all that is known of it.
        properties: its numbers, unrounded.
    """

    suite: tuple[str, ...]
    name: str
    tag: str = ""
    kind: str = ""
    message: str = ""
    text: str = ""
    properties: tuple[tuple[str, str], ...] = ()


def junit(records: Iterable[AnyRecord]) -> str:
    """Return junit.xml; whatever names and messages hold, it is valid XML: what XML forbids is shown as a mark."""
    records = list(records)
    cases = list(_cases(records))
    cases += _run(records, cases)
    run = last_run(records)
    root = ET.Element("testsuites", _counts("onnx-attest", cases))
    if run is not None:
        root.set("time", repr(run.duration_s))
    for suite, members in grouped(cases, lambda case: case.suite).items():
        element = ET.SubElement(root, "testsuite", _counts(" ".join(filter(None, suite)), members))
        if len(root) == 1:  # there is nowhere else for what holds for all
            _properties(element, _environment(records))
        element.extend(map(_element, members))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _counts(name: str, cases: Sequence[Case]) -> dict[str, str]:
    tags = [case.tag for case in cases]
    totals = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {attribute: str(tags.count(tag)) for attribute, tag in totals.items()}
    return {"name": printable(name), "tests": str(len(cases)), **counts}


def _environment(records: Sequence[AnyRecord]) -> Iterator[tuple[str, str]]:
    for one in of_kind(records, EnvironmentRecord)[-1:]:
        yield "onnx-attest", one.onnx_attest
        yield "Python", one.python
        yield "system", one.system
        yield from one.packages.items()


def _element(case: Case) -> ET.Element:
    # Jenkins makes packages of what stands between dots: a dot within a name would tear it apart.
    classname = ".".join(part.replace(".", "_") for part in case.suite if part)
    element = ET.Element("testcase", {"classname": printable(classname), "name": printable(case.name)})
    _properties(element, case.properties)
    if case.tag:
        message = printable(shortened(case.message, MESSAGE))
        outcome = ET.SubElement(element, case.tag, {"type": case.kind, "message": message})
        outcome.text = printable(case.text or case.message)
    return element


def _properties(parent: ET.Element, named: Iterable[tuple[str, str]]) -> None:
    pairs = [{"name": printable(name), "value": printable(value)} for name, value in named]
    if pairs:
        properties = ET.SubElement(parent, "properties")
        for pair in pairs:
            ET.SubElement(properties, "property", pair)


def _cases(records: Sequence[AnyRecord]) -> Iterator[Case]:
    findings = grouped(of_kind(records, FindingRecord), _about)
    deciding = {id(record) for record in counting(records)}
    if not of_kind(records, CellRecord):  # `bench`: its verdict is that of the timings
        deciding |= {id(record) for record in of_kind(records, LatencyRecord)}
    for record in records:
        case = _case(record)
        if case is None:
            continue
        case = _with_outcome(case, record, counts=id(record) in deciding)
        mine = findings.get(_about(record), []) if case.tag in RED else []
        said = (f"{one.code} {one.severity}: {one.message} Next: {one.next_step}" for one in mine)
        yield replace(case, text="\n".join(dict.fromkeys((*filter(None, (case.text,)), *said))))


def _about(record: AnyRecord) -> tuple[object, ...]:
    """Return what a finding and a record have in common, if it is about that record."""
    case = getattr(record, "case", None)
    name = case if isinstance(case, str) else "" if case is None else case.id
    place = (getattr(record, field, "") for field in ("model", "variant", "opset", "dtype", "runtime"))
    return (*place, name)


def _case(record: AnyRecord) -> Case | None:
    """Return the test case of a record without its outcome, None if it has no verdict that anybody acts on."""
    match record:
        case ArtifactRecord():
            return Case(_place(record), "export")
        case CellRecord():
            named = "all cases" if record.case is None else record.case.id
            return Case(_place(record), named, text=_of_cell(record), properties=_numbers(record))
        case StabilityRecord():
            return Case(_place(record), f"softmax rows of {record.attention or 'the file'}, {record.case.id}")
        case HeadroomRecord() if record.verdict in ("failed", "errored"):
            about = ", ".join(filter(None, (record.softmax, record.profile)))
            return Case(_place(record), f"softmax alone: {about}, {record.case.id}")
        case RelationRecord() if record.asked_by:
            return Case(_place(record), f"relation {record.relation}, {record.case.id}")
        case ClaimRecord():
            about = ", ".join(filter(None, (f"statement {record.claim}", record.setting)))
            return Case(("statements", record.model, record.dtype, record.runtime), about)
        case LatencyRecord() if not record.twin:
            return Case(_place(record), f"time, {sizes(record.axes)}")
    return None


def _place(record: HasVerdict | RelationRecord) -> tuple[str, ...]:
    return (*subject(record), "" if isinstance(record, ArtifactRecord) else record.runtime)


def _with_outcome(case: Case, record: Any, *, counts: bool) -> Case:
    """Return the case as its record ended.

    Args:
        case: of a record.
        record: one that has a verdict.
        counts: whether it takes the verdict of the run with it.
    """
    verdict: Verdict = record.verdict
    reason, known = record.reason or NO_REASON, getattr(record, "known", "")
    if verdict == "passed":
        return case
    if verdict == "skipped":
        return replace(case, tag="skipped", kind=verdict, message=reason)
    if known and verdict in ("failed", "errored"):
        return replace(
            case, tag="skipped", kind="known failure", message=f"known failure ({known}): {reason}"
        )
    if not counts:
        return replace(case, tag="skipped", kind=verdict, message=f"{verdict}, and does not count: {reason}")
    tag = "failure" if verdict == "failed" else "error"
    return replace(case, tag=tag, kind=verdict, message=reason)


def _of_cell(cell: CellRecord) -> str:
    if cell.verdict in ("passed", "skipped"):
        return ""
    gates = failed_gates(cell)
    index = ", ".join(map(str, cell.worst_index))
    lines = (
        cell.reason,
        f"Gates failed: {', '.join(gates)}." if gates else "",
        f"Worst element: {cell.worst_output}[{index}] is {cell.worst_actual}, exact {cell.worst_expected}."
        if cell.worst_output
        else "",
    )
    return "\n".join(filter(None, lines))


def _numbers(cell: CellRecord) -> tuple[tuple[str, str], ...]:
    numbers = {
        "max_err_over_tau": cell.gates.get("proof", {}).get("max_err_over_tau"),
        "effective_bits": cell.effective_bits,
        "max_abs_err": cell.max_abs_err,
        "max_rel_err": cell.max_rel_err,
    }
    return tuple((name, repr(value)) for name, value in numbers.items() if finite(value) is not None)


def _run(records: Sequence[AnyRecord], cases: Sequence[Case]) -> list[Case]:
    """Return a case for a run whose verdict no other case shows."""
    said = told(records)
    run = last_run(records)
    if (run is not None and run.exit_code == 0) or any(case.tag in RED for case in cases):
        return []
    reason = run.reason or said.end if run is not None else said.end
    tag = "failure" if said.verdict == "failed" else "error"
    return [Case(("run",), "verdict", tag, said.verdict, reason, reason)]
