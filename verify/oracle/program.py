"""A graph, or a graph inside one, as a list of nodes that are evaluated one after another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.attention import SoftmaxFacts
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.ops import OPERATORS
from onnx_attest.verify.oracle.ops.contrib import OPERATORS as CONTRIB
from onnx_attest.verify.oracle.ops.operator import Node, NoRoomError, UnsupportedOperatorError
from onnx_attest.verify.oracle.types import Types
from onnx_attest.verify.oracle.values import Scope, Value
from onnx_attest.verify.oracle.weights import numbers_of

# Others pass on what they are given, Identity for example.
_PRODUCTS = ("MatMul", "Einsum", "com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul")
_OPERATORS = ("Attention", "com.microsoft.QAttention", *CONTRIB)
"""Those that are an attention as a whole."""
_CODING = (
    "QuantizeLinear", "DynamicQuantize", "QLinear", "com.microsoft.QGemm", "com.microsoft.QAttention", "MatMulNBits",
)  # fmt: skip
"""Parts of the names of operators that make codes of numbers. DequantizeLinear makes numbers of codes."""
_ATTENDING = (*_PRODUCTS, *_OPERATORS)


@dataclass(frozen=True, eq=False)
class AttentionSeen:
    """One attention that the oracle recognised while it evaluated the graph.

    Attributes:
        node: name of the node that multiplies the weights with the values.
        output_name: name of the graph value that it gives.
        weights: name of the graph value that holds the weights; "" inside an Attention operator.
    """

    node: str
    output_name: str
    weights: str
    facts: SoftmaxFacts


@dataclass(frozen=True)
class Settings:
    """What holds for all nodes of a model, see `Node`."""

    opsets: Mapping[str, int]
    types: Types
    empty_rows: str = "unknown"
    attribute_error: float = 0.0


@dataclass(eq=False)
class Run:
    """One evaluation: what is asked of it, and what is seen on the way.

    Attributes:
        own: arithmetic of single nodes, by their place.
        observed: values that a runtime has; what follows is computed from them, if `follow`.
        carry: an observed value has the deviation of what it replaces, so that those of the outputs are end to end.
        on_observed: told what the oracle had in their place; None keeps it in `had`.
        on_missing: told of a node that the oracle cannot evaluate, and why; what it gives is taken from `observed`, and
            is missing in turn where that does not have it. None: the evaluation ends there.
        load: gives a constant that is not held, when a node needs it.
        taken: observed values that took the place of what could not be evaluated: there is nothing to hold them against.
        noise: after each node a normal number times its own deviation is added to what it gives, and what follows takes
            that for exact; the arithmetic has to have deviations.
        unseen: names of the attentions whose weights were not held.
        coding: names of the nodes that make codes of numbers, see `ops/quantized`.
    """

    arithmetic: Arithmetic
    logit_factor: float = 1.0
    own: Mapping[int, Arithmetic] = field(default_factory=dict)
    observed: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    follow: bool = True
    carry: bool = False
    on_observed: Callable[[Node, str, Bounded], None] | None = None
    on_missing: Callable[[Node, str], None] | None = None
    load: Callable[[str], Bounded] | None = None
    noise: np.random.Generator | None = None
    taken: set[str] = field(default_factory=set)
    had: dict[str, Bounded] = field(default_factory=dict)
    seen: list[AttentionSeen] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    coding: list[str] = field(default_factory=list)


class Program:
    """The nodes of a graph in order, and what each of them leaves behind for good."""

    def __init__(
        self,
        graph: onnx.GraphProto,
        settings: Settings,
        constants: Mapping[str, Bounded],
        deferred: Collection[str] = (),
    ) -> None:
        """Read a graph; `constants` are those among its values that need no node, `deferred` those not held."""
        self.constants = constants
        self._deferred = frozenset(deferred)
        self.nodes = [
            _read(node, index, settings)
            for index, node in enumerate(graph.node)
            if not node.output or node.output[0] not in constants
        ]
        self.inputs = [
            value.name
            for value in graph.input
            if value.name not in constants and value.name not in self._deferred
        ]
        self.outputs = [value.name for value in graph.output]
        self._last_use = self._last_uses()

    def captured(self) -> set[str]:
        """Return the names that come from outside: a graph inside another one sees what that has."""
        made = {*self.constants, *self.inputs, *(name for node in self.nodes for name in node.outputs)}
        used = {name for node in self.nodes for name in _needed(node)}
        return {name for name in (*used, *self.outputs) if name} - made

    def is_deferred(self, name: str) -> bool:
        """Whether a value is a constant that is not held."""
        return name in self._deferred

    def part(self, nodes: Sequence[Node], outputs: Sequence[str]) -> Program:
        """Return some of the nodes as a graph of its own that gives these values."""
        other = copy(self)
        other.nodes, other.outputs = list(nodes), list(outputs)
        other._last_use = other._last_uses()
        return other

    def unsupported(self) -> Iterator[str]:
        """Yield the operators that the oracle does not have."""
        for node in self.nodes:
            if node.operator not in OPERATORS:
                yield node.operator
            for body in _bodies(node):
                yield from body.unsupported()

    def run(self, known: Scope, run: Run) -> dict[str, Value]:
        """Return all outputs, from what is known: inputs and, for a graph inside another one, what that has.

        Raises:
            UnsupportedOperatorError: an operator, or a form of one, that the oracle does not have; or nothing computes an
                output, which ONNX's checker does not ask of functions.
        """
        known = {**self.constants, **known}
        for index, node in enumerate(self.nodes):
            arithmetic = run.own.get(index, run.arithmetic)
            if run.logit_factor != 1.0 or _bodies(node):
                inside = Run(arithmetic, run.logit_factor, coding=run.coding)
                node = replace(
                    node, logit_factor=run.logit_factor, enter=partial(_enter, dict(known), inside)
                )
            wanted = [name for name in _needed(node) if name in self._deferred] if self._deferred else ()
            known |= {name: run.load(name) for name in wanted}  # type: ignore[misc]
            known |= _result_or_observed(node, known, arithmetic, run)
            if any(part in node.operator for part in _CODING):
                run.coding.append(node.name)
            for name in wanted:
                del known[name]
            found = _attention_at(node, known)
            run.seen += found
            if not found and node.operator in _OPERATORS:
                run.unseen.append(node.name)
            known |= _replaced(node, known, run) if run.noise is None else _shaken(node, known, run.noise)
            for name in self._last_use.get(index, ()):
                known.pop(name, None)
        if lost := [name for name in self.outputs if name not in known and name not in self._deferred]:
            raise UnsupportedOperatorError(f"no node computes the output {lost[0]}")
        return {name: known[name] for name in self.outputs if name in known}

    def _last_uses(self) -> dict[int, list[str]]:
        """Return, for each node, the values that nothing needs after it: they are dropped there."""
        own = {*self.constants, *self.inputs, *(name for node in self.nodes for name in node.outputs)}
        last = {name: index for index, node in enumerate(self.nodes) for name in _needed(node) if name}
        uses: dict[int, list[str]] = {}
        for name, index in last.items():
            if name not in self.outputs and name in own:
                uses.setdefault(index, []).append(name)
        return uses


def _read(node: onnx.NodeProto, index: int, settings: Settings) -> Node:
    domain = domain_of(node.domain)
    return Node(
        node.name or f"{node.op_type}_{index}",
        f"{domain}.{node.op_type}" if domain else node.op_type,
        settings.opsets.get(domain, 0),
        {a.name: _attribute(a, settings) for a in node.attribute},
        tuple(node.input),
        tuple(node.output),
        settings.empty_rows,
        settings.attribute_error,
        type_of=settings.types.of,
    )


def _attribute(attribute: onnx.AttributeProto, settings: Settings) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.GraphProto):
        return Program(value, settings, {name: exact(array) for name, array in constants_in(value).items()})
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _bodies(node: Node) -> list[Program]:
    return [value for value in node.attributes.values() if isinstance(value, Program)]


def _needed(node: Node) -> list[str]:
    return [*node.inputs, *(name for body in _bodies(node) for name in body.captured())]


def _enter(scope: Scope, run: Run, body: Program, arguments: Sequence[Value]) -> list[Value]:
    """Return what a graph inside this one gives, in the order of its outputs."""
    inside = {**scope, **dict(zip(body.inputs, arguments, strict=True))}
    outputs = body.run(inside, run)
    return [outputs[name] for name in body.outputs]


def result_of(node: Node, known: Scope, arithmetic: Arithmetic) -> dict[str, Value]:
    """Return what a node gives, from what is known.

    Raises:
        UnsupportedOperatorError: an operator, or a form of one, that the oracle does not have.
    """
    operator = OPERATORS.get(node.operator)
    if operator is None:
        raise UnsupportedOperatorError(f"the oracle does not have the operator {node.operator}")
    if lost := [name for name in node.inputs if name and name not in known]:
        raise UnsupportedOperatorError(f"{node.name}: {lost[0]} is not known")
    try:
        values = operator(node, [known[name] if name else None for name in node.inputs], arithmetic)
        node.refuse_unasked()
    except (
        NameError,
        ImportError,
    ):  # no input does that: a fault of the oracle is not an operator that it lacks
        raise
    except Exception as error:  # sizes that do not fit raise what NumPy likes: it is said
        kind = NoRoomError if isinstance(error, NoRoomError) else UnsupportedOperatorError
        raise kind(f"{node.name}: {error}") from error
    if any(node.outputs[len(values) :]):
        raise UnsupportedOperatorError(f"{node.name}: {node.operator} with {len(node.outputs)} outputs")
    # zip stops at the shorter: an Attention may give more than the graph asks for, and "" asks for nothing.
    return {name: value for name, value in zip(node.outputs, values, strict=False) if name}


def _is_weights(value: Value) -> bool:
    return isinstance(value, Bounded) and value.softmax is not None


def _result_or_observed(node: Node, known: Scope, arithmetic: Arithmetic, run: Run) -> dict[str, Value]:
    try:
        return result_of(node, known, arithmetic)
    except UnsupportedOperatorError as error:
        if run.on_missing is None:
            raise
        run.on_missing(node, str(error))
        taken: dict[str, Value] = {
            name: exact(run.observed[name]) for name in node.outputs if name in run.observed
        }
        run.taken |= taken.keys()
        return taken


def _shaken(node: Node, known: Scope, rng: np.random.Generator) -> dict[str, Value]:
    """Return a node's outputs with noise of their own deviation, as exact values."""
    shaken: dict[str, Value] = {}
    for name in node.outputs:
        value = known.get(name)
        if isinstance(value, Bounded) and value.is_float and value.variance is not None:
            deviation = np.sqrt(np.broadcast_to(value.variance, value.value.shape))
            shaken[name] = Bounded(value.value + deviation * rng.standard_normal(value.value.shape))
    return shaken


