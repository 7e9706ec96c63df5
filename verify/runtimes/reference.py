"""ONNX's own reference evaluator: one vote among the runtimes, never the oracle (DESIGN.md section 7 says why)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import OF_DTYPE
from onnx_attest.verify.runtimes.base import Availability, Placement, Session, Tensors, as_arrays

if TYPE_CHECKING:
    from onnx_attest.export.artifact import Artifact


@dataclass(frozen=True)
class ReferenceRuntime:
    """`onnx.reference.ReferenceEvaluator`, NumPy in the graph's own dtypes."""

    name: str = "onnx-reference"

    def arithmetic(self, dtype: str) -> str:
        """Return the declared profile: NumPy rounds every operation to the short format, in bfloat16 every sum too."""
        return {"float16": "fp16-steps", "bfloat16": "bf16-acc"}.get(dtype, OF_DTYPE[dtype])

    def holds_scores(self, operator: str, *, hidden: bool) -> bool:
        """Whether all scores of a fused attention are held at once: always."""
        return True

    def availability(self) -> Availability:
        """Say that it works: onnx is a hard dependency."""
        import onnx

        return Availability(True, onnx.__version__)

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Session:
        """Return a session; `threads` is NumPy's own affair."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        loaded = (
            onnx.load(artifact.path, format="protobuf")
            if model is None
            else onnx.load_model_from_string(model)
        )
        onnx.load_external_data_for_model(loaded, str(artifact.path.parent))
        return ReferenceSession(ReferenceEvaluator(loaded))


class ReferenceSession:
    """A graph under the reference evaluator."""

    placement = Placement(("NumPy",), ("NumPy",))

    def __init__(self, evaluator: Any) -> None:
        self._evaluator = evaluator

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        """Return the outputs by name. Overflow and NaN are results here, not warnings."""
        with np.errstate(all="ignore"):
            values = self._evaluator.run(None, dict(inputs))
        return as_arrays(list(self._evaluator.output_names), values)
