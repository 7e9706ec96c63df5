"""`onnx-attest compare`: what became worse between two runs, and the same after a run with `--baseline`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnx_attest.verify import console

if TYPE_CHECKING:
    from onnx_attest.verify.records import AnyRecord

Baseline = Annotated[
    Path | None,
    typer.Option(
        help="Records of an earlier run: also compare with them, and exit 1 if something became worse."
    ),
]


def compare(
    old: Annotated[
        Path, typer.Argument(help="A records.jsonl of the earlier run, or the folder of its report.")
    ],
    new: Annotated[Path, typer.Argument(help="The same of the later run.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write it to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what became worse or better between two runs, beyond noise; exit 1 if something became worse."""
    from onnx_attest.verify.compare import compare as judge
    from onnx_attest.verify.compare.render import as_markdown, as_object
    from onnx_attest.verify.records import read_records

    found = judge(read_records(old), read_records(new))
    text = console.json_text(as_object(found)) if json else as_markdown(found)
    if output is None:
        console.show(text)
    else:
        console.write(output, text)
        console.note(f"{output}: {found.verdict}")
    raise typer.Exit(found.exit_code)


def read_baseline(path: Path | None) -> Sequence[AnyRecord] | None:
    """Return the records of a baseline, read before the run: its report may replace them.

    Raises:
        UsageError: they cannot be read.
    """
    from onnx_attest.verify.records import read_records

    return None if path is None else read_records(path)


def beside_baseline(
    baseline: Sequence[AnyRecord] | None, records: Sequence[AnyRecord], exit_code: int
) -> tuple[str, dict[str, Any], int]:
    """Return what a run is beside its baseline: as text, as fields of its object, and the exit code of both.

    A run that failed stays failed; one that did not fails by a regression, and proves nothing of a regression if it has
    nothing in common with its baseline.
    """
    if baseline is None:
        return "", {}, exit_code
    from onnx_attest.verify.compare import compare as judge
    from onnx_attest.verify.compare.render import as_markdown, as_object
    from onnx_attest.verify.verdicts import FAILED

    found = judge(baseline, records)
    code = FAILED if FAILED in (exit_code, found.exit_code) else exit_code or found.exit_code
    told = f"Beside the baseline: {as_markdown(found)}"
    if code != exit_code:
        told = f"{told.rstrip()}\n\nWith the baseline: exit code {code}.\n"
    return told, {"comparison": as_object(found)}, code
