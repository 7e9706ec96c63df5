"""What a quantiser must leave alone: numbers that hide keys, which are no logits and would stretch its scale over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx_attest.verify.finder.find import find
from onnx_attest.verify.finder.found import Attention
from onnx_attest.verify.finder.graph import NEAR

_PRODUCTS = ("MatMul", "Gemm", "Conv", "Einsum")
"""A bias that is computed by one of these is a term of the logits, of their size."""


def masked(model: Any) -> tuple[str, ...]:
    """Return the outputs of the nodes that make masks, apply them or read what is masked, up to the softmax and with it.

    A scale of 8 bits from -3.4e38 to 5 has steps of 1e36: all logits are one code. Left in float32, the weights are codes
    again behind the softmax, where they are between 0 and 1.

    Args:
        model: an onnx.ModelProto; it is not changed.
    """
    found = [name for attention in find(model).attentions for name in _of(attention)]
    return tuple(dict.fromkeys(found))


def _of(attention: Attention) -> Iterator[str]:
    if attention.is_operator or not attention.masks:
        return
    applied = {mask.output for mask in attention.masks}
    seen = False
    for node in attention.before:
        seen = seen or not applied.isdisjoint(node.output)
        if seen:
            yield from node.output
    for node in attention.softmax.nodes:
        yield from node.output
    for mask in attention.masks:
        for node in attention.scope.ancestors(mask.value, most=NEAR, past=_PRODUCTS):
            if node.op_type not in _PRODUCTS:
                yield from node.output
