"""Rules about the factor between queries, keys and logits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from onnx_attest.verify.finder.found import Attention, Found
from onnx_attest.verify.finder.graph import BFLOAT16, FLOAT16
from onnx_attest.verify.findings import Finding, finding

_ROUNDED = {FLOAT16: 2.0**-9, BFLOAT16: 2.0**-6}
"""Two factors, each rounded to the format, and a product."""
_SINGLE = 2.0**-20
_OPERATORS_SINGLE = 1e-5  # a decimal attribute


def of_an_attention(found: Found, _empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield attentions that are not scaled by 1 / sqrt(head size), and what they are scaled by."""
    for attention in found.attentions:
        size, scale = attention.head_size, attention.scale
        if not size or scale is None or size == 1:
            continue
        kind = (
            attention.softmax.kind
            if attention.is_operator
            else attention.scope.kind(attention.product.output[0])
        )
        if math.isclose(
            scale,
            1 / math.sqrt(size),
            rel_tol=_ROUNDED.get(kind, _OPERATORS_SINGLE if attention.is_operator else _SINGLE),
        ):
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


def _said(attention: Attention, size: int, scale: float) -> str | None:
    """Return what usual mistake the factor is, None if it is none."""
    if not attention.scales:
        return f"has no scale: its logits are {math.sqrt(size):.3g} times as large as with 1/sqrt({size})"
    if math.isclose(scale, 1 / size, rel_tol=1e-3):
        return f"is scaled by 1/{size}: 1/sqrt({size}) was applied twice"
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
