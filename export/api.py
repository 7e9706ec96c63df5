"""The exports that people call: a module with example inputs, or an entry of the catalogue in all its variants."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact, Asked, Got, Manifest, digest, write_artifact
from onnx_attest.export.from_call import contract_of_call, inputs_of_call
from onnx_attest.export.lower import ExportError, capture, example_inputs, lower, prepared, refuse_unsteady
from onnx_attest.export.observe import observe
from onnx_attest.export.strip import strip_metadata
from onnx_attest.models.contract import Contract
from onnx_attest.models.entry import Entry, build_module, parameters_digest

if TYPE_CHECKING:
    import onnx
    import torch
    from torch import nn

OPSETS: dict[str, tuple[int, ...]] = {"decomposed": (18,), "attention": (23, 24)}
"""The opsets of each variant: 18 is the lowest that torch's exporter writes, 23 and 24 have Attention."""

DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16-unfused", "bfloat16": "bf16-unfused"}
"""The floating dtypes of a graph, and the arithmetic that a runtime is declared to compute it in."""


_WHY_NOT = {
    "attention": "Attention exists from opset 23 on, and a module that writes its softmax out does not become one",
    "decomposed": "the exporter keeps scaled_dot_product_attention as one Attention operator from opset 23 on",
}


@dataclass(frozen=True)
class ExportFailure:
    """An export that gave no file.

    Attributes:
        skipped: nothing is wrong, there is nothing to export (the module has no such variant).
    """

    model: str
    variant: str
    opset: int
    dtype: str
    reason: str
    skipped: bool = False


def export(
    module: nn.Module,
    args: Sequence[torch.Tensor] | Mapping[str, torch.Tensor],
    *,
    path: str | Path,
    dynamic: Mapping[str, Mapping[int, Any]] | None = None,
    outputs: Sequence[str] | None = None,
    opset: int = 18,
    contract: Contract | None = None,
) -> Artifact:
    """Export one module to `path` and return the artifact.

    Args:
        module: in evaluation mode. It returns a tensor, or several in a tuple or a dictionary, nested or not.
        args: example inputs, in the order of `forward` or by the names that it has; their sizes are the traced ones.
        path: of the ONNX file; the manifest is written beside it.
        dynamic: for each input (by its name in `forward`), the axes that stay symbolic and their names; a
            `torch.export.Dim` instead of a name where an axis has a largest size.
        outputs: those to keep, by their keys in the dictionary that `forward` returns; all if None.
        opset: asked of the exporter; what it gave is in the manifest.
        contract: instead of the one read off `args` and `dynamic`.

    Raises:
        UsageError: the module raises, does not repeat itself, or the folder cannot be written.
        ExportError: the exporter failed.
    """
    from onnx_attest.export.calling import as_called, named, taken_of

    inputs = inputs_of_call(module, args)
    if outputs is None and contract is not None:
        outputs = [spec.name for spec in contract.outputs]
    result, name = refuse_unsteady(module, inputs, outputs), type(module).__name__
    given, taken = named(result), taken_of(result, outputs, name)
    contract = contract or contract_of_call(inputs, {key: given[key] for key in taken}, dynamic or {})
    called = as_called(module, list(inputs), taken, result)
    source = _Source(name, called, contract, "float32", None, tuple(inputs.values()))
    model, got = source.lower(capture(called, source.examples, contract), opset)
    return source.write(model, got, _form(got), opset, Path(path))


def export_entry(
    entry: Entry,
    folder: Path,
    *,
    variants: Sequence[str] = (),
    opset: int | None = None,
    dtype: str = "float32",
) -> Iterator[Artifact | ExportFailure]:
    """Export an entry in each of its variants and yield an artifact, or the reason why there is none.

    The module is captured once and lowered to each opset.

    Args:
        entry: what to export.
        folder: where `MODEL-VARIANT-OPSET.onnx` and its manifest go.
        variants: of those the entry has; all of them if none is named.
        opset: instead of the variant's own opsets.
        dtype: the floating dtype of the graph, see DTYPES.

    Raises:
        UsageError: an unknown variant or dtype, a module that raises or does not repeat itself.
    """
    wanted = _wanted(entry, variants, opset)
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}; there are {', '.join(DTYPES)}")
    module = build_module(entry)
    import torch  # after build_module, which says it if there is none

    module = module.to(getattr(torch, dtype))
    examples = example_inputs(entry.contract, getattr(torch, dtype))
    module = prepared(module, entry.contract, getattr(torch, dtype), entry.name)
    source = _Source(entry.name, module, entry.contract, dtype, entry.reference or entry.name, examples)
    try:
        program = capture(module, examples, entry.contract)
    except ExportError as error:
        for variant, number in wanted:
            yield ExportFailure(entry.name, variant or "unknown", number, dtype, str(error))
        return
    for variant, number in wanted:
        yield source.attempt(program, variant, number, folder)


