"""The attentions of a graph: operators, and products with a softmax between them, with what each party is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from onnx_attest.verify.finder.found import Attention, Mask, Scale, Softmax
from onnx_attest.verify.finder.graph import MOVES, Scope, attribute, label, qualified
from onnx_attest.verify.finder.softmaxes import ATTENTION_OPERATORS

PRODUCTS = ("MatMul", "Einsum", "Gemm", "com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul")
_AFTER = (*MOVES, "Where", "Dropout", "Mul", "Slice")
"""What may stand between the softmax and the product with the values: a guard against NaN, a dropout, a mask of zeros."""
_FARTHEST = 12
"""Steps from the softmax up to the product; longer chains are other things."""


@dataclass
class _Path:
    """What was met between the softmax and the product of queries and keys, from the product on."""

    product: Any
    scales: list[Scale] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    softcap: float = 0.0
    computed_scale: bool = False


def attentions_in(scope: Scope, softmaxes: list[Softmax]) -> Iterator[Attention]:
    """Yield the attentions that the softmaxes of one graph are in."""
    for softmax in softmaxes:
        node = softmax.nodes[-1]
        if softmax.form in ATTENTION_OPERATORS:
            yield _operator(scope, softmax, node)
        elif (found := _pattern(scope, softmax)) is not None:
            yield found


def _operator(scope: Scope, softmax: Softmax, node: Any) -> Attention:
    form = qualified(node)
    names = [*node.input, *[""] * 8]
    packed = form in ("com.microsoft.Attention", "com.microsoft.PackedAttention", "com.microsoft.QAttention")
    query, key, value = (names[0],) * 3 if packed else names[:3]
    head_size = None if packed else _head_size_of_operator(scope, node, query)
    given = attribute(node, "scale")
    scale = given if given else (1 / math.sqrt(head_size) if head_size else None)
    mask = {"Attention": 3, "com.microsoft.Attention": 3, "com.microsoft.MultiHeadAttention": 4}.get(form)
    masks = (Mask(softmax.node, form, names[mask], None),) if mask is not None and names[mask] else ()
    causal = bool(attribute(node, "is_causal") or attribute(node, "unidirectional")) or "GroupQuery" in form
    scales = (Scale(softmax.node, float(given), "logits"),) if given else ()
    return Attention(
        softmax, softmax.node, form, node.output[0], query, key, value, scale, scales, masks, head_size,
        float(attribute(node, "softcap") or 0.0), causal, guard="other",
    )  # fmt: skip


def _head_size_of_operator(scope: Scope, node: Any, query: str) -> int | None:
    shape = scope.shape(query)
    if not shape or not isinstance(shape[-1], int):
        return None
    heads = attribute(node, "q_num_heads") or attribute(node, "num_heads") or 0
    if len(shape) == 4:
        return shape[-1]
    return shape[-1] // heads if heads and shape[-1] % heads == 0 else None


def _pattern(scope: Scope, softmax: Softmax) -> Attention | None:
    path, down = _up(scope, softmax.logits, 0), _down(scope, softmax.weights, 0)
    if path is None or down is None:
        return None
    second, guard, at = down
    first = path.product
    sides = [
        (name, *_before(scope, name, where)) for name, where in zip(first.input[:2], ("q", "k"), strict=False)
    ]
    scales = (*path.scales, *(scale for _, _, found, _ in sides for scale in found))
    alpha = attribute(first, "alpha")
    if alpha is not None and alpha != 1:
        scales = (*scales, Scale(label(first), float(alpha), "logits"))
    computed = path.computed_scale or any(unknown for *_, unknown in sides)
    return Attention(
        softmax=softmax,
        node=label(second),
        form=f"{qualified(first)}/{softmax.form}/{qualified(second)}",
        output=second.output[0],
        query=sides[0][1],
        key=sides[1][1],
        value=_source(scope, second.input[1 - at]),
        scale=None if computed else math.prod(scale.factor for scale in scales),
        scales=scales,
        masks=tuple(path.masks),
        head_size=_head_size(scope, first),
        softcap=path.softcap,
        causal=any(_is_causal(scope, mask) for mask in path.masks),
        guard=guard,
        product=first,
    )


def _head_size(scope: Scope, product: Any) -> int | None:
    if qualified(product) == "Einsum":
        return _einsum_head_size(scope, product)
    query, key = scope.shape(product.input[0]), scope.shape(product.input[1])
    found = query[-2 if attribute(product, "transA") else -1] if query else None
    if not isinstance(found, int) and key and len(key) > 1:
        found = key[-1 if attribute(product, "transB") else -2]
    return found if isinstance(found, int) and found > 0 else None


def _einsum_head_size(scope: Scope, product: Any) -> int | None:
    equation = (attribute(product, "equation") or b"").decode().replace(" ", "").replace("...", "")
    terms, _, result = equation.partition("->")
    for index, term in enumerate(terms.split(",")):
        shape = scope.shape(product.input[index])
        for letter, size in zip(reversed(term), reversed(shape or ()), strict=False):
            if letter not in result and isinstance(size, int):
                return size
    return None


def _up(scope: Scope, value: str, steps: int) -> _Path | None:
    """Return the way from a value up to a product of two values that are computed, None if there is no such way."""
    node = scope.maker(value)
    if node is None or steps > _FARTHEST:
        return None
    form = qualified(node)
    if form in PRODUCTS:
        # A linear map: a softmax over classes.
        return (
            None
            if any(scope.is_constant(name) for name in node.input[:2]) or len(node.input) < 2
            else _Path(node)
        )
    if form not in ("Add", "Sub", "Where", "Mul", "Div", "Tanh", "Max", "Clip", *MOVES):
        return None
    for index, name in enumerate(node.input):
        if not name or (index, form) == (0, "Where") or scope.is_constant(name) or (index and form in MOVES):
            continue
        path = _up(scope, name, steps + 1)
        if path is not None and _note(scope, path, node, form, index):
            return path
    return None


def _note(scope: Scope, path: _Path, node: Any, form: str, index: int) -> bool:
    """Write down a node on the way; False if it is not one of an attention's."""
    if form in ("Mul", "Div"):
        return _note_scale(scope, path, node, form, index)
    if form == "Tanh":
        path.softcap = path.softcap or math.inf  # the number stands before or behind it
        path.masks = [
            Mask(one.node, one.form, one.value, one.hiding, before_softcap=True) for one in path.masks
        ]
    elif (
        form == "Sub"
        and (shift := scope.maker(node.input[1 - index])) is not None
        and shift.op_type == "ReduceMax"
    ):
        return True  # the maximum, which the operator subtracts once more
    elif form in ("Add", "Sub") and not _without_zero(scope, node):
        other = node.input[1 - index]
        path.masks.append(Mask(label(node), form, other, _added(scope, other)))
    elif form == "Where":
        other = node.input[3 - index]
        path.masks.append(Mask(label(node), form, node.input[0], scope.number(other)))
    return True


