"""The experiments: exports of the chapter's modules, run on each runtime, measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.export.api import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models.catalogue import D_K, D_V, chapter_contract
from onnx_attest.models.entry import Entry, resolve
from onnx_attest.verify.arithmetic import profile
from onnx_attest.verify.blame import EAGER, MODULE
from onnx_attest.verify.cell import describe
from onnx_attest.verify.claims import CLAIMS, measures
from onnx_attest.verify.claims.measures import Measured
from onnx_attest.verify.engine import Plan, Step
from onnx_attest.verify.excuse import excuse_claim
from onnx_attest.verify.headroom.kept import kept_in
from onnx_attest.verify.probe import with_outputs
from onnx_attest.verify.records import ClaimRecord, finite
from onnx_attest.verify.runtimes.base import Runtime, Session, Tensors, UnavailableError
from onnx_attest.verify.runtimes.isolated import open_copy

SIZES = (16, 64, 256, 1024)
"""d_k, for what the scale does."""
_SCALED, _BARE, _NAIVE = "ScaledDotProductAttention", "UnscaledAttention", "NaiveSoftmaxAttention"
_LENGTH = 128
_TOKENS = 9


def run_claims(plan: Plan, folder: Path) -> Iterator[ClaimRecord]:
    """Yield the records of all experiments; exports go to `folder`.

    A runtime that cannot be opened, or raises, gives one record a statement, skipped or errored.
    """
    files = _Files(folder)  # one process makes them, for all runtimes
    for runtime in plan.runtimes:
        for claim, experiment in EXPERIMENTS.items():
            plan.on_step(Step(CLAIMS, runtime.name, f"statement {claim}"))
            if reason := plan.dead.get((CLAIMS, runtime.name)):
                yield ClaimRecord(claim=claim, runtime=runtime.name, verdict="errored", reason=reason)
                continue
            try:
                for record in experiment(_Laboratory(files, runtime, plan)):
                    yield excuse_claim(record, plan.known)
            except UnavailableError as error:
                yield ClaimRecord(claim=claim, runtime=runtime.name, verdict="skipped", reason=str(error))
            except UsageError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a runtime raises ends this experiment, not the run
                yield ClaimRecord(
                    claim=claim, runtime=runtime.name, verdict="errored", reason=describe(error)
                )


class _Files:
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
class _Laboratory:
    """One runtime with what the experiments need of it."""

    files: _Files
    runtime: Runtime
    plan: Plan

    def open(self, artifact: Artifact) -> Session:
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

    def record(self, claim: int, measured: Measured, setting: str = "", **fields: Any) -> ClaimRecord:
        return ClaimRecord(
            claim=claim,
            runtime=self.runtime.name,
            verdict="failed" if measured.wrong else "passed",
            reason=measured.wrong or measured.note,
            setting=setting,
            measured={name: finite(value) for name, value in measured.numbers.items()},
            **fields,
        )

    def random(self, batch: int, length: int, d_k: int, *, unit: bool = False) -> Tensors:
        """Return gaussian Q, K and V, of length 1 if asked for, and a mask that hides nothing."""
        rng = np.random.default_rng(self.plan.seed)
        Q, K = (rng.standard_normal((batch, length, d_k)) for _ in range(2))
        if unit:
            Q, K = (array / np.linalg.norm(array, axis=-1, keepdims=True) for array in (Q, K))
        V = rng.standard_normal((batch, length, D_V))
        floats = {name: array.astype(np.float32) for name, array in (("Q", Q), ("K", K), ("V", V))}
        return floats | {"mask": np.ones((batch, length, length), bool)}

    @property
    def fp32(self) -> Any:
        return profile(self.runtime.arithmetic("float32"))


def _products(laboratory: _Laboratory) -> Iterator[ClaimRecord]:
    artifact = laboratory.files.chapter(_SCALED)
    inputs = laboratory.random(3, 33, D_K)
    scores = laboratory.scores(artifact, inputs)
    measured = measures.products(scores, inputs["Q"], inputs["K"], D_K**-0.5, laboratory.fp32)
    yield laboratory.record(1, measured, f"{scores.size} scores")
    inputs = laboratory.random(3, 33, D_K, unit=True)
    scores = laboratory.scores(artifact, inputs)
    measured = measures.directions(scores, inputs["Q"], inputs["K"])
    yield laboratory.record(1, measured, "vectors of length 1")


def _variance(laboratory: _Laboratory) -> Iterator[ClaimRecord]:
    for d_k in SIZES:
        inputs = laboratory.random(4, _LENGTH, d_k)
        bare, scaled = (
            laboratory.scores(laboratory.files.chapter(module, d_k), inputs) for module in (_BARE, _SCALED)
        )
        yield laboratory.record(3, measures.variances(bare, scaled, d_k), f"d_k {d_k}")


def _saturation(laboratory: _Laboratory) -> Iterator[ClaimRecord]:
    before: float | None = None
    for d_k in SIZES:
        inputs = laboratory.random(4, _LENGTH, d_k)
        bare, scaled = (
            laboratory.open(laboratory.files.chapter(module, d_k)).run(inputs)["weights"]
            for module in (_BARE, _SCALED)
        )
        measured = measures.saturation(bare, scaled, before)
        before = measured.numbers["entropy"]
        yield laboratory.record(4, measured, f"d_k {d_k}")
    if laboratory.runtime.name == MODULE:
        yield from _learning(laboratory)


def _learning(laboratory: _Laboratory) -> Iterator[ClaimRecord]:
    from onnx_attest.models.learning import learn_to_recall

    d_k = 256
    bare, scaled = (learn_to_recall(d_k, scaled=scaled) for scaled in (False, True))
    numbers: dict[str, float | None] = {
        "solved": bare.solved,
        "solved_scaled": scaled.solved,
        "last_loss": bare.last_loss,
        "last_loss_scaled": scaled.last_loss,
        "last_gradient": bare.last_gradient,
        "last_gradient_scaled": scaled.last_gradient,
    }
    measured = Measured(numbers, measures.learning(scaled.solved, bare.solved))
    yield laboratory.record(4, measured, f"training, d_k {d_k}")


def _row_sums(laboratory: _Laboratory) -> Iterator[ClaimRecord]:
    session = laboratory.open(laboratory.files.chapter(_SCALED))
    for length in (33, 257, 1031):
        inputs = laboratory.random(1, length, D_K)
        measured = measures.row_sums(session.run(inputs)["weights"], laboratory.fp32)
        yield laboratory.record(5, measured, f"{length} keys")


def _overflow(laboratory: _Laboratory) -> Iterator[ClaimRecord]:
    for dtype in ("float32", "float16"):
        naive, stable = (
            laboratory.open(laboratory.files.chapter(module, D_K, dtype)) for module in (_NAIVE, _SCALED)
        )
        kept = _kept_in(naive, laboratory, dtype)
        for keys, equal in ((64, 1), (64, 64), (1024, 1024)):
            works, stays = (_works_at(session, keys, equal, dtype) for session in (naive, stable))
            measured = measures.overflow(works, stays, kept, equal)
            setting = f"{keys} equal scores" if equal > 1 else f"one large score of {keys}"
            yield laboratory.record(6, measured, setting, dtype=dtype)


def _kept_in(naive: Session, laboratory: _Laboratory, dtype: str) -> str:
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


def _hull(laboratory: _Laboratory) -> Iterator[ClaimRecord]:
    session = laboratory.open(laboratory.files.chapter(_SCALED))
    for length in (1, 33, 257):
        inputs = laboratory.random(2, length, D_K)
        measured = measures.hull(session.run(inputs)["output"], inputs["V"], laboratory.fp32)
        yield laboratory.record(7, measured, f"{length} keys, d_k {D_K}, d_v {D_V}")


def _reach(laboratory: _Laboratory) -> Iterator[ClaimRecord]:
    rng = np.random.default_rng(laboratory.plan.seed)
    for name in ("self-attention", "causal"):
        artifact = laboratory.files.model(name)
        assert artifact.manifest is not None
        width = artifact.manifest.contract.inputs[0].axes[-1]
        assert isinstance(width, int)
        session = laboratory.open(artifact)
        X = rng.standard_normal((1, _TOKENS, width)).astype(np.float32)
        mask = {} if name == "causal" else {"mask": np.ones((1, _TOKENS, _TOKENS), bool)}
        plain = session.run({"X": X, **mask})["output"]
        changed = np.zeros((_TOKENS, _TOKENS), bool)
        for token in range(_TOKENS):
            other = X.copy()
            other[:, token] += rng.standard_normal(width).astype(np.float32)
            changed[:, token] = (session.run({"X": other, **mask})["output"] != plain).any(axis=(0, 2))
        measured = measures.reach(changed, causal=name == "causal")
        yield laboratory.record(8, measured, "causal" if name == "causal" else "no mask", model=name)


EXPERIMENTS: Mapping[int, Callable[[_Laboratory], Iterator[ClaimRecord]]] = {
    1: _products, 3: _variance, 4: _saturation, 5: _row_sums, 6: _overflow, 7: _hull, 8: _reach,
}  # fmt: skip