def _wanted(entry: Entry, variants: Sequence[str], opset: int | None) -> list[tuple[str, int]]:
    """Return each (variant, opset) to export; "" is whatever variant comes out at an opset that was named alone."""
    unknown = [variant for variant in variants or entry.variants if variant not in OPSETS]
    if unknown:
        raise UsageError(f"unknown variant {', '.join(unknown)}; there are {', '.join(OPSETS)}")
    if opset is not None:
        return [(variant, opset) for variant in variants or ("",)]
    return [(variant, number) for variant in variants or entry.variants for number in OPSETS[variant]]


def _form(got: Got) -> str:
    """Return the variant that a file is: what counts is what came out."""
    return "attention" if "Attention" in got.operators else "decomposed"


@dataclass(frozen=True)
class _Source:
    """A module ready to be lowered, with all that its manifests share."""

    name: str
    module: nn.Module
    contract: Contract
    dtype: str
    reference: str | None
    examples: tuple[Any, ...]

    def attempt(self, program: Any, variant: str, opset: int, folder: Path) -> Artifact | ExportFailure:
        try:
            model, got = self.lower(program, opset)
        except ExportError as error:
            return ExportFailure(self.name, variant or "unknown", opset, self.dtype, str(error))
        form = _form(got)
        if variant not in ("", form):
            reason = f"the export at opset {got.opset} came out {form}: {_WHY_NOT[variant]}"
            return ExportFailure(self.name, variant, opset, self.dtype, reason, skipped=True)
        # Named by the opset that came out: a file called 13 that holds 18 would be the second lie.
        return self.write(model, got, form, opset, folder / f"{self.stem(form)}-{got.opset}.onnx")

    def stem(self, form: str) -> str:
        """Return the name of a file but for its opset; the usual dtype goes without saying."""
        return f"{self.name}-{form}" if self.dtype == "float32" else f"{self.name}-{self.dtype}-{form}"

    def lower(self, program: Any, opset: int) -> tuple[bytes, Got]:
        model = strip_metadata(lower(program, self.module, self.examples, self.contract, opset))
        return _checked(model), observe(model)

    def write(self, model: bytes, got: Got, variant: str, opset: int, path: Path) -> Artifact:
        manifest = Manifest(
            model=self.name,
            variant=variant,
            dtype=self.dtype,
            arithmetic=DTYPES[self.dtype],
            sha256=digest(model),
            contract=self.contract,
            asked=_asked(self.contract, variant, opset),
            got=got,
            module=_without_folders(self.reference),
            parameters_sha256=parameters_digest(self.module),
            versions=_versions(),
        )
        return write_artifact(model, manifest, path, self.module)


def _without_folders(reference: str | None) -> str | None:
    """Return a module's reference as a manifest may hold it: a path that starts at the root names this machine."""
    if reference is None or ":" not in reference:
        return reference
    source, _, attribute = reference.rpartition(":")
    return f"{Path(source).name}:{attribute}" if Path(source).is_absolute() else reference


def _checked(model: onnx.ModelProto) -> bytes:
    import onnx

    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"the exporter wrote a file that onnx.checker refuses: {error}") from error
    return bytes(model.SerializeToString(deterministic=True))


def _asked(contract: Contract, variant: str, opset: int) -> Asked:
    return Asked(
        opset=opset,
        variant=variant,
        inputs=tuple(spec.name for spec in contract.inputs),
        outputs=tuple(spec.name for spec in contract.outputs),
        axes={spec.name: spec.axes for spec in (*contract.inputs, *contract.outputs)},
    )


def _versions() -> dict[str, str]:
    # torch's local build number ("+cpu") is left out: the same module gives the same manifest on every machine.
    return {
        name: importlib.metadata.version(name).partition("+")[0] for name in ("torch", "onnx", "onnxscript")
    }
