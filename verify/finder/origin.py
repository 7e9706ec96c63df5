"""What queries and keys come from, and the constant factors between there and their product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onnx_attest.verify.finder.found import Scale
from onnx_attest.verify.finder.graph import MOVES, Scope, label

_MOST = 100
"""Values that are looked at on the way up; longer ways are other things."""
_CLOSE = 1e-6
_ROTATING = ("RotaryEmbedding", "com.microsoft.RotaryEmbedding")
_TAKING = ("Slice", "Split", "Gather", "Neg", "Tile", "GatherElements", "Pad")
"""They hand on a part of their first input, or its numbers with another sign."""
_JOINING = ("Add", "Sub", "Concat")


@dataclass(frozen=True)
class Way:
    """From a value up to another one that it is a multiple of, part by part.

    Attributes:
        scales: the constant factors on the way.
        computed: one of the factors is not a number in the file.
        sure: it is that value, moved; else a part of it, or one of two factors.
        joined: it is put together of parts of that value: rotated by its position, usually.
    """

    scales: tuple[Scale, ...] = ()
    computed: bool = False
    sure: bool = True
    joined: bool = False

    def then(self, further: Way, *, sure: bool = True) -> Way:
        """Return this way and another behind it."""
        return Way(
            self.scales + further.scales,
            self.computed or further.computed,
            self.sure and further.sure and sure,
            self.joined or further.joined,
        )

    def is_like(self, other: Way) -> bool:
        """Whether both multiply with the same number."""
        if self.computed or other.computed:
            return self == other
        return math.isclose(_factor(self), _factor(other), rel_tol=_CLOSE)


def _factor(way: Way) -> float:
    return abs(math.prod(scale.factor for scale in way.scales))


def origin(scope: Scope, value: str, where: str) -> tuple[str, Way]:
    """Return the farthest value that a value is a constant multiple of, and the way.

    A rotary embedding is looked through: each of its sums is of parts of the same queries, multiplied with a sine and
    a cosine, so that a factor on all of them is a factor of the sum.

    Args:
        scope: of the value.
        value: its name.
        where: what the factors are noted as, `q` for example.
    """
    ways = _Walk(scope, where).up(value)
    name = [one for one, way in ways.items() if way.sure][-1]
    return name, ways[name]


class _Walk:
    """One walk up; each value is looked at once."""

    def __init__(self, scope: Scope, where: str) -> None:
        self._scope, self._where = scope, where
        self._seen: dict[str, Mapping[str, Way]] = {}

    def up(self, value: str) -> Mapping[str, Way]:
        """Return all that a value may be a multiple of, itself first."""
        if value in self._seen:
            return self._seen[value]
        found = {value: Way()}
        if len(self._seen) >= _MOST:
            return found
        self._seen[value] = found  # of a loop there is no end; ONNX has none
        node = self._scope.maker(value)
        if node is not None and value not in self._scope.tensors:
            for name, way in self._through(node):
                found.setdefault(name, way)
        return found

    def _through(self, node: Any) -> Iterator[tuple[str, Way]]:
        kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        if kind in MOVES or kind in _ROTATING:
            step = Way(joined=kind in _ROTATING)
            yield from ((name, step.then(way)) for name, way in self.up(node.input[0]).items())
        elif kind in _TAKING:
            yield from ((name, Way(sure=False).then(way)) for name, way in self.up(node.input[0]).items())
        elif kind in ("Mul", "Div"):
            yield from self._scaled(node)
        elif kind in _JOINING:
            yield from self._joined(node)

    def _scaled(self, node: Any) -> Iterator[tuple[str, Way]]:
        scope, divides = self._scope, node.op_type == "Div"
        for index, name in enumerate(node.input):
            if scope.is_constant(name) or (divides and index):
                continue
            other = node.input[1 - index]
            number = scope.number(other)
            if number is not None and number != 0:
                factor = 1 / number if divides else number
                scale = Scale(label(node), factor, self._where, node.output[0], 1 - index, divides)
                step = Way((scale,))
            elif is_scalar(scope, other):
                step = Way(computed=True)
            else:
                step = Way(sure=False)
            yield from ((one, step.then(way)) for one, way in self.up(name).items())

    def _joined(self, node: Any) -> Iterator[tuple[str, Way]]:
        """Yield what all parts come from with the same factor."""
        parts = [name for name in node.input if node.op_type == "Concat" or self._scope.number(name) != 0]
        if not parts or (len(parts) == 1 and node.op_type == "Concat"):
            parts = list(node.input[:1])
        first, *others = (self.up(name) for name in parts)
        for name, way in first.items():
            if all(name in other and way.is_like(other[name]) for other in others):
                yield (
                    name,
                    Way(
                        way.scales,
                        way.computed,
                        sure=way.sure or bool(others),
                        joined=bool(others) or way.joined,
                    ),
                )


def is_scalar(scope: Scope, name: str) -> bool:
    """Whether a value is one number for all, computed or fed."""
    shape = scope.shape(name)
    if shape is not None:
        return all(size == 1 for size in shape)
    if scope.fed(name):
        return False
    kinds = {node.op_type for node in scope.ancestors(name)}
    return kinds <= _OF_SIZES


_OF_SIZES = frozenset({
    "Shape", "Size", "Gather", "Slice", "Cast", "CastLike", "Sqrt", "Div", "Mul", "Pow", "Reciprocal", "Constant",
    "Squeeze", "Unsqueeze", "Identity",
})  # fmt: skip
"""What makes one number of sizes."""
