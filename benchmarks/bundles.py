"""Bundles of three models in each variant for deployment, replayed on three runtimes: a table for reports/reference.

    python benchmarks/bundles.py [--output reports/reference/bundles.md]

Each variant is verified on ONNX Runtime's CPU provider and bundled; where nothing is proven it is bundled by force, and the
table says why. The bundle is then replayed on each runtime; what a runtime refuses is told in its own words.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.export.api import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.export.convert import CALIBRATED, convert
from onnx_attest.export.converter import KINDS
from onnx_attest.models.contract import Contract
from onnx_attest.models.entry import resolve
from onnx_attest.verify.api import verify
from onnx_attest.verify.conversion.cost import Cost, calibration_of, costs
from onnx_attest.verify.conversion.masked import masked
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
            for artifact, original in variants(model, Path(name) / model):
                rows.append(row(model, artifact, original, Path(name) / "bundles" / f"{model}-{len(rows)}"))
                print(*rows[-1].values(), sep=" | ", flush=True)
    columns = tuple(Column(key, key, lambda one, key=key: one[key]) for key in rows[0])
    text = page("Bundles", [to_markdown(fill("", columns, rows, NOTE))])
    if asked.output:
        asked.output.write_text(text)
    else:
        print(text)


def variants(model: str, folder: Path) -> Iterator[tuple[Artifact, Artifact | None]]:
    """Yield a model's own exports in each dtype, then what its decomposed one is converted to, with that one."""
    entry = resolve(model)
    promised = replace(entry, contract=with_a_key_for_each_query(entry.contract))
    for dtype in ("float32", "float16", "bfloat16"):
        for one, form in ((entry, "attention"), (promised, "decomposed")):
            for made in export_entry(one, folder / dtype, variants=[form], dtype=dtype):
                if isinstance(made, Artifact):
                    yield made, None
                    if (dtype, form) == ("float32", "decomposed"):
                        plain = made
    signature = read_signature(plain)
    for kind in KINDS:
        given = (calibration_of(signature, 1), masked(signature.model)) if kind in CALIBRATED else ()
        yield convert(plain, kind, folder / f"{model}-{kind}.onnx", *given), plain


def with_a_key_for_each_query(contract: Contract) -> Contract:
    """Return the contract of somebody who feeds no query without any key, if it says what such a row is to give."""
    if contract.empty_rows in ("nan", "never"):
        return contract
    inputs = tuple(
        msgspec.structs.replace(one, masks=tuple(kind for kind in one.masks if kind != "empty-row"))
        for one in contract.inputs
    )
    return msgspec.structs.replace(contract, inputs=inputs, empty_rows="never")


def row(model: str, artifact: Artifact, original: Artifact | None, folder: Path) -> dict[str, str]:
    """Return a line of the table: what a file cost, its bundle, and what the replay came to on each runtime."""
    assert artifact.manifest is not None
    told: dict[str, str] = {
        "model": model,
        "variant": f"{artifact.manifest.variant}-{artifact.manifest.got.opset}",
        "dtype": artifact.manifest.dtype,
        "bits": cost_of(original, artifact) if original else "as exported",
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


def cost_of(original: Artifact, artifact: Artifact) -> str:
    """Return the median of the bits that a conversion kept on cases with logits of the usual deviation."""
    found = costs(read_signature(original), read_signature(artifact))
    usual: list[Cost] = [one for one in found if "logit_std=" not in one.case or "logit_std=2" in one.case]
    return f"{statistics.median(one.bits for one in usual):.1f}"


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else text[:_SHORT] + " ..."


NOTE = (
    "Test data of each bundle, held against its own float64 references and bounds. What is not passed is in the runtime's "
    "words or the gate's. `bits`: what a conversion kept of the float32 file, both in float64, median of the usual cases. "
    "Decomposed forms are exported under a contract that promises each query a key: below opset 23 torch's exporter gives a "
    "row without any the mean of the values (microsoft/onnxscript#2654), and where a contract declares 0 nothing is bundled."
)


if __name__ == "__main__":
    main()