def _note_scale(scope: Scope, path: _Path, node: Any, form: str, index: int) -> bool:
    other = node.input[1 - index]
    number = scope.number(other)
    if form == "Div" and index == 1:
        return False
    before = scope.maker(node.input[index])
    after = scope.readers.get(node.output[0], [])
    if number is None:
        if scope.is_constant(other) or _of_sizes(scope, other) or scope.shape(other) in ((), (1,)):
            path.computed_scale = True
            return True
        # A mask of zeros and ones that multiplies logits, or something else.
        path.masks.append(Mask(label(node), form, other, None))
        return True
    factor = 1 / number if form == "Div" and number else number
    if before is not None and before.op_type == "Tanh":
        path.softcap = factor
    elif not any(one.op_type == "Tanh" for one in after):
        path.scales.append(Scale(label(node), factor, "logits"))
    return True


def _of_sizes(scope: Scope, value: str) -> bool:
    return not scope.fed(value)


def _added(scope: Scope, value: str) -> float | None:
    """Return the number that an added mask hides keys with, None if it is not a constant of the graph.

    The bias is often Where(condition, 0, hiding), or (1 - mask) times it, moved about.
    """
    seen = 0
    node = scope.maker(value)
    while node is not None and seen <= _FARTHEST:
        seen += 1
        if node.op_type == "Where":
            numbers = [number for name in node.input[1:] if (number := scope.number(name)) is not None]
            return min(numbers, default=None)
        if node.op_type == "Mul":
            numbers = [number for name in node.input if (number := scope.number(name)) is not None]
            return min(numbers, default=None)
        open_ = [name for name in node.input if name and not scope.is_constant(name)]
        if node.op_type not in (*MOVES, "Slice", "Add", "Trilu", "Gather") or not open_:
            return None
        node = scope.maker(open_[0])
    table = scope.constant(value)
    return float(table.min()) if table is not None and table.size and table.dtype.kind == "f" else None


