"""Evaluation of an ONNX graph in float64, each value with its rounding bound."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.verify.arithmetic import PROFILES, Arithmetic
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.by_rows import ByRows
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops.operator import Node, is_short
from onnx_attest.verify.oracle.program import AttentionSeen, Program, Run, Settings, constants_in, domain_of
from onnx_attest.verify.oracle.types import Types, element_type, graphs_in
from onnx_attest.verify.oracle.values import Value, given
from onnx_attest.verify.oracle.weights import Weights

HIDES = 1e30
"""A larger constant hides keys: by how much does not matter."""
_SINGLE = 2.0**-24
_TABLE_ROUNDINGS = 4.0
_DOUBLE = 2.0**-50  # what the exporter computes in float64, in a few steps
_SHORTER = {"FLOAT": "fp32", "FLOAT16": "fp16-steps", "BFLOAT16": "bf16-acc"}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The outputs of a graph with their bounds, and the attentions met on the way.

    Attributes:
        observed: what the oracle had at each observed value, before it went on from the observed one.
        unseen: names of the attentions so large that their weights were not held.
        others: outputs that are no tensors.
        coding: names of the nodes that make codes of numbers.
    """

    outputs: dict[str, Bounded]
    attentions: tuple[AttentionSeen, ...]
    observed: dict[str, Bounded] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    others: dict[str, Value] = field(default_factory=dict)
    coding: tuple[str, ...] = ()

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
        folder: Path | None = None,
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
            folder: where the file is; tensors that lie beside it are read when a node needs them.
            folded: names of constants that the exporter computed from the module's own expressions.
        """
        model = without_functions(model)
        opsets = {domain_of(opset.domain): opset.version for opset in model.opset_import}
        settings = Settings(opsets, Types(model), empty_rows, 0.0 if parameters is None else _SINGLE)
        self._weights = Weights(model.graph, folder)
        arrays = constants_of(model) if folder is None else _constants_held(model, self._weights)
        held = {name: _constant(array, stored_as) for name, array in arrays.items()}
        if parameters is not None:
            held = {
                name: _passed_through_single(c, parameters, folded=name in folded) for name, c in held.items()
            }
        self._program = Program(model.graph, settings, held, self._weights.deferred if folder else ())
        self._stored: dict[tuple[str, str], dict[str, Bounded]] = {}
        self._own: dict[int, Arithmetic] = {}
        if parameters is not None:
            self._own = _own_arithmetic(settings.types, [node.outputs[0] for node in self._program.nodes])
        self._short: dict[int, Arithmetic] = {}
        if parameters is None and _holds_halves(model):
            own = _own_arithmetic(settings.types, [node.outputs[0] for node in self._program.nodes])
            self._short = {
                index: arithmetic for index, arithmetic in own.items() if arithmetic.name != "fp32"
            }
        self.inputs, self.outputs = self._program.inputs, self._program.outputs

    @property
    def mixes(self) -> bool:
        """Whether some nodes give numbers in fewer bits than the graph's inputs and outputs have.

        They are evaluated in an arithmetic of that format, whatever is declared for the rest.
        """
        return bool(self._short)

    @property
    def coarsest(self) -> Arithmetic | None:
        """The arithmetic with the fewest bits that such nodes are evaluated in, None if there are none."""
        return max(self._short.values(), key=lambda one: one.u, default=None)

    def under(self, empty_rows: str) -> GraphOracle:
        """Return the same graph under another policy for softmax rows without any key."""
        other = copy.copy(self)
        other._program = copy.copy(self._program)
        other._program.nodes = [replace(node, empty_rows=empty_rows) for node in self._program.nodes]
        return other

    def unsupported(self) -> tuple[str, ...]:
        """Return the operators of the graph that the oracle does not have, each once."""
        return tuple(dict.fromkeys(self._program.unsupported()))

    @property
    def constants(self) -> Mapping[str, Bounded]:
        """The constants by name."""
        return self._program.constants

    def _loaded(self, name: str, arithmetic: Arithmetic) -> Bounded:
        """Return a constant that is not held."""
        constant = exact(self._weights.read(name))
        return constant if arithmetic.kernel is None else _as_stored(constant, arithmetic.kernel)

    def maker_of(self, name: str) -> str:
        """Return the name of the node that gives a value, "" if none does."""
        return next((node.name for node in self._program.nodes if name and name in node.outputs), "")

    def _constants_stored_by(self, kernel: Kernel) -> dict[str, Bounded]:
        key = (np.dtype(kernel.working).name, np.dtype(kernel.storing).name)
        if key not in self._stored:
            self._stored[key] = {name: _as_stored(c, kernel) for name, c in self._program.constants.items()}
        return self._stored[key]

    def by_rows(
        self,
        inputs: Mapping[str, NDArray[Any]],
        arithmetic: Arithmetic,
        constants: Mapping[str, Bounded] = MappingProxyType({}),
    ) -> ByRows:
        """Return the graph on these inputs, to be evaluated for some query rows of its attention at a time.

        Raises:
            UnsupportedOperatorError: it has no attention as one operator, or one whose rows cannot be told apart; or
                something that the oracle does not have.
        """
        held = {**self._program.constants, **constants}
        if arithmetic.deviations:
            held = {name: _spread(constant) for name, constant in held.items()}
        known = {name: given(value) for name, value in inputs.items()} | held
        with np.errstate(all="ignore"):
            return ByRows(self._program, known, arithmetic, partial(self._loaded, arithmetic=arithmetic))

    def evaluate(
        self,
        inputs: Mapping[str, NDArray[Any]],
        arithmetic: Arithmetic = PROFILES["fp32"],
        *,
        constants: Mapping[str, Bounded] = MappingProxyType({}),
        logit_factor: float = 1.0,
        observed: Mapping[str, NDArray[Any]] = MappingProxyType({}),
        follow: bool = True,
        carry: bool = False,
        on_observed: Callable[[Node, str, Bounded], None] | None = None,
        on_missing: Callable[[Node, str], None] | None = None,
        noise: np.random.Generator | None = None,
    ) -> Evaluation:
        """Return all outputs with their bounds for a runtime that computes in `arithmetic`.

        Args:
            inputs: by name.
            arithmetic: of the runtime.
            constants: instead of the file's own, by name.
            logit_factor: on what goes into each softmax.
            observed: values that a runtime has inside the graph; what follows is computed from them, without error.
            follow: False: the observed values are looked at, and what follows is computed from the oracle's own.
            carry: see `Run`.
            on_observed: see `Run`.
            on_missing: see `Run`.
            noise: see `Run`.

        Raises:
            UnsupportedOperatorError: an operator, or a form of one, that the oracle does not have.
        """
        held = {**self._program.constants, **constants}
        if arithmetic.deviations:
            held = {name: _spread(constant) for name, constant in held.items()}
        if arithmetic.kernel is not None:
            own = {name: _as_stored(c, arithmetic.kernel) for name, c in constants.items()}
            held = {**self._constants_stored_by(arithmetic.kernel), **own}
        known = {name: given(value) for name, value in inputs.items()} | held
        short = {index: replace(own, deviations=arithmetic.deviations) for index, own in self._short.items()}
        run = Run(
            arithmetic,
            logit_factor,
            {**self._own, **({} if arithmetic.kernel is not None else short)},
            observed,
            follow,
            carry,
            on_observed,
            on_missing,
            load=partial(self._loaded, arithmetic=arithmetic),
            noise=noise,
        )
        with np.errstate(all="ignore"):  # overflow and NaN are results, and are compared by position
            outputs = self._program.run(known, run)
        tensors = {name: value for name, value in outputs.items() if isinstance(value, Bounded)}
        others = {name: value for name, value in outputs.items() if name not in tensors}
        return Evaluation(tensors, tuple(run.seen), run.had, tuple(run.unseen), others, tuple(run.coding))


def _as_stored(constant: Bounded, kernel: Kernel) -> Bounded:
    """Return a constant as a kernel holds it: without error, the same one where it is a number of its format."""
    if not constant.is_float:
        return constant
    stored = kernel.stored(constant.value)
    if constant.error is None and np.array_equal(stored, constant.value, equal_nan=True):
        return constant
    return Bounded(stored)


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its own functions written out where they are called.

    Raises:
        UsageError: a call does not fit its function, which ONNX's checker does not ask.
    """
    if not model.functions:
        return model
    try:
        return onnx.inliner.inline_local_functions(model)
    except RuntimeError as error:  # with the name of a source file of ONNX before what is wrong
        why = str(error).strip().partition("\n")[0].rpartition("failed: ")[2]
        raise UsageError(f"a call of the file does not fit its function: {why}; export it again") from error


