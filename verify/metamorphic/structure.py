"""What a bare attention's graph says of its formula: the contract promises roles and masks, not the formula."""

from __future__ import annotations

from typing import Any, NamedTuple

from onnx_attest.verify.finder.find import find
from onnx_attest.verify.finder.found import Attention
from onnx_attest.verify.finder.graph import MOVES, attribute

_LINEAR = frozenset({*MOVES, "Add", "Sub", "Where", "Mul", "Div"})
"""Between the products these leave differences of a row's logits what they are, up to a factor."""
_SINKS = ("Concat", "Slice", "Pad")
"""A column is added to the logits, and taken from the weights."""
_SINK_OF_GROUPED = 11
"""Input of com.microsoft.GroupQueryAttention that holds one more logit a head."""


class Structure(NamedTuple):
    """What the graph says; where it is not recognised, nothing speaks against either.

    Attributes:
        sums: the weights of a row's keys sum to one: no sink takes part of them. A number that is added to their sum is
            no sink: as an epsilon it does not show, and a larger one is as likely a fault as meant.
        shifts: logits are linear in the keys, so that all keys moved by one vector move each row's logits together: no
            softcap, no rotation by the position, no vector that is made one of length one.
    """

    sums: bool = True
    shifts: bool = True


def structure_of(model: Any, query: str, key: str) -> Structure:
    """Return what the graph of one attention says of it.

    Args:
        model: an onnx.ModelProto.
        query: the input of queries.
        key: the input of keys.
    """
    found = find(model).attentions
    if len(found) != 1:
        return Structure()
    (attention,) = found
    sums = _sums(attention)
    known = (attention.query, attention.key) == (query, key) and not attention.terms
    shifts = sums and known and not attention.softcap and not attention.rotated and _is_linear(attention)
    return Structure(sums, shifts)


def _sums(attention: Attention) -> bool:
    if attention.is_operator:
        node = attention.softmax.nodes[0]
        sink = len(node.input) > _SINK_OF_GROUPED and bool(node.input[_SINK_OF_GROUPED])
        return not sink and not attribute(node, "smooth_softmax")
    return not any(node.op_type in _SINKS for node in (*attention.before, *attention.after))


def _is_linear(attention: Attention) -> bool:
    return all(node.op_type in _LINEAR for node in attention.before) and not any(
        mask.form == "Mul" for mask in attention.masks
    )
