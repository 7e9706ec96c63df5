"""Was the file that came out the one that was asked for? Each difference is a finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from onnx_attest.export.artifact import Artifact, Asked, Got
from onnx_attest.export.observe import dtypes_of, observe
from onnx_attest.verify.blame import FUSION
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.signature import Signature


def compare_asked_and_got(artifact: Artifact, signature: Signature) -> list[Finding]:
    """Return the differences between what the exporter was asked for and what the file holds."""
    manifest = artifact.manifest
    if manifest is None:
        return []
    found = [
        *_bytes(artifact),
        *_opset(manifest.asked, signature.got),
        *_names(manifest.asked, signature.got),
    ]
    return [*found, *_axes(manifest.asked, signature.got)]


def _bytes(artifact: Artifact) -> Iterator[Finding]:
    assert artifact.manifest is not None
    if artifact.sha256 != artifact.manifest.sha256:
        yield finding(
            "OA801",
            f"the manifest describes {artifact.manifest.sha256[:12]}, the file is {artifact.sha256[:12]}",
        )


def _opset(asked: Asked, got: Got) -> Iterator[Finding]:
    if asked.opset != got.opset:
        yield finding("OA101", f"opset {asked.opset} was asked for, the file is opset {got.opset}")


def _names(asked: Asked, got: Got) -> Iterator[Finding]:
    for kind, wanted, given in (("input", asked.inputs, got.inputs), ("output", asked.outputs, got.outputs)):
        dropped = [name for name in wanted if name not in given]
        added = [name for name in given if name not in wanted]
        if dropped:
            yield finding(
                "OA104", f"the {kind} {', '.join(dropped)} was dropped; the file has {', '.join(given)}"
            )
        if added:
            yield finding("OA104", f"the file has the {kind} {', '.join(added)}, which was not asked for")


def _axes(asked: Asked, got: Got) -> Iterator[Finding]:
    for name, wanted in asked.axes.items():
        given = got.axes.get(name)
        if given is None:
            continue
        if len(given) != len(wanted):
            yield finding("OA104", f"{name} was asked for with {len(wanted)} axes, the file has {len(given)}")
            continue
        for index, (want, have) in enumerate(zip(wanted, given, strict=True)):
            yield from _axis(f"axis {index} of {name}", want, have)


def _axis(where: str, want: str | int, have: str | int | None) -> Iterator[Finding]:
    if isinstance(want, str) and isinstance(have, int):
        yield finding("OA102", f"{where} was requested dynamic ({want}), the file says {have}")
    elif isinstance(want, int) and not isinstance(have, int):
        yield finding("OA103", f"{where} was to be {want}, the file leaves it open ({have or 'unnamed'})")
    elif want != have:
        yield finding("OA103", f"{where} was asked for as {want}, the file calls it {have or 'nothing'}")


def compare_with_original(original: onnx.ModelProto, signature: Signature) -> list[Finding]:
    """Return what a file takes or gives in another dtype than the one it was made from, and which axes it fixed."""
    theirs, got = dtypes_of((*original.graph.input, *original.graph.output)), observe(original)
    found = []
    for name, dtype in signature.dtypes.items():
        if name in theirs and theirs[name] != dtype:
            found.append(
                finding("OA117", f"{name} is {dtype.name}, in the original {theirs[name].name}", blame=FUSION)
            )
        for index, (want, have) in enumerate(
            zip(got.axes.get(name, ()), signature.got.axes.get(name, ()), strict=False)
        ):
            if isinstance(have, int) and not isinstance(want, int):
                text = f"axis {index} of {name} is {have}, in the original any size"
                found.append(finding("OA117", text, blame=FUSION))
    return found


def misdeclared(signature: Signature, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Yield what is said of the shape of an output and is not so; shapes by name, as the graph gives them."""
    for name, shape in shapes.items():
        declared = signature.got.axes.get(name)
        if declared is None:
            continue
        fixed = [isinstance(want, int) and want != have for want, have in zip(declared, shape, strict=False)]
        if len(declared) != len(shape) or any(fixed):
            text = ", ".join("?" if axis is None else str(axis) for axis in declared)
            yield f"{name} is declared as [{text}], the graph gives {shape}"
