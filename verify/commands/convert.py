"""`onnx-attest convert`: a variant of a file for deployment, and what it cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_attest.verify import console


def convert(
    file: Annotated[Path, typer.Argument(help="The ONNX file, in float32.")],
    to: Annotated[
        str, typer.Option("--to", help="fp16, fp16-softmax32, bf16, int8-dynamic, int8-static or ort-fused.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    against: Annotated[
        str | None, typer.Option(help="The module of the file, which bf16 is exported from anew.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the inputs that int8-static is calibrated with, and of the cost's.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Convert a file for deployment, and say what that cost; verify the result like any other file."""
    from dataclasses import asdict

    from onnx_attest.errors import UsageError
    from onnx_attest.export.artifact import read_artifact
    from onnx_attest.export.convert import CALIBRATED, EXPORTED, export_anew, refuse_place
    from onnx_attest.export.convert import convert as make
    from onnx_attest.models.entry import resolve
    from onnx_attest.verify.conversion.cost import calibration_of, costs, table
    from onnx_attest.verify.conversion.masked import masked
    from onnx_attest.verify.signature import read_signature

    artifact = read_artifact(file)
    refuse_place(artifact, output)
    if to in EXPORTED and against is None:
        raise UsageError(
            f"{to} is exported anew from the module, since no converter here writes it: name the module with --against"
        )
    original = read_signature(artifact)
    if to.startswith("fp16") and original.floating.name != "float32":
        raise UsageError(f"{file} is in {original.floating.name}, and {to} is made from float32")
    with console.progress() as step:
        step(f"converting to {to}")
        if to in EXPORTED and against is not None:
            made = export_anew(artifact, to, output, resolve(against))
        elif to in CALIBRATED:
            made = make(artifact, to, output, calibration_of(original, seed + 1), masked(original.model))
        else:
            made = make(artifact, to, output)
        step("evaluating both in float64")
        found = list(costs(original, read_signature(made), seed))
    if json:
        console.show_json(
            {"file": output.name, "sha256": made.sha256, "kind": to, "costs": [asdict(one) for one in found]}
        )
    else:
        console.show(f"{output}, sha256 {made.sha256}\n\n{table(found)}")
