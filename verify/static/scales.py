"""Rules about the factor between queries, keys and logits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice

from onnx_attest.verify.finder.found import Attention, Found
from onnx_attest.verify.finder.graph import BFLOAT16, FLOAT16, Scope
from onnx_attest.verify.findings import Finding, finding

_ROUNDED = {FLOAT16: 2.0**-9, BFLOAT16: 2.0**-6}
"""Two factors, each rounded to the format, and a product."""
_SINGLE = 2.0**-20
_OPERATORS_SINGLE = 1e-5  # a decimal attribute


def of_an_attention(found: Found, _empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield attentions that are not scaled by 1 / sqrt(head size), and what they are scaled by."""
    for attention in found.attentions:
        size, scale = attention.head_size, attention.scale
        if not size or scale is None or size == 1 or _is_cosine(attention):
            continue
        kind = (
            attention.softmax.kind
            if attention.is_operator
            else attention.scope.kind(attention.product.output[0])
        )
        rounding = _ROUNDED.get(kind, _OPERATORS_SINGLE if attention.is_operator else _SINGLE)
        if any(math.isclose(scale, 1 / math.sqrt(one), rel_tol=rounding) for one in _lengths(attention)):
            continue
        where = ", ".join(one.node for one in attention.scales) or attention.node
        said = _said(attention, size, scale)
        code = "OA426" if said is None else "OA425"
        text = said or f"is scaled by {scale:.6g}, {scale * math.sqrt(size):.6g} times 1/sqrt({size})"
        yield finding(
            code,
            f"{attention.node}, with a head size of {size}, {text} ({where})",
            blame="module",
            node=attention.node,
        )


def _lengths(attention: Attention) -> Iterator[int]:
    """Yield what a query's length may count as.

    Where the logits are a sum of products, either each is of a part of the head, and the head is all parts together
    (DeepSeek's rotary part), or each is a term of its own (DeBERTa scales by their number as well, Transformer-XL not).
    """
    size = attention.head_size or 0
    yield size
    yield size + sum(attention.terms)


def _is_cosine(attention: Attention) -> bool:
    """Whether queries and keys have a length of one: their scale is a temperature."""
    return not attention.is_operator and all(
        _is_unit(attention.scope, name) for name in (attention.query, attention.key)
    )


def _is_unit(scope: Scope, name: str) -> bool:
    node = scope.maker(name)
    if node is None or node.op_type not in ("Div", "Mul"):
        return node is not None and node.op_type == "LpNormalization"
    for index, length in enumerate(node.input):
        kinds: set[str] = set()
        for made in islice(scope.ancestors(length), _NEAR):
            kinds.add(made.op_type)
            if node.input[1 - index] in made.input:
                break
        if kinds & {"ReduceL2", "ReduceSumSquare"} or {"ReduceSum", "Sqrt"} <= kinds:
            return True
    return False


_NEAR = 8
"""Nodes from a length up to the vector that it is of."""


def _said(attention: Attention, size: int, scale: float) -> str | None:
    """Return what usual mistake the factor is, None if it is none."""
    if not attention.scales:
        return f"has no scale: its logits are {math.sqrt(size):.3g} times as large as with 1/sqrt({size})"
    for one in _lengths(attention):
        if math.isclose(scale, 1 / one, rel_tol=1e-3):
            return f"is scaled by 1/{one}: 1/sqrt({one}) was applied twice"
    if math.isclose(scale, math.sqrt(size), rel_tol=1e-3):
        return f"is multiplied with sqrt({size}) instead of divided by it"
    for axis, length in _others(attention):
        if length != size and math.isclose(scale, 1 / math.sqrt(length), rel_tol=1e-3):
            return f"is scaled by 1/sqrt({length}), which is the size of {axis}"
    return None


def _others(attention: Attention) -> Iterator[tuple[str, int]]:
    """Yield sizes that a scale is taken from by mistake: other axes of the queries, and all heads together."""
    scope = attention.scope
    names = {attention.query: "the queries", attention.key: "the keys"}
    if attention.product is not None:
        names |= dict.fromkeys(attention.product.input[:1], "the queries as they are multiplied")
    for name, what in names.items():
        for index, size in enumerate(scope.shape(name) or ()):
            if isinstance(size, int) and size > 1:
                yield f"axis {index} of {what}", size
