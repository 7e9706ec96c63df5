"""Sets of test data: inputs with what the oracle says of the outputs, to be held against a runtime without an oracle.

Each set is a folder in ONNX's own layout, `test_data_set_N/input_0.pb` and `output_0.pb`, which any tool can use; and
beside them `reference.npz`: the float64 values with bounds and deviations, and the inputs once more, for a reader that
knows NumPy alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.export.bundle import REFERENCE
from onnx_attest.verify.arithmetic import OF_DTYPE, profile
from onnx_attest.verify.cases import longest_axis, plan_cases, without_unreachable
from onnx_attest.verify.expected import Expected
from onnx_attest.verify.gauge import COARSEST_SUMS, LARGEST, Gauge
from onnx_attest.verify.noise import Measured, Noise, flushed_variance
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.records import CaseRecord
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.signature import Signature

MOST_BYTES = 32 * 2**20
"""Of all sets together; the first is kept whatever its size."""


@dataclass(frozen=True, eq=False)
class TestSet:
    """One case of a bundle.

    Attributes:
        outputs: the oracle's, with bounds and, if there are limits, variances.
        limits: what the noise of a correct runtime stays below; None where it says nothing.
    """

    __test__ = False

    case: CaseRecord
    inputs: Tensors
    outputs: Mapping[str, Bounded]
    limits: Noise | None

    @property
    def size_bytes(self) -> int:
        """What it takes in a bundle, about."""
        numbers = sum(3 * bounded.value.nbytes for bounded in self.outputs.values())
        return int(numbers + 2 * sum(array.nbytes for array in self.inputs.values()))


def declared(signature: Signature) -> str:
    """Return the arithmetic that a file is to be computed in on any runtime."""
    return OF_DTYPE[signature.floating.name]


def sets_of(signature: Signature, seed: int = 0) -> Iterator[TestSet]:
    """Yield the sets of a file: the cases of a verification that are small, as many as there is room for.

    Raises:
        UnsupportedOperatorError: an operator that the oracle does not have.
        UsageError: the file takes no inputs that can be made.
    """
    expected = Expected(signature)
    arithmetic = profile(declared(signature))
    room = MOST_BYTES
    for index, case in enumerate(_cases(signature, expected, seed)):
        inputs = expected.inputs(case)
        gauge = Gauge(
            lambda asked, logit_factor=1.0, inputs=inputs: expected.evaluate(inputs, asked, logit_factor=logit_factor),
            arithmetic, signature.floating, signature.dtypes, inputs,
        )  # fmt: skip
        limits = None
        if arithmetic.u_acc <= COARSEST_SUMS and signature.floating.kind == "f" and not expected.mixes:
            limits = Measured(gauge.yardstick, Noise(0.0, 0.0), ()).limits
        made = TestSet(case, inputs, gauge.evaluation.outputs, limits)
        room -= made.size_bytes
        if index and room < 0:
            return
        yield made


def _cases(signature: Signature, expected: Expected, seed: int) -> list[CaseRecord]:
    planned = plan_cases(signature.contract, seed=seed, attention=expected.has_attention())
    reachable = {std: std is None or expected.reaches(std) for std in {case.logit_std for case in planned}}
    kept = without_unreachable(planned, reachable)
    small = [case for case in kept if longest_axis(signature.contract, case.axes) <= LARGEST]
    return small or kept[:1]


def files_of(made: TestSet, dtypes: Mapping[str, np.dtype[Any]], arithmetic: str) -> dict[str, bytes]:
    """Return the files of a set by their names in its folder; the arithmetic is the one that its bounds are for."""
    files = {
        f"input_{index}.pb": _tensor(name, array) for index, (name, array) in enumerate(made.inputs.items())
    }
    arrays: dict[str, NDArray[Any]] = {
        f"input_{index}": _plain(array) for index, array in enumerate(made.inputs.values())
    }
    for index, (name, bounded) in enumerate(made.outputs.items()):
        with np.errstate(over="ignore"):
            files[f"output_{index}.pb"] = _tensor(name, bounded.value.astype(dtypes[name]))
        arrays[f"value_{index}"] = bounded.value
        if bounded.is_float or bounded.error is not None:  # codes of a quantiser have one too
            arrays[f"bound_{index}"] = np.broadcast_to(bounded.errors(), bounded.value.shape)
            if made.limits is not None and bounded.is_float:
                deviation = np.sqrt(bounded.variances())
                arrays[f"deviation_{index}"] = np.broadcast_to(deviation, bounded.value.shape)
    if made.limits is not None:
        arrays["limits"] = np.array([made.limits.rms_z, made.limits.max_z])
        arrays["floor"] = np.sqrt(flushed_variance(profile(arithmetic)))
    out = BytesIO()
    # In C's order, which every reader knows; an array of no axes stays one.
    named: Mapping[str, Any] = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    np.savez(out, **named)  # its dates are fixed: the same arrays give the same bytes
    return files | {REFERENCE: out.getvalue()}


def _tensor(name: str, array: NDArray[Any]) -> bytes:
    return bytes(
        onnx.numpy_helper.from_array(np.ascontiguousarray(array), name).SerializeToString(deterministic=True)
    )


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as NumPy stores them: those of ml_dtypes as their bits."""
    return array if array.dtype.kind in "fiub" else array.view(np.dtype(f"u{array.dtype.itemsize}"))
