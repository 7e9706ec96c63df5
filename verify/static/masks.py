"""Rules about what hides keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from onnx_attest.verify.finder.found import Attention, Found, Mask
from onnx_attest.verify.finder.graph import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    NAMES,
    NEAR,
    Scope,
    attribute,
    label,
    qualified,
)
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.static.softmaxes import LARGEST

_MASK, _QUERY_AXIS = 3, -2
_RANKS = (2, 3, 4)
"""Of a mask that ONNX Runtime's Attention takes."""
_HIDES = -1e4
"""An added number from which on a key has no weight left at the usual size of logits."""
_NO_WEIGHT = -50.0
"""e^-50 is far below what float32 tells from 0 beside 1; biases by positions are not as large near the diagonal."""


def of_one_row(found: Found, _empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield the masks whose axis of queries has size 1: they broadcast by the standard, and not in ONNX Runtime.

    microsoft/onnxruntime#12149, microsoft/onnxscript#2332.
    """
    for scope, node, name in _masks_of_operators(found):
        mask, query = scope.shape(name) or (), scope.shape(node.input[0]) or ()
        if len(mask) < 2 or mask[_QUERY_AXIS] != 1 or len(query) < 2 or query[_QUERY_AXIS] == 1:
            continue
        text = f"{name}, the mask of {label(node)}, has one row for all queries"
        yield finding("OA118", text, blame="exporter", node=node.name)


def of_a_rank_that_is_refused(
    found: Found, _empty_rows: str, _traced: Mapping[str, int]
) -> Iterator[Finding]:
    """Yield the masks of Attention that have fewer than two or more than four axes."""
    for scope, node, name in _masks_of_operators(found):
        rank = scope.rank(name)
        if rank is not None and rank not in _RANKS:
            text = f"{name}, the mask of {label(node)}, has {rank} axes; it needs 2 to 4"
            yield finding("OA120", text, blame="exporter", node=node.name)


def _masks_of_operators(found: Found) -> Iterator[tuple[Scope, Any, str]]:
    for attention in found.attentions:
        node = attention.softmax.nodes[0]
        if attention.form == "Attention" and len(node.input) > _MASK and node.input[_MASK]:
            yield attention.scope, node, node.input[_MASK]


def of_rows_without_keys(found: Found, empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield attentions that hide keys by what somebody feeds, so that a row may be left without any."""
    for attention in found.attentions:
        if attention.is_operator or attention.guard == "other" or empty_rows == "never":
            continue
        for mask in attention.masks:
            if mask.form == "Mul" or not attention.scope.fed(mask.value) or _is_bias(attention, mask):
                continue
            policy = _policy(_hiding(attention, mask))
            if policy == "nan" and attention.guard:
                continue
            if policy and policy != empty_rows:
                yield finding("OA427", _of_empty_rows(attention, mask, policy), node=mask.node)
                break


def _hiding(attention: Attention, mask: Mask) -> float | None:
    """Return the number that hides keys as it is in the format of the logits."""
    if mask.hiding is None or abs(mask.hiding) < _BEYOND.get(_kind(attention), math.inf):
        return mask.hiding
    return math.copysign(math.inf, mask.hiding)


_BEYOND = {
    FLOAT16: 65520.0,
    FLOAT: 2.0**128 * (1 - 2.0**-25),
    BFLOAT16: 2.0**128 * (1 - 2.0**-9),
    DOUBLE: math.inf,
}
"""From here on a number rounds to infinity."""


def _kind(attention: Attention) -> int:
    product = attention.product
    return attention.softmax.kind if product is None else attention.scope.kind(product.output[0])


def _policy(hiding: float | None) -> str:
    if hiding is None:
        return ""
    if math.isinf(hiding):
        return "nan"
    return "mean" if hiding <= _HIDES else ""


def _of_empty_rows(attention: Attention, mask: Mask, policy: str) -> str:
    fed = ", ".join(attention.scope.fed(mask.value))
    what = (
        "NaN: all its logits are -inf"
        if policy == "nan"
        else "the mean of the values: all its logits are equal or nearly so"
    )
    return f"{mask.node} hides keys by {mask.hiding:.6g}, and which is up to {fed}: a row without any key gives {what}"


def _is_bias(attention: Attention, mask: Mask) -> bool:
    """Whether what is added depends on the very queries: a term of the logits, no mask."""
    return attention.scope.depends(mask.value, attention.query)


def beyond_the_format(found: Found, _empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield numbers for masks that are finite where they are written, and not in the format that they are cast to."""
    for scope in found.scopes:
        for node in scope.nodes:
            if node.op_type != "Cast" or attribute(node, "to") not in LARGEST:
                continue
            value, to = scope.constant(node.input[0]), attribute(node, "to")
            if value is None or not value.size or value.dtype.kind != "f" or not math.isfinite(value.min()):
                continue
            if abs(value).max() >= _BEYOND[to]:
                number = float(value.reshape(-1)[abs(value).reshape(-1).argmax()])
                text = f"{label(node)} casts {number:.6g} to {NAMES[to]}, where it is {math.copysign(math.inf, number)}"
                yield finding("OA428", text, node=label(node))
    for attention in found.attentions:
        for mask in attention.masks:
            hiding = mask.hiding
            if hiding is not None and math.isfinite(hiding) and _hiding(attention, mask) != hiding:
                text = f"{mask.node} hides keys by {hiding:.6g}, which is infinite in {NAMES[_kind(attention)]}, the format of the logits"
                yield finding("OA428", text, node=mask.node)


def zero_times_infinity(found: Found, _empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield products of an infinite constant with what may be 0."""
    for scope in found.scopes:
        for node in scope.nodes:
            if node.op_type != "Mul" or len(node.input) != 2:
                continue
            for one, other in (tuple(node.input), tuple(node.input)[::-1]):
                number = _as_computed(scope, one)
                if number is not None and math.isinf(number) and not scope.is_constant(other):
                    text = (
                        f"{label(node)} multiplies {other} with {number}: where that is 0, the product is NaN"
                    )
                    yield finding("OA429", text, node=label(node))


def _as_computed(scope: Scope, name: str) -> float | None:
    """Return a constant as it is in the format of its value: a cast may have made it infinite."""
    number, kind = scope.number(name), scope.kind(name)
    if number is None or abs(number) < _BEYOND.get(kind, math.inf):
        return number
    return math.copysign(math.inf, number)


def before_a_softcap(found: Found, _empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield masks of logits that are capped afterwards: a hidden key then has the weight of the least logit."""
    for attention in found.attentions:
        for mask in attention.masks:
            if mask.before_softcap and _is_hiding(attention, mask):
                text = f"{mask.node} hides keys of {attention.node} before its logits are capped by tanh: hidden keys keep weight"
                yield finding("OA430", text, node=mask.node)


def _is_hiding(attention: Attention, mask: Mask) -> bool:
    """Whether a mask hides keys: what is added may be a bias by positions, which is a term of the logits."""
    if mask.form == "Where":
        return mask.hiding is None or mask.hiding <= _NO_WEIGHT
    if mask.hiding is not None:
        return mask.hiding <= _NO_WEIGHT
    fed = attention.scope.fed(mask.value)
    return mask.form != "Mul" and len(fed) == 1 and "mask" in fed[0].lower() and not _is_bias(attention, mask)


def aligned_by_equal_lengths(found: Found, _empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield causal attentions whose queries and keys have lengths that may differ, without a past that says how."""
    for attention in found.attentions:
        if not attention.causal:
            continue
        lengths = _lengths(attention)
        if lengths is None or lengths[0] == lengths[1]:
            continue
        text = (
            f"{attention.node} is causal over {lengths[0]} queries and {lengths[1]} keys: which key the first query sees "
            "last is aligned at the first or at the last ones, the same only where both are equal"
        )
        yield finding("OA431", text, node=attention.node)


def _lengths(attention: Attention) -> tuple[Any, Any] | None:
    """Return the numbers of queries and keys, by name or number; None where they are not known or a past says more."""
    scope = attention.scope
    if attention.is_operator:
        node = attention.softmax.nodes[0]
        if qualified(node) != "Attention" or any(name for name in node.input[4:6]):
            return None
        query, key = scope.shape(attention.query), scope.shape(attention.key)
        found = (query[-2], key[-2]) if query and key and len(query) > 1 and len(key) > 1 else None
    else:
        logits = scope.shape(attention.product.output[0])
        found = (logits[-2], logits[-1]) if logits and len(logits) > 1 else None
        if found and not any(_is_square(scope, mask) for mask in attention.masks):
            return None
    return found if found and None not in found else None


def _is_square(scope: Scope, mask: Mask) -> bool:
    """Whether a mask is a triangle that begins at the first query and the first key, whatever their numbers."""
    return any(
        node.op_type == "Trilu" and _diagonal(scope, node) in (0.0, 1.0)
        for node in scope.ancestors(mask.value, most=NEAR, past=_CUTTING)
    )


def _diagonal(scope: Scope, node: Any) -> float | None:
    return scope.number(node.input[1]) if len(node.input) > 1 and node.input[1] else 0.0


_CUTTING = ("Slice", "Gather", "GatherND", "GatherElements", "Shape", "Size")
"""They take rows of a triangle: it begins where they say, at the last queries for example."""
