"""The power of a verification: mutants of a file on a real runtime, and which of them the gates catch.

A pair of a mutant and a case is *manifest* if the mutant's effect, in float64 and without any rounding, exceeds u|o|
in the root mean square over all outputs: a fault that changes nothing on these inputs cannot be seen on them, and
counts for nothing. Manifest pairs are graded by the worst error of the pool of correct implementations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.arithmetic import PROFILES, Arithmetic, profile
from onnx_attest.verify.cases import longest_axis, plan_cases, without_unreachable
from onnx_attest.verify.cell import Identity, Stage, Subject, describe, run_cell
from onnx_attest.verify.expected import Expected
from onnx_attest.verify.gauge import LARGEST, Gauge
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.kernels import VALUES_ALONE, Kernel, pool
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.power.mutants import Mutant, mutants
from onnx_attest.verify.records import CORRECT, CaseRecord, CellRecord
from onnx_attest.verify.runtimes.base import Runtime, Session, Tensors, UnavailableError
from onnx_attest.verify.signature import Signature, read_signature

STRONG = 4.0
"""A fault beyond this many times the pool's worst error has to be caught."""
_IN_ROUNDINGS = ("products-tf32", "accumulate-fp16")
"""Classes that are simulated with the working precision's own roundings: their effect is none in float64."""
_IN_OVERFLOW = ("softmax-no-max",)
"""Classes that change nothing but where numbers overflow."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One mutant on one case.

    Attributes:
        cell: what the gates say of the runtime's outputs, held against the unmutated file.
        outputs: None if the runtime raised.
        effect: root mean square of what the mutant changes, over that of the exact outputs; None where it is unknown.
        second_hand: the oracle cannot evaluate the mutant; its effect is what the runtime made of it.
        undone: the runtime gives what it gives for the file itself, bit by bit: its optimiser took the fault out. Or
            numbers that would overflow in the declared format do not, since it computes in a longer one.
        resolution: u of the declared arithmetic: an effect above it is manifest.
        pool: the worst error of the correct implementations, in the same unit.
    """

    mutant: Mutant
    case: CaseRecord
    inputs: Tensors
    cell: CellRecord
    outputs: Tensors | None
    effect: float | None
    resolution: float
    pool: float
    second_hand: bool = False
    undone: bool = False

    @property
    def manifest(self) -> bool:
        """Whether the fault changes the outputs by more than one rounding of them, and the runtime lets it."""
        return not self.undone and self.effect is not None and self.effect > self.resolution

    @property
    def killed(self) -> bool:
        """Whether a gate found something; a runtime that refuses the mutant has not been measured."""
        return self.cell.verdict == "failed"

    @property
    def strength(self) -> float:
        """The effect in units of the pool's worst error; infinite if the outputs hold no number."""
        return math.inf if self.effect is None else self.effect / max(self.pool, self.resolution / 4)


