"""A deep graph judged piece by piece: the runtime's own values at a few places, each held against what it had before.

A worst-case bound grows with every block (about a million roundings each), until it says nothing. Between two places
it does not: the oracle goes on from the value that the runtime has there, so nothing compounds, and a fault is found
in the piece it is in. The places are the outputs of normalisations: errors grow in what follows one, and add up only
on the way past it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.blame import MODULE
from onnx_attest.verify.cell import Stage, Subject
from onnx_attest.verify.gates import Judgement, judge
from onnx_attest.verify.oracle.graph import Evaluation
from onnx_attest.verify.probe import with_outputs
from onnx_attest.verify.runtimes.base import Session, Tensors

_NORMALISATIONS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")


def places_of(model: onnx.ModelProto) -> dict[int, str]:
    """Return the values to cut a graph at, by their position among its normalisations; outputs are seen anyway."""
    normal = [node.output[0] for node in model.graph.node if node.op_type in _NORMALISATIONS]
    outputs = {value.name for value in model.graph.output}
    return {index: name for index, name in enumerate(normal) if name not in outputs}


@dataclass(frozen=True, eq=False)
class Places:
    """Where a graph is cut, and how one runtime's values there are seen.

    Attributes:
        names: of the values, see `places_of`.
        session: of a copy of the file that gives them too; None for torch, which is listened to.
    """

    names: dict[int, str]
    session: Session | None

    @staticmethod
    def of(artifact: Artifact, subject: Subject, stage: Stage, threads: int | None) -> Places | None:
        """Return the places of an artifact on a runtime, None if there are none to cut at.

        Raises:
            Exception: whatever the runtime raises when it opens the copy.
        """
        model = subject.signature.model
        names = places_of(model)
        if not names or subject.expected.source != "graph":
            return None
        if stage.name == MODULE:
            return Places(names, None)
        copy = with_outputs(model, names.values())
        session = stage.runtime.open(artifact, model=copy, threads=threads)
        return Places(names, session)

    def observe(self, stage: Stage, inputs: Mapping[str, NDArray[Any]]) -> tuple[Tensors, Tensors]:
        """Return the outputs and the values at the places, of one and the same run.

        Raises:
            LookupError: see `at_places`.
        """
        inside = set(self.names.values())
        if self.session is not None:
            values = self.session.run(inputs)
            return {name: values[name] for name in values if name not in inside}, {
                name: values[name] for name in inside
            }
        outputs, seen = stage.session.run_and_see_norms(inputs)  # type: ignore[union-attr]
        return outputs, at_places(self.names, seen)


def at_places(names: Mapping[int, str], seen: Sequence[NDArray[Any]]) -> Tensors:
    """Return what torch's normalisations gave, by the names that a graph has for it.

    Raises:
        LookupError: torch called fewer normalisations than the graph has.
    """
    if len(seen) <= max(names):
        raise LookupError(f"torch normalised {len(seen)} times, the graph {max(names) + 1} times or more")
    return {name: seen[index] for index, name in names.items()}


def judge_in_pieces(
    subject: Subject,
    stage: Stage,
    places: Places,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Tensors,
) -> tuple[Judgement, Evaluation] | str:
    """Return what the gates say of all places and outputs, or why that would prove nothing of `outputs`.

    Raises:
        UnsupportedOperatorError: the oracle cannot evaluate a piece.
        LookupError: see `at_places`.
    """
    again, seen = places.observe(stage, inputs)
    if any(not np.array_equal(outputs[name], again[name], equal_nan=True) for name in outputs):
        return f"a copy of the file that also gives {len(seen)} values inside gives other bits than the file"
    evaluation = subject.expected.evaluate(inputs, stage.arithmetic, observed=seen)
    dtypes = {**subject.signature.dtypes, **{name: array.dtype for name, array in seen.items()}}
    judgement = judge({**outputs, **seen}, {**evaluation.outputs, **evaluation.observed}, dtypes)
    return judgement, evaluation
