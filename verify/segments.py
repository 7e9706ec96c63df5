"""A deep graph judged piece by piece: the runtime's own values at a few places, each held against what it had before.

A worst-case bound grows with every block (about a million roundings each), until it says nothing. Between two places
it does not: the oracle goes on from the value that the runtime has there, so nothing compounds, and a fault is found
in the piece it is in. The places are the outputs of normalisations: errors grow in what follows one, and add up only
on the way past it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.blame import COMPILED, EAGER
from onnx_attest.verify.cell import Stage, Subject
from onnx_attest.verify.gates import Judgement, judge
from onnx_attest.verify.gauge import with_deviations
from onnx_attest.verify.oracle.graph import Evaluation
from onnx_attest.verify.probe import with_outputs
from onnx_attest.verify.runtimes.base import Session, Tensors
from onnx_attest.verify.runtimes.isolated import open_copy

_NORMALISATIONS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
_TABLE_AXES = 2
_ROOTS = {"Mul": "Reciprocal", "Div": "Sqrt"}
"""A normalisation that is written out ends in a product with a reciprocal root, or in a quotient by a root."""


@dataclass(frozen=True)
class Row:
    """Values of one kind in a graph in their order, which is that of the module too.

    Attributes:
        names: what to cut at, by position; inputs, constants and outputs are seen anyway.
        count: of all, those included.
    """

    names: dict[int, str]
    count: int

    def is_like(self, other: Row) -> bool:
        """Whether two graphs can be cut at the same positions."""
        return self.count == other.count and set(self.names) == set(other.names)


@dataclass(frozen=True)
class Cuts:
    """Where a graph can be cut.

    Attributes:
        norms: the results of normalisations.
        lookups: the indices into tables of embeddings. A relative position is computed, cut off, and looked up: then
            rounding decides an index, a correct one may be its neighbour, and what follows is held against that one.
    """

    norms: Row
    lookups: Row

    @property
    def rows(self) -> tuple[Row, Row]:
        """Both kinds."""
        return self.norms, self.lookups

    @property
    def names(self) -> tuple[str, ...]:
        """The values to cut at."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.names.values()))


class Listened(Protocol):
    """What was heard of a run of torch, see `torch_weights.PlacesSeen`."""

    @property
    def norms(self) -> Sequence[NDArray[Any]]:
        """The result of each normalisation."""
        ...

    @property
    def lookups(self) -> Sequence[NDArray[Any]]:
        """The indices of each embedding."""
        ...


def cuts_of(model: onnx.ModelProto) -> Cuts:
    """Return where a graph can be cut; normalisations that are written out, x / sqrt(mean(x^2) + epsilon), included."""
    nodes = model.graph.node
    makers = {output: node for node in nodes for output in node.output if output}
    outputs = {value.name for value in model.graph.output}
    tables = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == _TABLE_AXES}
    normal = [node.output[0] for node in nodes if _normalises(node, makers)]
    looked = [node.input[1] for node in nodes if _looks_up(node, tables)]
    return Cuts(_row(normal, set(makers) - outputs), _row(looked, set(makers) - outputs))


def alike(file: Cuts, twin: Cuts) -> tuple[Cuts, Cuts]:
    """Return where two graphs of one module can both be cut: all values of a kind, or none where they do not pair."""
    nothing = Row({}, 0)
    norms, lookups = (
        (mine, other) if mine.is_like(other) else (nothing, nothing)
        for mine, other in zip(file.rows, twin.rows, strict=True)
    )
    return Cuts(norms[0], lookups[0]), Cuts(norms[1], lookups[1])


def _row(names: Sequence[str], inside: Collection[str]) -> Row:
    return Row({index: name for index, name in enumerate(names) if name in inside}, len(names))


def _looks_up(node: onnx.NodeProto, tables: Collection[str]) -> bool:
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    return node.op_type == "Gather" and node.input[0] in tables and axis == 0


def _normalises(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto]) -> bool:
    if node.op_type in _NORMALISATIONS:
        return True
    if node.op_type not in _ROOTS:
        return False
    factors = node.input if node.op_type == "Mul" else node.input[1:]
    return any(_is_root(name, makers, _ROOTS[node.op_type]) for name in factors)