class Bench:
    """One file on one runtime, with everything that its mutants are held against."""

    def __init__(
        self, artifact: Artifact, runtime: Runtime, *, arithmetic: str | None = None, seed: int = 0
    ) -> None:
        """Read the file and make its cases.

        Raises:
            UsageError: the runtime does not run the file, or the oracle cannot evaluate it.
        """
        self._artifact, self._runtime = artifact, runtime
        signature = read_signature(artifact)
        self._subject = Subject(Identity.of(artifact, signature), signature, Expected(signature))
        if reason := self._subject.expected.reason:
            raise UsageError(f"{artifact.path}: {reason}; without it no effect is known")
        self._arithmetic = profile(arithmetic or runtime.arithmetic(signature.floating.name))
        self._original = GraphOracle(signature.model, empty_rows=signature.contract.empty_rows)
        self.cases = self._plan_cases(signature, seed)
        self._version = runtime.availability().version
        self.refused: dict[int, str] = {}
        """Why the runtime did not open a mutant, by its `id`."""

    @property
    def identity(self) -> Identity:
        """Of the file."""
        return self._subject.identity

    @property
    def runtime_name(self) -> str:
        """The runtime that the mutants run on."""
        return self._runtime.name

    @property
    def arithmetic(self) -> Arithmetic:
        """The declared one."""
        return self._arithmetic

    @property
    def signature(self) -> Signature:
        """Of the file."""
        return self._subject.signature

    def mutants(self) -> Iterator[Mutant]:
        """Yield the file itself, then its mutants."""
        model = self.signature.model
        yield Mutant(CORRECT, None, "the file itself", "", True, model)
        yield from mutants(model, traced_length=self.traced_length)

    @property
    def traced_length(self) -> int | None:
        """The number of keys that the file was traced with: the longest axis; None where no manifest says it."""
        return max(self.signature.contract.traced.values(), default=None)

    def inputs(self, case: CaseRecord) -> Tensors:
        """Return the inputs of a case."""
        return self._subject.expected.inputs(case)

    def computed(self, inputs: Mapping[str, NDArray[Any]], kernel: Kernel) -> dict[str, NDArray[Any]]:
        """Return the outputs of the file as a kernel computes them, in float64 arrays."""
        values = self._values(self._original, dict(inputs), kernel) or {}
        return {name: bounded.value for name, bounded in values.items()}

    def exact(self, inputs: Tensors) -> Mapping[str, Bounded]:
        """Return the outputs in float64, with their bounds."""
        return self._subject.expected.evaluate(inputs, self._arithmetic).outputs

    def open(self, model: onnx.ModelProto) -> Session:
        """Return a session of a mutant.

        Raises:
            UsageError: the runtime refuses it.
        """
        session = self._open(model)
        if isinstance(session, str):
            raise UsageError(f"{self.runtime_name}: {session}")
        return session

    def gauge(self, inputs: Tensors, arithmetic: Arithmetic) -> Gauge:
        """Return what outputs for these inputs are measured with in an arithmetic; every session shares it."""
        evaluate = partial(self._subject.expected.evaluate, inputs)
        return Gauge(evaluate, arithmetic, self.signature.floating, self.signature.dtypes, inputs)

    def judge(
        self, session: Session, case: CaseRecord, inputs: Tensors, gauge: Gauge
    ) -> tuple[CellRecord, Tensors | None]:
        """Return what the gates say of any session's outputs, held against the file, and the outputs."""
        stage = Stage(self._runtime, self._version, gauge.arithmetic, session)
        cell, outputs = run_cell(self._subject, stage, case, inputs, gauge.evaluation, gauge)
        return cell.record, outputs

    def trials(self, chosen: Sequence[Mutant]) -> Iterator[Trial]:
        """Yield every mutant on every case, case by case."""
        sessions = [self._open(mutant.model) for mutant in chosen]
        self.refused = {
            id(mutant): session
            for mutant, session in zip(chosen, sessions, strict=True)
            if isinstance(session, str)
        }
        oracles = [
            GraphOracle(mutant.model, empty_rows=self.signature.contract.empty_rows) for mutant in chosen
        ]
        for case in self.cases:
            inputs = self._subject.expected.inputs(case)
            yield from self._on_case(case, inputs, chosen, sessions, oracles)

    def _on_case(
        self,
        case: CaseRecord,
        inputs: Tensors,
        chosen: Sequence[Mutant],
        sessions: Sequence[Session | str],
        oracles: Sequence[GraphOracle],
    ) -> Iterator[Trial]:
        gauge = self.gauge(inputs, self._arithmetic)
        exact = self._values(self._original, inputs, VALUES_ALONE)
        worst = self._pool_error(inputs, exact)
        unmutated: Mapping[str, Bounded] | None = None
        for mutant, session, oracle in zip(chosen, sessions, oracles, strict=True):
            if isinstance(session, str):
                continue
            cell, outputs = self.judge(session, case, inputs, gauge)
            given = (
                None
                if outputs is None
                else {name: Bounded(np.asarray(a, np.float64)) for name, a in outputs.items()}
            )
            unmutated = unmutated or given  # the first is the file itself
            effect = self._effect(mutant, oracle, inputs, exact)
            second_hand = effect is None
            if second_hand:
                effect = _relative(given, unmutated, exact)
            undone = (
                given is not None and mutant.fault != CORRECT and _undone(mutant, given, unmutated, effect)
            )
            yield Trial(
                mutant, case, inputs, cell, outputs, effect, self._arithmetic.resolution, worst, second_hand,
                undone,
            )  # fmt: skip

    def _effect(
        self, mutant: Mutant, oracle: GraphOracle, inputs: Tensors, exact: Mapping[str, Bounded] | None
    ) -> float | None:
        if mutant.fault not in (*_IN_ROUNDINGS, *_IN_OVERFLOW):
            return _relative(self._values(oracle, inputs, VALUES_ALONE), exact, exact)
        single = Kernel("working precision", storing=self.signature.floating)
        plain = self._values(self._original, inputs, single)
        effect = _relative(self._values(oracle, inputs, single), plain, exact)
        return effect if mutant.fault in _IN_ROUNDINGS or effect in (None, math.inf) else 0.0

    def _open(self, model: onnx.ModelProto) -> Session | str:
        try:
            return self._runtime.open(self._artifact, model=model.SerializeToString())
        except UnavailableError as error:
            raise UsageError(f"{self._runtime.name}: {error}") from error
        except Exception as error:  # noqa: BLE001 - a runtime may refuse a mutant: it is said, and not counted
            return describe(error)

    def _values(self, oracle: GraphOracle, inputs: Tensors, kernel: Kernel) -> Mapping[str, Bounded] | None:
        own = {name: inputs[name] for name in oracle.inputs}
        try:
            return oracle.evaluate(own, replace(PROFILES["fp64"], kernel=kernel)).outputs
        except UnsupportedOperatorError:
            return None

    def _pool_error(self, inputs: Tensors, plain: Mapping[str, Bounded] | None) -> float:
        if plain is None:
            return self._arithmetic.resolution
        kernels = pool(self._arithmetic, self.signature.floating)
        errors = [_relative(self._values(self._original, inputs, kernel), plain, plain) for kernel in kernels]
        return max((error for error in errors if error is not None), default=self._arithmetic.resolution)

    def _plan_cases(self, signature: Signature, seed: int) -> list[CaseRecord]:
        expected = self._subject.expected
        planned = plan_cases(signature.contract, seed=seed, attention=expected.has_attention())
        reachable = {std: std is None or expected.reaches(std) for std in {c.logit_std for c in planned}}
        # Rows without a key follow a policy that a mutant may follow as well.
        cases = [case for case in without_unreachable(planned, reachable) if case.mask != "empty-row"]
        small = [case for case in cases if longest_axis(signature.contract, case.axes) <= LARGEST]
        return small or cases  # a file of one fixed, long shape has no small ones


