"""The softmaxes of a graph: an operator, written out with or without the maximum, or inside an attention operator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from onnx_attest.verify.finder.bounds import bounds_of
from onnx_attest.verify.finder.found import Softmax
from onnx_attest.verify.finder.graph import MOVES, Scope, attribute, label, qualified

ATTENTION_OPERATORS = (
    "Attention",
    "ai.onnx.preview.FlexAttention",
    "FlexAttention",
    "com.microsoft.Attention",
    "com.microsoft.MultiHeadAttention",
    "com.microsoft.GroupQueryAttention",
    "com.microsoft.DecoderMaskedMultiHeadAttention",
    "com.microsoft.DecoderMaskedSelfAttention",
    "com.microsoft.PackedAttention",
    "com.microsoft.PackedMultiHeadAttention",
    "com.microsoft.QAttention",
    "com.microsoft.QOrderedAttention",
    "com.microsoft.LongformerAttention",
    "com.microsoft.SparseAttention",
    "com.microsoft.PagedAttention",
    "com.microsoft.DecoderAttention",
)
_OPERATORS = (
    "Softmax",
    "LogSoftmax",
    "com.microsoft.BiasSoftmax",
    "com.microsoft.QLinearSoftmax",
    "com.microsoft.QOrderedLongformerAttention",
)
_ONE_AXIS = 13
"""Since this opset Softmax is over one axis, the last by default; before, over all from the one named, the second by default."""
_PASSING = ("Cast", "CastLike", "Identity")
_GUARDING = (*_PASSING, "Add", "Max", "Clip", "Expand", "Where")
"""What may stand between a sum and the division: an epsilon, a least value, a number where the sum is 0."""
_SHIFTING = (
    *_PASSING,
    "Where",
    "Max",
    "Min",
    "Clip",
    "Expand",
    "Unsqueeze",
    "Squeeze",
    "Reshape",
    "StopGradient",
)
"""What may stand between a maximum and where it is subtracted: a number for rows without any key."""
_SUMS = ("ReduceSum", "ReduceL1")
"""Exponentials are positive: the sum of their absolute values is their sum."""
_FARTHEST = 12
_FACTORS = ("MatMul", "Einsum")


def softmaxes_in(scope: Scope) -> Iterator[Softmax]:
    """Yield the softmaxes of one graph, those inside attention operators included, in its order."""
    for node in scope.nodes:
        form = qualified(node)
        # Nothing goes through it: ONNX's checker asks nothing of Microsoft's operators.
        if not node.input or not node.output:
            continue
        if form in ATTENTION_OPERATORS:
            yield Softmax(
                scope, label(node), form, (node,), "", node.output[0], kind=scope.kind(node.input[0])
            )
        elif form in _OPERATORS:
            yield _operator(scope, node, form)
        elif form in ("Sub", "Div", "Mul"):
            found = (_logarithm if form == "Sub" else _written_out)(scope, node)
            if found is not None:
                yield found


def _operator(scope: Scope, node: Any, form: str) -> Softmax:
    rank, axis = scope.rank(node.input[0]), attribute(node, "axis")
    block = None
    if any(one.ref_attr_name for one in node.attribute):  # what it is, whoever calls the function says
        axis = None
    elif form.rpartition(".")[2].startswith("BiasSoftmax"):
        axis = -1 if axis is None else axis
    elif form in ("Softmax", "LogSoftmax") and scope.opset < _ONE_AXIS:
        first = 1 if axis is None else axis
        block = first + (rank or 0) if first < 0 else first
        axis = -1 if rank is not None and block == rank - 1 else None
        block = None if axis == -1 else block
    else:
        axis = -1 if axis is None else axis
    return Softmax(
        scope,
        label(node),
        form,
        (node,),
        node.input[0],
        node.output[0],
        axis=_from_the_end(axis, rank),
        block=block,
        kind=scope.kind(node.input[0]),
    )


def _from_the_end(axis: int | None, rank: int | None) -> int | None:
    if axis is None or axis < 0:
        return axis
    return None if rank is None else axis - rank


@dataclass(frozen=True)
class _Exponential:
    """exp(logits - shift), or a power of another base, and the sum that it is divided by.

    Attributes:
        value: name of what is summed, a mask applied.
        nodes: in order, the subtraction of the maximum included.
    """

    value: str
    nodes: tuple[Any, ...]
    logits: str
    base: float
    shifted: bool


def _exponential(scope: Scope, name: str) -> _Exponential | None:
    """Return the exponential that a value is, perhaps with zeros where a key is hidden."""
    made = _maker(scope, name, _PASSING)
    node, value = made, name if made is None else made.output[0]
    if made is not None and made.op_type in ("Mul", "Where"):
        inside = [_maker(scope, one, _PASSING) for one in made.input]
        node = next((one for one in inside if one is not None and one.op_type in ("Exp", "Pow")), None)
    if node is None or node.domain not in ("", "ai.onnx") or node.op_type not in ("Exp", "Pow"):
        return None
    base = math.e if node.op_type == "Exp" else scope.number(node.input[0])
    if base is None or base <= 1:
        return None
    argument = node.input[-1]
    shift = _maker(scope, argument, _PASSING)
    shifted = shift is not None and shift.op_type == "Sub" and _is_maximum(scope, shift)
    nodes = (*((shift,) if shifted else ()), node, *((made,) if made is not node else ()))
    return _Exponential(
        value, nodes, shift.input[0] if shifted and shift is not None else argument, base, shifted
    )


def _written_out(scope: Scope, node: Any) -> Softmax | None:
    """Return the softmax that a division, or a product with a reciprocal, ends; None if it ends none."""
    for numerator, denominator in _quotients(scope, node):
        total = _sum(scope, denominator)
        summed = _exponential(scope, total.node.input[0]) if total is not None else None
        if total is None or summed is None:
            continue
        late = not _is_moved(scope, numerator, summed.value)
        if late and not _is_product_of(scope, numerator, summed.value):
            continue
        return _softmax(scope, node, summed, total, late=late)
    return None


def _softmax(scope: Scope, node: Any, one: _Exponential, total: _Total, *, late: bool = False) -> Softmax:
    name = "Exp" if one.base == math.e else "Pow"
    ends = {"Div": "Div", "Mul": "Reciprocal/Mul", "Sub": "Log/Sub"}
    form = f"{'ReduceMax/Sub/' if one.shifted else ''}{name}/{total.node.op_type}/{ends[node.op_type]}"
    least, largest = bounds_of(scope, one.logits)
    return Softmax(
        scope, label(node), form, (*one.nodes, total.node, node), one.logits, one.value if late else node.output[0],
        axis=_from_the_end(_axis(scope, total.node), scope.rank(total.node.input[0])), shifted=one.shifted,
        kind=scope.kind(one.value) or scope.kind(one.logits), late=late, base=one.base, least=least, largest=largest,
        added=total.added, floor=total.floor,
        guarded=total.added + total.floor > 0 and (not one.shifted or _is_guarded(scope, one.nodes[0].input[1])),
    )  # fmt: skip


def _is_moved(scope: Scope, name: str, value: str) -> bool:
    made = _maker(scope, name, _PASSING)
    return name == value or (made is not None and made.output[0] == value)


def _is_product_of(scope: Scope, name: str, value: str) -> bool:
    """Whether a value is the product of the exponentials with values: divided then by their sum."""
    made = _maker(scope, name, (*_PASSING, *MOVES))
    return (
        made is not None
        and made.op_type in _FACTORS
        and any(_is_moved(scope, one, value) for one in made.input)
    )


def _logarithm(scope: Scope, node: Any) -> Softmax | None:
    """Return the LogSoftmax that x - log(sum(exp(x))) ends; None if a difference ends none."""
    log = _maker(scope, node.input[1], _PASSING)
    if log is not None and log.op_type == "ReduceLogSumExp":
        return _of_reduction(scope, node, log)
    total = _sum(scope, log.input[0]) if log is not None and log.op_type == "Log" else None
    summed = _exponential(scope, total.node.input[0]) if total is not None else None
    if total is None or summed is None or summed.nodes[-1].input[0] != node.input[0] or summed.base != math.e:
        return None
    return _softmax(scope, node, summed, total)


def _of_reduction(scope: Scope, node: Any, total: Any) -> Softmax | None:
    """Return the LogSoftmax that ReduceLogSumExp is subtracted in: a kernel subtracts the maximum first.

    ONNX Runtime 1.31 does so for float32, and not for float16: above 709.8, ln of the largest float64, it gives inf.
    """
    if total.input[0] != node.input[0]:
        return None
    axis = _from_the_end(_axis(scope, total), scope.rank(node.input[0]))
    return Softmax(
        scope, label(node), "ReduceLogSumExp/Sub", (total, node), node.input[0], node.output[0], axis=axis,
        kind=scope.kind(node.input[0]),
    )  # fmt: skip


def _quotients(scope: Scope, node: Any) -> Iterator[tuple[str, str]]:
    if node.op_type == "Div":
        yield node.input[0], node.input[1]
        return
    for one, other in (tuple(node.input), tuple(node.input)[::-1]):
        made = _maker(scope, other, _PASSING)
        if made is not None and made.op_type == "Reciprocal":
            yield one, made.input[0]
        elif made is not None and made.op_type == "Div" and scope.number(made.input[0]) == 1:
            yield one, made.input[1]


def _maker(scope: Scope, name: str, through: tuple[str, ...]) -> Any | None:
    node = scope.maker(name)
    while node is not None and node.op_type in through:
        node = scope.maker(node.input[0])
    return node


@dataclass(frozen=True)
class _Total:
    """A sum, and what keeps it from 0; see `Softmax`."""

    node: Any
    added: float = 0.0
    floor: float = 0.0


def _sum(scope: Scope, name: str, steps: int = 0) -> _Total | None:
    """Return the sum that a value is, perhaps with an epsilon or a least value; None if it is none."""
    node = scope.maker(name)
    if node is None or steps > _FARTHEST:
        return None
    if node.op_type in _SUMS:
        return _Total(node)
    if node.op_type not in _GUARDING:
        return None
    only_first = node.op_type in (*_PASSING, "Clip", "Expand")
    for index, one in enumerate(node.input[:1] if only_first else node.input):
        total = _sum(scope, one, steps + 1) if one and not scope.is_constant(one) else None
        if total is not None:
            return _kept_from_0(scope, node, total, index)
    return None


def _kept_from_0(scope: Scope, node: Any, total: _Total, index: int) -> _Total:
    if node.op_type in ("Add", "Max"):
        number = scope.number(node.input[1 - index])
        number = math.inf if number is None else max(number, 0.0)
        if node.op_type == "Add":
            return replace(total, added=total.added + number)
        return replace(total, floor=max(total.floor, number))
    if node.op_type == "Clip":
        least = (
            scope.number(node.input[1]) if len(node.input) > 1 and node.input[1] else attribute(node, "min")
        )
        return replace(total, floor=max(total.floor, least or 0.0))
    # Another number where it is 0.
    return replace(total, floor=max(total.floor, _LEAST)) if node.op_type == "Where" else total


_LEAST = 2.0**-1074
"""The smallest number above 0."""


def _is_guarded(scope: Scope, name: str) -> bool:
    """Whether a maximum that is subtracted is another number in rows without any key, where it is -inf."""
    node = scope.maker(name)
    for _ in range(_FARTHEST):
        if node is None or node.op_type in ("Where", "Max", "Clip"):
            break
        node = scope.maker(node.input[0]) if node.op_type in _SHIFTING else None
    return node is not None


def _is_maximum(scope: Scope, shift: Any) -> bool:
    """Whether what is subtracted is the maximum of the very logits, before or after keys were hidden."""
    return any(
        _source(scope, top) & _source(scope, shift.input[0]) for top in _maxima(scope, shift.input[1], 0)
    )


def _maxima(scope: Scope, name: str, steps: int) -> Iterator[str]:
    """Yield what the maxima are of that a value is made of."""
    node = scope.maker(name)
    if node is None or steps > _FARTHEST:
        return
    if node.op_type in ("ReduceMax", "TopK"):
        yield node.input[0]
    elif node.op_type in _SHIFTING:
        for one in node.input[1:] if node.op_type == "Where" else node.input:
            if one and not scope.is_constant(one):
                yield from _maxima(scope, one, steps + 1)


def _source(scope: Scope, name: str) -> set[str]:
    """Return a value and what it was before it was cast, or keys were hidden by Where."""
    found, waiting = {name}, [name]
    while waiting and len(found) <= _FARTHEST:
        node = scope.maker(waiting.pop())
        if node is None or node.op_type not in (*_PASSING, "Where"):
            continue
        further = [
            one
            for one in (node.input[1:] if node.op_type == "Where" else node.input[:1])
            if not scope.is_constant(one)
        ]
        found.update(further)
        waiting += further
    return found


def _axis(scope: Scope, total: Any) -> int | None:
    """Return the one axis that a ReduceSum sums, None if there are several."""
    axes = attribute(total, "axes")
    if axes is None and len(total.input) > 1:
        given = scope.constant(total.input[1])
        axes = None if given is None else given.reshape(-1).tolist()
    return int(axes[0]) if axes is not None and len(axes) == 1 else None