def _spread(constant: Bounded) -> Bounded:
    """Return a constant that may be off with the variance of being anywhere within its error."""
    if constant.error is None or constant.variance is not None:
        return constant
    return replace(constant, variance=np.where(np.isfinite(constant.error), constant.error**2 / 3, 0.0))


def _constant(array: NDArray[Any], stored_as: np.dtype[Any] | None) -> Bounded:
    value = replace(exact(array), held={})
    if stored_as is None or not value.is_float:
        return value
    stored = value.value.astype(stored_as).astype(np.float64)
    finite = np.isfinite(value.value)
    error = np.abs(np.subtract(stored, value.value, out=np.zeros_like(stored), where=finite))
    return Bounded(value.value, error, held={})


def constants_of(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Return the constants of a model's graph by name, see `constants_in`."""
    return constants_in(model.graph)


def _constants_held(model: onnx.ModelProto, weights: Weights) -> dict[str, NDArray[Any]]:
    bare = onnx.GraphProto(node=model.graph.node)
    return {**dict(weights.held()), **constants_in(bare)}


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


_HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def _holds_halves(model: onnx.ModelProto) -> bool:
    """Whether a graph that takes and gives no half precision has some inside."""
    graph = model.graph
    if any(element_type(value.type) in _HALVES for value in (*graph.input, *graph.output)):
        return False
    cast = any(
        attribute.name == "to" and attribute.i in _HALVES
        for inner in graphs_in(graph)
        for node in inner.node
        for attribute in node.attribute
    )
    return cast or any(
        tensor.data_type in _HALVES for inner in graphs_in(graph) for tensor in inner.initializer
    )


def _own_arithmetic(types: Types, outputs: Sequence[str]) -> dict[int, Arithmetic]:
    """Return the arithmetic of each node, by its place, whose first output is shorter than float64."""
    own = {}
    for index, output in enumerate(outputs):
        profile = _SHORTER.get(onnx.TensorProto.DataType.Name(types.of(output)))
        if profile is not None:
            own[index] = PROFILES[profile]
    return own
