"""What GitHub shows on the page of a job: the file that its runner names takes Markdown from each step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnx_attest.verify import console

if TYPE_CHECKING:
    from onnx_attest.verify.records import AnyRecord

VARIABLE = "GITHUB_STEP_SUMMARY"
GithubSummary = Annotated[
    bool,
    typer.Option("--github-summary", help=f"Also append github.md to the file that {VARIABLE} names."),
]


def step_summary(asked: bool) -> Path | None:
    """Return the file that the runner names, None if nobody asked for it; to be called before the work.

    Raises:
        UsageError: it names none, or one that cannot be written.
    """
    from onnx_attest.errors import UsageError

    if not asked:
        return None
    if not os.environ.get(VARIABLE):
        raise UsageError(
            f"--github-summary: {VARIABLE} names no file, as it does in GitHub Actions; elsewhere "
            "`onnx-attest report RECORDS --format github` prints the same"
        )
    file = Path(os.environ[VARIABLE])
    try:
        with file.open("a"):  # now, not when all was run
            return file
    except OSError as error:
        raise UsageError(_cannot_append(file, error)) from error


def _cannot_append(file: Path, error: OSError) -> str:
    return f"cannot append to {file}, which {VARIABLE} names: {error.strerror}"


def append(records: Sequence[AnyRecord], file: Path | None, beside: str = "") -> None:
    """Append a run, and what it is beside a baseline, to the summary of a step, within what GitHub takes of one.

    Raises:
        UsageError: the file cannot be written.
    """
    from onnx_attest.errors import UsageError
    from onnx_attest.verify.report.github import LIMIT, first_lines, github

    if file is None:
        return
    try:
        there = file.stat().st_size if file.exists() else 0
        text = github(records, LIMIT - there - 1)
        text += first_lines(beside, LIMIT - there - 2 - len(text.encode()))
        if text:
            with file.open("a", encoding="utf-8", newline="\n") as end:
                end.write(f"\n{text}")
        else:
            console.note(f"{VARIABLE}: the summary of this step is full, nothing was appended")
    except OSError as error:
        raise UsageError(_cannot_append(file, error)) from error
