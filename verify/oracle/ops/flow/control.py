"""Operators that evaluate graphs inside the graph: branches and loops.

The bounds go through them as through any other nodes: what a loop carries has the error of all steps so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.flow.sequences import stacked
from onnx_attest.verify.oracle.ops.moves.moving import only
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    placing,
    required,
    sequence,
)
from onnx_attest.verify.oracle.values import Listed, Value

_MOST_TURNS = 2**17
"""Of a loop: as many take the oracle some seconds, and a file may ask for 2^63."""


def _if(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    branches = node.get("else_branch"), node.get("then_branch")
    return node.enter(branches[_holds(inputs, 0)], [])


def _holds(inputs: Inputs, index: int) -> bool:
    (condition,) = placing(inputs, index).reshape(-1)
    return bool(condition)


def _loop(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    body, carried = node.get("body"), list(inputs[2:])
    steps = only(inputs, 0, 0) if optional(inputs, 0) is not None else None
    given = optional(inputs, 1)
    if given is None and steps is None:
        raise UnsupportedOperatorError("Loop without an end")
    last = given or Bounded(np.array(True))
    scanned: list[list[Bounded]] = []
    while _holds([last], 0) and (steps is None or len(scanned) < steps):
        if len(scanned) == _MOST_TURNS:
            raise UnsupportedOperatorError(f"Loop of more than {_MOST_TURNS:,} turns")
        last, carried, outputs = _step(node, body, len(scanned), last, carried)
        scanned.append(outputs)
    if given is None and steps is not None and len(scanned) < steps:
        # The standard ignores what the body says then; ONNX Runtime does not, and exporters count on that.
        raise UnsupportedOperatorError("Loop that was given no condition, and whose body ends it")
    if not scanned and len(body.outputs) > 1 + len(carried):
        like = _step(node, body, 0, last, carried)[2]
        return [*carried, *(_none_of(output, 0) for output in like)]
    return [*carried, *(stacked(list(parts), 0) for parts in zip(*scanned, strict=True))]


def _step(
    node: Node, body: Any, step: int, condition: Bounded, carried: list[Value]
) -> tuple[Bounded, list[Value], list[Bounded]]:
    """Return the condition, what is carried, and the other outputs of one turn of a loop."""
    first, *others = node.enter(body, [Bounded(np.array(step, np.int64)), condition, *carried])
    scanned = others[len(carried) :]
    return (
        required([first], 0),
        others[: len(carried)],
        [required(scanned, index) for index in range(len(scanned))],
    )


def _none_of(like: Bounded, axis: int) -> Bounded:
    """Return the scan output of no turns: one turn, of which nothing is kept, has told its shape and its kind."""
    return stacked([like], axis).moved(lambda array: np.take(array, [], axis))


def _scan(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    return _scan_batches(node, inputs) if node.opset < 9 else _scan_axes(node, inputs)


def _scan_axes(node: Node, inputs: Inputs) -> list[Value]:
    """Scan since opset 9: along any axis of each input, in both directions."""
    count = node.get("num_scan_inputs")
    states, scanned = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
    axes = node.get("scan_input_axes") or [0] * count
    backwards = node.get("scan_input_directions") or [0] * count
    sources = [
        _in_order(required(scanned, index), axis, backwards=bool(direction))
        for index, (axis, direction) in enumerate(zip(axes, backwards, strict=True))
    ]
    outputs = len(node.get("body").outputs) - len(states)
    output_axes = node.get("scan_output_axes") or [0] * outputs
    prepended = node.get("scan_output_directions") or [0] * outputs
    steps = _steps(sources)
    states, parts = _scanned(node, states, sources, steps)
    if not steps:
        return [*states, *(_none_of(part[0], axis) for part, axis in zip(parts, output_axes, strict=True))]
    ordered = [part[::-1] if front else part for part, front in zip(parts, prepended, strict=True)]
    return [*states, *(stacked(part, axis) for part, axis in zip(ordered, output_axes, strict=True))]


def _in_order(a: Bounded, axis: int, *, backwards: bool) -> Bounded:
    """Return the input with what is scanned as its first axis, first things first."""
    return a.moved(lambda array: np.moveaxis(array, axis, 0)[:: -1 if backwards else 1])


def _steps(sources: Sequence[Bounded]) -> int:
    lengths = {len(source.value) for source in sources}
    if len(lengths) != 1:
        raise UnsupportedOperatorError("Scan of inputs that differ in length")
    return lengths.pop()


def _scanned(
    node: Node, states: list[Value], sources: Sequence[Bounded], steps: int
) -> tuple[list[Value], list[list[Bounded]]]:
    """Return the final states, and each output's parts in the order of the steps.

    Of no steps the parts are those of one step on zeros, for their shape, and the states are kept.
    """
    body, scanned = node.get("body"), []
    if not steps and len(body.outputs) == len(states):
        return states, []
    for elements in _elements(sources, steps):
        outputs = node.enter(body, [*states, *elements])
        parts = outputs[len(states) :]
        scanned.append([required(parts, index) for index in range(len(parts))])
        if steps:
            states = outputs[: len(states)]
    return states, [list(parts) for parts in zip(*scanned, strict=True)]


def _elements(sources: Sequence[Bounded], steps: int) -> Iterator[list[Bounded]]:
    if not steps:
        yield [Bounded(np.zeros(source.value.shape[1:], source.value.dtype)) for source in sources]
    for step in range(steps):
        yield [source.moved(lambda array, step=step: np.asarray(array[step])) for source in sources]  # type: ignore[misc]


def _scan_batches(node: Node, inputs: Inputs) -> list[Value]:
    """Scan of opset 8: batches along the first axis of states and inputs, and what is scanned along the second."""
    count = node.get("num_scan_inputs")
    given = [required(inputs, index) for index in range(1, len(inputs))]
    states, scanned = given[: len(given) - count], given[len(given) - count :]
    backwards = node.get("directions") or [0] * count
    batches, longest = scanned[0].value.shape[:2]
    lengths = integers(inputs, 0) if optional(inputs, 0) is not None else [longest] * batches
    outputs = len(node.get("body").outputs) - len(states)
    if any(length != longest for length in lengths) and (outputs or any(backwards)):
        raise UnsupportedOperatorError("Scan of sequences that differ in length: the rest is left open")
    if not batches or not longest:
        raise UnsupportedOperatorError("Scan of opset 8 over nothing")
    found = []
    for batch, length in enumerate(lengths):
        own = [one.moved(lambda array, batch=batch: np.asarray(array[batch])) for one in given]  # type: ignore[misc]
        sources = [
            _in_order(one, 0, backwards=bool(direction))
            for one, direction in zip(own[len(states) :], backwards, strict=True)
        ]
        final, parts = _scanned(node, list(own[: len(states)]), sources, length)
        found.append([*final, *(stacked(part, 0) for part in parts)])
    return [stacked([required(part, index) for part in found], 0) for index in range(len(found[0]))]


def _sequence_map(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Value]:
    """SequenceMap: the body on the items of all sequences at one place; tensors go to every place."""
    body, length = node.get("body"), len(sequence(inputs, 0).items)
    if any(isinstance(one, Listed) and len(one.items) != length for one in inputs):
        raise UnsupportedOperatorError("SequenceMap of sequences that differ in length")
    rows = [
        node.enter(body, [one.items[index] if isinstance(one, Listed) else one for one in inputs])
        for index in range(length)
    ]
    return [Listed(tuple(row[index] for row in rows)) for index in range(len(body.outputs))]


OPERATORS: dict[str, Operator] = {"If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map}