def _undone(
    mutant: Mutant,
    given: Mapping[str, Bounded],
    unmutated: Mapping[str, Bounded] | None,
    effect: float | None,
) -> bool:
    if unmutated is None:
        return False
    same = all(np.array_equal(given[name].value, unmutated[name].value, equal_nan=True) for name in given)
    spared = mutant.fault in _IN_OVERFLOW and effect == math.inf
    return same or (spared and all(np.isfinite(bounded.value).all() for bounded in given.values()))


def _relative(
    changed: Mapping[str, Bounded] | None,
    plain: Mapping[str, Bounded] | None,
    exact: Mapping[str, Bounded] | None,
) -> float | None:
    """Return the root mean square of changed - plain over that of exact; None if there is no such number."""
    if changed is None or plain is None or exact is None:
        return None
    moved, size = 0.0, 0.0
    for name, bounded in exact.items():
        if not bounded.is_float:
            continue
        a, b, o = changed[name].value, plain[name].value, bounded.value
        if a.shape != b.shape:
            return None
        known = np.isfinite(b) & np.isfinite(o)
        if not np.isfinite(a[known]).all():
            return math.inf
        moved += float(((a - b)[known] ** 2).sum())
        size += float((o[known] ** 2).sum())
    return math.sqrt(moved / size) if size > 0 else None
