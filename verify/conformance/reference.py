"""What is right for a case: the float64 oracle on the case's own graph, else on its other form, else the case itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import onnx

from onnx_attest.verify.arithmetic import PROFILES, Arithmetic
from onnx_attest.verify.conformance.case import Arrays, Case
from onnx_attest.verify.node_cases import COMPUTED_IN, compare
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError

Kind = Literal["operator", "expanded", "second-hand", "none"]
"""Whose word counts: the oracle's on the operator, on its function body, or that of the case's own outputs alone."""


@dataclass(frozen=True, eq=False)
class Reference:
    """What the outputs are held against.

    Attributes:
        outputs: the oracle's, with bounds; None where it has none.
        lacks: what the oracle lacks for the case's own graph, "" if nothing.
    """

    kind: Kind
    outputs: Mapping[str, Bounded] | None = None
    lacks: str = ""


class References:
    """The references of one case: an evaluation for each arithmetic that some runtime computes in."""

    def __init__(self, case: Case) -> None:
        """Read the case; nothing is evaluated yet."""
        self._case = case
        self._found: dict[str, Reference] = {}

    def under(self, profile: str) -> Reference:
        """Return what the outputs of a runtime that computes in this arithmetic are held against."""
        if profile not in self._found:
            self._found[profile] = reference_of(self._case, profile)
        return self._found[profile]

    @cached_property
    def at_odds(self) -> str:
        """How the case's own outputs differ from the oracle's by more than rounding, "" if they do not."""
        if self._case.expected is None:
            return ""
        outputs = self.under(COMPUTED_IN[self._case.dtype]).outputs or {}
        with np.errstate(all="ignore"):
            said = {
                name: compare(value, self._case.expected[name])[0]
                for name, value in outputs.items()
                if name in self._case.expected
            }
        return "; ".join(f"{name}: {reason}" for name, reason in said.items() if reason)


def reference_of(case: Case, profile: str) -> Reference:
    """Return what the outputs of a runtime that computes in this arithmetic are held against."""
    lacks = ""
    for kind, model in case.references:
        try:
            return Reference(kind, evaluated(model, case.inputs, PROFILES[profile]), lacks)
        except UnsupportedOperatorError as error:
            lacks = lacks or str(error)
    return Reference("none" if case.expected is None else "second-hand", None, lacks)


def evaluated(model: onnx.ModelProto, inputs: Arrays, arithmetic: Arithmetic) -> dict[str, Bounded]:
    """Return the oracle's outputs.

    Raises:
        UnsupportedOperatorError: an operator, or a form of one, that the oracle lacks, or an output that is no tensor.
    """
    found = GraphOracle(model).evaluate(inputs, arithmetic)
    if found.others:
        raise UnsupportedOperatorError(f"the output {next(iter(found.others))} is no tensor")
    return found.outputs
