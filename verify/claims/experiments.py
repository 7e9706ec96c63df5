"""The experiments: exports of the chapter's modules, run on each runtime, measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.models.catalogue import D_K, D_V
from onnx_attest.verify.blame import MODULE
from onnx_attest.verify.cell import describe
from onnx_attest.verify.claims import CLAIMS, measures, tokens
from onnx_attest.verify.claims.laboratory import BARE, NAIVE, SCALED, Files, Laboratory
from onnx_attest.verify.claims.measured import Measured
from onnx_attest.verify.engine import Plan, Step
from onnx_attest.verify.excuse import excuse_claim
from onnx_attest.verify.headroom.kept import kept_in
from onnx_attest.verify.records import ClaimRecord
from onnx_attest.verify.runtimes.base import Session, Tensors, UnavailableError

SIZES = (16, 64, 256, 1024)
"""d_k, for what the scale does."""
_LENGTH = 128


def run_claims(plan: Plan, files: Files, claims: Collection[int] = ()) -> Iterator[ClaimRecord]:
    """Yield the records of the experiments on these statements, by default all.

    What the statement about costs needs is measured alone, see `growth.py`. A runtime that cannot be opened, or raises,
    gives one record a statement, skipped or errored.
    """
    for runtime in plan.runtimes:
        for claim in claims or EXPERIMENTS:
            plan.on_step(Step(CLAIMS, runtime.name, f"statement {claim}"))
            if reason := plan.dead.get((CLAIMS, runtime.name)):
                yield ClaimRecord(claim=claim, runtime=runtime.name, verdict="errored", reason=reason)
                continue
            try:
                for record in EXPERIMENTS[claim](Laboratory(files, runtime, plan)):
                    yield excuse_claim(record, plan.known)
            except UnavailableError as error:
                yield ClaimRecord(claim=claim, runtime=runtime.name, verdict="skipped", reason=str(error))
            except UsageError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a runtime raises ends this experiment, not the run
                yield ClaimRecord(
                    claim=claim, runtime=runtime.name, verdict="errored", reason=describe(error)
                )


def _products(laboratory: Laboratory) -> Iterator[ClaimRecord]:
    artifact = laboratory.files.chapter(SCALED)
    inputs = laboratory.random(3, 33, D_K)
    scores = laboratory.scores(artifact, inputs)
    measured = measures.products(scores, inputs["Q"], inputs["K"], D_K**-0.5, laboratory.fp32)
    yield laboratory.record(1, measured, f"{scores.size} scores")
    inputs = laboratory.random(3, 33, D_K, unit=True)
    scores = laboratory.scores(artifact, inputs)
    measured = measures.directions(scores, inputs["Q"], inputs["K"])
    yield laboratory.record(1, measured, "vectors of length 1")


def _variance(laboratory: Laboratory) -> Iterator[ClaimRecord]:
    for d_k in SIZES:
        inputs = laboratory.random(4, _LENGTH, d_k)
        bare, scaled = (
            laboratory.scores(laboratory.files.chapter(module, d_k), inputs) for module in (BARE, SCALED)
        )
        yield laboratory.record(3, measures.variances(bare, scaled, d_k), f"d_k {d_k}", at=d_k)


def _saturation(laboratory: Laboratory) -> Iterator[ClaimRecord]:
    before: Mapping[str, float | None] = {}
    for d_k in SIZES:
        inputs = laboratory.random(4, _LENGTH, d_k)
        bare, scaled = (
            laboratory.open(laboratory.files.chapter(module, d_k)).run(inputs)["weights"]
            for module in (BARE, SCALED)
        )
        measured = measures.saturation(bare, scaled, before)
        before = measured.numbers
        yield laboratory.record(4, measured, f"d_k {d_k}", at=d_k)
    if laboratory.runtime.name == MODULE:
        yield from _learning(laboratory)


def _learning(laboratory: Laboratory) -> Iterator[ClaimRecord]:
    from onnx_attest.models.learning import learn_to_recall

    d_k = 256
    bare, scaled = (learn_to_recall(d_k, scaled=scaled) for scaled in (False, True))
    numbers: dict[str, float | None] = {
        "solved": bare.solved,
        "solved_scaled": scaled.solved,
        "last_loss": bare.losses[-1],
        "last_loss_scaled": scaled.losses[-1],
        "last_gradient": bare.last_gradient,
        "last_gradient_scaled": scaled.last_gradient,
    }
    measured = Measured(numbers, measures.learning(scaled.solved, bare.solved))
    losses = {"loss": bare.losses, "loss_scaled": scaled.losses}
    yield laboratory.record(4, measured, f"training, d_k {d_k}", series=losses)


def _row_sums(laboratory: Laboratory) -> Iterator[ClaimRecord]:
    session = laboratory.open(laboratory.files.chapter(SCALED))
    for length in (33, 257, 1031):
        inputs = laboratory.random(1, length, D_K)
        measured = measures.row_sums(session.run(inputs)["weights"], laboratory.fp32)
        yield laboratory.record(5, measured, f"{length} keys")


def _overflow(laboratory: Laboratory) -> Iterator[ClaimRecord]:
    for dtype in ("float32", "float16"):
        naive, stable = (
            laboratory.open(laboratory.files.chapter(module, D_K, dtype)) for module in (NAIVE, SCALED)
        )
        kept = _kept_in(naive, laboratory, dtype)
        for keys, equal in ((64, 1), (64, 64), (1024, 1024)):
            works, stays = (_works_at(session, keys, equal, dtype) for session in (naive, stable))
            measured = measures.overflow(works, stays, kept, equal)
            setting = f"{keys} equal scores" if equal > 1 else f"one large score of {keys}"
            yield laboratory.record(6, measured, setting, dtype=dtype, at=equal)


def _kept_in(naive: Session, laboratory: Laboratory, dtype: str) -> str:
    inputs = _in_dtype(laboratory.random(2, 64, D_K), dtype)
    weights = naive.run(inputs)["weights"]
    Q, K = (inputs[name].astype(np.float64) for name in ("Q", "K"))
    divisor = float(np.asarray(D_K**0.5, weights.dtype))  # as the file stores it
    scores = Q @ K.swapaxes(-1, -2) / divisor
    stored = scores.astype(weights.dtype).astype(np.float64)
    return kept_in(weights, [_softmax(scores), _softmax(stored)])


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    exponentials = np.exp(scores)
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))


def _works_at(session: Session, keys: int, equal: int, dtype: str) -> Callable[[float], bool]:
    """Return whether each row sums to about 1 where `equal` of the keys have a given score, and the others 0.

    Where the sum overflows and no exponential does, the weights are not NaN: they are 0.
    """

    def works(score: float) -> bool:
        Q, K = np.zeros((1, keys, D_K)), np.zeros((1, keys, D_K))
        Q[..., 0], K[:, :equal, 0] = score, D_K**0.5
        inputs = {"Q": Q, "K": K, "V": np.ones((1, keys, D_V)), "mask": np.ones((1, keys, keys), bool)}
        weights = session.run(_in_dtype(inputs, dtype))["weights"].astype(np.float64)
        return bool((np.abs(weights.sum(-1) - 1) < 0.5).all())

    return works


def _in_dtype(inputs: Mapping[str, NDArray[Any]], dtype: str) -> Tensors:
    return {
        name: array if array.dtype == np.bool_ else array.astype(np.dtype(dtype))
        for name, array in inputs.items()
    }


EXPERIMENTS: Mapping[int, Callable[[Laboratory], Iterator[ClaimRecord]]] = {
    1: _products, 3: _variance, 4: _saturation, 5: _row_sums, 6: _overflow, 7: tokens.hull, 8: tokens.reach, 9: tokens.from_the_input,
    10: tokens.at_once, 11: tokens.graph,
}  # fmt: skip
