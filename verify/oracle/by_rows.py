"""A graph with one attention, evaluated for some of its query rows at a time: all keys, and memory for few queries.

What stands before the attention is evaluated once, for all tokens: that is linear in their number. The attention gives
the rows that are asked for, and what follows it is evaluated for those, as far as it keeps rows apart (`row_axes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.operator import Node, UnsupportedOperatorError
from onnx_attest.verify.oracle.program import Program, Run, result_of
from onnx_attest.verify.oracle.row_axes import Sliced, follow
from onnx_attest.verify.oracle.values import Value

_PAST: Mapping[str, int] = {
    "Attention": 4,
    "com.microsoft.Attention": 4,
    "com.microsoft.MultiHeadAttention": 6,
    "com.microsoft.GroupQueryAttention": 3,
}
"""The operators that know of rows, and which of their inputs are the past keys."""
_EXPLICIT_MASK = 2**27
"""Elements of a mask that is made for a block of rows: at one byte each, 128 MiB."""
_OUTPUT = 2**22
"""Elements of an output's block: value, bound and temporaries of the comparison are 32 MiB each."""
_LEAST_ROWS = 64


@dataclass(frozen=True)
class Layout:
    """The shape of a whole output, and which of its axes is that of the query rows; None: it has none."""

    shape: tuple[int, ...]
    axis: int | None


