"""What the experiments work with: the exports of the chapter's modules, and one runtime with its inputs and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.export.api import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models.catalogue import D_K, D_V, chapter_contract
from onnx_attest.models.entry import Entry, resolve
from onnx_attest.verify.arithmetic import profile
from onnx_attest.verify.blame import EAGER
from onnx_attest.verify.cases import make_inputs
from onnx_attest.verify.claims.measured import Measured, recorded
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.expected import Expected
from onnx_attest.verify.probe import with_outputs
from onnx_attest.verify.records import CaseRecord, ClaimRecord
from onnx_attest.verify.runtimes.base import Runtime, Session, Tensors, UnavailableError
from onnx_attest.verify.runtimes.isolated import open_copy
from onnx_attest.verify.signature import read_signature

SCALED, BARE, NAIVE = "ScaledDotProductAttention", "UnscaledAttention", "NaiveSoftmaxAttention"
TOKENS = 9
"""Few enough to draw each weight."""


class Files:
    """The exports of the experiments, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, int, str], Artifact] = {}

    def chapter(self, module: str, d_k: int = D_K, dtype: str = "float32") -> Artifact:
        """Return the export of one of the chapter's modules at a d_k."""
        if (module, d_k, dtype) not in self._made:
            from onnx_attest.models import scaled_dot_product

            entry = Entry(
                f"{module}-{d_k}",
                "for an experiment",
                chapter_contract(d_k),
                lambda: getattr(scaled_dot_product, module)(d_k).eval(),
                ("decomposed",),
            )
            self._made[module, d_k, dtype] = _export(entry, self._folder, dtype)
        return self._made[module, d_k, dtype]

    def model(self, name: str) -> Artifact:
        """Return the decomposed export of an entry of the catalogue."""
        if (name, 0, "") not in self._made:
            self._made[name, 0, ""] = _export(resolve(name), self._folder, "float32")
        return self._made[name, 0, ""]


def _export(entry: Entry, folder: Path, dtype: str) -> Artifact:
    (result,) = export_entry(entry, folder, variants=("decomposed",), dtype=dtype)
    if not isinstance(result, Artifact):
        raise UnavailableError(f"{entry.name} could not be exported: {result.reason}")
    return result


@dataclass(frozen=True)
class Laboratory:
    """One runtime with what the experiments need of it."""

    files: Files
    runtime: Runtime
    plan: Plan

    def open(self, artifact: Artifact) -> Session:
        """Return a session for an export."""
        return self.runtime.open(artifact, threads=self.plan.threads)

    def scores(self, artifact: Artifact, inputs: Tensors) -> NDArray[Any]:
        """Return what the runtime's softmax reads: of torch by listening in, of others as one more output of a copy."""
        if self.runtime.name in EAGER:
            (scores,) = self.open(artifact).softmax_inputs(inputs)  # type: ignore[attr-defined]
            return np.asarray(scores)
        model = onnx.load(artifact.path)
        name = next(node.input[0] for node in model.graph.node if node.op_type == "Softmax")
        copy = with_outputs(model, (name,), as_in_file=True)
        return open_copy(self.runtime, artifact, copy, self.plan.threads).run(inputs)[name]

    def record(self, claim: int, measured: Measured, setting: str, **fields: Any) -> ClaimRecord:
        """Return what was measured here of a statement, see `recorded`."""
        return recorded(claim, self.runtime.name, measured, setting, **fields)

    def bounds(self, artifact: Artifact) -> Callable[[Mapping[str, Any]], dict[str, NDArray[Any]]]:
        """Return how far a correct runtime's outputs may be from exact, by the file's own graph."""
        signature = read_signature(artifact)
        expected, policy = Expected(signature), signature.contract.empty_rows

        def bounds(inputs: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
            outputs = expected.evaluate_graph(inputs, self.fp32, policy).outputs
            return {name: np.broadcast_to(one.errors(), one.value.shape) for name, one in outputs.items()}

        return bounds

    def exact(self, artifact: Artifact, inputs: Tensors, output: str) -> NDArray[np.float64]:
        """Return an output in float64, by the file's own graph."""
        signature = read_signature(artifact)
        found = Expected(signature).evaluate_graph(inputs, self.fp32, signature.contract.empty_rows).outputs
        return np.asarray(found[output].value, np.float64)

    def tokens(self, artifact: Artifact, batch: int) -> Tensors:
        """Return gaussian tokens for a model, with a mask that hides nothing where it takes one."""
        assert artifact.manifest is not None  # made here
        contract = artifact.manifest.contract
        axes = {axis: batch if contract.is_batch(axis) else TOKENS for axis in contract.symbolic_axes()}
        mask = "all" if contract.mask_kinds() else None
        return make_inputs(contract, CaseRecord(name="tokens", axes=axes, mask=mask, seed=self.plan.seed))

    def random(self, batch: int, length: int, d_k: int, *, unit: bool = False, seed: int = 0) -> Tensors:
        """Return gaussian Q, K and V, of length 1 if asked for, and a mask that hides nothing."""
        rng = np.random.default_rng(self.plan.seed + seed)
        Q, K = (rng.standard_normal((batch, length, d_k)) for _ in range(2))
        if unit:
            Q, K = (array / np.linalg.norm(array, axis=-1, keepdims=True) for array in (Q, K))
        V = rng.standard_normal((batch, length, D_V))
        floats = {name: array.astype(np.float32) for name, array in (("Q", Q), ("K", K), ("V", V))}
        return floats | {"mask": np.ones((batch, length, length), bool)}

    @property
    def fp32(self) -> Any:
        """The arithmetic that the runtime is declared to compute float32 in."""
        return profile(self.runtime.arithmetic("float32"))
