"""Recurrent networks: RNN, GRU and LSTM, one step of time after another.

What a gate sums up, over input, state and biases, is one sum in any order. What a state is off by goes into the next
step through the absolute weights, so that the bound says less with every step, and in the end no more than what the
activations can reach; the deviation, which takes roundings as independent, stays sharp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import KAPPA, Bounded, rounded
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    optional,
    required,
)
from onnx_attest.verify.oracle.ops.pointwise.named_activations import Activation, named
from onnx_attest.verify.oracle.values import Value

State = tuple[Bounded, ...]
"""The hidden state, and the cell's of an LSTM; (batch, hidden)."""
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_STORED_PARTS = 4
"""Products of input and state, their sum, and that with a bias: what a sum may be stored as on the way."""


@dataclass(frozen=True)
class Direction:
    """What one direction computes with.

    Attributes:
        weights: of input, state and both biases, (input + hidden + 2, gates * hidden).
        recurrent: of the state alone, (hidden + 1, gates * hidden), with its bias.
        of_input: of the input alone, (input + 1, gates * hidden), with its bias.
        peepholes: of input, output and forget gate, (3, 1, hidden).
    """

    weights: Bounded
    recurrent: Bounded
    of_input: Bounded
    peepholes: Bounded | None
    activations: Sequence[Activation]
    clip: float | None
    hidden: int
    arithmetic: Arithmetic

    def activated(self, index: int, a: Bounded) -> Bounded:
        """Return an activation of what is clipped before it: that moves no two numbers apart."""
        if self.clip is not None:
            a = replace(a, value=np.clip(a.value, -self.clip, self.clip), magnitude=None)
        return self.activations[index](a, self.arithmetic)

    def gate(self, whole: Bounded, index: int) -> Bounded:
        """Return one gate's share of (batch, gates * hidden)."""
        span = slice(index * self.hidden, (index + 1) * self.hidden)
        return whole.moved(lambda array: array[:, span])

    def sums(self, x: Bounded, h: Bounded) -> Bounded:
        """Return what all gates sum up, (batch, gates * hidden)."""
        return summed([x, h, _ones(x, 2)], self.weights, self.arithmetic)


Step = Callable[[Direction, Bounded, State], State]


