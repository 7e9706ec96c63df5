"""A comparison as Markdown, which is readable on a terminal too, and as an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onnx_attest.verify.compare.change import Change, Comparison
from onnx_attest.verify.report.formats import UNKNOWN, shortened
from onnx_attest.verify.report.tables import escaped

MESSAGE = 240
LINES = 20
"""Of each list but that of regressions, which is never cut."""
_KINDS = {
    "export": "Exports",
    "verdict": "Verdicts",
    "error": "Errors",
    "stability": "Softmax rows",
    "headroom": "Where a softmax breaks",
    "relation": "Relations",
    "claim": "Statements of the chapter",
    "finding": "Findings",
    "latency": "Latency",
}


def as_markdown(comparison: Comparison) -> str:
    """Return the verdict, what counts, what changed otherwise, the versions, and what was compared."""
    regressions = comparison.regressions
    others = [change for change in comparison.changes if not change.counts]
    parts = (
        _headline(comparison),
        _by_kind("Regressions", regressions, None),
        _by_kind("Worse, and does not count", [one for one in others if one.direction == "worse"], LINES),
        _by_kind("Better", [one for one in others if one.direction == "better"], LINES),
        _by_kind("Other", [one for one in others if one.direction == "other"], LINES),
        _versions(comparison.versions, proven=comparison.verdict != "inconclusive"),
        _named("Not run any more", comparison.vanished),
        _named("New", comparison.appeared),
        _named("Not compared", comparison.not_compared),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def as_object(comparison: Comparison) -> dict[str, Any]:
    """Return the same for `--json`: the fields of the records of `change.py`, verdict and exit code first."""
    head = {
        "verdict": comparison.verdict,
        "exit_code": comparison.exit_code,
        "regressions": len(comparison.regressions),
    }
    fields: dict[str, Any] = msgspec.to_builtins(comparison)
    return head | fields


def _headline(comparison: Comparison) -> str:
    words = {
        "passed": "no regression",
        "failed": f"{(count := len(comparison.regressions))} regression{'s' * (count != 1)}",
        "inconclusive": "the runs have no cell in common: other models, variants, opsets, dtypes, sizes or runtimes",
    }
    counts = ", ".join(f"{count} {kind}" for kind, count in comparison.compared.items() if count)
    compared = f"; compared: {counts}; {comparison.same_inputs} cells on the same inputs" if counts else ""
    return f"**{comparison.verdict}**: {words[comparison.verdict]}{compared}"


def _by_kind(title: str, changes: Sequence[Change], most: int | None) -> str:
    if not changes:
        return ""
    lines = [f"{_KINDS[one.kind]}, {one.where}: {one.message}" for one in changes]
    return _list(title, lines, most)


def _versions(versions: Mapping[str, tuple[str | None, str | None]], *, proven: bool) -> str:
    lines = [
        f"{name}: {before or UNKNOWN} before, {after or UNKNOWN} now"
        for name, (before, after) in versions.items()
    ]
    if lines:
        return _list("What changed around it", lines, None)
    return "Machine, software and files are the same." if proven else ""


def _named(title: str, named: Mapping[str, str]) -> str:
    return _list(title, [f"{name}: {why}" for name, why in named.items()], LINES) if named else ""


def _list(title: str, lines: Sequence[str], most: int | None) -> str:
    shown = lines if most is None else lines[:most]
    rest = [f"and {len(lines) - len(shown)} more (--json has all)"] if len(lines) > len(shown) else []
    return "\n".join((f"{title}:", *(f"- {escaped(shortened(line, MESSAGE))}" for line in (*shown, *rest))))
