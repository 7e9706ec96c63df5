"""Bundles of three models in each variant for deployment, replayed on three runtimes: a table for reports/reference.

    python benchmarks/bundles.py [--output reports/reference/bundles.md]

Each variant is verified on ONNX Runtime's CPU provider and bundled; where nothing is proven it is bundled by force, and the
table says why. The bundle is then replayed on each runtime; what a runtime refuses is told in its own words.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnx_attest.errors import UsageError
from onnx_attest.export.api import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.export.convert import CALIBRATED, convert
from onnx_attest.export.converter import KINDS
from onnx_attest.models.entry import resolve
from onnx_attest.verify.api import verify
from onnx_attest.verify.conversion.cost import calibration_of
from onnx_attest.verify.deploy.proof import NotProvenError
from onnx_attest.verify.deploy.replay import replay
from onnx_attest.verify.deploy.write import deploy
from onnx_attest.verify.records import CellRecord
from onnx_attest.verify.report.tables import Column, fill, page, to_markdown
from onnx_attest.verify.signature import read_signature

MODELS = ("sdpa", "mha", "block")
RUNTIMES = ("ort-cpu", "openvino-cpu", "ort-web")
_SHORT = 110


def main() -> None:
    """Make the bundles, replay them, and print or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--model", action="append", choices=MODELS)
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for model in asked.model or MODELS:
            for artifact in variants(model, Path(name) / model):
                rows.append(row(model, artifact, Path(name) / "bundles" / f"{model}-{len(rows)}"))
                print(*rows[-1].values(), sep=" | ", flush=True)
    columns = tuple(Column(key, key, lambda one, key=key: one[key]) for key in rows[0])
    text = page("Bundles", [to_markdown(fill("", columns, rows, NOTE))])
    if asked.output:
        asked.output.write_text(text)
    else:
        print(text)


def variants(model: str, folder: Path) -> Iterator[Artifact]:
    """Yield a model's own exports in both dtypes, then what its decomposed one is converted to."""
    entry = resolve(model)
    for dtype in ("float32", "float16"):
        made = [one for one in export_entry(entry, folder / dtype, dtype=dtype) if isinstance(one, Artifact)]
        yield from made
        if dtype == "float32":
            plain = next(one for one in made if one.manifest and one.manifest.variant == "decomposed")
    signature = read_signature(plain)
    for kind in KINDS:
        given = calibration_of(signature, 1) if kind in CALIBRATED else ()
        yield convert(plain, kind, folder / f"{model}-{kind}.onnx", given)


def row(model: str, artifact: Artifact, folder: Path) -> dict[str, str]:
    """Return a line of the table: the bundle of one file, and what its replay came to on each runtime."""
    assert artifact.manifest is not None
    told: dict[str, str] = {
        "model": model,
        "variant": f"{artifact.manifest.variant}-{artifact.manifest.got.opset}",
        "dtype": artifact.manifest.dtype,
    }
    records: list[Any] = list(verify(artifact, runtimes=("ort-cpu",)).records)
    try:
        deploy(artifact, records, folder)
        told["bundle"] = "verified"
    except NotProvenError as error:
        deploy(artifact, records, folder, force=True)
        told["bundle"] = f"by force: {_short(str(error))}"
    except UsageError as error:
        return told | {"bundle": _short(str(error))} | dict.fromkeys(RUNTIMES, "")
    for runtime in RUNTIMES:
        cells = [one for one in replay(folder, (runtime,)) if isinstance(one, CellRecord)]
        passed = sum(one.verdict == "passed" for one in cells)
        other = next((f"{one.verdict}: {_short(one.reason)}" for one in cells if one.verdict != "passed"), "")
        told[runtime] = f"{passed} of {len(cells)} passed" + (f"; {other}" if other else "")
    return told


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else text[:_SHORT] + " ..."


NOTE = "Test data of each bundle, held against its own float64 references and bounds. What is not passed is in the runtime's words or the gate's."


if __name__ == "__main__":
    main()
