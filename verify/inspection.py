"""Looking into a runtime: the graph that it really runs, what each node of it gives, and what the oracle says of that."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.arithmetic import PROFILES, Arithmetic
from onnx_attest.verify.nodewise import Walk, walk
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.graph import GraphOracle, without_functions
from onnx_attest.verify.oracle.kernels import VALUES_ALONE
from onnx_attest.verify.oracle.ops.operator import Node
from onnx_attest.verify.passes import guilty_pass
from onnx_attest.verify.probe import with_every_output
from onnx_attest.verify.runtimes.base import Runtime, Session, Tensors

Arrays = Mapping[str, NDArray[Any]]
_DOUBLE = replace(PROFILES["fp64"], kernel=VALUES_ALONE)
_FOLDED = 2.0**-10
"""Two evaluations of one value differ by this share of the largest element at most: constants are folded in float32."""


@runtime_checkable
class Rewriting(Protocol):
    """A runtime that rewrites a graph before it runs it, and can show what it makes of it."""

    def rewritten(self, artifact: Artifact, folder: Path, *, threads: int | None = None) -> Path:
        """Write the graph that it runs into a folder, and return where."""
        ...

    def as_written(self) -> Runtime:
        """Return the same runtime without any rewriting."""
        ...

    def without(self, passes: Sequence[str]) -> Runtime:
        """Return the same runtime without some of its rewritings."""
        ...


@dataclass(frozen=True)
class Inspected:
    """One run looked into.

    Attributes:
        walk: of the file's own graph, from one value that the runtime shows to the next.
        changed: outputs that come out with other bits when every node is looked at: what the nodes gave then is not
            what they give otherwise.
        values: what the runtime has inside.
    """

    walk: Walk
    changed: tuple[str, ...]
    values: Tensors


@dataclass(eq=False)
class Inspection:
    """A copy of the graph that a runtime runs, which gives every value in it.

    A runtime that rewrites the graph shows the values of its own one. Those of them that stand for a value of the
    file's graph, the anchors, cut that graph into short pieces, and the pieces are held against the file; the nodes
    of the rewritten graph say whether a kernel is at fault or the rewriting.

    Attributes:
        file: the oracle of the file's graph.
        own: the oracle of the rewritten one, None where the runtime runs the file as it is.
        parting: the first value in which the two graphs differ in float64, and the node that gives it in the file.
        folder: where the rewritten one is, as long as it is looked at.
    """

    file: GraphOracle
    own: GraphOracle | None
    session: Session
    folder: tempfile.TemporaryDirectory[str] | None = None
    _anchors: frozenset[str] | None = None
    parting: tuple[str, str] = ("", "")

    @staticmethod
    def of(
        artifact: Artifact, model: onnx.ModelProto, file: GraphOracle, runtime: Runtime, threads: int | None
    ) -> Inspection:
        """Return the inspection of a runtime; `model` is the artifact's, and `file` its oracle.

        Raises:
            Exception: whatever the runtime raises when it opens the copy.
        """
        model, folder, own = without_functions(model), None, None
        if isinstance(runtime, Rewriting) and runtime.as_written() != runtime:
            folder = tempfile.TemporaryDirectory(prefix="onnx-attest-")
            path = runtime.rewritten(artifact, Path(folder.name), threads=threads)
            artifact, runtime = replace(artifact, path=path), runtime.as_written()
            model = onnx.load(path, load_external_data=False)
            own = GraphOracle(model, folder=path.parent)
        session = runtime.open(artifact, model=with_every_output(model), threads=threads)
        return Inspection(file, own, session, folder)

    def look(self, inputs: Arrays, outputs: Tensors, arithmetic: Arithmetic) -> Inspected:
        """Return what becomes of the nodes for these inputs; `outputs` are those of a run that nobody looked into.

        Raises:
            UnsupportedOperatorError: see `walk`.
            Exception: whatever the runtime raises when it runs the copy.
        """
        values = {name: value for name, value in self.session.run(inputs).items() if value.dtype != object}
        changed = tuple(name for name in outputs if name in values and not _same(outputs[name], values[name]))
        anchors = self._anchors_among(inputs, values)
        shown = {name: value for name, value in values.items() if name in anchors}
        return Inspected(walk(self.file, inputs, shown, arithmetic), changed, values)

    def look_at_own(self, inputs: Arrays, inspected: Inspected, arithmetic: Arithmetic) -> Walk | None:
        """Return what becomes of the nodes of the rewritten graph, None where the runtime rewrites nothing."""
        return None if self.own is None else walk(self.own, inputs, inspected.values, arithmetic)

    def _anchors_among(self, inputs: Arrays, values: Arrays) -> frozenset[str]:
        """Return the values of the rewritten graph that have the meaning their name has in the file.

        An optimiser may give a name to something else, the same numbers in another layout for example. So both graphs
        are evaluated in float64, where they agree but for constants that were folded in a shorter format.
        """
        if self.own is None:
            return frozenset(values)
        if self._anchors is None:
            mine, theirs = _exact_values(self.file, inputs, values), _exact_values(self.own, inputs, values)
            both = [name for name in mine if name in theirs]
            alike = {name for name in both if _alike(mine[name], theirs[name])}
            differing = next((name for name in both if name not in alike), "")
            self.parting = (differing, self.file.maker_of(differing))
            self._anchors = frozenset(alike | set(self.file.outputs))
        return self._anchors


def pass_at_fault(
    artifact: Artifact,
    model: onnx.ModelProto,
    file: GraphOracle,
    runtime: Runtime,
    inputs: Arrays,
    arithmetic: Arithmetic,
    threads: int | None,
) -> str:
    """Return the pass of a runtime's optimiser without which no node is bad, "" if there is no single one.

    Raises:
        Exception: whatever the runtime raises without some of its passes.
    """
    if not isinstance(runtime, Rewriting):
        return ""

    def is_right(passes: Sequence[str]) -> bool:
        thinner = runtime.without(passes)
        outputs = thinner.open(artifact, threads=threads).run(inputs)
        inspection = Inspection.of(artifact, model, file, thinner, threads)
        return not inspection.look(inputs, outputs, arithmetic).walk.bad

    return guilty_pass(is_right)


def _exact_values(oracle: GraphOracle, inputs: Arrays, values: Arrays) -> Tensors:
    """Return what a graph has in float64 under the names of `values`, as far as the oracle can evaluate it."""
    seen: Tensors = {}

    def keep(node: Node, name: str, value: Bounded) -> None:
        seen[name] = value.value

    def miss(node: Node, reason: str) -> None:
        """Leave it out: what follows is computed from the runtime's own value, and compared as well."""

    oracle.evaluate(inputs, _DOUBLE, observed=values, follow=False, on_observed=keep, on_missing=miss)
    return seen


def _alike(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype != np.float64 or b.dtype != np.float64:
        return bool(np.array_equal(a, b))
    size = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    return bool(np.allclose(a, b, rtol=0.0, atol=_FOLDED * size, equal_nan=True))


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
