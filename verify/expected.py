"""What a correct runtime would give for an artifact: its specification, or else its own graph, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.verify.arithmetic import OF_DTYPE, PROFILES, Arithmetic
from onnx_attest.verify.cases import SCALED, make_inputs, shape_of
from onnx_attest.verify.footprint import refuse_beyond_memory
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.by_rows import ByRows
from onnx_attest.verify.oracle.graph import Evaluation, GraphOracle
from onnx_attest.verify.oracle.kernels import VALUES_ALONE
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.records import CaseRecord
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.signature import Signature

_CALIBRATION_ROUNDS = 8
_CALIBRATED = 0.02  # closer than the deviation of a few hundred logits is known
_GAIN_DIGITS = 3


class Expected:
    """The oracle of one artifact, and the inputs that it makes comparable.

    Attributes:
        source: `specification`, `original` (the file that this one was made from) or `graph`.
        reason: why nothing can be evaluated, "" if it can.
    """

    def __init__(self, signature: Signature, original: onnx.ModelProto | None = None) -> None:
        self._signature = signature
        self._contract = signature.contract
        self._evaluated = signature.model
        if original is not None:
            self.source, self._oracle = "original", _oracle_of(original, signature)
            self._evaluated = original
        else:
            self.source = "specification" if self._contract.specification else "graph"
            self._oracle = _oracle(signature)
            if self._contract.specification:
                self._evaluated = _parse(self._contract.specification)
        self.reason = _reason(self._oracle)
        self._gains: dict[float | None, float | None] = {None: 1.0}
        self._graphs: dict[str, GraphOracle] = {}

    def at(self, signature: Signature) -> Expected:
        """Return the same for a signature that differs in the sizes of its contract; the graph is not read again."""
        other = copy(self)
        other._signature, other._contract = signature, signature.contract
        other._gains = {None: 1.0}
        return other

    def graph(self, empty_rows: str = "unknown") -> GraphOracle:
        """Return the oracle of the file's own graph, under a policy for empty rows; it is made once for each."""
        if self.source == "graph" and empty_rows == self._contract.empty_rows:
            return self._oracle
        if empty_rows not in self._graphs:
            self._graphs[empty_rows] = GraphOracle(
                self._signature.model, empty_rows=empty_rows, folder=self._signature.folder
            )
        return self._graphs[empty_rows]

    def evaluate(
        self,
        inputs: Mapping[str, NDArray[Any]],
        arithmetic: Arithmetic,
        *,
        observed: Mapping[str, NDArray[Any]] = MappingProxyType({}),
        constants: Mapping[str, Bounded] = MappingProxyType({}),
        logit_factor: float = 1.0,
        noise: np.random.Generator | None = None,
        carry: bool = False,
    ) -> Evaluation:
        """Return the outputs with their bounds; the rest as for `GraphOracle.evaluate`.

        Raises:
            UnsupportedOperatorError: a form of an operator that the oracle does not have.
        """
        given = {name: inputs[name] for name in self._oracle.inputs}
        return self._oracle.evaluate(
            given,
            arithmetic,
            observed=observed,
            constants=constants,
            logit_factor=logit_factor,
            noise=noise,
            carry=carry,
        )

    def by_rows(
        self,
        inputs: Mapping[str, NDArray[Any]],
        arithmetic: Arithmetic,
        constants: Mapping[str, Bounded] = MappingProxyType({}),
    ) -> ByRows:
        """Return the reference on these inputs, to be evaluated for some query rows at a time.

        Raises:
            UnsupportedOperatorError: see `GraphOracle.by_rows`.
        """
        return self._oracle.by_rows(
            {name: inputs[name] for name in self._oracle.inputs}, arithmetic, constants
        )

    def evaluate_graph(
        self, inputs: Mapping[str, NDArray[Any]], arithmetic: Arithmetic, empty_rows: str
    ) -> Evaluation:
        """Return the same of the file's own graph, under another policy for empty rows."""
        return self.graph(empty_rows).evaluate(inputs, arithmetic)

    def inputs(self, case: CaseRecord) -> Tensors:
        """Return the inputs of a case, scaled so that the logits have the case's deviation."""
        gain = self._gain(case.logit_std)
        assert gain is not None, f"{case.id}: the deviation cannot be reached"
        return self._make(case, gain)

    def takes_its_own_sizes(self) -> bool:
        """Whether the oracle can evaluate the graph at the sizes of its contract; a guessed one may not fit."""
        arithmetic = replace(PROFILES["fp64"], kernel=VALUES_ALONE)
        case = CaseRecord(name="traced", axes=dict(self._contract.traced), mask=self._plain_mask())
        try:
            self.evaluate(self._make(case, 1.0), arithmetic)
        except UnsupportedOperatorError:
            return False
        return True

    def _plain_mask(self) -> str | None:
        return "all" if "all" in self._contract.mask_kinds() else None

    @property
    def mixes(self) -> bool:
        """See `GraphOracle.mixes`."""
        return self._oracle.mixes

    @property
    def coarsest(self) -> Arithmetic | None:
        """See `GraphOracle.coarsest`."""
        return self._oracle.coarsest

    def has_attention(self) -> bool:
        """Whether the oracle recognises an attention, so that there are logits to scale."""
        return not self.reason and self._logit_std(1.0) is not None

    def reaches(self, logit_std: float) -> bool:
        """Whether scaling the inputs gives the logits this deviation; behind a normalisation it does not."""
        return self._gain(logit_std) is not None

    def _gain(self, logit_std: float | None) -> float | None:
        if logit_std not in self._gains:
            assert logit_std is not None
            self._gains[logit_std] = self._calibrate(logit_std)
        return self._gains[logit_std]

    def _calibrate(self, logit_std: float) -> float | None:
        """Return the factor on the inputs that gives the logits this deviation, None if there is none.

        Logits are quadratic in the factor but for biases, so a few rounds of correcting by the square root settle.
        Rounded, so that variants of one module get the same inputs although their graphs round differently.
        """
        if not any(spec.role in SCALED for spec in self._contract.inputs):
            return None
        gain = 1.0
        for _ in range(_CALIBRATION_ROUNDS):
            seen = self._logit_std(gain)
            if not seen or not np.isfinite(seen):
                return None
            if abs(seen / logit_std - 1) < _CALIBRATED:
                return float(f"{gain:.{_GAIN_DIGITS}g}")
            gain *= (logit_std / seen) ** 0.5
        return None

    def _logit_std(self, gain: float) -> float | None:
        step = self._contract.granularity
        more = 16 if step == 1 else step
        # Of batches one is enough; lengths are such that a few hundred logits are seen.
        sizes = {
            axis: size if self._contract.is_batch(axis) else size + more
            for axis, size in self._contract.traced.items()
        }
        case = CaseRecord(name="calibration", axes=sizes, mask=self._plain_mask())
        try:
            arithmetic = PROFILES[OF_DTYPE[self._signature.floating.name]]
            return self.evaluate(self._make(case, gain), arithmetic).logit_std
        except UnsupportedOperatorError:
            return None

    def refuse_beyond_memory(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse inputs of shapes that the file, or what it is held against, has no room for.

        Raises:
            UsageError: it says how much is needed and how much there is.
        """
        refuse_beyond_memory(self._signature.model, shapes)
        if self._evaluated is not self._signature.model:
            refuse_beyond_memory(self._evaluated, {name: shapes[name] for name in self._oracle.inputs})

    def _make(self, case: CaseRecord, gain: float) -> Tensors:
        self.refuse_beyond_memory({spec.name: shape_of(spec, case.axes) for spec in self._contract.inputs})
        return make_inputs(self._contract, case, gain=gain, dtype=self._signature.floating)


def _oracle(signature: Signature) -> GraphOracle:
    """Return the oracle of the contract's specification, or else of the file.

    Raises:
        UsageError: the specification is no graph, or of other inputs; a constant of the file is damaged.
    """
    contract = signature.contract
    if not contract.specification:
        try:
            return GraphOracle(signature.model, empty_rows=contract.empty_rows, folder=signature.folder)
        except ValueError as error:
            raise UsageError(f"a constant of the file cannot be read: {error}; export it again") from error
    oracle = GraphOracle(
        _parse(contract.specification), stored_as=signature.floating, empty_rows=contract.empty_rows
    )
    names = [spec.name for spec in contract.inputs]
    if unknown := sorted(set(oracle.inputs) - set(names)):
        raise UsageError(
            f"the contract's specification takes {', '.join(unknown)}; the contract's inputs are {', '.join(names)}"
        )
    return oracle


def _oracle_of(original: onnx.ModelProto, signature: Signature) -> GraphOracle:
    """Return the oracle of the file that another was made from.

    Raises:
        UsageError: they have other inputs or outputs.
    """
    oracle = GraphOracle(original, empty_rows=signature.contract.empty_rows)
    for kind, mine, theirs in (
        ("inputs", signature.got.inputs, oracle.inputs),
        ("outputs", signature.got.outputs, oracle.outputs),
    ):
        if set(mine) != set(theirs):
            raise UsageError(
                f"the {kind} of the file are {', '.join(mine)}, those of the original {', '.join(theirs)}; "
                "give the file that it was made from"
            )
    return oracle


def _parse(specification: str) -> onnx.ModelProto:
    try:
        model = onnx.parser.parse_model(specification)
        onnx.checker.check_model(model)
    except (onnx.parser.ParseError, onnx.checker.ValidationError) as error:
        raise UsageError(f"the contract's specification is not an ONNX graph: {error}") from error
    return model


def _reason(oracle: GraphOracle) -> str:
    missing = oracle.unsupported()
    return f"the oracle does not have the operator {', '.join(missing)}" if missing else ""