def summed(parts: Sequence[Bounded], weights: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the parts side by side times the weights, with what storing partial sums may add."""
    joined = bounded.concatenated(parts, 1)
    result = bounded.matmul(joined, weights, arithmetic)
    if result.magnitude is None:
        return result
    u = max(arithmetic.u, arithmetic.u_s)
    error = result.errors() + _STORED_PARTS * u * result.magnitude
    variance = result.variance
    if variance is not None:
        variance = variance + KAPPA * u**2 * result.value**2
    return Bounded(result.value, error, result.magnitude, variance=variance)


def _ones(like: Bounded, width: int) -> Bounded:
    return Bounded(np.ones((like.value.shape[0], width)))


def _rnn_step(d: Direction, x: Bounded, state: State) -> State:
    return (d.activated(0, d.sums(x, state[0])),)


def _gru_step(d: Direction, x: Bounded, state: State, *, linear_before_reset: bool) -> State:
    """Return (1 - z) h~ + z h: gates in the order z, r, h~."""
    (h,), arithmetic = state, d.arithmetic
    gates = d.sums(x, h)
    z, r = (d.activated(0, d.gate(gates, index)) for index in range(2))
    if linear_before_reset:
        from_state = d.gate(summed([h, _ones(h, 1)], d.recurrent, arithmetic), 2)
        from_input = d.gate(summed([x, _ones(x, 1)], d.of_input, arithmetic), 2)
        candidate = bounded.add(from_input, bounded.multiply(r, from_state, arithmetic), arithmetic)
    else:
        reset = bounded.multiply(r, h, arithmetic)
        candidate = summed([x, reset, _ones(x, 2)], d.gate(d.weights, 2), arithmetic)
    new = d.activated(1, candidate)
    blended = _blended(z, new, h, arithmetic)
    weight = d.activations[0]
    if weight.kind.reach is None or min(weight.kind.reach(weight.alpha)) < 0:
        return (blended,)
    # A mean of both, but for what the weight is beyond 1.
    larger = np.maximum(np.abs(new.value) + new.errors(), np.abs(h.value) + h.errors())
    return (_within(blended, (2 * weight.largest(arithmetic) - 1) * larger, arithmetic),)


def _within(a: Bounded, largest: Any, arithmetic: Arithmetic) -> Bounded:
    """Return the same with no more error than a computed value up to `largest`, before its roundings, can have.

    The bound alone grows with each step by as much as the rows of the recurrent weights add up to.
    """
    if a.error is None:
        return a
    rounded_up = largest * (1 + _STORED_PARTS * max(arithmetic.u, arithmetic.u_s))
    return replace(a, error=np.asarray(np.fmin(a.error, np.abs(a.value) + rounded_up)))


def _blended(z: Bounded, new: Bounded, old: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return (1 - z) new + z old: z moves it by the difference of both.

    Three roundings for each of the terms at most, also where it is computed as new + z (old - new).
    """
    value = (1 - z.value) * new.value + z.value * old.value
    ez, en, eo = (np.asarray(part.errors()) for part in (z, new, old))
    inherited = (
        np.abs(old.value - new.value) * ez + (np.abs(1 - z.value) + ez) * en + (np.abs(z.value) + ez) * eo
    )
    sizes = np.abs(new.value) + en + np.abs(old.value) + eo
    u = max(arithmetic.u, arithmetic.u_s)
    inherited = inherited + 3 * u * (1 + ez) * sizes
    variance = (
        (old.value - new.value) ** 2 * z.variances()
        + (1 - z.value) ** 2 * new.variances()
        + z.value**2 * old.variances()
    )
    if arithmetic.deviations:
        kept, gone = (z.value * old.value) ** 2, ((1 - z.value) * new.value) ** 2
        variance = variance + KAPPA * u**2 * (kept + 2 * gone)
    return rounded(value, inherited, arithmetic, variance=variance)


def _lstm_step(d: Direction, x: Bounded, state: State, *, input_forget: bool) -> State:
    """Return h and c: gates in the order i, o, f, c; the output's peephole sees the new cell."""
    (h, c), arithmetic = state, d.arithmetic
    gates = d.sums(x, h)
    i, o, f, new = (d.gate(gates, index) for index in range(4))
    i = d.activated(0, _peeping(d, i, c, 0))
    if input_forget:
        f = bounded.subtract(Bounded(np.ones(1)), i, arithmetic)
    else:
        f = d.activated(0, _peeping(d, f, c, 2))
    kept = bounded.multiply(f, c, arithmetic)
    cell = bounded.add(kept, bounded.multiply(i, d.activated(1, new), arithmetic), arithmetic)
    gate, into = (activation.largest(arithmetic) for activation in d.activations[:2])
    cell = _within(cell, gate * (np.abs(c.value) + c.errors() + into), arithmetic)
    o = d.activated(0, _peeping(d, o, cell, 1))
    return bounded.multiply(o, d.activated(2, cell), arithmetic), cell


def _peeping(d: Direction, gate: Bounded, cell: Bounded, index: int) -> Bounded:
    """Return the gate's sum with the cell's term, which may be the first one of it."""
    if d.peepholes is None:
        return gate
    own = bounded.multiply(d.peepholes.moved(lambda array: array[index]), cell, d.arithmetic)
    result = bounded.add(gate, own, d.arithmetic)
    if result.error is None:
        return result
    first = gamma(d.weights.value.shape[0], d.arithmetic.u_acc) * (np.abs(own.value) + own.errors())
    return replace(result, error=np.asarray(result.error + first))


def _rnn(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    return _outputs(node, _recurrence(node, inputs, arithmetic, _rnn_step, ["Tanh"]))


def _gru(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    before = bool(node.get("linear_before_reset", 0))

    def step(d: Direction, x: Bounded, state: State) -> State:
        return _gru_step(d, x, state, linear_before_reset=before)

    return _outputs(node, _recurrence(node, inputs, arithmetic, step, ["Sigmoid", "Tanh"]))


def _lstm(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    coupled = bool(node.get("input_forget", 0))

    def step(d: Direction, x: Bounded, state: State) -> State:
        return _lstm_step(d, x, state, input_forget=coupled)

    return _outputs(node, _recurrence(node, inputs, arithmetic, step, ["Sigmoid", "Tanh", "Tanh"], cell=True))


def _outputs(node: Node, found: tuple[Bounded, State]) -> list[Value]:
    """Return Y (length, directions, batch, hidden) and the last states (directions, batch, hidden), or batch first."""
    node.get("output_sequence")  # before opset 7: whether there is a first output
    sequence, last = found
    if node.get("layout", 0):
        moved = sequence.moved(lambda array: array.transpose(2, 0, 1, 3))
        return [moved, *(part.moved(lambda array: array.swapaxes(0, 1)) for part in last)]
    return [sequence, *last]


def _recurrence(
    node: Node,
    inputs: Inputs,
    arithmetic: Arithmetic,
    step: Step,
    defaults: list[str],
    *,
    cell: bool = False,
) -> tuple[Bounded, State]:
    """Return all hidden states, (length, directions, batch, hidden), and the last states, (directions, batch, hidden)."""
    x = required(inputs, 0)
    states = [optional(inputs, index) for index in ((5, 6) if cell else (5,))]
    if node.get("layout", 0):
        x = x.moved(lambda array: array.swapaxes(0, 1))
        states = [part if part is None else part.moved(lambda array: array.swapaxes(0, 1)) for part in states]
    lengths = _lengths(inputs, x)
    sequences, last = [], []
    for index, (direction, backwards) in enumerate(_directions(node, inputs, arithmetic, defaults)):
        shape = (x.value.shape[1], direction.hidden)
        start = tuple(_initial(part, index, shape) for part in states)
        sequence, end = _walk(direction, x, start, lengths, step, backwards=backwards)
        sequences.append(_with_axis(sequence, 1))
        last.append(tuple(_with_axis(part, 0) for part in end))
    whole = bounded.concatenated(sequences, 1)
    return whole, tuple(bounded.concatenated(parts, 0) for parts in zip(*last, strict=True))


def _with_axis(a: Bounded, axis: int) -> Bounded:
    return a.moved(lambda array: np.expand_dims(array, axis))


def _initial(given: Bounded | None, index: int, shape: tuple[int, int]) -> Bounded:
    return Bounded(np.zeros(shape)) if given is None else given.moved(lambda array: array[index])


def _lengths(inputs: Inputs, x: Bounded) -> Any:
    """Return the steps of each sequence, (batch, 1).

    Raises:
        UnsupportedOperatorError: a sequence has none: nothing says what its last state is.
    """
    steps, batch = x.value.shape[:2]
    given = optional(inputs, 4)
    lengths = np.full((batch, 1), steps) if given is None else given.value.reshape(batch, 1)
    if np.any(lengths < 1) or np.any(lengths > steps):
        raise UnsupportedOperatorError("a sequence of no step, or of more than there are")
    return lengths


def _walk(
    direction: Direction, x: Bounded, state: State, lengths: Any, step: Step, *, backwards: bool
) -> tuple[Bounded, State]:
    """Return the hidden state at each step, 0 behind a sequence's end, and the last one; (length, batch, hidden)."""
    found: dict[int, Bounded] = {}
    steps, nothing = range(x.value.shape[0]), Bounded(np.zeros(1))
    for time in reversed(steps) if backwards else steps:
        with np.errstate(over="ignore", invalid="ignore"):  # bounds may grow without limit
            made = step(direction, x.moved(lambda array, time=time: array[time]), state)  # type: ignore[misc]
        running = Bounded(time < lengths)
        state = tuple(bounded.where(running, new, old) for new, old in zip(made, state, strict=True))
        found[time] = _with_axis(bounded.where(running, made[0], nothing), 0)
    return bounded.concatenated([found[time] for time in steps], 0), state


def _directions(
    node: Node, inputs: Inputs, arithmetic: Arithmetic, defaults: list[str]
) -> list[tuple[Direction, bool]]:
    """Return what each direction computes with, and whether it goes backwards."""
    name = node.get("direction", "forward")
    if name not in _DIRECTIONS:
        raise UnsupportedOperatorError(f"{node.operator} with direction {name}")
    backwards = _DIRECTIONS[name]
    names = [_text(one) for one in node.get("activations") or defaults * len(backwards)]
    own = named(names, node.get("activation_alpha"), node.get("activation_beta"))
    each, hidden = len(defaults), required(inputs, 2).value.shape[-1]
    if len(own) < each * len(backwards) or node.get("hidden_size", hidden) != hidden:
        raise UnsupportedOperatorError(f"{node.operator} with activations or a hidden_size that do not fit")
    return [
        (_direction(node, inputs, arithmetic, index, own[index * each : (index + 1) * each]), back)
        for index, back in enumerate(backwards)
    ]


def _direction(
    node: Node, inputs: Inputs, arithmetic: Arithmetic, index: int, activations: Sequence[Activation]
) -> Direction:
    of_input, of_state = (required(inputs, place).moved(lambda array: array[index].T) for place in (1, 2))
    hidden, width = of_state.value.shape
    both = optional(inputs, 3)
    biases = (
        Bounded(np.zeros((2, width))) if both is None else both.moved(lambda a: a[index].reshape(2, width))
    )
    first, second = (biases.moved(lambda array, row=row: array[row : row + 1]) for row in range(2))  # type: ignore[misc]
    peepholes = optional(inputs, 7)
    return Direction(
        weights=bounded.concatenated([of_input, of_state, biases], 0),
        recurrent=bounded.concatenated([of_state, second], 0),
        of_input=bounded.concatenated([of_input, first], 0),
        peepholes=None if peepholes is None else peepholes.moved(lambda a: a[index].reshape(3, 1, hidden)),
        activations=activations,
        clip=node.get("clip"),
        hidden=hidden,
        arithmetic=arithmetic,
    )


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


OPERATORS: dict[str, Operator] = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}