def _replaced(node: Node, known: Scope, run: Run) -> dict[str, Value]:
    """Return what a runtime has in place of a node's outputs, where that was observed."""
    replaced: dict[str, Value] = {}
    for name in node.outputs:
        value = known.get(name)
        if name not in run.observed or name in run.taken or not isinstance(value, Bounded):
            continue
        if run.on_observed is None:
            run.had[name] = value
        else:
            run.on_observed(node, name, value)
        if run.follow:
            observed = exact(run.observed[name])
            replaced[name] = replace(observed, variance=value.variance) if run.carry else observed
    return replaced


def _attention_at(node: Node, known: Scope) -> list[AttentionSeen]:
    output = known.get(node.outputs[0]) if node.outputs else None
    if not isinstance(output, Bounded) or output.attended is None or node.operator not in _ATTENDING:
        return []
    weights = next((name for name in node.inputs if _is_weights(known.get(name))), "")
    weights = weights if node.operator in _PRODUCTS else ""
    return [AttentionSeen(node.name, node.outputs[0], weights, output.attended)]


def constants_in(graph: onnx.GraphProto) -> dict[str, NDArray[Any]]:
    """Return the constants of a graph by name: its initializers, and the tensors of its Constant nodes."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and not domain_of(node.domain):
            tensors.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return {name: numbers_of(tensor) for name, tensor in tensors.items()}


def domain_of(domain: str) -> str:
    """Return the one name of a domain; the standard one has two."""
    return "" if domain == "ai.onnx" else domain
