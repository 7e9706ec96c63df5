"""What the command gives: the report, what is other than in an earlier one, and the exit code that follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import write_whole
from onnx_attest.verify.conformance.confirmed import Confirmed, stale
from onnx_attest.verify.conformance.difference import CaseChange, Difference
from onnx_attest.verify.conformance.document import counts_of, document, summary
from onnx_attest.verify.conformance.matrix import ConformanceReport, encode_report

PAGE, DATA = "conformance.md", "conformance.json"


@dataclass(frozen=True)
class Result:
    """The outcome of one run.

    Attributes:
        report: what was found.
        confirmed: kinds that somebody confirmed by hand.
        difference: from an earlier run, None if there is none to compare with.
        required: runtimes without which nothing is proven.
    """

    report: ConformanceReport
    confirmed: Sequence[Confirmed]
    difference: Difference | None = None
    required: tuple[str, ...] = ()

    @property
    def absent(self) -> dict[str, str]:
        """The required runtimes that did not run, and why."""
        runs = self.report.runtimes
        return {
            name: self._why_absent(name) for name in self.required if name not in runs or runs[name].skipped
        }

    def _why_absent(self, name: str) -> str:
        run = self.report.runtimes.get(name)
        return run.skipped if run else self.report.left_out.get(name, "it is no part of this run")

    @property
    def exit_code(self) -> int:
        """Of the command.

        Without an earlier run 0, whatever the runtimes do: that is what was asked for. With one 1 if a case got worse.
        3 if nothing ran or could be compared, or a required runtime did not run.
        """
        if self.difference is not None and self.difference.worse:
            return 1
        nothing = not self.report.cases or (self.difference is not None and not self.difference.compared)
        return 3 if nothing or self.absent else 0

    @property
    def verdict(self) -> str:
        """`recorded` without an earlier run; with one as for every other command."""
        if self.exit_code == 3:
            return "inconclusive"
        if self.difference is None:
            return "recorded"
        return "failed" if self.exit_code else "passed"

    def save(self, folder: Path) -> None:
        """Write the page and the data into a folder; other files in it stay.

        Raises:
            UsageError: it cannot be written; then both files are what they were.
        """
        files = {PAGE: document(self.report, self.confirmed).encode(), DATA: encode_report(self.report)}
        try:
            write_whole({folder / name: data for name, data in files.items()})
        except OSError as error:
            raise UsageError(
                f"cannot write {folder}: {error.strerror or error}; choose another folder with -o"
            ) from error

    def as_text(self) -> str:
        """Return what a terminal shows: the matrix, or, of a comparison, what changed."""
        first = (
            summary(self.report, self.confirmed) if self.difference is None else changes_of(self.difference)
        )
        notes = [f"{name} was required and did not run: {why}" for name, why in self.absent.items()]
        notes += [f"no longer so: {kind.title}" for kind in stale(self.report, self.confirmed)]
        return "\n\n".join(filter(None, (first, "\n".join(notes))))

    def as_object(self) -> dict[str, Any]:
        """Return the same for --json."""
        change = self.difference
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "runtimes": msgspec.to_builtins(self.report.runtimes),
            "versions": self.report.versions,
            "left_out": self.report.left_out,
            "required": self.absent,
            "cells": msgspec.to_builtins(self.report.cells()),
            "findings": msgspec.to_builtins(self.report.details),
            "stale": [kind.title for kind in stale(self.report, self.confirmed)],
            "changes": None if change is None else msgspec.to_builtins(change),
        }


def changes_of(change: Difference) -> str:
    """Return what is other than in an earlier run, what got worse first."""
    lines = [f"{name}: {before}, now {after}" for name, (before, after) in change.versions.items()]
    if not change.versions:
        lines.append("the versions are the same")
    worse = [one for one in change.cases if one.is_worse]
    better = [one for one in change.cases if not one.is_worse]
    parts = ["\n".join(lines), *_listed("worse", worse), *_listed("better", better)]
    cells = [
        f"  {operator}{', expanded' if form == 'expanded' else ''}, {feature}, {runtime}: "
        f"{counts_of(one.before)}, now {counts_of(one.after)}"
        for one in change.cells
        for operator, form, feature, runtime in [one.key]
    ]
    parts.append(
        "cells of the matrix that changed:\n" + "\n".join(cells) if cells else "no cell of the matrix changed"
    )
    for label, names in (("new cases", change.appeared), ("cases that are gone", change.gone)):
        if names:
            parts.append(f"{label}: {', '.join(names)}")
    parts += [f"not compared: {name} ({why})" for name, why in change.not_compared.items()]
    parts.append(f"{change.compared} cases compared, {len(worse)} worse, {len(better)} better")
    return "\n\n".join(parts)


def _listed(label: str, changes: Sequence[CaseChange]) -> Iterator[str]:
    if changes:
        said = [
            f"  {one.case} on {one.runtime}: {one.before}, now {one.after}"
            + (f": {one.reason}" if one.reason else "")
            for one in changes
        ]
        yield f"{label}:\n" + "\n".join(said)
