"""The two steps of torch's exporter: capture a module once, lower what was captured to each opset."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
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
            examples.append(torch.ones(shape, dtype=getattr(torch, spec.dtype)))
    return tuple(examples)


def refuse_unsteady(module: nn.Module, examples: tuple[Any, ...], name: str) -> tuple[torch.Tensor, ...]:
    """Return the module's outputs, if two runs of it agree.

    Raises:
        UsageError: it raises, returns something that is not a tensor, or differs from itself.
    """
    first, second = _run(module, examples, name), _run(module, examples, name)
    if len(first) != len(second):
        raise UsageError(
            f"{name}: two runs with the same inputs gave {len(first)} and {len(second)} outputs (OA106)"
        )
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
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
    return first


def _run(module: nn.Module, examples: tuple[Any, ...], name: str) -> tuple[torch.Tensor, ...]:
    import torch

    try:
        with torch.no_grad():
            result = module(*examples)
    except (Exception, SystemExit) as error:  # an exit in a user's code must not become our exit code
        raise UsageError(
            f"{name}: forward raised {type(error).__name__}: {error}; the inputs were {_shapes(examples)}"
        ) from error
    outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
    if not outputs or not all(isinstance(output, torch.Tensor) for output in outputs):
        kinds = ", ".join(type(output).__name__ for output in outputs) or "an empty tuple"
        raise UsageError(f"{name}: forward must return a tensor or a tuple of tensors, it returned {kinds}")
    return outputs


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    return a.shape == b.shape and bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)))


def _difference(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.shape != b.shape:
        return f"in its shape, {tuple(a.shape)} and {tuple(b.shape)},"
    return f"by {(a.double() - b.double()).abs().max().item():.2g}"


def _shapes(examples: tuple[Any, ...]) -> str:
    return ", ".join(str(tuple(example.shape)) for example in examples)


def capture(module: nn.Module, examples: tuple[Any, ...], contract: Contract) -> torch.export.ExportedProgram:
    """Return the module as torch.export sees it, with every symbolic axis dynamic.

    Raises:
        ExportError: torch.export refuses, or would fix an axis that the contract says is dynamic.
    """
    import torch

    with quiet_exporter():
        try:
            return torch.export.export(module, examples, dynamic_shapes=_dynamic_shapes(contract))
        except (Exception, SystemExit) as error:
            raise ExportError(f"torch.export: {_root_cause(error)}") from error


def _dynamic_shapes(contract: Contract) -> tuple[dict[int, Any], ...]:
    import torch

    dimensions = {
        axis: torch.export.Dim(axis, max=contract.longest[axis])
        if axis in contract.longest
        else torch.export.Dim(axis)
        for axis in contract.symbolic_axes()
    }
    return tuple(
        {index: dimensions[axis] for index, axis in enumerate(spec.axes) if isinstance(axis, str)}
        for spec in contract.inputs
    )


def lower(
    program: torch.export.ExportedProgram, examples: tuple[Any, ...], contract: Contract, opset: int
) -> onnx.ModelProto:
    """Return the ONNX graph of a captured module at an opset; the exporter may give another opset than asked.

    Raises:
        ExportError: the exporter failed.
    """
    import torch

    with quiet_exporter(), _tables_built_once():
        try:
            result = torch.onnx.export(
                program,
                examples,
                dynamo=True,
                verbose=False,
                opset_version=opset,
                input_names=[spec.name for spec in contract.inputs],
                output_names=[spec.name for spec in contract.outputs],
                dynamic_shapes=_dynamic_shapes(contract),
            )
        except Exception as error:
            raise ExportError(f"torch.onnx.export: {_root_cause(error)}") from error
    assert result is not None
    return result.model_proto


_TABLES: dict[Any, Any] = {}


@contextlib.contextmanager
def _tables_built_once() -> Iterator[None]:
    """Keep the exporter's table of translations for each opset; it builds it anew at each export, half of their time.

    The table is private to torch, and so is its place. Where a version of torch has it elsewhere, exports take as long
    as they do.
    """
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        original, build = vars(ONNXRegistry)["from_torchlib"], ONNXRegistry.from_torchlib
    except (ImportError, AttributeError, KeyError):
        yield
        return

    def kept(*arguments: Any, **options: Any) -> Any:
        key = (arguments, tuple(sorted(options.items())))
        if key not in _TABLES:
            _TABLES[key] = build(*arguments, **options)
        return _TABLES[key]

    ONNXRegistry.from_torchlib = staticmethod(kept)
    try:
        yield
    finally:
        ONNXRegistry.from_torchlib = original


def _root_cause(error: BaseException) -> str:
    """Return the innermost exception in one line; the exporter wraps it three deep, in advice and colours."""
    while error.__cause__ is not None:
        error = error.__cause__
    # The first line names the failure; where torch.export lists constraints, the next says which axis and why.
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    said = lines[:1] + [line for line in lines[1:] if "= L[" in line][:2]
    return f"{type(error).__name__}: {' '.join(said)}"


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
