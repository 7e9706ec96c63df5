"""The softmaxes of a graph: an operator, written out with or without the maximum, or inside an attention operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx_attest.verify.finder.found import Softmax
from onnx_attest.verify.finder.graph import Scope, attribute, label, qualified

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
_GUARDING = (*_PASSING, "Add", "Max", "Clip", "Expand")
"""What may stand between a sum and the division: an epsilon, a least value."""


def softmaxes_in(scope: Scope) -> Iterator[Softmax]:
    """Yield the softmaxes of one graph, those inside attention operators included, in its order."""
    for node in scope.nodes:
        form = qualified(node)
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
    if form.rpartition(".")[2].startswith("BiasSoftmax"):
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


def _written_out(scope: Scope, node: Any) -> Softmax | None:
    """Return the softmax that a division, or a product with a reciprocal, ends; None if it ends none."""
    for numerator, denominator in _quotients(scope, node):
        exponential = _maker(scope, numerator, _PASSING)
        total = _sum(scope, denominator)
        if exponential is None or total is None or exponential.op_type != "Exp":
            continue
        summed = _maker(scope, total.input[0], _PASSING)
        if summed is None or summed.output[0] != exponential.output[0]:
            continue
        shift = _maker(scope, exponential.input[0], _PASSING)
        shifted = shift is not None and shift.op_type == "Sub" and _is_maximum(scope, shift)
        logits = shift.input[0] if shifted and shift is not None else exponential.input[0]
        form = "Exp/ReduceSum/Div" if node.op_type == "Div" else "Exp/ReduceSum/Reciprocal/Mul"
        nodes = (*((shift,) if shifted else ()), exponential, total, node)
        axis = _from_the_end(_axis(scope, total), scope.rank(exponential.output[0]))
        kind = scope.kind(exponential.output[0]) or scope.kind(logits)
        return Softmax(
            scope, label(node), ("ReduceMax/Sub/" if shifted else "") + form, nodes, logits, node.output[0],
            axis=axis, shifted=shifted, kind=kind,
        )  # fmt: skip
    return None


def _logarithm(scope: Scope, node: Any) -> Softmax | None:
    """Return the LogSoftmax that x - log(sum(exp(x))) ends; None if a difference ends none."""
    log = _maker(scope, node.input[1], _PASSING)
    total = _sum(scope, log.input[0]) if log is not None and log.op_type == "Log" else None
    exponential = _maker(scope, total.input[0], _PASSING) if total is not None else None
    if (
        total is None
        or exponential is None
        or exponential.op_type != "Exp"
        or exponential.input[0] != node.input[0]
    ):
        return None
    shift = _maker(scope, node.input[0], _PASSING)
    shifted = shift is not None and shift.op_type == "Sub" and _is_maximum(scope, shift)
    logits = shift.input[0] if shifted and shift is not None else node.input[0]
    nodes = (*((shift,) if shifted else ()), exponential, total, log, node)
    axis = _from_the_end(_axis(scope, total), scope.rank(exponential.output[0]))
    form = ("ReduceMax/Sub/" if shifted else "") + "Exp/ReduceSum/Log/Sub"
    return Softmax(
        scope, label(node), form, nodes, logits, node.output[0],
        axis=axis, shifted=shifted, kind=scope.kind(exponential.output[0]) or scope.kind(logits),
    )  # fmt: skip


def _quotients(scope: Scope, node: Any) -> Iterator[tuple[str, str]]:
    if node.op_type == "Div":
        yield node.input[0], node.input[1]
        return
    for one, other in (tuple(node.input), tuple(node.input)[::-1]):
        made = _maker(scope, other, _PASSING)
        if made is not None and made.op_type == "Reciprocal":
            yield one, made.input[0]


def _maker(scope: Scope, name: str, through: tuple[str, ...]) -> Any | None:
    node = scope.maker(name)
    while node is not None and node.op_type in through:
        node = scope.maker(node.input[0])
    return node


def _sum(scope: Scope, name: str) -> Any | None:
    """Return the sum that a value is, perhaps with an epsilon or a least value."""
    node = scope.maker(name)
    while node is not None and node.op_type in _GUARDING:
        open_ = [one for one in node.input if one and not scope.is_constant(one)]
        node = scope.maker(open_[0]) if open_ else None
    return node if node is not None and node.op_type == "ReduceSum" else None


def _is_maximum(scope: Scope, shift: Any) -> bool:
    top = _maker(scope, shift.input[1], (*_PASSING, "StopGradient"))
    return top is not None and top.op_type == "ReduceMax" and top.input[0] == shift.input[0]


def _axis(scope: Scope, total: Any) -> int | None:
    """Return the one axis that a ReduceSum sums, None if there are several."""
    axes = attribute(total, "axes")
    if axes is None and len(total.input) > 1:
        given = scope.constant(total.input[1])
        axes = None if given is None else given.reshape(-1).tolist()
    return int(axes[0]) if axes is not None and len(axes) == 1 else None
