"""A graph judged node by node: each node is given the runtime's own inputs, and held against its own bound.

Nothing compounds, so the bound stays tight however deep the graph is, and an excess is the node's own: the first bad
node is where the error came in. What follows it passes on what it is given (NUMERICS.md section 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.findings import Finding
from onnx_attest.verify.gates import judge_value
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.ops.operator import Node

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class NodeSeen:
    """One output of one node: its largest error over its bound, and what the gates say of it."""

    node: str
    operator: str
    output: str
    ratio: float | None
    findings: tuple[Finding, ...] = ()
    unbounded: int = 0


@dataclass(frozen=True)
class Walk:
    """What became of the nodes of a graph, in the order in which they run.

    Attributes:
        missing: nodes that the oracle cannot evaluate, and why. What follows them is judged all the same.
    """

    seen: tuple[NodeSeen, ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def bad(self) -> tuple[NodeSeen, ...]:
        """The outputs beyond their bound, the first bad node first."""
        return tuple(one for one in self.seen if one.findings)

    @property
    def worst(self) -> NodeSeen | None:
        """The output with the largest error over its bound."""
        return max((one for one in self.seen if one.ratio is not None), key=_ratio, default=None)


def _ratio(seen: NodeSeen) -> float:
    return seen.ratio or 0.0


def walk(
    oracle: GraphOracle, inputs: Arrays, values: Arrays, arithmetic: Arithmetic, *, carry: bool = False
) -> Walk:
    """Return what the gates *form* and *proof* say of each node.

    Args:
        oracle: of the graph.
        inputs: by name.
        values: what a runtime has for the values of the graph, by name; each node is given these.
        arithmetic: declared.
        carry: let deviations go on from node to node, so that those of the outputs are end to end.

    Raises:
        UnsupportedOperatorError: a node that the oracle cannot evaluate and the runtime does not show.
    """
    seen: list[NodeSeen] = []
    missing: dict[str, str] = {}

    def look(node: Node, name: str, expected: Bounded) -> None:
        ratio, found, unbounded = judge_value(name, values[name], expected)
        seen.append(NodeSeen(node.name, node.operator, name, ratio, found, unbounded))

    def miss(node: Node, reason: str) -> None:
        missing[node.name] = reason

    oracle.evaluate(inputs, arithmetic, observed=values, carry=carry, on_observed=look, on_missing=miss)
    return Walk(tuple(seen), missing)
