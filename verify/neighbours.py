"""What is around a node of a graph: the nodes that it takes its values from, and those that take what it gives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import onnx

from onnx_attest.verify.finder.graph import label, qualified
from onnx_attest.verify.oracle.types import graphs_in
from onnx_attest.verify.records import Neighbour

MOST = 6
"""Neighbours on each side: a value may go to hundreds of nodes."""


class Neighbours:
    """The nodes of a graph by name; those of graphs inside it too, each with its neighbours in its own graph."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._places: dict[str, tuple[onnx.NodeProto, _Scope]] = {}
        for graph in graphs_in(model.graph):
            scope = _Scope(graph)
            for node in graph.node:
                self._places.setdefault(label(node), (node, scope))

    def of(self, name: str) -> tuple[Neighbour, ...]:
        """Return the node itself, then what it takes, then what takes it; nothing if there is no such node."""
        if name not in self._places:
            return ()
        node, scope = self._places[name]
        own = Neighbour(side="here", node=name, operator=qualified(node), value="")
        return (own, *islice(scope.before(node), MOST), *islice(scope.behind(node), MOST))


class _Scope:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self._givers = {name: node for node in graph.node for name in node.output if name}
        self._takers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in dict.fromkeys(node.input):
                self._takers.setdefault(name, []).append(node)
        self._constants = {tensor.name for tensor in graph.initializer}
        self._outputs = {value.name for value in graph.output}

    def before(self, node: onnx.NodeProto) -> Iterator[Neighbour]:
        for name in filter(None, dict.fromkeys(node.input)):
            if (giver := self._givers.get(name)) is not None:
                yield Neighbour(side="before", node=label(giver), operator=qualified(giver), value=name)
            else:
                kind = "constant" if name in self._constants else "input"
                yield Neighbour(side="before", node="", operator=kind, value=name)

    def behind(self, node: onnx.NodeProto) -> Iterator[Neighbour]:
        for name in filter(None, node.output):
            if name in self._outputs:
                yield Neighbour(side="behind", node="", operator="output", value=name)
            for taker in self._takers.get(name, ()):
                yield Neighbour(side="behind", node=label(taker), operator=qualified(taker), value=name)
