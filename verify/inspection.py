"""Looking into a runtime: the graph that it really runs, what each node of it gives, and what the oracle says of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import onnx
from numpy.typing import NDArray

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.nodewise import Walk, walk
from onnx_attest.verify.oracle.graph import GraphOracle, without_functions
from onnx_attest.verify.probe import with_every_output
from onnx_attest.verify.runtimes.base import Runtime, Session, Tensors


@runtime_checkable
class Rewriting(Protocol):
    """A runtime that rewrites a graph before it runs it, and can show what it makes of it."""

    def rewritten(self, artifact: Artifact, *, threads: int | None = None) -> onnx.ModelProto:
        """Return the graph that it runs."""
        ...

    def as_written(self) -> Runtime:
        """Return the same runtime without any rewriting."""
        ...


@dataclass(frozen=True)
class Inspected:
    """One run looked into.

    Attributes:
        changed: outputs that come out with other bits when every node is looked at: what the nodes gave then is not
            what they give otherwise.
    """

    walk: Walk
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Inspection:
    """A copy of the graph that a runtime runs, which gives every value in it.

    Attributes:
        rewritten: whether the graph is the runtime's own, and not the file's.
    """

    oracle: GraphOracle
    session: Session
    rewritten: bool

    @staticmethod
    def of(artifact: Artifact, model: onnx.ModelProto, runtime: Runtime, threads: int | None) -> Inspection:
        """Return the inspection of a runtime; `model` is the artifact's.

        Raises:
            Exception: whatever the runtime raises when it opens the copy.
        """
        rewritten = isinstance(runtime, Rewriting) and runtime.as_written() != runtime
        if rewritten:
            assert isinstance(runtime, Rewriting)
            model, runtime = runtime.rewritten(artifact, threads=threads), runtime.as_written()
        model = without_functions(model)
        session = runtime.open(artifact, model=with_every_output(model), threads=threads)
        return Inspection(GraphOracle(model), session, rewritten)

    def look(self, inputs: Mapping[str, NDArray[Any]], outputs: Tensors, arithmetic: Arithmetic) -> Inspected:
        """Return what becomes of the nodes for these inputs; `outputs` are those of a run that nobody looked into.

        Raises:
            UnsupportedOperatorError: see `walk`.
            Exception: whatever the runtime raises when it runs the copy.
        """
        values = {name: value for name, value in self.session.run(inputs).items() if value.dtype != object}
        changed = tuple(name for name in outputs if name in values and not _same(outputs[name], values[name]))
        return Inspected(walk(self.oracle, inputs, values, arithmetic), changed)


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
