"""How a module is called and what it returns, by name: inputs by keyword where their order says nothing, outputs flat.

A transformer of a library takes a dozen inputs, of which a file has two, and returns a dictionary, in which a cache or
nothing may stand beside tensors. A file has tensors with names.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from onnx_attest.errors import UsageError

PREFIX = "called."
"""What the names of a module's parameters begin with where it is wrapped into a `Called`."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Called(nn.Module):
    """A module that is given tensors in the order of a contract, and gives a tuple of tensors in its order."""

    def __init__(self, module: nn.Module, inputs: Sequence[str] | None, outputs: Sequence[str]) -> None:
        """Keep how the module is called.

        Args:
            module: what is called.
            inputs: keywords to call it with; None: by position.
            outputs: what is taken of its result, by the names that `named` gives.
        """
        super().__init__()
        self.called, self.training = module, module.training
        self._by, self._taken = None if inputs is None else tuple(inputs), tuple(outputs)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs that are taken."""
        if self._by is None:
            result = self.called(*tensors)
        else:
            result = self.called(**dict(zip(self._by, tensors, strict=True)))
        given = named(result)
        return tuple(given[name] for name in self._taken)


def name_of(module: Any) -> str:
    """Return the name of the class of a module, or of what was given for one."""
    return type(module.called if isinstance(module, Called) else module).__name__


def named(result: Any) -> dict[str, Any]:
    """Return what a module returned, flat: by the keys of a dictionary, or numbered where there are none."""
    if isinstance(result, Mapping):
        return dict(_flat("", result))
    items = result if isinstance(result, tuple | list) else (result,)
    if len(items) == 1:
        return dict(_flat("output", items[0]))
    return dict(_flat("output", items))


def _flat(name: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        parts = [(f"{name}_{key}" if name else str(key), item) for key, item in value.items()]
    elif isinstance(value, tuple | list):
        parts = [(f"{name}_{index}", item) for index, item in enumerate(value)]
    else:
        return [(name, value)]
    return [leaf for part in parts for leaf in _flat(*part)]


def taken_of(result: Any, wanted: Sequence[str] | None, name: str) -> list[str]:
    """Return which of a module's results a file has, by the names that `named` gives.

    Args:
        result: of a call.
        wanted: names of outputs; where the module has none of that name but as many tensors, their order decides. None:
            all that it returns.
        name: of the module.

    Raises:
        UsageError: one is no tensor, or is not among what the module returns.
    """
    given = named(result)
    tensors = [key for key, value in given.items() if isinstance(value, torch.Tensor)]
    others = {key: type(value).__name__ for key, value in given.items() if key not in tensors}
    if not tensors or (wanted is None and others):
        raise UsageError(_no_tensor(name, others, tensors))
    if wanted is None:
        return tensors
    if set(wanted) <= set(tensors):
        return list(wanted)
    if len(wanted) == len(tensors) and not others:
        return tensors
    missing = [key for key in wanted if key not in tensors]
    if missing[0] in others:
        raise UsageError(_no_tensor(name, {missing[0]: others[missing[0]]}, tensors))
    raise UsageError(
        f"{name}: of {_count(wanted)} that {'is' if len(wanted) == 1 else 'are'} asked for, {missing[0]} is not among "
        f"the {_count(list(given))} that forward returns: {', '.join(given)}"
    )


def _count(names: Sequence[str]) -> str:
    return "1 output" if len(names) == 1 else f"{len(names)} outputs"


def _no_tensor(name: str, others: Mapping[str, str], tensors: Sequence[str]) -> str:
    if not others:
        return f"{name}: forward must return a tensor or several, it returned nothing"
    what = ", ".join(f"{key} is of type {kind}" for key, kind in others.items())
    keep = f"name those to keep, outputs={list(tensors)} say, or " if tensors else ""
    return (
        f"{name}: outputs of a file are tensors, and {what}; {keep}build the module so that forward returns tensors "
        "(one of transformers with use_cache=False in its configuration)"
    )


def as_called(
    module: nn.Module, inputs: Sequence[str], outputs: Sequence[str], result: Any, name: str = ""
) -> nn.Module:
    """Return the module such that it takes tensors in the order of `inputs` and returns a tensor or a tuple of them.

    That is the module itself, where it does.

    Args:
        module: whose `forward` takes the inputs by position, or by these names.
        inputs: names, in the order of the contract.
        outputs: see `taken_of`.
        result: of a call.
        name: for messages; that of the class by default.

    Raises:
        UsageError: see `taken_of`.
    """
    taken = taken_of(result, outputs, name or name_of(module))
    by = keywords(module, inputs)
    plain = not isinstance(result, Mapping) and list(named(result)) == taken and not _is_nested(result)
    return module if plain and by is None else Called(module, by, taken)


def _is_nested(result: Any) -> bool:
    return isinstance(result, tuple | list) and any(not isinstance(one, torch.Tensor) for one in result)


def keywords(module: nn.Module, inputs: Sequence[str]) -> list[str] | None:
    """Return the inputs if they are to be given by name, None if they are the first of `forward` or have no such names."""
    parameters = inspect.signature(module.forward).parameters
    first = [name for name, one in parameters.items() if one.kind in _POSITIONAL][: len(inputs)]
    known = {name for name, one in parameters.items() if one.kind in _BY_NAME}
    return None if first == list(inputs) or not set(inputs) <= known else list(inputs)


def refuse_unknown_keywords(module: nn.Module, inputs: Sequence[str]) -> None:
    """Refuse a name that `forward` does not have: what only its `**kwargs` would take changes nothing, unseen.

    Raises:
        UsageError: it lists the names there are.
    """
    parameters = inspect.signature(module.forward).parameters
    known = [name for name, one in parameters.items() if one.kind in _BY_NAME]
    unknown = [name for name in inputs if name not in known]
    if unknown and known:
        raise UsageError(f"{name_of(module)}.forward takes no {unknown[0]!r}; it takes {', '.join(known)}")
    if unknown:
        raise UsageError(
            f"{name_of(module)}.forward names no inputs of its own, so give a tuple of tensors in its order"
        )


def run(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Any:
    """Return what a module makes of inputs, by position or by name as `as_called` does."""
    by = keywords(module, list(inputs))
    with torch.no_grad():
        return module(*inputs.values()) if by is None else module(**inputs)


def nested(module: nn.Module, shapes: Sequence[Any]) -> tuple[Any, ...]:
    """Return one entry for each input as torch.export wants them: those that a `*tensors` takes in a tuple of their own."""
    kinds = [one.kind for one in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return tuple(shapes)
    before = sum(kind in _POSITIONAL for kind in kinds)
    return (*shapes[:before], tuple(shapes[before:])) if len(shapes) > before else tuple(shapes)
