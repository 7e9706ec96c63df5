"""What an operator of the oracle is: a function of a node, its inputs and the arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Bounded


class UnsupportedOperatorError(Exception):
    """The oracle cannot evaluate this: what it lacks. The cell is inconclusive."""


@dataclass(frozen=True)
class Node:
    """One node of a graph: its attributes as Python values and the opset of its domain.

    `empty_rows` is the declared policy for softmax rows without any key, `unknown` where the operator decides.
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
    asked: set[str] = field(default_factory=set, compare=False, repr=False)

    def get(self, attribute: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        self.asked.add(attribute)
        return self.attributes.get(attribute, default)

    def refuse_unasked(self) -> None:
        """Refuse a node with an attribute that its operator did not ask for.

        Raises:
            UnsupportedOperatorError: it names the attribute.
        """
        unasked = sorted(set(self.attributes) - self.asked)
        if unasked:
            raise UnsupportedOperatorError(f"{self.operator} with the attribute {', '.join(unasked)}")


Inputs = Sequence[Bounded | None]
Operator = Callable[[Node, Inputs, Arithmetic], list[Bounded]]


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
    """Return an input, None if it is not given."""
    return inputs[index] if index < len(inputs) else None


def integers(inputs: Inputs, index: int) -> list[int]:
    """Return an integer input as a list."""
    return [int(number) for number in required(inputs, index).value.reshape(-1)]
