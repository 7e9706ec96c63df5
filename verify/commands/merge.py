"""`onnx-attest merge`: the shards of a run, put together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_attest.verify import console


def merge(
    folders: Annotated[
        list[Path], typer.Argument(help="The reports of all shards of one run, in any order.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the whole run's report.")],
    evidence: Annotated[
        Path, typer.Option(help="Folder of what other machines recorded, told beside the verdict.")
    ] = Path("reports/evidence"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Put the shards of a run together: the report that `run` or `verify` without --shard would have written."""
    from onnx_attest.verify.journal.merge import merge as put_together
    from onnx_attest.verify.records import RunRecord

    records = put_together(folders, output, evidence)
    if json:
        console.show_json(console.verdict_object(records))
    else:
        console.show_run(records, f"The reports are in {output}.", is_written=True)
    raise typer.Exit(next(record.exit_code for record in records if isinstance(record, RunRecord)))
