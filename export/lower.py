"""The two steps of torch's exporter: capture a module once, lower what was captured to each opset."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnx_attest.errors import UsageError
from onnx_attest.models.contract import Contract

if TYPE_CHECKING:
    import onnx
    import torch
    from torch import nn

EXAMPLE_SEED = 0


class ExportError(Exception):
    """The exporter could not do it: its own message. An errored cell, not the end of a run."""


def example_inputs(contract: Contract, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return inputs of the traced sizes: gaussian numbers, masks that hide nothing."""
    import torch

    generator = torch.Generator().manual_seed(EXAMPLE_SEED)
    examples = []
    for spec in contract.inputs:
        shape = [axis if isinstance(axis, int) else contract.traced[axis] for axis in spec.axes]
        if spec.dtype == "float":
            examples.append(torch.randn(shape, generator=generator).to(dtype))
        else:
            # What is the only one of its kind is number 0.
            one = max(spec.least, 1 if spec.below is None else min(1, spec.below - 1))
            examples.append(torch.full(shape, one, dtype=getattr(torch, spec.dtype)))
    return tuple(examples)


def prepared(
    module: nn.Module, contract: Contract, dtype: torch.dtype | None = None, name: str = ""
) -> nn.Module:
    """Return a module as a contract calls it: inputs in its order, its outputs and no others, see `as_called`.

    Args:
        module: in evaluation mode.
        contract: of the file.
        dtype: of the floating inputs; that of the module's first parameter by default.
        name: for messages; that of the class by default.

    Raises:
        UsageError: see `refuse_unsteady`.
    """
    import torch

    from onnx_attest.export.calling import as_called

    held = (tensor.dtype for tensor in module.parameters() if tensor.is_floating_point())
    dtype = dtype or next(held, torch.float32)
    names, outputs = [spec.name for spec in contract.inputs], [spec.name for spec in contract.outputs]
    examples = example_inputs(contract, dtype)
    result = refuse_unsteady(module, dict(zip(names, examples, strict=True)), outputs, name)
    return as_called(module, names, outputs, result, name)


def refuse_unsteady(
    module: nn.Module, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None, name: str = ""
) -> Any:
    """Return what the module gives, if two runs of it agree.

    Args:
        module: in evaluation mode.
        inputs: by name, in the order of `forward` or by the names that it has.
        outputs: those that matter, see `taken_of`; all of them if None.
        name: for messages; that of the class by default.

    Raises:
        UsageError: it raises, returns something that is not a tensor, or differs from itself.
    """
    from onnx_attest.export.calling import name_of, named, taken_of

    name = name or name_of(module)
    result, again = _run(module, inputs, name), _run(module, inputs, name)
    taken = taken_of(result, outputs, name)
    first, second = named(result), named(again)
    if len(first) != len(second):
        raise UsageError(
            f"{name}: two runs with the same inputs gave {len(first)} and {len(second)} outputs (OA106)"
        )
    for index, output in enumerate(taken):
        a, b = first[output], second[output]
        if not _same(a, b):
            why = (
                "it is in training mode: call .eval()"
                if module.training
                else "it draws random numbers or keeps a state"
            )
            raise UsageError(
                f"{name}: output {index} differs from itself {_difference(a, b)} on two runs with the same inputs; "
                f"{why}; nothing can be verified against a module that does not repeat itself (OA106)"
            )
    return result


def _run(module: nn.Module, inputs: Mapping[str, Any], name: str) -> Any:
    from onnx_attest.export.calling import run

    try:
        return run(module, inputs)
    except (Exception, SystemExit) as error:  # an exit in a user's code must not become our exit code
        said = " ".join(str(error).split())
        raise UsageError(
            f"{name}: forward raised {type(error).__name__}: {said}; the inputs were {_shapes(inputs)}"
        ) from error


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    return a.shape == b.shape and bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)))