class ByRows:
    """A graph on some inputs, with what stands before its attention evaluated.

    Attributes:
        count: query rows there are.
        keys: that each of them may meet.
        scores: of all heads together.
        attentions: names of the attentions.
        has_deviations: whether the deviations of the rows are all there is: those that an attention's operands carry are
            not carried on.
    """

    def __init__(
        self,
        program: Program,
        known: Mapping[str, Value],
        arithmetic: Arithmetic,
        load: Callable[[str], Bounded],
    ) -> None:
        """Evaluate what does not depend on the attention.

        Raises:
            UnsupportedOperatorError: see `GraphOracle.by_rows`.
        """
        before, self._after = _split(program)
        self._arithmetic, self._outputs = arithmetic, program.outputs
        made = {name for node in self._after for name in node.outputs}
        wanted = {name for node in self._after for name in node.inputs if name} | {*program.outputs}
        run = Run(arithmetic, load=load)
        first = program.part(before, sorted(wanted - made)).run(known, run)
        self._known: dict[str, Value] = {**first, **_deferred(program, wanted, load)}
        attentions = [node for node in self._after if node.operator in _PAST]
        self.attentions = tuple(node.name for node in attentions)
        for node in attentions:
            if made & set(node.inputs):
                raise UnsupportedOperatorError(
                    f"{node.name} meets what another attention gives: all its rows"
                )
        sizes = [_sizes(node, self._known) for node in attentions]
        if len({size.queries for size in sizes}) > 1:
            raise UnsupportedOperatorError("attentions with different numbers of queries")
        self.count, self.keys = sizes[0].queries, max(size.keys for size in sizes)
        self.scores = sum(size.heads * size.queries * size.keys for size in sizes)
        self._batch = max(size.batch for size in sizes)
        self.has_deviations = arithmetic.deviations and not any(
            isinstance(one := self._known.get(name), Bounded) and one.variance is not None
            for node in attentions
            for name in node.inputs
        )
        self._masked = any(_has_mask(node) for node in attentions)
        self.layout = {
            name: self._layout(name, value) for name, value in self._at(np.zeros(1, np.intp)).items()
        }

    @property
    def block(self) -> int:
        """How many rows to ask for at a time, so that what is made for them stays small."""
        elements = max(
            (math.prod(one.shape) // self.count for one in self.layout.values() if one.axis is not None),
            default=1,
        )
        rows = _OUTPUT // max(elements, 1)
        if self._masked:
            rows = min(rows, _EXPLICIT_MASK // max(self._batch * self.keys, 1))
        return max(_LEAST_ROWS, rows)

    def at(self, rows: NDArray[np.intp]) -> dict[str, Bounded]:
        """Return these rows, in increasing order, of the outputs that have rows.

        Raises:
            UnsupportedOperatorError: see `GraphOracle.by_rows`.
        """
        values = self._at(rows)
        return {name: one.value for name, one in values.items() if isinstance(one, Sliced)}

    def others(self) -> dict[str, Bounded]:
        """Return the outputs that have no query rows: the keys and values of a cache, for example."""
        values = self._at(np.zeros(1, np.intp))
        return {name: one for name, one in values.items() if isinstance(one, Bounded)}

    def _layout(self, name: str, value: Value | Sliced) -> Layout:
        if isinstance(value, Sliced):
            shape = list(value.value.value.shape)
            shape[value.axis] = self.count
            return Layout(tuple(shape), value.axis)
        if not isinstance(value, Bounded):
            raise UnsupportedOperatorError(f"{name} is no tensor")
        return Layout(value.value.shape, None)

    def _at(self, rows: NDArray[np.intp]) -> dict[str, Value | Sliced]:
        known: dict[str, Value | Sliced] = dict(self._known)
        with np.errstate(all="ignore"):
            for node in self._after:
                known |= self._results(node, known, rows)
        return {name: known[name] for name in self._outputs}

    def _results(
        self, node: Node, known: Mapping[str, Value | Sliced], rows: NDArray[np.intp]
    ) -> dict[str, Value | Sliced]:
        given = {name: known[name] for name in node.inputs if name}
        if node.operator in _PAST:
            if any(isinstance(value, Sliced) for value in given.values()):
                raise UnsupportedOperatorError(
                    f"{node.name} meets what another attention gives: all its rows"
                )
            whole: dict[str, Any] = given
            values = result_of(replace(node, rows=rows), whole, self._arithmetic)
            first, axis = node.outputs[0], _row_axis(node, whole)
            output = values[first]
            assert isinstance(output, Bounded)
            return {**values, first: Sliced(output, axis)}
        return follow(node, given, rows, self.count, self._arithmetic)


@dataclass(frozen=True)
class _Sizes:
    batch: int
    heads: int  # times batch
    queries: int
    keys: int


def _split(program: Program) -> tuple[list[Node], list[Node]]:
    """Return the nodes that depend on no attention, and the others."""
    before, after, made = list[Node](), list[Node](), set[str]()
    for node in program.nodes:
        if node.operator in _PAST or made & set(node.inputs):
            after.append(node)
            made |= {name for name in node.outputs if name}
        else:
            before.append(node)
    if not any(node.operator in _PAST for node in after):
        raise UnsupportedOperatorError("the graph has no attention that is one operator")
    return before, after


def _deferred(program: Program, wanted: set[str], load: Callable[[str], Bounded]) -> dict[str, Bounded]:
    return {name: load(name) for name in sorted(wanted) if program.is_deferred(name)}


def _shape(node: Node, index: int, known: Mapping[str, Any]) -> tuple[int, ...]:
    name = node.inputs[index] if index < len(node.inputs) else ""
    value = known.get(name) if name else None
    return value.value.shape if isinstance(value, Bounded) else ()


def _row_axis(node: Node, known: Mapping[str, Any]) -> int:
    """Return the axis of the query rows, of the output; of the query it is the same but for packed ones, where it is 1."""
    return 2 if node.operator == "Attention" and len(_shape(node, 0, known)) == 4 else 1


def _sizes(node: Node, known: Mapping[str, Any]) -> _Sizes:
    """Return the sizes of an attention; keys that are not new count too."""
    q, k = _shape(node, 0, known), _shape(node, 1, known)
    if len(q) < 3:
        raise UnsupportedOperatorError(f"{node.name}: a query of {len(q)} axes")
    four = node.operator == "Attention" and len(q) == 4
    queries = q[_row_axis(node, known)]
    earlier = _shape(node, _PAST[node.operator], known)
    past = earlier[-2] if len(earlier) > 3 else 0
    projects = node.operator == "com.microsoft.Attention"
    new = queries if projects or len(k) not in (3, 4) else k[-2]
    heads = q[1] if four else node.get("q_num_heads") or node.get("num_heads", 1)
    return _Sizes(q[0], q[0] * heads, queries, new + past)


def _has_mask(node: Node) -> bool:
    """Whether more than the new keys and values goes in: then a mask may be made of queries x keys."""
    return any(node.inputs[3:])