def _before(scope: Scope, value: str, where: str) -> tuple[str, list[Scale], bool]:
    """Return what queries, or keys, come from, the factors on the way, and whether one of them is not a number."""
    scales: list[Scale] = []
    for _ in range(_FARTHEST):
        node = scope.maker(value)
        if node is None or node.domain not in ("", "ai.onnx"):
            break
        if node.op_type == "Add" and (rest := _without_zero(scope, node)):
            value = rest
        elif node.op_type in ("Mul", "Div"):
            numbers = [scope.number(name) for name in node.input]
            open_ = [index for index, name in enumerate(node.input) if not scope.is_constant(name)]
            if len(open_) == 2 and _of_sizes(scope, node.input[1]):
                return node.input[0], scales, True
            if len(open_) != 1 or (node.op_type == "Div" and open_[0] == 1):
                break
            number = numbers[1 - open_[0]]
            if number is None or not number:
                break
            scales.append(Scale(label(node), 1 / number if node.op_type == "Div" else number, where))
            value = node.input[open_[0]]
        elif node.op_type in MOVES:
            value = node.input[0]
        else:
            break
    return value, scales, False


def _without_zero(scope: Scope, node: Any) -> str:
    """Return what a sum adds 0 to, "" if it adds something: Paddle writes a scale as x s + 0."""
    pairs = (tuple(node.input), tuple(node.input)[::-1])
    return next((str(one) for one, other in pairs if scope.number(other) == 0), "")


def _source(scope: Scope, value: str) -> str:
    return _before(scope, value, "v")[0]


def _down(scope: Scope, value: str, steps: int) -> tuple[Any, str, int] | None:
    """Return the product that reads the weights, the guard on the way (see `Attention`), and where it reads them."""
    if steps > _FARTHEST:
        return None
    for node in scope.readers.get(value, []):
        form = qualified(node)
        if form in PRODUCTS and value in node.input[:2]:
            other = node.input[1 - list(node.input[:2]).index(value)]
            if not scope.is_constant(other):
                return node, "", list(node.input[:2]).index(value)
        if form in _AFTER:
            found = _down(scope, node.output[0], steps + 1)
            if found is not None:
                return found[0], found[1] or _guard(scope, node, value), found[2]
    return None


def _guard(scope: Scope, node: Any, weights: str) -> str:
    if node.op_type == "Where":
        condition = scope.maker(node.input[0])
        return (
            "NaN"
            if condition is not None and condition.op_type == "IsNaN" and weights in condition.input
            else "other"
        )
    return "other" if node.op_type == "Mul" and scope.number(node.input[1]) is None else ""


def _is_causal(scope: Scope, mask: Mask) -> bool:
    kinds = {node.op_type for node in scope.ancestors(mask.value)}
    return "Trilu" in kinds
