"""`onnx-attest report`: the views of a run, made again from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_attest.errors import UsageError
from onnx_attest.verify import console
from onnx_attest.verify.commands.github import GithubSummary, append, step_summary
from onnx_attest.verify.paths import is_same


def report(
    records: Annotated[Path, typer.Argument(help="A records.jsonl, or the folder that holds one.")],
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            "--view",
            help="One view alone: md, html, json, junit, github, csv (cells), or a file of the report, findings.csv for example.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder to write all reports to; with --format the file."),
    ] = None,
    github_summary: GithubSummary = False,
) -> None:
    """Make the reports again from records: all of them, or one view on stdout."""
    from onnx_attest.verify.records import read_records
    from onnx_attest.verify.report import render, write_reports
    from onnx_attest.verify.report.views import FORMATS

    step = step_summary(github_summary)
    read = read_records(records)
    views = render(read)
    name = FORMATS.get(format_ or "", format_)
    if name is not None and name not in views:
        raise UsageError(f"unknown view {name!r}; there are {', '.join((*FORMATS, *views))}")
    if name is None and output is None:
        console.show_run(read, is_written=False)
    elif name is not None and output is None:
        console.show(views[name])
    elif name is not None and output is not None:
        console.write(output, views[name])
        console.note(f"{name} is in {output}.")
    elif output is not None:
        given = records if records.is_dir() else records.parent
        artifacts, journal = given / "artifacts", given / "journal.jsonl"
        same = is_same(given, output)
        write_reports(
            read,
            output,
            artifacts if same and artifacts.is_dir() else None,
            journal=journal.read_bytes() if same and journal.is_file() else None,
        )
        console.show(f"The reports are in {output}.")
    append(read, step)
