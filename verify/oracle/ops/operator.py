"""What an operator of the oracle is: a function of a node, its inputs and the arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Array, Bounded
from onnx_attest.verify.oracle.values import Listed, Value


class UnsupportedOperatorError(Exception):
    """The oracle cannot evaluate this: what it lacks. The cell is inconclusive."""


class NoRoomError(UnsupportedOperatorError):
    """Windows have no room in what they slide over: torch refuses such sizes, and runtimes give what they like."""


def _nowhere(body: Any, arguments: Sequence[Value]) -> list[Value]:
    raise UnsupportedOperatorError("a graph inside a node that is evaluated alone")


@dataclass(frozen=True)
class Node:
    """One node of a graph: its attributes as Python values and the opset of its domain.

    `empty_rows` is the declared policy for softmax rows without any key, `unknown` where the operator decides.
    `attribute_error` is how far a floating attribute may be from what was meant, relative to it: ONNX has float32
    attributes only. `logit_factor` scales what goes into a softmax, to see what the outputs make of it.
    `type_of` gives the element type of a value by its name, 0 where it is unknown: floats are float64 here whatever
    they are in the file. `rows` says which of its queries an attention is asked for, in increasing order, None for all:
    its inputs are those of all. `enter` evaluates a graph that is an attribute, with what is known around the node.
    It remembers which attributes an operator asked for: one that nobody asked for changes the meaning of the node
    unseen, as the attributes of a later opset would.
    """

    name: str
    operator: str
    opset: int
    attributes: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    empty_rows: str = "unknown"
    attribute_error: float = 0.0
    logit_factor: float = 1.0
    rows: NDArray[np.intp] | None = field(default=None, compare=False, repr=False)
    type_of: Callable[[str], int] = field(default=lambda name: 0, compare=False, repr=False)
    enter: Callable[[Any, Sequence[Value]], list[Value]] = field(default=_nowhere, compare=False, repr=False)
    asked: set[str] = field(default_factory=set, compare=False, repr=False)

    def get(self, attribute: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        self.asked.add(attribute)
        return self.attributes.get(attribute, default)

    def real(self, attribute: str, default: float) -> Bounded:
        """Return a floating attribute, or its default, with the error it may have."""
        value = float(self.get(attribute, default))
        error = 0.0 if is_short(value) else self.attribute_error * abs(value)
        return Bounded(np.array([value]), np.array([error]) if error else None)

    def refuse_unasked(self) -> None:
        """Refuse a node with an attribute that its operator did not ask for.

        Raises:
            UnsupportedOperatorError: it names the attribute.
        """
        unasked = sorted(set(self.attributes) - self.asked)
        if unasked:
            raise UnsupportedOperatorError(f"{self.operator} with the attribute {', '.join(unasked)}")


def rows_of(a: Bounded, rows: NDArray[np.intp] | None) -> Bounded:
    """Return the rows that are asked for of (..., rows, columns); one row is that of all."""
    if rows is None or a.value.shape[-2] == 1:
        return a
    first, last = int(rows[0]), int(rows[-1])
    run: Any = slice(first, last + 1) if last - first + 1 == len(rows) else rows
    return a.moved(lambda array: array[..., run, :])


_SHORT = 2.0**12


def is_short(numbers: Any) -> Any:
    """Whether each number has no more than 12 binary digits: that is how people write constants, 0.125 or 10000.

    A number that was rounded to float32 has as many by chance once in 4096 times.
    """
    mantissa, _ = np.frexp(numbers)
    with np.errstate(invalid="ignore"):
        return (mantissa * _SHORT) % 1 == 0


Inputs = Sequence[Value]
Operator = Callable[[Node, Inputs, Arithmetic], Sequence[Value]]


def required(inputs: Inputs, index: int) -> Bounded:
    """Return an input that the operator cannot do without.

    Raises:
        UnsupportedOperatorError: it is missing; the checker lets that through for optional inputs.
    """
    value = optional(inputs, index)
    if value is None:
        raise UnsupportedOperatorError(f"input {index} is missing")
    return value


def optional(inputs: Inputs, index: int) -> Bounded | None:
    """Return an input, None if it is not given.

    Raises:
        UnsupportedOperatorError: it is a sequence.
    """
    value = inputs[index] if index < len(inputs) else None
    if isinstance(value, Listed):
        raise UnsupportedOperatorError(f"input {index} is a sequence")
    return value


def tensors(inputs: Inputs) -> list[Bounded]:
    """Return all inputs of an operator that takes any number of tensors."""
    return [required(inputs, index) for index in range(len(inputs))]


def sequence(inputs: Inputs, index: int) -> Listed:
    """Return an input that is a sequence.

    Raises:
        UnsupportedOperatorError: it is none.
    """
    value = inputs[index] if index < len(inputs) else None
    if not isinstance(value, Listed):
        raise UnsupportedOperatorError(f"input {index} is no sequence")
    return value


def integers(inputs: Inputs, index: int) -> list[int]:
    """Return an integer input, which says where numbers go or how many there are, as a list.

    Raises:
        UnsupportedOperatorError: it may be off, so that rounding decides what it says.
    """
    return [int(number) for number in placing(inputs, index).reshape(-1)]


def placing(inputs: Inputs, index: int) -> Array:
    """Return an input that says where numbers go, an index for example.

    Raises:
        UnsupportedOperatorError: it may be off, so that rounding decides where.
    """
    given = required(inputs, index)
    if rounds(given):
        raise UnsupportedOperatorError(
            f"input {index} says where numbers go, and is known within its rounding error only"
        )
    return given.value


def rounds(a: Bounded) -> bool:
    """Whether any of the numbers may be off."""
    return a.error is not None and bool(np.any(a.error > 0))
