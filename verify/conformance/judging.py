"""One case on one runtime: what came of it, by the oracle's bound and by the case's own tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.verify.conformance.case import Arrays, Case
from onnx_attest.verify.conformance.execution import Ran
from onnx_attest.verify.conformance.reference import Reference
from onnx_attest.verify.gates import Judgement, Tolerance, judge
from onnx_attest.verify.oracle.bounded import Bounded, is_floating
from onnx_attest.verify.oracle.types import element_type
from onnx_attest.verify.records import ConformanceRecord, Outcome, finite

ByTolerance = Literal["within", "beyond", "none"]


@dataclass(frozen=True)
class Judged:
    """What the outputs are worth.

    Attributes:
        ratio: of the largest error to its bound, None where there is no bound or no difference.
        by_tolerance: whether they are within the case's own tolerance of the case's own outputs.
    """

    outcome: Outcome
    reason: str = ""
    ratio: float | None = None
    by_tolerance: ByTolerance = "none"


def judged(case: Case, ran: Ran, reference: Reference) -> Judged:
    """Return what came of a case that was run, by the oracle if it has a word on it, else by the tolerance."""
    if ran.outputs is None:
        return Judged("crashed" if ran.crashed else "refused", ran.words)
    beyond = ""
    by_tolerance: ByTolerance = "none"
    if case.expected is not None and case.tolerance is not None:
        beyond = beyond_tolerance(ran.outputs, case.expected, case.tolerance)
        by_tolerance = "beyond" if beyond else "within"
    if reference.outputs is None:
        outcome: Outcome = "inconclusive" if by_tolerance == "none" else "wrong" if beyond else "right"
        return Judged(
            outcome, beyond or (reference.lacks if by_tolerance == "none" else ""), None, by_tolerance
        )
    found = held(case.model, ran.outputs, reference.outputs)
    if not found.passed:
        said = "; ".join(one.message for one in found.findings)
        return Judged("wrong", said, finite(found.max_err_over_tau), by_tolerance)
    if found.unbounded:
        said = f"{found.unbounded} numbers have no bound: whatever the runtime gives there proves nothing"
        return Judged("inconclusive", said, finite(found.max_err_over_tau), by_tolerance)
    return Judged("right", "", finite(found.max_err_over_tau), by_tolerance)


def held(model: onnx.ModelProto, outputs: Arrays, expected: Mapping[str, Bounded]) -> Judgement:
    """Return what the gates form and proof say of a runtime's outputs."""
    kinds = {value.name: element_type(value.type) for value in model.graph.output}
    dtypes = {name: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)) for name, kind in kinds.items()}
    with np.errstate(all="ignore"):  # overflow and NaN are results, and are compared by position
        return judge(dict(outputs), expected, dtypes)


def beyond_tolerance(outputs: Arrays, expected: Arrays, tolerance: Tolerance) -> str:
    """Return what lies outside a tolerance, "" if nothing: |actual - expected| <= atol + rtol |expected|.

    NaN and infinities have to be in the same places, as NumPy's and so ONNX's own comparison has it.
    """
    for name, right in expected.items():
        if name not in outputs:
            return f"{name} is missing"
        given = outputs[name]
        if given.shape != right.shape or given.dtype != right.dtype:
            return (
                f"{name} is {given.dtype}{list(given.shape)}, it should be {right.dtype}{list(right.shape)}"
            )
        if said := _beyond(given, right, tolerance):
            return f"{name}{said}"
    return ""


def _beyond(given: NDArray[Any], right: NDArray[Any], tolerance: Tolerance) -> str:
    if not is_floating(right.dtype):
        return "" if np.array_equal(given, right) else " differs"
    actual, wanted = given.astype(np.float64), right.astype(np.float64)
    same = np.isclose(actual, wanted, tolerance.rtol, tolerance.atol, equal_nan=True)
    if same.all():
        return ""
    index = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"{list(index)} is {actual[index]:.6g}, the case says {wanted[index]:.6g}"


def record(
    case: Case, runtime: str, version: str, arithmetic: str, found: Judged, reference: Reference, odds: str
) -> ConformanceRecord:
    """Return the record of a case on a runtime."""
    return ConformanceRecord(
        case=case.name,
        origin=case.origin,
        operator=case.operator,
        form=case.form,
        features=case.features,
        opset=case.opset,
        dtype=case.dtype,
        runtime=runtime,
        runtime_version=version,
        arithmetic=arithmetic,
        outcome=found.outcome,
        reason=found.reason,
        reference=reference.kind,
        oracle_lacks=reference.lacks,
        max_err_over_tau=found.ratio,
        by_tolerance=found.by_tolerance,
        case_at_odds=odds,
    )
