"""The whole run on one screen: summary.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    EnvironmentRecord,
    EvidenceRecord,
    FindingRecord,
)
from onnx_attest.verify.report.formats import UNKNOWN, listed, sentence, shortened
from onnx_attest.verify.report.grouping import grouped, judged, of_kind, with_verdict
from onnx_attest.verify.report.headline import headline, last_run
from onnx_attest.verify.report.matrix import matrix
from onnx_attest.verify.report.outcomes import is_known, ran_on_cuda
from onnx_attest.verify.report.reasons import EXPORT, NO_REASON, Reason, reasons
from onnx_attest.verify.report.tables import escaped, to_markdown

WIDTH = 120
# A screen has 45 lines: the summary names the causes, accuracy.md holds the whole messages and all of them.
MESSAGE, NEXT_STEP, LINES = 160, 100, 8
_SEVERITIES = ("error", "warning", "note")
CUDA_NEVER = (
    "The CUDA path has never been executed in this run: nothing here says anything about a GPU (--require ort-cuda makes a "
    "run without it inconclusive)."
)
CUDA_ELSEWHERE = "CUDA was not executed in this run. Recorded elsewhere, and no part of this verdict:"
EVERY_NUMBER = "Every number, each message in full: accuracy.md, stability.md, relations.md, latency.md, claims.md; all as .csv too."

NO_NUMBERS = "Every number: give -o FOLDER, where the tables, a page to look at and the records are written."


def summary(records: Iterable[AnyRecord], *, is_written: bool = True) -> str:
    """Return summary.md: verdict, matrix, reasons, known failures, findings, CUDA, environment.

    Args:
        records: of the run.
        is_written: whether there are files beside it, which the last line names.
    """
    records = list(records)
    parts = (
        headline(records),
        _wrapped(escaped(why(records))),
        to_markdown(matrix(records)).rstrip() if with_verdict(records) else "",
        *(_section(title, lines) for title, lines in lists(records).items() if lines),
        _section(*cuda(records)),
        "\n".join(_wrapped(escaped(line)) for line in environment(records)),
        EVERY_NUMBER if is_written else NO_NUMBERS,
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def lists(records: Sequence[AnyRecord]) -> dict[str, list[str]]:
    """Return what stands under the matrix by its heading: each reason, known failure and kind of finding once."""
    return {
        "Skipped, errored or inconclusive, each reason once:": _reasons(records),
        "Known failures, which do not count:": _known_failures(records),
        "Findings:": _findings(records),
    }


def cut(lines: Sequence[str]) -> list[str]:
    """Return the lines that a screen has room for, and how many were left out."""
    left_out = len(lines) - LINES
    return [*lines[:LINES], *([f"and {left_out} more, see the tables"] if left_out > 0 else [])]


def why(records: Sequence[AnyRecord]) -> str:
    """Return the run's reason and what was required, "" if there is nothing of both."""
    run = last_run(records)
    if run is None:
        return ""
    required = f"Required: {', '.join(run.required)}." if run.required else ""
    reason = f"Why: {sentence(run.reason, MESSAGE)}" if run.reason else ""
    return " ".join(filter(None, (reason, required)))


def _reasons(records: Sequence[AnyRecord]) -> list[str]:
    exports = reasons(of_kind(records, ArtifactRecord), ("failed",))
    unexpected = [one for one in with_verdict(records) if not is_known(one)]
    return list(map(_said, exports + reasons(unexpected, ("errored", "inconclusive", "skipped"))))


def _said(reason: Reason) -> str:
    # An export is a thing of its own; what a runtime says holds for whatever it was asked to run.
    about = shortened(listed(" ".join(one) for one in reason.subjects), NEXT_STEP)
    who = f"{EXPORT} of {about}" if reason.runtime == EXPORT else reason.runtime
    return f"{who} {reason.verdict}: {shortened(reason.text, MESSAGE)}"


