"""Evaluation of an ONNX graph in float64, each value with its rounding bound."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import PROFILES, Arithmetic
from onnx_attest.verify.oracle.attention import SoftmaxFacts
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.ops import OPERATORS
from onnx_attest.verify.oracle.ops.contrib import OPERATORS as CONTRIB
from onnx_attest.verify.oracle.ops.operator import Node, UnsupportedOperatorError, is_short

HIDES = 1e30
"""A larger constant hides keys: by how much does not matter."""
_SINGLE = 2.0**-24
_TABLE_ROUNDINGS = 4.0
_DOUBLE = 2.0**-50  # what the exporter computes in float64, in a few steps
# Others pass on what they are given, Identity for example.
_ATTENDING = ("MatMul", "Attention", *CONTRIB)
_SHORTER = {"FLOAT": "fp32", "FLOAT16": "fp16-steps", "BFLOAT16": "bf16-acc"}


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


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The outputs of a graph with their bounds, and the attentions met on the way.

    Attributes:
        observed: what the oracle had at each observed value, before it went on from the observed one.
        unseen: names of the attentions so large that their weights were not held.
    """

    outputs: dict[str, Bounded]
    attentions: tuple[AttentionSeen, ...]
    observed: dict[str, Bounded] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()

    @property
    def logit_std(self) -> float | None:
        """Standard deviation of all unmasked logits, None without attention."""
        logits = [seen.facts.logits[~seen.facts.masked] for seen in self.attentions]
        return float(np.concatenate(logits).std()) if logits else None


