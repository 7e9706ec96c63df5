"""The attention weights inside torch's scaled_dot_product_attention, seen without leaving its kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class WeightsSeen(TorchFunctionMode):
    """While active, each call of scaled_dot_product_attention is repeated with V = I, and its output kept.

    Attributes:
        weights: (..., queries, keys), one tensor a call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            query, key, value, *rest = args
            self.weights.append(_weights(query, key, value, rest, kwargs))
        return func(*args, **kwargs)


class SoftmaxInputsSeen(TorchFunctionMode):
    """While active, what goes into each softmax is kept.

    Attributes:
        inputs: one tensor a call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.softmax, torch.Tensor.softmax, torch.nn.functional.softmax):
            self.inputs.append(args[0])
        return func(*args, **(kwargs or {}))


class NormsSeen(TorchFunctionMode):
    """While active, the result of each layer_norm and rms_norm is kept.

    Attributes:
        outputs: one tensor a call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.nn.functional.layer_norm, torch.nn.functional.rms_norm):
            self.outputs.append(result)
        return result


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