def _known_failures(records: Sequence[AnyRecord]) -> list[str]:
    """Return one line for each model and issue: the message of a finding, else the reason of a cell."""
    said: dict[tuple[str, str], str] = {}
    for finding in of_kind(records, FindingRecord):
        if is_known(finding):
            said.setdefault((finding.model, finding.known), finding.message)
    for one in filter(is_known, judged(records)):
        said.setdefault((one.model, one.known), one.reason or NO_REASON)
    return [
        f"{model or UNKNOWN} ({known}): {shortened(text, MESSAGE)}" for (model, known), text in said.items()
    ]


def _findings(records: Sequence[AnyRecord]) -> list[str]:
    """Return one line for each code that was not expected, errors first; what is skipped has said its reason above."""
    unexpected = [
        one for one in of_kind(records, FindingRecord) if not is_known(one) and one.severity != "note"
    ]
    unexpected.sort(key=lambda one: _SEVERITIES.index(one.severity))
    return list(map(_found, grouped(unexpected, lambda one: one.code).values()))


def _found(same: Sequence[FindingRecord]) -> str:
    first = same[0]
    where = " ".join(filter(None, (first.model, first.variant, first.runtime, first.case))) or "the run"
    more = f" and {len(same) - 1} more" if len(same) > 1 else ""
    message, next_step = sentence(first.message, MESSAGE), shortened(first.next_step, NEXT_STEP)
    return f"{first.code} {first.severity}, {where}{more}: {message} Next: {next_step}"


def cuda(records: Sequence[AnyRecord]) -> tuple[str, list[str]]:
    """Return what is to be said of the CUDA path where this run did not take it, and what was recorded elsewhere."""
    if any(map(ran_on_cuda, records)):
        return "", []
    evidence = of_kind(records, EvidenceRecord)
    if not evidence:
        return CUDA_NEVER, []
    return CUDA_ELSEWHERE, list(map(_recorded, evidence))


def _recorded(evidence: EvidenceRecord) -> str:
    cells = ", ".join(f"{count} {verdict}" for verdict, count in evidence.cells.items())
    arithmetic = ", ".join(f"{name} in {count}" for name, count in evidence.ran_as.items())
    where = "; ".join(evidence.gpus) or evidence.machine
    return (
        f"{evidence.runtime} {evidence.runtime_version} on {where}, {evidence.recorded_at}: {evidence.files} of "
        f"the {evidence.of_files} files here, cells {cells}; arithmetic seen: {arithmetic}"
    )


def environment(records: Sequence[AnyRecord]) -> list[str]:
    """Return the machine with its versions, and the settings that are not defaults, a line each."""
    lines = dict.fromkeys(map(_machine, of_kind(records, EnvironmentRecord)))
    told = [f"Environment: {line}" for line in lines or ("not recorded",)]
    settings = dict.fromkeys(map(_settings, of_kind(records, EnvironmentRecord)))
    return [*told, *filter(None, settings)]


def _settings(environment: EnvironmentRecord) -> str:
    given = "; ".join(f"{name} {value}" for name, value in environment.configuration.items())
    return f"Configuration: {given}" if given else ""


def _machine(environment: EnvironmentRecord) -> str:
    packages = environment.packages
    runtimes = [name for name in packages if name.startswith("onnxruntime")] or ["onnxruntime"]
    versions = [f"{name} {packages.get(name, UNKNOWN)}" for name in ("torch", "onnx", *runtimes)]
    cpu = f"{environment.cpu or 'cpu ' + UNKNOWN}, {environment.cores} cores"
    return "; ".join((", ".join(versions), f"Python {environment.python}", environment.system, cpu))


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join((_wrapped(escaped(title)), *(_wrapped(f"- {escaped(line)}") for line in cut(lines))))


def _wrapped(text: str) -> str:
    """Return the text on lines that fit the screen; a long word, a path say, is not broken."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