class GraphOracle:
    """An ONNX graph, ready to be evaluated for many inputs.

    A graph that writes its attention as several nodes gets the centred bound too: the weights carry what the
    softmax knew about them, and the product with the values uses it.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        stored_as: np.dtype[Any] | None = None,
        empty_rows: str = "unknown",
        parameters: NDArray[np.float64] | None = None,
        folded: Collection[str] = (),
    ) -> None:
        """Read the graph.

        Args:
            model: checked by `onnx.checker` before.
            stored_as: for a specification written with exact constants: the dtype a runtime stores them in, so
                that each carries the error of being rounded to it. None: constants are what the file holds.
            empty_rows: the declared policy that softmax rows without any key are given (`nan`, `zero`); with any
                other the graph decides.
            parameters: for the export of a module in float64: the numbers that it holds. Other constants, and the
                attributes, may have passed through float32 on the way: those that are float32 numbers, and not short
                ones, carry its rounding, and so do the `folded` ones. What the graph keeps in a shorter format is computed in that format's
                arithmetic.
            folded: names of constants that the exporter computed from the module's own expressions.
        """
        self._opsets = {_domain(opset.domain): opset.version for opset in model.opset_import}
        self._empty_rows = empty_rows
        self._attribute_error = 0.0 if parameters is None else _SINGLE
        arrays = constants_of(model)
        self._nodes = [
            self._read(node, index)
            for index, node in enumerate(model.graph.node)
            if not node.output or node.output[0] not in arrays
        ]
        self._constants = {name: _constant(array, stored_as) for name, array in arrays.items()}
        self._own: dict[int, Arithmetic] = {}
        if parameters is not None:
            self._constants = {
                name: _passed_through_single(c, parameters, folded=name in folded)
                for name, c in self._constants.items()
            }
            self._own = _own_arithmetic(model, [node.outputs[0] for node in self._nodes])
        self.inputs = [value.name for value in model.graph.input if value.name not in self._constants]
        self.outputs = [value.name for value in model.graph.output]
        self._last_use = self._last_uses()

    def unsupported(self) -> tuple[str, ...]:
        """Return the operators of the graph that the oracle does not have, each once."""
        return tuple(dict.fromkeys(node.operator for node in self._nodes if node.operator not in OPERATORS))

    @property
    def constants(self) -> Mapping[str, Bounded]:
        """The constants by name."""
        return self._constants

    def evaluate(
        self,
        inputs: Mapping[str, NDArray[Any]],
        arithmetic: Arithmetic = PROFILES["fp32"],
        *,
        constants: Mapping[str, Bounded] = MappingProxyType({}),
        logit_factor: float = 1.0,
        observed: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    ) -> Evaluation:
        """Return all outputs with their bounds for a runtime that computes in `arithmetic`.

        Args:
            inputs: by name.
            arithmetic: of the runtime.
            constants: instead of the file's own, by name.
            logit_factor: on what goes into each softmax.
            observed: values that a runtime has inside the graph; what follows is computed from them, without error.

        Raises:
            UnsupportedOperatorError: an operator, or a form of one, that the oracle does not have.
        """
        held = {**self._constants, **constants}
        if arithmetic.deviations:
            held = {name: _spread(constant) for name, constant in held.items()}
        if arithmetic.kernel is not None:
            stored = arithmetic.kernel.stored
            held = {name: Bounded(stored(c.value) if c.is_float else c.value) for name, c in held.items()}
        known = {name: exact(value) for name, value in inputs.items()} | held
        seen: list[AttentionSeen] = []
        had: dict[str, Bounded] = {}
        unseen: list[str] = []
        with np.errstate(all="ignore"):  # overflow and NaN are results, and are compared by position
            for index, node in enumerate(self._nodes):
                node = replace(node, logit_factor=logit_factor) if logit_factor != 1.0 else node
                known |= self._run(node, known, self._own.get(index, arithmetic))
                found = _attention_at(node, known)
                seen += found
                if not found and node.operator in ("Attention", *CONTRIB):
                    unseen.append(node.name)
                for name in node.outputs:
                    if name in observed:
                        had[name], known[name] = known[name], exact(observed[name])
                for name in self._last_use.get(index, ()):
                    del known[name]
        return Evaluation({name: known[name] for name in self.outputs}, tuple(seen), had, tuple(unseen))

    def _read(self, node: onnx.NodeProto, index: int) -> Node:
        domain = _domain(node.domain)
        operator = f"{domain}.{node.op_type}" if domain else node.op_type
        attributes = {a.name: _plain(onnx.helper.get_attribute_value(a)) for a in node.attribute}
        return Node(
            node.name or f"{node.op_type}_{index}",
            operator,
            self._opsets.get(domain, 0),
            attributes,
            tuple(node.input),
            tuple(node.output),
            self._empty_rows,
            self._attribute_error,
        )

    def _run(self, node: Node, known: Mapping[str, Bounded], arithmetic: Arithmetic) -> dict[str, Bounded]:
        operator = OPERATORS.get(node.operator)
        if operator is None:
            raise UnsupportedOperatorError(f"the oracle does not have the operator {node.operator}")
        try:
            values = operator(node, [known[name] if name else None for name in node.inputs], arithmetic)
            node.refuse_unasked()
        except Exception as error:  # sizes that do not fit raise what NumPy likes: it is said
            raise UnsupportedOperatorError(f"{node.name}: {error}") from error
        if any(node.outputs[len(values) :]):
            raise UnsupportedOperatorError(f"{node.name}: {node.operator} with {len(node.outputs)} outputs")
        # zip stops at the shorter: an Attention may give more than the graph asks for, and "" asks for nothing.
        return {name: value for name, value in zip(node.outputs, values, strict=False) if name}

    def _last_uses(self) -> dict[int, list[str]]:
        """Return, for each node, the values that nothing needs after it: they are dropped there."""
        last = {name: index for index, node in enumerate(self._nodes) for name in node.inputs if name}
        uses: dict[int, list[str]] = {}
        for name, index in last.items():
            if name not in self.outputs:
                uses.setdefault(index, []).append(name)
        return uses


def _spread(constant: Bounded) -> Bounded:
    """Return a constant that may be off with the variance of being anywhere within its error."""
    if constant.error is None or constant.variance is not None:
        return constant
    return replace(constant, variance=np.where(np.isfinite(constant.error), constant.error**2 / 3, 0.0))


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _constant(array: NDArray[Any], stored_as: np.dtype[Any] | None) -> Bounded:
    value = exact(array)
    if stored_as is None or not value.is_float:
        return value
    stored = value.value.astype(stored_as).astype(np.float64)
    finite = np.isfinite(value.value)
    error = np.abs(np.subtract(stored, value.value, out=np.zeros_like(stored), where=finite))
    return Bounded(value.value, error)


def constants_of(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Return the constants of a graph by name: its initializers, and the tensors of its Constant nodes."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and not _domain(node.domain):
            tensors.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return {name: onnx.numpy_helper.to_array(tensor) for name, tensor in tensors.items()}


def _passed_through_single(constant: Bounded, parameters: NDArray[np.float64], *, folded: bool) -> Bounded:
    """Return the constant with the rounding of float32 where it may have been through it.

    The exporter splits a scale into two square roots, and computes tables (slopes, frequencies) in a few steps.
    """
    value = constant.value
    if not constant.is_float:
        return constant
    # A number like -3.4e38 hides keys, and is what the exporter chose.
    known = ~np.isfinite(value) | is_short(value) | (np.abs(value) > HIDES) | _among(value, parameters)
    with np.errstate(over="ignore"):
        single, root = _is_single(value), _is_single(value * value)
    roundings = 1.0 if value.size == 1 and not folded else _TABLE_ROUNDINGS
    single = single | folded
    relative = np.where(known, 0.0, np.where(single, roundings, np.where(root, 0.5, _DOUBLE / _SINGLE)))
    if not relative.any():
        return constant
    return Bounded(value, _SINGLE * relative * np.abs(value, where=relative > 0, out=np.zeros_like(value)))


def _is_single(value: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which numbers are those of float32, but for a rounding of float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = value.astype(np.float32).astype(np.float64)
        return np.asarray(np.abs(single - value) <= 2.0**-52 * np.abs(value))


def _among(value: NDArray[Any], sorted_numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    if not sorted_numbers.size:
        return np.zeros(value.shape, bool)
    place = np.minimum(np.searchsorted(sorted_numbers, value), sorted_numbers.size - 1)
    return np.asarray(sorted_numbers[place] == value)


def _own_arithmetic(model: onnx.ModelProto, outputs: Sequence[str]) -> dict[int, Arithmetic]:
    """Return the arithmetic of each node, by its place, whose first output is shorter than float64."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    kinds = {
        value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)
    }
    own = {}
    for index, output in enumerate(outputs):
        name = onnx.TensorProto.DataType.Name(kinds.get(output, 0))
        profile = _SHORTER.get(name)
        if profile is not None:
            own[index] = PROFILES[profile]
    return own


def _domain(domain: str) -> str:
    """Return the one name of a domain; the standard one has two."""
    return "" if domain == "ai.onnx" else domain


def _attention_at(node: Node, known: Mapping[str, Bounded]) -> list[AttentionSeen]:
    output = known.get(node.outputs[0])
    if output is None or output.attended is None or node.operator not in _ATTENDING:
        return []
    weights = node.inputs[0] if node.operator == "MatMul" else ""
    return [AttentionSeen(node.name, node.outputs[0], weights, output.attended)]
