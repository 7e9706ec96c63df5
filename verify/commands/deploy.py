"""`onnx-attest deploy` and `onnx-attest replay`: from a verified file to a bundle, and the bundle where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_attest.verify import console

Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require", help="A runtime without which nothing is proven (repeatable); ort-cpu by default."
    ),
]


def deploy(
    file: Annotated[Path, typer.Argument(help="The ONNX file.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the bundle; it is not there yet.")
    ],
    records: Annotated[
        Path | None,
        typer.Option(help="Records of its verification, or their folder; without them it is verified now."),
    ] = None,
    require: Require = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Bundle it although nothing is proven; the bundle says so for ever."),
    ] = False,
    converted_from: Annotated[
        Path | None,
        typer.Option(
            "--converted-from", help="The file that it was converted from: the card says what that cost."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the test data.")] = 0,
) -> None:
    """Bundle a verified file with what proves it."""
    from onnx_attest.export.artifact import read_artifact
    from onnx_attest.verify import api
    from onnx_attest.verify.deploy.card import AGAINST
    from onnx_attest.verify.deploy.write import deploy as write
    from onnx_attest.verify.records import read_records

    artifact, required = read_artifact(file), tuple(require or ("ort-cpu",))
    original = None if converted_from is None else read_artifact(converted_from)
    with console.progress() as step:
        if records is not None:
            proof = read_records(records)
        else:
            step("verifying")
            proof = list(api.verify(artifact, runtimes=required).records)
        bundle = write(
            artifact,
            proof,
            output,
            required=required,
            force=force,
            seed=seed,
            original=original,
            on_step=step,
        )
    told = (
        f"unverified: {bundle.about.unverified}"
        if bundle.about.unverified
        else "verified on " + ", ".join(one.runtime for one in bundle.about.verified)
    )
    if against := AGAINST.get(bundle.about.against):
        told += f", {against}"
    console.show(f"{bundle.name}  {output}\n{told}; {len(bundle.about.data)} sets of test data")


def replay(
    folder: Annotated[Path, typer.Argument(help="A bundle.")],
    runtime: Annotated[
        list[str] | None,
        typer.Option(
            "--runtime", help="A runtime of this machine (repeatable); those it was verified on by default."
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option("--require", help="A runtime without which nothing is proven: exit 3 (repeatable)."),
    ] = None,
    latency: Annotated[
        bool, typer.Option("--latency/--no-latency", help="Also time the runtimes that are right here.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write reports to this folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Run a bundle's test data on this machine, against the bounds that it brings along."""
    from onnx_attest.verify.deploy.replay import replay as run
    from onnx_attest.verify.deploy.told import told
    from onnx_attest.verify.records import RunRecord
    from onnx_attest.verify.report import write_reports
    from onnx_attest.verify.report.folder import refuse_unwritable

    if output is not None:
        refuse_unwritable(output)
    with console.progress() as step:
        done = run(folder, tuple(runtime or ()), required=tuple(require or ()), latency=latency, on_step=step)
    if output is not None:
        write_reports(done, output)
    if json:
        console.show_json(console.verdict_object(done))
    else:
        where = () if output is None else (f"The reports are in {output}.",)
        console.show_run(done, told(done), *where, is_written=output is not None)
    raise typer.Exit(next(record.exit_code for record in done if isinstance(record, RunRecord)))
