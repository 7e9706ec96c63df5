"""What happens inside a module, seen while torch runs it: attention weights, scores, normalisations."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class _Listener(TorchFunctionMode):
    """While active, what `heard` makes of each call of torch is kept.

    Attributes:
        seen: one tensor a call that was listened for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        tensor = self.heard(func, args, kwargs, result)
        if tensor is not None:
            self.seen.append(tensor)
        return result

    def heard(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> torch.Tensor | None:
        """Return what to keep of a call, None for nothing."""
        raise NotImplementedError


class WeightsSeen(_Listener):
    """Keeps the weights of each scaled_dot_product_attention, (..., queries, keys): the call is repeated with V = I."""

    def heard(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> torch.Tensor | None:
        """Return the weights behind a call."""
        if func is not scaled_dot_product_attention:
            return None
        query, key, value, *rest = args
        return _weights(query, key, value, rest, kwargs)


class SoftmaxInputsSeen(_Listener):
    """Keeps what goes into each softmax."""

    def heard(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> torch.Tensor | None:
        """Return the scores of a call."""
        softmax = (torch.softmax, torch.Tensor.softmax, torch.nn.functional.softmax)
        return args[0] if func in softmax else None


class NormsSeen(_Listener):
    """Keeps the result of each layer_norm and rms_norm."""

    def heard(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> torch.Tensor | None:
        """Return the result of a call."""
        return result if func in (torch.nn.functional.layer_norm, torch.nn.functional.rms_norm) else None


def _weights(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rest: list[Any], kwargs: dict[str, Any]
) -> torch.Tensor:
    keys, width = value.shape[-2:]
    blocks = []
    for start in range(0, keys, width):  # as wide as V, so that the same kernel is chosen
        identity = torch.zeros_like(value, memory_format=torch.contiguous_format)
        columns = torch.arange(start, min(start + width, keys))
        identity[..., columns, columns - start] = 1
        blocks.append(scaled_dot_product_attention(query, key, identity, *rest, **kwargs))
    return torch.cat(blocks, dim=-1)[..., :keys]
