"""Rules about the codes that a quantised graph keeps an attention's logits and weights in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from onnx_attest.verify.finder.found import Attention, Found
from onnx_attest.verify.finder.graph import Scope, label, qualified
from onnx_attest.verify.findings import Finding, finding

_BITS = {2: 8, 3: 8, 4: 16, 5: 16, 21: 4, 22: 4}
"""Of a code, by the element type of its zero point."""
_QUANTISE = ("QuantizeLinear", "com.microsoft.QuantizeLinear")
_SOFTMAX = "com.microsoft.QLinearSoftmax"
_ALL_0 = 2.0
"""A step of which the largest weight, 1, is no more than half."""
_SCALE, _ZERO = 1, 2
"""Where the operators read a scale and a zero point."""


def that_swallow(found: Found, _empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield scales so coarse that an attention's logits are one code, or its weights all 0.

    Keys whose logits are one code apart have weights of a ratio of e^step. A step of n ln 2 makes that 2^-n, which is less
    than codes of n bits tell from 0: of the logits only which code is the largest is left.
    """
    for attention in found.attentions:
        if attention.is_operator:
            continue
        for node, step, bits in _of_logits(attention):
            if not step < bits * math.log(2):
                yield finding("OA432", _of_scale(attention, node, step, bits), node=label(node))
        for node in attention.after:
            of_weights = _step(attention.scope, node) if qualified(node) in _QUANTISE else None
            if of_weights is not None and not of_weights < _ALL_0:
                text = (
                    f"{label(node)} keeps the weights of {attention.node} in steps of {of_weights:.3g}: they are at most 1, "
                    "and all become 0"
                )
                yield finding("OA432", text, node=label(node))


def _of_logits(attention: Attention) -> Iterator[tuple[Any, float, int]]:
    """Yield the nodes that make codes of logits, with the step as it is at the softmax, and the bits of a code."""
    scope = attention.scope
    factors = {one.output: one.factor for one in attention.scales if one.where == "logits"}
    for index, node in enumerate(attention.before):
        step = _step(scope, node) if qualified(node) in _QUANTISE else None
        later = attention.before[index + 1 :]
        if step is None or any(one.op_type == "Tanh" for one in later):
            continue
        for one in later:
            step *= abs(factors.get(one.output[0], 1.0))
        yield node, step, _bits(scope, node)
    softmax = attention.softmax.nodes[0]
    if attention.softmax.form == _SOFTMAX and (step := _step(scope, softmax)) is not None:
        yield softmax, step, _bits(scope, softmax)


def _step(scope: Scope, node: Any) -> float | None:
    """Return the largest scale of a node, None if it is not a constant; NaN counts as the largest."""
    scale = scope.constant(node.input[_SCALE])
    if scale is None or not scale.size:
        return None
    return float(abs(scale.astype("f8")).max())


def _bits(scope: Scope, node: Any) -> int:
    zero = node.input[_ZERO] if len(node.input) > _ZERO else ""
    return _BITS.get(scope.kind(zero), 8) if zero else 8


def _of_scale(attention: Attention, node: Any, step: float, bits: int) -> str:
    masks = [mask for mask in attention.masks if mask.hiding is not None and not -step < mask.hiding < step]
    why = f"; {masks[0].node} hides keys by {masks[0].hiding:.3g}, which is no logit" if masks else ""
    return (
        f"{label(node)} keeps the logits of {attention.node} in {bits}-bit codes a step of {step:.3g} apart: a key one code "
        f"below the largest has a weight of e^-{step:.3g} of it, and all others are alike{why}"
    )
