"""A contract read off an example call, for a module that comes without one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onnx_attest.errors import UsageError
from onnx_attest.models.contract import Contract, TensorSpec, guess_input

if TYPE_CHECKING:
    import torch
    from torch import nn


_ANY_SIZE = 2**31
"""What torch.export.Dim has as its largest size where none is given is far beyond."""


def contract_of_call(
    module: nn.Module,
    args: tuple[torch.Tensor, ...],
    outputs: tuple[torch.Tensor, ...],
    dynamic: Mapping[str, Mapping[int, Any]],
) -> Contract:
    """Return the contract that the call itself shows: names from `forward`, sizes and dtypes from the tensors.

    A dynamic axis is a name, or a `torch.export.Dim`, whose largest size is kept.

    An output's axis is taken for a symbolic one if its size is that of exactly one traced axis.

    Raises:
        UsageError: `dynamic` names an input that `forward` does not have, or an axis the tensor does not have.
    """
    names = _parameter_names(module, len(args))
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
    _refuse_unknown(dynamic, names, args)
    inputs = tuple(
        guess_input(name, _axes(tensor, dynamic.get(name, {})), _dtype(tensor))
        for name, tensor in zip(names, args, strict=True)
    )
    traced = {
        axis: tensor.shape[index]
        for name, tensor in zip(names, args, strict=True)
        for index, axis in dynamic.get(name, {}).items()
    }
    return Contract(inputs, tuple(_outputs(outputs, traced)), traced, longest=longest)


def _parameter_names(module: nn.Module, count: int) -> list[str]:
    names = list(inspect.signature(module.forward).parameters)
    if len(names) < count:
        raise UsageError(f"{count} inputs were given, {type(module).__name__}.forward takes {len(names)}")
    return names[:count]


def _refuse_unknown(
    dynamic: Mapping[str, Mapping[int, str]], names: list[str], args: tuple[torch.Tensor, ...]
) -> None:
    for name, axes in dynamic.items():
        if name not in names:
            raise UsageError(f"dynamic names {name!r}, the inputs are {', '.join(names)}")
        rank = args[names.index(name)].ndim
        beyond = [axis for axis in axes if not 0 <= axis < rank]
        if beyond:
            raise UsageError(f"dynamic names axis {beyond[0]} of {name!r}, which has {rank} axes")


def _axes(tensor: torch.Tensor, dynamic: Mapping[int, str]) -> tuple[str | int, ...]:
    return tuple(dynamic.get(index, size) for index, size in enumerate(tensor.shape))


def _outputs(outputs: tuple[torch.Tensor, ...], traced: Mapping[str, int]) -> list[TensorSpec]:
    names = ["output"] if len(outputs) == 1 else [f"output_{index}" for index in range(len(outputs))]
    symbolic: dict[int, Any] = {}
    for axis, size in traced.items():
        symbolic[size] = size if size in symbolic else axis  # two axes of one size: neither can be told
    return [
        TensorSpec(name, tuple(symbolic.get(size, size) for size in tensor.shape), _dtype(tensor), "output")
        for name, tensor in zip(names, outputs, strict=True)
    ]


def _dtype(tensor: torch.Tensor) -> str:
    return "float" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
