"""A variant held against the file that it was made from, in bits and in terms of what outputs are used for.

Both graphs are evaluated in float64 on the same inputs, so what differs is the conversion and nothing else: constants in
fewer bits, codes, a mask that overflowed. A kernel's own rounding comes on top, and is what `verify` is about.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from onnx_attest.errors import UsageError
from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.cases import longest_axis, plan_cases, without_unreachable
from onnx_attest.verify.expected import Expected
from onnx_attest.verify.gauge import LARGEST
from onnx_attest.verify.oracle.bounded import Floats
from onnx_attest.verify.oracle.kernels import VALUES_ALONE
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.records import CaseRecord
from onnx_attest.verify.report.formats import number
from onnx_attest.verify.report.tables import Column, fill, to_markdown
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.signature import Signature


@dataclass(frozen=True)
class Cost:
    """What a conversion changed of one output on one case; rows are along the last axis.

    Attributes:
        bits: -log2 of the RMS error over the RMS value; infinite if nothing changed.
        worst_row: the largest norm of a row's error over that of its value.
        worst_index: of that row.
        argmax: the part of the rows whose largest element is at the same place.
        divergence: the largest Kullback-Leibler divergence, in nats, of the rows taken as logits.
        misplaced: elements that are NaN or infinite on one side alone.
    """

    case: str
    output: str
    bits: float
    worst_row: float
    worst_index: tuple[int, ...]
    argmax: float
    divergence: float
    misplaced: int


def costs(original: Signature, converted: Signature, seed: int = 0) -> Iterator[Cost]:
    """Yield what a conversion cost, case after case, on inputs that both files take.

    Raises:
        UsageError: the files have other inputs or outputs, or the oracle cannot evaluate one of them.
    """
    if set(original.dtypes) != set(converted.dtypes) or original.got.inputs != converted.got.inputs:
        raise UsageError("the two files have other inputs and outputs: one is no conversion of the other")
    theirs, ours = Expected(original), Expected(converted)
    for reason in (theirs.reason, ours.reason):
        if reason:
            raise UsageError(f"there is no exact result to compare: {reason}")
    plain = replace(PROFILES["fp64"], kernel=VALUES_ALONE)
    for case in _cases(original, theirs, seed):
        inputs = _as(converted, theirs.inputs(case))
        try:
            exact = theirs.evaluate(_as(original, inputs), plain).outputs
            got = ours.evaluate(inputs, plain).outputs
        except UnsupportedOperatorError as error:
            raise UsageError(f"there is no exact result to compare: {error}") from error
        for name, value in exact.items():
            if value.is_float:
                yield cost(case.id, name, np.asarray(value.value), np.asarray(got[name].value))


def _as(signature: Signature, inputs: Tensors) -> Tensors:
    """Return the inputs in the dtypes that a file takes; half precision is widened, so that its rounding is no cost."""
    wanted = signature.dtypes
    return {name: array.astype(wanted[name], copy=False) for name, array in inputs.items()}


def _cases(signature: Signature, expected: Expected, seed: int) -> list[CaseRecord]:
    planned = plan_cases(signature.contract, seed=seed, attention=expected.has_attention())
    reachable = {std: std is None or expected.reaches(std) for std in {case.logit_std for case in planned}}
    return [
        case
        for case in without_unreachable(planned, reachable)
        if longest_axis(signature.contract, case.axes) <= LARGEST
    ]


def cost(case: str, output: str, exact: Floats, got: Floats) -> Cost:
    """Return the cost of one output, (..., last axis)."""
    rows, other = (array.reshape(-1, array.shape[-1] if array.ndim else 1) for array in (exact, got))
    both = np.isfinite(rows) & np.isfinite(other)
    misplaced = int((np.isfinite(rows) != np.isfinite(other)).sum())
    value, error = np.where(both, rows, 0.0), np.where(both, other - rows, 0.0)
    size, off = (float(np.sqrt(np.mean(array**2))) if array.size else 0.0 for array in (value, error))
    norms = np.linalg.norm(value, axis=-1)
    relative = np.divide(np.linalg.norm(error, axis=-1), norms, out=np.zeros_like(norms), where=norms > 0)
    worst = int(np.argmax(relative)) if relative.size else 0
    index = np.unravel_index(worst, exact.shape[:-1]) if exact.ndim > 1 and relative.size else ()
    same = np.argmax(np.where(both, rows, -np.inf), -1) == np.argmax(np.where(both, other, -np.inf), -1)
    return Cost(
        case=case,
        output=output,
        bits=math.inf if off == 0 else math.log2(size / off) if size else 0.0,
        worst_row=float(relative.max(initial=0.0)),
        worst_index=tuple(int(i) for i in index),
        argmax=float(same.mean()) if same.size else 1.0,
        divergence=_divergence(value, value + error),
        misplaced=misplaced,
    )


def _divergence(logits: Floats, others: Floats) -> float:
    """Return the largest divergence of softmax(others) from softmax(logits), row by row, in nats."""
    if not logits.size:
        return 0.0
    log_p, log_q = (x - x.max(-1, keepdims=True) for x in (logits, others))
    log_p, log_q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (log_p, log_q))
    return max(0.0, float((np.exp(log_p) * (log_p - log_q)).sum(-1).max()))


def calibration_of(signature: Signature, seed: int) -> Iterator[Tensors]:
    """Yield inputs to calibrate a quantiser with: the cases of usual numbers, with other seeds than those of the cost."""
    expected = Expected(signature)
    for case in _cases(signature, expected, seed):
        if case.distribution == "gauss" and (case.logit_std is None or case.logit_std <= _USUAL):
            yield expected.inputs(case)


_USUAL = 3.0
"""Deviation of logits that a scale is chosen for: one that takes in 30 has no codes left for those of 2."""


def table(found: Iterable[Cost]) -> str:
    """Return the costs as Markdown."""
    return to_markdown(fill("", _COLUMNS, found, _NOTE))


_COLUMNS: tuple[Column[Cost], ...] = (
    Column("case", "sizes, mask and logit deviation", lambda one: one.case),
    Column("output", "name", lambda one: one.output),
    Column("bits", "that agree, by the RMS error", lambda one: f"{one.bits:.1f}"),
    Column("worst row", "error over value", lambda one: number(one.worst_row)),
    Column("same argmax", "rows", lambda one: f"{one.argmax:.1%}"),
    Column("KL", "largest, of rows taken as logits, nats", lambda one: number(one.divergence)),
    Column("misplaced", "NaN or infinite on one side", lambda one: str(one.misplaced)),
)
_NOTE = (
    "Both graphs in float64: what differs is the conversion alone. Verify the file as well: onnx-attest verify FILE says "
    "whether runtimes compute it right."
)
