"""Axes followed through moves: which axis of its weights an attention sums over. Axes are counted from the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx_attest.verify.finder.graph import Scope, attribute, qualified

_ELEMENTWISE = frozenset({
    "Identity", "Cast", "CastLike", "Dropout", "Where", "Mul", "Add", "Sub", "Div", "Max", "Min", "Clip", "Tanh", "Exp",
    "Softmax", "LogSoftmax", "QuantizeLinear", "DequantizeLinear", "Slice", "Concat", "Pad", "Expand",
})  # fmt: skip
Term = tuple[str, ...]


def before(scope: Scope, node: Any, index: int, axis: int | None) -> int | None:
    """Return the axis of a node's input that its output has as this one, None if that is not known."""
    if axis is None or qualified(node) in _ELEMENTWISE:
        return axis
    if node.op_type == "Transpose":
        order = _order(scope, node)
        whole = sorted(order) == list(range(len(order)))  # of a damaged file they may not be
        return order[axis] - len(order) if whole and -len(order) <= axis < 0 else None
    if node.op_type in ("Unsqueeze", "Squeeze"):
        return _without(scope, node, axis)
    if node.op_type in ("Reshape", "Flatten"):
        given, made = scope.shape(node.input[index]), scope.shape(node.output[0])
        return axis if given and made and _same_end(given, made, axis) else None
    return None


def _order(scope: Scope, node: Any) -> list[int]:
    order = attribute(node, "perm")
    if order is not None:
        return list(order)
    rank = scope.rank(node.input[0]) or scope.rank(node.output[0]) or 0
    return list(range(rank))[::-1]


def _same_end(given: Sequence[Any], made: Sequence[Any], axis: int) -> bool:
    """Whether all axes from this one on are the same on both sides of a reshape."""
    if axis < -len(given) or axis < -len(made):
        return False
    pairs = list(zip(given[axis:], made[axis:], strict=True))
    # Open sizes that inference gave no name are told from others by nothing: but the last one may stay what it was.
    return all(one is not None and one == other for one, other in pairs)


def _without(scope: Scope, node: Any, axis: int) -> int | None:
    longer = scope.rank(node.output[0] if node.op_type == "Unsqueeze" else node.input[0])
    axes = attribute(node, "axes")
    if axes is None and len(node.input) > 1:
        held = scope.constant(node.input[1])
        axes = None if held is None else held.reshape(-1).tolist()
    if axes is None:
        return None
    ends = [int(one) if one < 0 else (None if longer is None else int(one) - longer) for one in axes]
    if None in ends:
        return None
    single = sorted((one for one in ends if one is not None), reverse=True)
    if node.op_type == "Unsqueeze":
        return None if axis in single else axis + sum(one > axis for one in single)
    for one in single:
        axis -= one >= axis
    return axis


def summed(product: Any, at: int) -> int | None:
    """Return the axis that a product sums of its first (0) or second (1) factor; None if it is not one."""
    form = qualified(product)
    if form == "Einsum":
        letters = contracted(product)
        term = terms(product)[0][at] if letters else ()
        return term.index(letters[0]) - len(term) if letters and letters[0] in term else None
    moved = attribute(product, "transA" if at == 0 else "transB")
    return (-1 if at == 0 else -2) if not moved else (-2 if at == 0 else -1)


def kept(product: Any, axis: int) -> int | None:
    """Return which factor of a product (0 or 1) gives an axis of its result, None if both or neither do."""
    if qualified(product) != "Einsum":
        return {-1: 1, -2: 0}.get(axis)
    inputs, result = terms(product)
    if len(inputs) != 2 or -axis > len(result):
        return None
    letter = result[axis]
    holders = [index for index, term in enumerate(inputs) if letter in term]
    return holders[0] if len(holders) == 1 else None


def contracted(product: Any) -> list[str]:
    """Return the letters of an Einsum of two factors that both have and the result has not."""
    inputs, result = terms(product)
    if len(inputs) != 2:
        return []
    return [letter for letter in inputs[0] if letter in inputs[1] and letter not in result and letter != "."]


def terms(product: Any) -> tuple[list[Term], Term]:
    """Return the letters of an Einsum's inputs and of its result; an ellipsis is one letter, and stands first."""
    equation = (attribute(product, "equation") or b"").decode().replace(" ", "").replace("...", ".")
    given, arrow, result = equation.partition("->")
    inputs = [tuple(term) for term in given.split(",")]
    if not arrow:  # by the standard: the letters that stand once, in the alphabet's order
        every = [letter for term in inputs for letter in term]
        result = "".join(sorted(letter for letter in set(every) if every.count(letter) == 1 or letter == "."))
    return inputs, tuple(result)
