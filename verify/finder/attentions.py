"""The attentions of a graph: operators, and products with a softmax between them, with what each party is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnx_attest.verify.finder import axes
from onnx_attest.verify.finder.found import Attention, Mask, Scale, Softmax
from onnx_attest.verify.finder.graph import MOVES, NEAR, Scope, attribute, label, qualified
from onnx_attest.verify.finder.hiding import hides_with
from onnx_attest.verify.finder.operators import operator
from onnx_attest.verify.finder.origin import Way, is_scalar, origin
from onnx_attest.verify.finder.softmaxes import ATTENTION_OPERATORS

_FACTORS = {
    **dict.fromkeys(
        ("MatMul", "Einsum", "Gemm", "MatMulInteger", "com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul"), (0, 1)
    ),
    "QLinearMatMul": (0, 3),
}  # fmt: skip
"""Where products read their two factors."""
_AFTER = (*MOVES, "Where", "Dropout", "Mul", "Slice", "Pad")
"""What may stand between the softmax and the product with the values: a guard against NaN, a dropout, a mask of zeros."""
_BEFORE = ("Add", "Sub", "Where", "Mul", "Div", "Tanh", "Max", "Min", "Clip", "Concat", "Slice", *MOVES)
"""What may stand between the product and the softmax; Concat adds a sink to the keys."""
_BINARY = ("Add", "Sub", "Where", "Mul", "Div", "Max", "Min", "Concat")
_FARTHEST = 12
"""Steps from the softmax up to the product; longer chains are other things."""
_MOST = 400
"""Values that are looked at on that way."""
_ONE_FACTOR = 2.0**-8
"""How far a cap and its reciprocal, each rounded to a short format, may be from 1 together."""


@dataclass
class _Path:
    """What was met between the softmax and the product of queries and keys, from the product on.

    Attributes:
        keys: axis of the product's result that the softmax sums over, None if it is not known.
        inner: the factor right before a tanh, and its node.
    """

    product: Any
    keys: int | None = None
    scales: list[Scale] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    terms: list[int] = field(default_factory=list)
    softcap: float = 0.0
    computed_scale: bool = False
    inner: Scale | None = None


def attentions_in(scope: Scope, softmaxes: list[Softmax]) -> Iterator[Attention]:
    """Yield the attentions that the softmaxes of one graph are in."""
    for softmax in softmaxes:
        node = softmax.nodes[-1]
        if softmax.form in ATTENTION_OPERATORS:
            yield operator(softmax, node)
        elif (found := _pattern(scope, softmax)) is not None:
            yield found


def factors(scope: Scope, product: Any) -> tuple[str, str] | None:
    """Return the two values that a node multiplies as matrices, None if it does not, or one of them is constant."""
    places = _FACTORS.get(qualified(product))
    if places is None or len(product.input) <= places[1]:
        return None
    one, other = (product.input[place] for place in places)
    return None if scope.is_constant(one) or scope.is_constant(other) else (one, other)


def _pattern(scope: Scope, softmax: Softmax) -> Attention | None:
    down = _down(scope, softmax.weights, [])
    if down is None:
        return None
    second, at, way = down
    summed = _axis_at_softmax(scope, softmax, second, at, way)
    path = _Up(scope).path(softmax.logits, summed if summed is not None else softmax.axis)
    if path is None:
        return None
    first = path.product
    pair, values = factors(scope, first), factors(scope, second)
    assert pair is not None
    assert values is not None
    keys_at = None if path.keys is None else axes.kept(first, path.keys)
    keys_at = 1 if keys_at is None else keys_at
    query, to_query = origin(scope, pair[1 - keys_at], "q")
    key, to_key = origin(scope, pair[keys_at], "k")
    scales, computed = _scales(path, first, to_query, to_key)
    if softmax.base != math.e:  # 2^x is e^(x ln 2)
        scales = (*scales, Scale(softmax.node, math.log(softmax.base), "logits"))
    return Attention(
        softmax=softmax,
        node=label(second),
        form=f"{qualified(first)}/{softmax.form}/{qualified(second)}",
        output=(softmax.nodes[-1] if softmax.late else second).output[0],
        query=query,
        key=key,
        value=origin(scope, values[1 - at], "v")[0],
        scale=None if computed else math.prod(scale.factor for scale in scales),
        scales=scales,
        masks=tuple(path.masks),
        head_size=_head_size(scope, first),
        softcap=path.softcap,
        causal=any(_is_causal(scope, mask) for mask in path.masks),
        guard=next(
            filter(None, (_guard(scope, node, value) for node, value in way)),
            "other" if softmax.guarded else "",
        ),
        product=first,
        second=second,
        keys_at=keys_at,
        summed=summed,
        before=tuple(path.nodes),
        after=tuple(node for node, _ in way),
        rotated=to_query.joined or to_key.joined,
        terms=tuple(path.terms),
    )


def _axis_at_softmax(
    scope: Scope, softmax: Softmax, second: Any, at: int, way: Sequence[tuple[Any, str]]
) -> int | None:
    """Return the axis of the weights that the product with the values sums."""
    if softmax.late:
        return axes.summed(second, at)  # of the exponentials, which are what it reads
    axis = axes.summed(second, at)
    for node, value in reversed(way):
        axis = axes.before(scope, node, list(node.input).index(value), axis)
    return axis


def _scales(path: _Path, first: Any, to_query: Way, to_key: Way) -> tuple[tuple[Scale, ...], bool]:
    scales = (*path.scales, *to_query.scales, *to_key.scales)
    alpha = attribute(first, "alpha")
    if alpha is not None and alpha != 1:
        scales = (*scales, Scale(label(first), float(alpha), "logits"))
    return scales, path.computed_scale or to_query.computed or to_key.computed


def _head_size(scope: Scope, product: Any) -> int | None:
    pair = factors(scope, product)
    if pair is None:
        return None
    if qualified(product) == "Einsum":
        letters = axes.contracted(product)
        ends = [(at, axes.summed(product, at)) for at in (0, 1)] if len(letters) == 1 else []
    else:
        ends = [(at, axes.summed(product, at)) for at in (0, 1)]
    for at, axis in ends:
        shape = scope.shape(pair[at])
        size = shape[axis] if shape and axis is not None and -len(shape) <= axis else None
        if isinstance(size, int) and size > 0:
            return size
    return None


class _Up:
    """The way from the logits of one softmax up to a product of two values that are computed."""

    def __init__(self, scope: Scope) -> None:
        self._scope, self._seen = scope, 0

    def path(
        self, value: str, axis: int | None, steps: int = 0, *, mixed: bool = False, terms: bool = True
    ) -> _Path | None:
        """Return the way, None if there is none.

        Args:
            value: where to begin.
            axis: of it that the softmax sums over, None if it is not known.
            steps: that were gone already.
            mixed: a product with a constant was passed, which mixes heads.
            terms: look for further products that are added.
        """
        node = self._scope.maker(value)
        self._seen += 1
        if node is None or steps > _FARTHEST or self._seen > _MOST:
            return None
        form = qualified(node)
        if form in _FACTORS:
            if factors(self._scope, node) is not None:
                return _Path(node, axis)
            return None if mixed else self._mixing(node, axis, steps)
        if form not in _BEFORE:
            return None
        for index, name in enumerate(node.input if form in _BINARY else node.input[:1]):
            if not name or (index, form) == (0, "Where") or self._scope.is_constant(name):
                continue
            further = axes.before(self._scope, node, index, axis)
            path = self.path(name, further, steps + 1, mixed=mixed, terms=terms)
            if path is not None and self._note(path, node, form, index, terms=terms):
                path.nodes.append(node)
                return path
        return None

    def _mixing(self, node: Any, axis: int | None, steps: int) -> _Path | None:
        """Return the way past a linear map, if it mixes heads; one that gives the logits of classes ends it."""
        if axis is None or qualified(node) not in ("MatMul", "Einsum"):
            return None
        at = next(
            (index for index, name in enumerate(node.input[:2]) if not self._scope.is_constant(name)), None
        )
        if at is None or len(set(self._scope.shape(node.input[1 - at]) or (1, 2))) > 1:
            return None  # as many heads as before
        if qualified(node) == "Einsum":
            (*inputs,), result = axes.terms(node)
            letter = result[axis] if -axis <= len(result) else ""
            if len(inputs) != 2 or letter not in inputs[at] or letter in inputs[1 - at]:
                return None
            axis = inputs[at].index(letter) - len(inputs[at])
        elif axis == (-1 if at == 0 else -2):
            return None
        path = self.path(node.input[at], axis, steps + 1, mixed=True)
        if path is not None:
            path.computed_scale = True
            path.nodes.append(node)
        return path

    def _note(self, path: _Path, node: Any, form: str, index: int, *, terms: bool) -> bool:
        """Write down a node on the way; False if it is not one of an attention's."""
        if form in ("Mul", "Div"):
            return self._note_scale(path, node, form, index)
        other = node.input[1 - index] if form in ("Add", "Sub", "Max", "Min") else ""
        if form == "Tanh":
            path.softcap = path.softcap or math.inf  # the number stands behind it
            path.masks = [replace(one, before_softcap=True) for one in path.masks]
        elif form == "Sub" and _of_a_maximum(self._scope, other):
            pass  # the maximum, which the softmax subtracts once more
        elif form in ("Add", "Sub") and self._scope.number(other) != 0:
            # A sum of products, of parts of the head or with positions, is no mask.
            size = self._term(other) if terms else None
            if size is not None:
                path.terms.append(size)
            else:
                sign = -1 if form == "Sub" else 1
                hiding = hides_with(self._scope, other, sign)
                path.masks.append(_mask(node, form, other, hiding, index))
        elif form == "Where":
            number = self._scope.number(node.input[3 - index])
            path.masks.append(_mask(node, form, node.input[0], number, index))
        return True

    def _term(self, value: str) -> int | None:
        """Return the length of the rows of another product that is a term of the logits, 0 if it is not known."""
        path = self.path(value, None, _FARTHEST // 2, terms=False)
        return None if path is None else _head_size(self._scope, path.product) or 0

    def _note_scale(self, path: _Path, node: Any, form: str, index: int) -> bool:
        scope, other = self._scope, node.input[1 - index]
        number = scope.number(other)
        if form == "Div" and index == 1:
            return False
        if number is None:
            if scope.is_constant(other) or is_scalar(scope, other):
                path.computed_scale = True
            else:  # a mask of zeros and ones that multiplies logits, or something else
                path.masks.append(_mask(node, form, other, None, index))
            return True
        factor = 1 / number if form == "Div" and number else number
        step = Scale(label(node), factor, "logits", node.output[0], 1 - index, form == "Div")
        before, after = scope.maker(node.input[index]), scope.readers.get(node.output[0], [])
        if before is not None and before.op_type == "Tanh":
            # cap tanh(s / cap) is s where s is small: what the two numbers lack of 1 is a scale.
            path.softcap = abs(factor)
            if path.inner is not None and abs(path.inner.factor * factor - 1) > _ONE_FACTOR:
                path.scales.append(replace(path.inner, factor=path.inner.factor * factor))
        elif any(one.op_type == "Tanh" for one in after):
            path.inner = step
        else:
            path.scales.append(step)
        return True


def _mask(node: Any, form: str, value: str, hiding: float | None, index: int) -> Mask:
    return Mask(label(node), form, value, hiding, output=node.output[0], index=index)


def _of_a_maximum(scope: Scope, value: str) -> bool:
    shift = scope.maker(value)
    for _ in range(_FARTHEST):
        if shift is None or shift.op_type in ("ReduceMax", "TopK"):
            break
        shift = scope.maker(shift.input[0]) if shift.op_type in (*MOVES, "Clip", "Max") else None
    return shift is not None


def _down(
    scope: Scope, value: str, way: list[tuple[Any, str]]
) -> tuple[Any, int, list[tuple[Any, str]]] | None:
    """Return the product that reads the weights, which of its factors they are, and the nodes on the way to it.

    Each node stands beside the value that it reads. LogSoftmax is followed by Exp.
    """
    if len(way) > _FARTHEST:
        return None
    for node in scope.readers.get(value, []):
        pair = factors(scope, node)
        if pair is not None and value in pair:
            return node, pair.index(value), way
        form = qualified(node)
        if form in _AFTER or (form == "Exp" and not way):
            found = _down(scope, node.output[0], [*way, (node, value)])
            if found is not None:
                return found
    return None


def _guard(scope: Scope, node: Any, weights: str) -> str:
    if node.op_type == "Where":
        condition = scope.maker(node.input[0])
        return (
            "NaN"
            if condition is not None and condition.op_type == "IsNaN" and weights in condition.input
            else "other"
        )
    others = [name for name in node.input if name != weights] if node.op_type == "Mul" else []
    return "other" if any(scope.number(name) is None for name in others) else ""


def _is_causal(scope: Scope, mask: Mask) -> bool:
    """Whether a triangle is what is hidden: of ones, or where one position is after another."""
    for node in scope.ancestors(mask.value, most=NEAR):
        if node.op_type == "Trilu":
            return True
        if node.op_type in ("Greater", "Less", "GreaterOrEqual", "LessOrEqual"):
            ranges = [_of_a_range(scope, name) for name in node.input]
            if all(ranges):
                return True
    return False


def _of_a_range(scope: Scope, value: str) -> bool:
    """Whether a value is positions in order: moved, or with a number added, and nothing else."""
    node = scope.maker(value)
    for _ in range(_FARTHEST):
        if node is None or node.op_type == "Range":
            return node is not None
        if node.op_type in ("Add", "Sub"):
            node = next((made for name in node.input if (made := scope.maker(name)) is not None), None)
        else:
            node = scope.maker(node.input[0]) if node.op_type in MOVES else None
    return False