def _difference(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.shape != b.shape:
        return f"in its shape, {tuple(a.shape)} and {tuple(b.shape)},"
    return f"by {(a.double() - b.double()).abs().max().item():.2g}"


def _shapes(inputs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {tuple(example.shape)}" for name, example in inputs.items())


def capture(module: nn.Module, examples: tuple[Any, ...], contract: Contract) -> torch.export.ExportedProgram:
    """Return the module as torch.export sees it, with every symbolic axis dynamic.

    Raises:
        ExportError: torch.export refuses, or would fix an axis that the contract says is dynamic.
    """
    import torch

    with quiet_exporter():
        try:
            return torch.export.export(module, examples, dynamic_shapes=_dynamic_shapes(module, contract))
        except (Exception, SystemExit) as error:
            raise ExportError(f"torch.export: {_root_cause(error)}") from error


def _dynamic_shapes(module: nn.Module, contract: Contract) -> tuple[Any, ...]:
    import torch

    from onnx_attest.export.calling import nested

    dimensions = {
        axis: torch.export.Dim(axis, max=contract.longest[axis])
        if axis in contract.longest
        else torch.export.Dim(axis)
        for axis in contract.symbolic_axes()
    }
    shapes = [
        {index: dimensions[axis] for index, axis in enumerate(spec.axes) if isinstance(axis, str)}
        for spec in contract.inputs
    ]
    return nested(module, shapes)


def lower(
    program: torch.export.ExportedProgram,
    module: nn.Module,
    examples: tuple[Any, ...],
    contract: Contract,
    opset: int,
) -> onnx.ModelProto:
    """Return the ONNX graph of a captured module at an opset; the exporter may give another opset than asked.

    Parameters have the names that the user's module gives them.

    Raises:
        ExportError: the exporter failed.
    """
    import torch

    from onnx_attest.export.calling import PREFIX
    from onnx_attest.export.once import steps_taken_once
    from onnx_attest.export.strip import without_prefix

    with quiet_exporter(), steps_taken_once():
        try:
            result = torch.onnx.export(
                program,
                examples,
                dynamo=True,
                verbose=False,
                opset_version=opset,
                input_names=[spec.name for spec in contract.inputs],
                output_names=[spec.name for spec in contract.outputs],
                dynamic_shapes=_dynamic_shapes(module, contract),
            )
        except Exception as error:
            raise ExportError(f"torch.onnx.export: {_root_cause(error)}") from error
    assert result is not None
    return without_prefix(result.model_proto, PREFIX)


def _root_cause(error: BaseException) -> str:
    """Return the innermost exception in one line; the exporter wraps it three deep, in advice and colours."""
    while error.__cause__ is not None:
        error = error.__cause__
    # The first line names the failure; where torch.export lists constraints, the next says which axis and why.
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    about = ("= L[", "specialized it to be a constant")
    said = (
        lines[:1] + [_first_sentence(line) for line in lines[1:] if any(word in line for word in about)][:2]
    )
    hint = _hint(str(error))
    return f"{type(error).__name__}: {' '.join(said)}{hint}"


def _first_sentence(line: str) -> str:
    """Return a line without the advice about options of torch that nobody gave."""
    return line.partition(" If you're using ")[0]


_AT_MOST = re.compile(r"values of (\w+) = L.*<= (\d+)")
_CONSTANT = re.compile(r"marked (\w+) as dynamic but your code specialized it to be a constant \((\d+)\)")


def _hint(text: str) -> str:
    """Return what to do about a dynamic axis that torch.export refuses, "" where that is not what it says."""
    if found := _AT_MOST.search(text):
        axis, largest = found.groups()
        return (
            f"; {axis} goes up to {largest} (a table of positions has a last row): say so, with "
            f'torch.export.Dim("{axis}", max={largest}) in dynamic, or longest={{"{axis}": {largest}}} in a contract'
        )
    if found := _CONSTANT.search(text):
        axis, size = found.groups()
        return (
            f"; the module works at {axis} = {size} only, or another input has that size and is not dynamic there: "
            "name the dynamic axes of every input"
        )
    return ""


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Keep the exporter's log lines and warnings off the terminal; what they say becomes a finding."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
