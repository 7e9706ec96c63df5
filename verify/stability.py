"""The softmax of a runtime, looked at: get its weights, measure them, see what hides behind the mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.models.contract import Contract, TensorSpec
from onnx_attest.verify.arithmetic import Arithmetic, largest_of
from onnx_attest.verify.blame import COMPILED, EAGER
from onnx_attest.verify.cases import allowed_by
from onnx_attest.verify.cell import Stage, Subject, describe
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.oracle.graph import Evaluation
from onnx_attest.verify.oracle.program import AttentionSeen
from onnx_attest.verify.records import CaseRecord, StabilityRecord, Verdict, finite
from onnx_attest.verify.runtimes.base import ProcessDiedError, Session, Tensors
from onnx_attest.verify.softmax import Stability, find, measure


def poison_of(role: str, dtype: np.dtype[Any]) -> float | None:
    """Return what stands behind a mask in a poisoned run, None for an input that the mask does not hide.

    Finite, and large enough that any weight on it shows: values near the largest number; keys, and tokens that become
    both, at its square root, since a product with a query must not overflow on a correct graph.
    """
    if role in ("key", "tokens"):
        return float(largest_of(dtype) ** 0.5)
    return 0.9 * largest_of(dtype) if role == "value" else None


SoftmaxSeen = tuple[StabilityRecord, list[Finding]]


@dataclass(frozen=True, eq=False)
class Look:
    """How the weights of a runtime are seen.

    Attributes:
        source: `output` (the model returns them), `probe` (from a copy of the graph), `identity` (V = I in torch),
            `none`.
        names: of the outputs that hold weights, one an attention.
        session: of the probed copy; None where the judged session itself shows them.
        reason: why there is no way to see them.
    """

    source: str
    names: tuple[str, ...] = ()
    session: Session | None = None
    reason: str = ""


def direct_look(contract: Contract, attentions: Sequence[AttentionSeen], runtime: str) -> Look | None:
    """Return how to see the weights without a copy of the file, None if there is no such way."""
    returned = tuple(spec.name for spec in contract.outputs if spec.role == "weights")
    if len(returned) == len(attentions):
        return Look("output", returned)
    if runtime == COMPILED:
        return Look("none", reason="what torch.compile made of the module cannot be listened to")
    return Look("identity") if runtime in EAGER else None


def look_at_softmax(
    subject: Subject,
    stage: Stage,
    look: Look,
    case: CaseRecord,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Tensors,
    evaluation: Evaluation,
) -> list[SoftmaxSeen]:
    """Return a record with its findings for each attention of the graph."""
    assert stage.session is not None
    common = [_common(subject, stage, look, case, seen) for seen in evaluation.attentions]
    if look.reason:
        return [_unseen(fields, "skipped", look.reason) for fields in common]
    try:
        weights = _weights(look, stage.session, inputs, outputs)
    except ProcessDiedError as error:
        return [_unseen(fields, "errored", str(error)) for fields in common]
    except Exception as error:  # noqa: BLE001 - the outputs were judged; that the softmax is not seen is said
        return [_unseen(fields, "skipped", describe(error)) for fields in common]
    if len(weights) != len(common):
        reason = f"the softmax is out of sight: {len(weights)} of {len(common)} attentions were seen"
        return [_unseen(fields, "skipped", reason) for fields in common]
    try:
        poison = poisoned(subject.signature.contract, stage.session, inputs, outputs, case)
    except Exception as error:  # noqa: BLE001 - huge finite numbers behind a mask are legal input
        return [_unseen(fields, "errored", describe(error)) for fields in common]
    return [
        _record(fields, seen, array, stage.arithmetic, poison)
        for fields, seen, array in zip(common, evaluation.attentions, weights, strict=True)
    ]


def _weights(
    look: Look, session: Session, inputs: Mapping[str, NDArray[Any]], outputs: Tensors
) -> list[NDArray[Any]]:
    """Return the weights of each attention, in the order of the graph."""
    if look.source == "output":
        return [outputs[name] for name in look.names]
    if look.source == "identity":
        return session.attention_weights(inputs)  # type: ignore[attr-defined, no-any-return]
    assert look.session is not None
    probed = look.session.run(inputs)
    return [probed[name] for name in look.names]


def _record(
    fields: dict[str, Any], seen: AttentionSeen, weights: NDArray[Any], arithmetic: Arithmetic, poison: str
) -> SoftmaxSeen:
    shape = seen.facts.weights.shape
    if weights.shape != shape:
        return _unseen(fields, "skipped", f"weights of the shape {weights.shape} were seen, not {shape}")
    stability = measure(weights, seen, arithmetic)
    found = find(stability)
    if poison == "differs":
        found.append(finding("OA406", "outputs change when the masked keys and values become huge"))
    record = StabilityRecord(
        **fields,
        verdict="failed" if found else "passed",
        reason="; ".join(item.message for item in found),
        poison=poison or "not tried",
        findings=tuple(item.code for item in found),
        **_finite(stability),
    )
    return record, found


def _unseen(fields: dict[str, Any], verdict: Verdict, reason: str) -> SoftmaxSeen:
    return StabilityRecord(
        **fields, verdict=verdict, reason=reason, rows=0, empty_rows=0, finite_ratio=0.0
    ), []


def _common(
    subject: Subject, stage: Stage, look: Look, case: CaseRecord, seen: AttentionSeen
) -> dict[str, Any]:
    return {
        **subject.identity.fields(),
        "runtime": stage.name,
        "case": case,
        "attention": seen.node,
        "source": look.source,
    }


def _finite(stability: Stability) -> dict[str, Any]:
    return {
        name: finite(value) if isinstance(value, float) else value for name, value in vars(stability).items()
    }


def poisoned(
    contract: Contract,
    session: Session,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Tensors,
    case: CaseRecord,
) -> str:
    """Return "" without padding, `same` if the outputs stay bitwise equal when what every query's mask hides becomes huge.

    Where one tensor is both query and key (`tokens`), the hidden positions are queries too: their own rows are left
    out of the comparison.
    """
    mask_spec = next((spec for spec in contract.inputs if spec.role == "mask"), None)
    if mask_spec is None or case.mask not in ("padding", "left-padding"):
        return ""
    hidden = np.asarray(~allowed_by(mask_spec, inputs[mask_spec.name]).any(-2))  # (batch, keys)
    poison = {spec.name: _poison(spec, inputs[spec.name], hidden) for spec in contract.inputs}
    if not any(array is not inputs[name] for name, array in poison.items()):
        return ""
    again = session.run(poison)
    tokens = any(spec.role == "tokens" for spec in contract.inputs)
    rows = np.asarray(~hidden) if tokens else np.ones_like(hidden)
    same = all(_same_rows(outputs[name], again[name], rows) for name in outputs)
    return "same" if same else "differs"


def _poison(spec: TensorSpec, array: NDArray[Any], hidden: NDArray[np.bool_]) -> NDArray[Any]:
    poison = poison_of(spec.role, array.dtype)
    if poison is None or array.shape[:2] != hidden.shape:
        return array
    copy = array.copy()
    copy[hidden] = np.asarray(poison, array.dtype)
    return copy


def _same_rows(before: NDArray[Any], after: NDArray[Any], rows: NDArray[np.bool_]) -> bool:
    if before.shape[:2] != rows.shape:
        return True  # an output without a row per query says nothing here
    return bool(np.array_equal(before[rows], after[rows], equal_nan=True))
