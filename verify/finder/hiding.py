"""The number that an added mask hides keys with, if it is a constant of the graph."""

from __future__ import annotations

import math
from typing import Any

from onnx_attest.verify.finder.graph import MOVES, Scope

_MOST = 100
"""Values that are looked at."""
_HANDING_ON = (*MOVES, "Slice", "Trilu", "Gather", "Pad", "Tile", "Concat", "ScatterND", "GatherND")


def hides_with(scope: Scope, value: str, sign: int = 1) -> float | None:
    """Return the least number, times the sign, that is added to logits, None if no constant of the graph is it.

    The bias is often Where(condition, 0, hiding), or (1 - mask) times it, moved about; several masks may be added up.

    Args:
        scope: of the value.
        value: what is added to logits, or subtracted from them.
        sign: -1 if it is subtracted.
    """
    numbers = _Search(scope).numbers(value, sign)
    return min(numbers, default=None)


class _Search:
    """One search through what a mask is made of; each value is looked at once."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._seen: set[tuple[str, int]] = set()

    def numbers(self, value: str, sign: int) -> list[float]:
        """Return the numbers that the value may be, or that are added up in it."""
        if not value or (value, sign) in self._seen or len(self._seen) > _MOST:
            return []
        self._seen.add((value, sign))
        number = self._scope.number(value)
        if number is not None:
            return [sign * number]
        table = self._scope.constant(value)
        if table is not None:
            return [float((sign * table).min())] if _floats(table) else []
        node = self._scope.maker(value)
        return [] if node is None or value in self._scope.tensors else self._of(node, sign)

    def _of(self, node: Any, sign: int) -> list[float]:
        kind = node.op_type
        if kind == "Where":
            return self._every(node.input[1:], sign)
        if kind in ("Add", "Max", "Min"):
            return self._every(node.input, sign)
        if kind == "Sub":
            return [*self.numbers(node.input[0], sign), *self.numbers(node.input[1], -sign)]
        if kind == "Mul":
            return self._product(node, sign)
        if kind == "Neg":
            return self.numbers(node.input[0], -sign)
        if kind == "Log" and self._is_choice(node.input[0]):
            return [sign * -math.inf]
        return self.numbers(node.input[0], sign) if kind in _HANDING_ON and node.input else []

    def _every(self, names: Any, sign: int) -> list[float]:
        return [number for name in names for number in self.numbers(name, sign)]

    def _product(self, node: Any, sign: int) -> list[float]:
        """Return the number that multiplies what is 0 or 1: of anything else the product is no number of the file."""
        for index, name in enumerate(node.input):
            number, other = self._scope.number(name), node.input[1 - index]
            if number is not None and self._is_choice(other):
                return [sign * number]
        return []

    def _is_choice(self, value: str) -> bool:
        """Whether a value is a mask of zeros and ones: fed, cast from truths, or one minus such."""
        scope = self._scope
        for _ in range(_MOST):
            node = scope.maker(value)
            if node is None or value in scope.tensors:
                return value in scope.inputs or not scope.is_constant(value) or _of_ones(scope, value)
            if node.op_type == "Cast" and scope.kind(node.input[0]) == _BOOL:
                return True
            if node.op_type == "Sub" and scope.number(node.input[0]) == 1:
                value = node.input[1]
            elif node.op_type in (*_HANDING_ON, "Trilu"):
                value = node.input[0]
            elif node.op_type in ("Mul", "Min", "Max"):
                return all(self._is_choice(name) for name in node.input)
            else:
                return node.op_type in (
                    "Greater",
                    "Less",
                    "Equal",
                    "GreaterOrEqual",
                    "LessOrEqual",
                    "Not",
                    "And",
                    "Or",
                )
        return False


_BOOL = 9


def _of_ones(scope: Scope, value: str) -> bool:
    table = scope.constant(value)
    return table is not None and bool(((table == 0) | (table == 1)).all())


def _floats(table: Any) -> bool:
    return bool(table.size) and table.dtype.kind == "f"