def _is_root(name: str, makers: Mapping[str, onnx.NodeProto], operator: str) -> bool:
    """Whether a value is a root, or the reciprocal of one; casts change nothing."""
    node = makers.get(name)
    while node is not None and node.op_type == "Cast":
        node = makers.get(node.input[0])
    if node is None or node.op_type != operator:
        return False
    return operator == "Sqrt" or _is_root(node.input[0], makers, "Sqrt")


@dataclass(frozen=True, eq=False)
class Places:
    """Where a graph is cut, and how one runtime's values there are seen.

    Attributes:
        cuts: of the graph.
        session: of a copy of the file that gives their values too; None for torch, which is listened to.
    """

    cuts: Cuts
    session: Session | None

    @staticmethod
    def of(artifact: Artifact, subject: Subject, stage: Stage, threads: int | None) -> Places | None:
        """Return the places of an artifact on a runtime, None if there are none to cut at.

        Raises:
            Exception: whatever the runtime raises when it opens the copy.
        """
        model = subject.signature.model
        cuts = cuts_of(model)
        if not cuts.names or subject.expected.source != "graph":
            return None
        if stage.name == COMPILED:  # what was compiled cannot be listened to
            return None
        if stage.name in EAGER:
            return Places(cuts, None)
        copy = with_outputs(model, cuts.names, as_in_file=subject.signature.as_in_file)
        return Places(cuts, open_copy(stage.runtime, artifact, copy, threads))

    def observe(self, stage: Stage, inputs: Mapping[str, NDArray[Any]]) -> tuple[Tensors, Tensors]:
        """Return the outputs and the values at the places, of one and the same run.

        Raises:
            LookupError: see `at_places`.
        """
        inside = set(self.cuts.names)
        if self.session is not None:
            values = self.session.run(inputs)
            return {name: values[name] for name in values if name not in inside}, {
                name: values[name] for name in inside
            }
        outputs, seen = stage.session.run_and_listen(inputs)  # type: ignore[union-attr]
        return outputs, at_places(self.cuts, seen)


def at_places(cuts: Cuts, seen: Listened) -> Tensors:
    """Return what torch had at the places of a graph, by the graph's names.

    Raises:
        LookupError: torch called another number of normalisations and of embeddings than the graph has: which is which
            is not known.
    """
    pairs = [(cuts.norms, seen.norms), (cuts.lookups, seen.lookups)]
    found = {
        name: heard[index]
        for row, heard in pairs
        if row.count == len(heard)
        for index, name in row.names.items()
    }
    if not found:
        raise LookupError(
            f"torch normalised {len(seen.norms)} times and looked up {len(seen.lookups)} times, "
            f"the graph {cuts.norms.count} and {cuts.lookups.count} times"
        )
    return found


def judge_in_pieces(
    subject: Subject,
    stage: Stage,
    places: Places,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Tensors,
    *,
    deviations: bool = False,
) -> tuple[Judgement, Evaluation] | str:
    """Return what the gates say of all places and outputs, or why that would prove nothing of `outputs`.

    Args:
        subject: the artifact.
        stage: the runtime.
        places: where the graph is cut.
        inputs: of the case.
        outputs: of a run without any place shown.
        deviations: give the outputs their deviations end to end, too.

    Raises:
        UnsupportedOperatorError: the oracle cannot evaluate a piece.
        LookupError: see `at_places`.
    """
    again, seen = places.observe(stage, inputs)
    if any(not np.array_equal(outputs[name], again[name], equal_nan=True) for name in outputs):
        return f"a copy of the file that also gives {len(seen)} values inside gives other bits than the file"
    arithmetic = with_deviations(stage.arithmetic) if deviations else stage.arithmetic
    evaluation = subject.expected.evaluate(inputs, arithmetic, observed=seen, carry=deviations)
    dtypes = {**subject.signature.dtypes, **{name: array.dtype for name, array in seen.items()}}
    judgement = judge({**outputs, **seen}, {**evaluation.outputs, **evaluation.observed}, dtypes)
    return judgement, evaluation
