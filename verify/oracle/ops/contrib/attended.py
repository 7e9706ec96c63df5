"""What the queries of any of these operators meet, and what that gives."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.attention import attention, scores
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.attention import are_many, repeated_heads, scale_of, streamed
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, UnsupportedOperatorError, optional

_DECLARED = ("nan", "zero", "mean")


@dataclass(frozen=True, kw_only=True)
class Attended:
    """What queries meet: keys and values (batch, kv heads, keys, size), and what is added to the scores or hides them.

    Queries, and what is of each of them, are those that the node is asked for.

    Attributes:
        padding: keys that a finite number hides, for those who ask which keys are masked.
        causal, window: what position hides beside `allowed`, as the streaming attention has it.
        rows: where the queries stand, None: one behind the other from 0 on.
    """

    q: Bounded
    k: Bounded
    v: Bounded
    scale: Bounded
    bias: Bounded | None = None
    allowed: NDArray[np.bool_] | None = None
    padding: NDArray[np.bool_] | None = None
    softcap: float = 0.0
    causal: int | None = None
    window: int | None = None
    rows: NDArray[np.intp] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return (batch, heads, queries, keys)."""
        batch, heads, queries, _ = self.q.value.shape
        return batch, heads, queries, self.k.value.shape[2]

    def outcome(
        self, node: Node, arithmetic: Arithmetic, *, shown: bool = False
    ) -> tuple[Bounded, Bounded | None]:
        """Return the output (batch, heads, queries, size), and the weights unless there are too many to be held.

        Args:
            node: the operator.
            arithmetic: of the runtime.
            shown: whether the graph asks for weights or scores.
        """
        if node.rows is not None and shown:
            raise UnsupportedOperatorError(f"some rows of a {node.operator} that gives its weights or scores")
        many = node.rows is not None or are_many(self.q, self.k)
        if many and not shown and arithmetic.kernel is None:
            return self._streamed(node, arithmetic), None
        return self.written_out()._held(node, arithmetic)

    def written_out(self) -> Attended:
        """Return the same with what position hides as a mask."""
        if self.causal is None and self.window is None:
            return self
        *_, queries, keys = self.shape
        standing = np.arange(queries) if self.rows is None else self.rows
        position, key = (standing + (self.causal or 0))[:, None], np.arange(keys)
        seen = np.ones((queries, keys), bool) if self.causal is None else key <= position
        if self.window is not None:
            seen = seen & (key > position - self.window)
        allowed = seen[None, None] if self.allowed is None else self.allowed & seen
        return replace(self, allowed=allowed, causal=None, window=None)

    def _streamed(self, node: Node, arithmetic: Arithmetic) -> Bounded:
        by_policy = self.padding is not None and node.empty_rows in _DECLARED
        own = self.written_out() if by_policy else self
        return streamed(
            own.q, own.k, own.v, arithmetic, scale=own.scale, bias=own.bias,
            allowed=own._allowed_under(node.empty_rows), causal=own.causal, window=own.window,
            softcap=own.softcap, empty_rows=node.empty_rows, rows=own.rows,
        )  # fmt: skip

    def _held(self, node: Node, arithmetic: Arithmetic) -> tuple[Bounded, Bounded]:
        heads, allowed = self.q.value.shape[1], self._allowed_under(node.empty_rows)
        output, weights = attention(
            self.q, repeated_heads(self.k, heads), repeated_heads(self.v, heads), arithmetic,
            scale=float(self.scale.value[0]), scale_error=float(np.max(self.scale.errors())),
            allowed=None if allowed is None else Bounded(allowed), bias=self.bias, softcap=self.softcap,
            empty_rows=node.empty_rows,
        )  # fmt: skip
        facts = output.attended
        if facts is None or self.padding is None:
            return output, weights
        masked = facts.masked | (self.padding & ~self._nothing_else())
        return replace(output, attended=replace(facts, masked=masked)), weights

    def scores(self, arithmetic: Arithmetic) -> Bounded:
        """Return what goes into the softmax."""
        return scores(
            self.q, repeated_heads(self.k, self.q.value.shape[1]), arithmetic, scale=self.scale,
            softcap=self.softcap, bias=self.bias, allowed=None if self.allowed is None else Bounded(self.allowed),
        )  # fmt: skip

    def _nothing_else(self) -> NDArray[np.bool_]:
        """Return the rows that have padding only, (batch, heads, queries, 1)."""
        hidden = np.broadcast_to(False if self.padding is None else self.padding, self.shape)
        if self.allowed is not None:
            hidden = hidden | ~self.allowed
        return np.asarray(hidden.all(-1, keepdims=True))

    def _allowed_under(self, policy: str) -> NDArray[np.bool_] | None:
        """Return the allowed keys; none in rows of padding only if there is a declared policy for such rows."""
        if self.padding is None or policy not in _DECLARED:
            return self.allowed
        something = ~self._nothing_else()
        return something if self.allowed is None else self.allowed & something

    def with_sink(self, sink: Bounded) -> Attended:
        """Return the same with one more key, whose logit is the sink (heads or 1) and whose value is 0.

        That is what a smooth softmax is, e^l / (e^sink + sum e^l), and the centred bound holds for it as it stands.
        """
        if self.causal is not None or self.window is not None:  # nothing hides the sink
            return self.written_out().with_sink(sink)
        batch, heads, queries, keys = self.shape
        k, v = (bounded.concatenated([part, zeros_like(part, 1)], 2) for part in (self.k, self.v))
        bias = self.bias
        if bias is not None or np.any(sink.value):
            given = Bounded(np.zeros(1)) if bias is None else bias
            column = _broadcast(
                sink.moved(lambda array: array.reshape(1, -1, 1, 1)), (batch, heads, queries, 1)
            )
            bias = bounded.concatenated([_broadcast(given, self.shape), column], 3)
        allowed = self.allowed
        if allowed is not None:
            wide = np.broadcast_to(allowed, (batch, 1, queries, keys))
            allowed = np.concatenate([wide, np.ones((batch, 1, queries, 1), bool)], 3)
        return replace(self, k=k, v=v, bias=bias, allowed=allowed)


def zeros_like(part: Bounded, length: int) -> Bounded:
    """Return (batch, heads, length, size) zeros."""
    batch, heads, _, size = part.value.shape
    return Bounded(np.zeros((batch, heads, length, size)))


def _broadcast(a: Bounded, shape: tuple[int, ...]) -> Bounded:
    return a.moved(lambda array: np.broadcast_to(array, shape))


def given_scale(node: Node, head_size: int) -> Bounded:
    """Return the scale; 0 stands for the default."""
    if node.get("scale", 0.0) != 0.0:
        return scale_of(node, head_size)
    return Bounded(np.array([head_size**-0.5 * node.logit_factor]))


def refuse_inputs(node: Node, inputs: Inputs, names: dict[int, str]) -> None:
    """Refuse inputs, by index, with the name of what is not supported."""
    for index, name in names.items():
        if optional(inputs, index) is not None:
            raise UnsupportedOperatorError(f"{node.operator} with {name}")


def refuse_attributes(node: Node, *names: str) -> None:
    """Refuse attributes that are set to something but off."""
    for name in names:
        if node.get(name, 0) not in (0, "NONE", ""):
            raise UnsupportedOperatorError(f"{node.operator} with the attribute {name}")
