"""A contract read off an example call, for a module that comes without one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnx_attest.errors import UsageError
from onnx_attest.models.contract import Contract, TensorSpec, guess_input

if TYPE_CHECKING:
    import torch
    from torch import nn


_ANY_SIZE = 2**31
"""What torch.export.Dim has as its largest size where none is given is far beyond."""


def inputs_of_call(module: nn.Module, args: Sequence[Any] | Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the inputs of a call by name: as given, or those that `forward` has for them.

    Raises:
        UsageError: one is no tensor, `forward` has none of that name, or there are more than it takes.
    """
    from onnx_attest.export.calling import refuse_unknown_keywords

    if isinstance(args, Mapping):
        inputs = {str(name): value for name, value in args.items()}
    else:
        values = [args] if hasattr(args, "ndim") else list(args)  # one tensor is no sequence of its rows
        inputs = dict(zip(_parameter_names(module, len(values)), values, strict=True))
    _refuse_no_tensors(inputs)
    if isinstance(args, Mapping):
        refuse_unknown_keywords(module, list(inputs))
    return inputs


def _refuse_no_tensors(inputs: Mapping[str, Any]) -> None:
    import torch

    if not inputs:
        raise UsageError("no inputs were given: the example call says what the file takes")
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            raise UsageError(
                f"the input {name} is of type {type(value).__name__}, and inputs of a file are torch.Tensor "
                "(a tokenizer gives them with return_tensors='pt'); what is fixed belongs into the module"
            )


def contract_of_call(
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    dynamic: Mapping[str, Mapping[int, Any]],
) -> Contract:
    """Return the contract that the call itself shows: names, sizes and dtypes from the tensors.

    A dynamic axis is a name, or a `torch.export.Dim`, whose largest size is kept.

    An output's axis is taken for a symbolic one if its size is that of exactly one traced axis.

    Raises:
        UsageError: `dynamic` names an input that there is not, or an axis the tensor does not have.
    """
    longest = {
        axis.__name__: int(axis.max)
        for axes in dynamic.values()
        for axis in axes.values()
        if not isinstance(axis, str) and axis.max < _ANY_SIZE
    }
    dynamic = {
        name: {at: axis if isinstance(axis, str) else axis.__name__ for at, axis in axes.items()}
        for name, axes in dynamic.items()
    }
    _refuse_unknown(dynamic, inputs)
    specs = tuple(
        guess_input(name, _axes(tensor, dynamic.get(name, {})), _dtype(tensor))
        for name, tensor in inputs.items()
    )
    traced = {
        axis: tensor.shape[index]
        for name, tensor in inputs.items()
        for index, axis in dynamic.get(name, {}).items()
    }
    return Contract(specs, tuple(_outputs(outputs, traced)), traced, longest=longest, guessed=True)


def _parameter_names(module: nn.Module, count: int) -> list[str]:
    parameters = inspect.signature(module.forward).parameters
    names = [name for name, one in parameters.items() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    rest = [name for name, one in parameters.items() if one.kind is inspect.Parameter.VAR_POSITIONAL]
    if rest:
        before = names[: names.index(rest[0])]
        names = before + [f"{rest[0]}_{index}" for index in range(count - len(before))]
    if len(names) < count:
        raise UsageError(f"{count} inputs were given, {type(module).__name__}.forward takes {len(names)}")
    return names[:count]


def _refuse_unknown(dynamic: Mapping[str, Mapping[int, str]], inputs: Mapping[str, torch.Tensor]) -> None:
    for name, axes in dynamic.items():
        if name not in inputs:
            raise UsageError(f"dynamic names {name!r}, the inputs are {', '.join(inputs)}")
        rank = inputs[name].ndim
        beyond = [axis for axis in axes if not 0 <= axis < rank]
        if beyond:
            raise UsageError(f"dynamic names axis {beyond[0]} of {name!r}, which has {rank} axes")


def _axes(tensor: torch.Tensor, dynamic: Mapping[int, str]) -> tuple[str | int, ...]:
    return tuple(dynamic.get(index, size) for index, size in enumerate(tensor.shape))


def _outputs(outputs: Mapping[str, torch.Tensor], traced: Mapping[str, int]) -> list[TensorSpec]:
    symbolic: dict[int, Any] = {}
    for axis, size in traced.items():
        symbolic[size] = size if size in symbolic else axis  # two axes of one size: neither can be told
    return [
        TensorSpec(name, tuple(symbolic.get(size, size) for size in tensor.shape), _dtype(tensor), "output")
        for name, tensor in outputs.items()
    ]


def _dtype(tensor: torch.Tensor) -> str:
    return "float" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
