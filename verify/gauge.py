"""What one case is measured with beyond the bound: noise and direction, and the arithmetic that was really used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import PROFILES, TIGHTEST_FIRST, Arithmetic
from onnx_attest.verify.gates import Judgement, judge
from onnx_attest.verify.noise import NOISE_FACTOR, Measured, Yardstick, noise_of
from onnx_attest.verify.oracle.bounded import KAPPA, Bounded
from onnx_attest.verify.oracle.graph import Evaluation
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError

LARGEST = 64
"""Cases with a longer axis have the bound alone: faults show as well in small ones, and the pool costs four evaluations."""

COARSEST_SUMS = 2.0**-20
"""Runtimes that sum in half precision have no pool to be compared with: their sums stall, each in its own way."""


def with_deviations(arithmetic: Arithmetic) -> Arithmetic:
    """Return the arithmetic with deviations asked for, if they say anything of it."""
    return arithmetic if arithmetic.u_acc > COARSEST_SUMS else replace(arithmetic, deviations=True)


class Gauge:
    """One case in one declared arithmetic. Nothing is evaluated before it is asked for; runtimes share it."""

    def __init__(
        self,
        evaluate: Callable[..., Evaluation],
        arithmetic: Arithmetic,
        floating: np.dtype[Any],
        dtypes: Mapping[str, np.dtype[Any]],
        inputs: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    ) -> None:
        """Take what the case is evaluated with.

        Args:
            evaluate: the oracle on the case's inputs, as a function of the arithmetic and `logit_factor`.
            arithmetic: declared.
            floating: dtype of the graph.
            dtypes: of the outputs.
            inputs: of the case.
        """
        self._inputs = inputs
        self._evaluate, self.arithmetic = evaluate, arithmetic
        self._floating, self._dtypes = floating, dtypes
        self._bounds: dict[str, Mapping[str, Bounded] | None] = {}

    @cached_property
    def evaluation(self) -> Evaluation:
        """What the oracle says of the case, each value with its bound and its deviation.

        Raises:
            UnsupportedOperatorError: an operator, or a form of one, that the oracle does not have.
        """
        return self._evaluate(replace(self.arithmetic, deviations=True))

    @cached_property
    def yardstick(self) -> Yardstick:
        """The case's deviations, pool and directions."""
        return Yardstick.of(
            self._evaluate, self.arithmetic, self._floating, self.evaluation.outputs, self._inputs,
            coded=bool(self.evaluation.coding),
        )  # fmt: skip

    def measure(self, outputs: Mapping[str, NDArray[Any]]) -> Measured:
        """Return noise and directions of outputs of the right form."""
        return self.yardstick.measure(outputs)

    def ran_as(
        self, outputs: Mapping[str, NDArray[Any]], declared: Judgement, measured: Measured
    ) -> str | None:
        """Return the tightest arithmetic whose bound holds and whose noise it is, None if none is.

        A bound is for the worst case: that of TF32 holds for most of what is computed in bfloat16. So the noise counts
        as well, without a pool: three times the deviation.

        Args:
            outputs: of the right form.
            declared: what the bound of the declared arithmetic said.
            measured: what its noise said.
        """
        if measured.is_a_shift:  # a fault, which some looser arithmetic's bound would cover
            return None
        for name in TIGHTEST_FIRST[self._floating.name]:
            if name == self.arithmetic.name:
                judged, quiet = declared, not measured.findings
            else:
                bounds = self._bounds_in(name)
                if bounds is None:
                    continue
                judged = judge(outputs, bounds, self._dtypes)
                quiet = noise_of(outputs, bounds, PROFILES[name]).rms_z <= NOISE_FACTOR
            if judged.passed and not judged.unbounded and quiet:
                return name
            if name == self.arithmetic.name and declared.unbounded:
                return None  # those that follow are looser: what has no bound here has none there
        return None

    def _bounds_in(self, name: str) -> Mapping[str, Bounded] | None:
        """Return the bounds in another arithmetic, None where there are none: a root that is below 0 within its error."""
        if name not in self._bounds:
            try:
                outputs = self._evaluate(replace(PROFILES[name], deviations=True)).outputs
            except UnsupportedOperatorError:
                self._bounds[name] = None
                return None
            self._bounds[name] = {
                key: _stored(bounded, self._dtypes[key]) for key, bounded in outputs.items()
            }
        return self._bounds[name]


def _stored(bounded: Bounded, dtype: np.dtype[Any]) -> Bounded:
    """Return an output as it is once it has been rounded to the dtype it is stored in."""
    if not bounded.is_float:
        return bounded
    kind = ml_dtypes.finfo(dtype)
    size = np.where(np.isfinite(bounded.value), np.abs(bounded.value), 0.0) + bounded.errors()
    u = float(kind.eps) / 2
    error = bounded.errors() + u * size + float(kind.smallest_subnormal)
    # Below the smallest normal number, rounding is to a multiple of the smallest subnormal one.
    own = KAPPA * (u * size) ** 2 + float(kind.smallest_subnormal) ** 2 / 12
    return Bounded(bounded.value, error, variance=np.asarray(bounded.variances() + own))
