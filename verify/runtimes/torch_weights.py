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


_LAYERS = (torch.nn.functional.layer_norm, torch.nn.functional.rms_norm)
_PRODUCTS = ("mul", "multiply", "__mul__", "__rmul__", "mul_", "__imul__")
_QUOTIENTS = ("div", "divide", "true_divide", "__truediv__", "div_", "__itruediv__")
_ROOTS = {"rsqrt": _PRODUCTS, "sqrt": _QUOTIENTS}


class PlacesSeen(_Listener):
    """Keeps the indices of each embedding and the result of each normalisation: of layer_norm and rms_norm, and of products with a reciprocal root.

    The latter is how RMS normalisation is written out, x * rsqrt(mean(x^2) + epsilon), or x / sqrt(...). A root of a single
    number without axes is a scale.
    """

    def __init__(self) -> None:
        super().__init__()
        self._roots: dict[int, tuple[torch.Tensor, tuple[str, ...]]] = {}
        self.looked_up: list[torch.Tensor] = []

    def heard(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> torch.Tensor | None:
        """Return the result of a call that normalises; keep the indices of one that looks up."""
        if func is torch.nn.functional.embedding:
            self.looked_up.append(args[0])
            return None
        if func in _LAYERS:
            return result
        name = getattr(func, "__name__", "")
        if isinstance(result, torch.Tensor) and result.dim():
            if name in _ROOTS:
                self._roots[id(result)] = (
                    result,
                    _ROOTS[name],
                )  # held, so that no other tensor gets its identity
            elif name in ("to", "type_as", "float", "double", "type") and id(args[0]) in self._roots:
                self._roots[id(result)] = (result, self._roots[id(args[0])][1])
            elif any(name in self._roots[id(one)][1] for one in self._factors(name, args)):
                return result
        return None

    def _factors(self, name: str, args: tuple[Any, ...]) -> list[Any]:
        factors = args if name in _PRODUCTS else args[1:]
        return [one for one in factors if id(one) in self._roots]


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
