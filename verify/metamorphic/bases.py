"""The inputs that relations start from, and ordinary changes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from onnx_attest.models.contract import MaskKind, TensorSpec
from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.metamorphic.layout import Layout
from onnx_attest.verify.metamorphic.relation import Array, Pair, Step, Take
from onnx_attest.verify.oracle.bounded import is_floating
from onnx_attest.verify.runtimes.base import Tensors

SEED = 7


@dataclass(frozen=True, eq=False)
class Bases:
    """What relations are made from.

    Attributes:
        layout: of the file.
        make: returns the inputs of one small case under a kind of mask, None for the plain one.
        arithmetic: the widest of the runtimes', for limits that are known without any evaluation.
        explicit: whether the contract was written for this file; one that is guessed promises nothing.
    """

    layout: Layout
    make: Callable[[MaskKind | None], Tensors]
    arithmetic: Arithmetic
    explicit: bool
    made: dict[MaskKind | None, Step]

    def step(self, mask: MaskKind | None = None) -> Step:
        """Return the first run under a kind of mask, always the same one: it is run once for all relations."""
        if mask not in self.made:
            self.made[mask] = Step(self.make(mask))
        return self.made[mask]

    @property
    def in_any_order(self) -> bool:
        """Whether the contract says that no query or key knows its position."""
        return self.explicit and self.layout.contract.causal == "no"

    def fits(self, axis: str, size: int) -> bool:
        """Whether a named axis may have this size."""
        contract = self.layout.contract
        return size <= contract.longest.get(axis, size) and size % contract.granularity == 0

    def size(self, axis: str) -> int:
        """Return the size of a named axis in all runs that do not change it."""
        inputs = self.step().inputs
        for spec in self.layout.contract.inputs:
            if axis in spec.axes:
                return int(inputs[spec.name].shape[spec.axes.index(axis)])
        return 0


def taken(index: Array, axis: int) -> Take:
    """Return a choice of entries along an axis."""
    return lambda array: np.take(array, index, axis=axis)


def chain(*takes: Take) -> Take:
    """Return several choices one after the other."""

    def all_of(array: Array) -> Array:
        for take in takes:
            array = take(array)
        return array

    return all_of


def same(names: Iterable[str], *, step: int = 1) -> tuple[Pair, ...]:
    """Return pairs of whole outputs that have to be the same."""
    return tuple(Pair(name, step) for name in names)


def garbage(spec: TensorSpec, array: Array, where: Array, *, large: float) -> Array:
    """Return the array with finite garbage at some entries of its leading axes.

    Args:
        spec: of the array.
        array: of any dtype.
        where: booleans over the leading axes of the array.
        large: what floats are multiplied with.
    """
    rng = np.random.default_rng(SEED)
    changed = array.copy()
    if is_floating(array.dtype):
        numbers = rng.standard_normal(array.shape) * large
        changed[where] = numbers.astype(array.dtype)[where]
    elif array.dtype != np.dtype(bool):
        below = int(array.max()) + 1 if spec.below is None else spec.below
        integers = rng.integers(spec.least, max(below, spec.least + 1), array.shape)
        changed[where] = integers.astype(array.dtype)[where]
    return changed


def of_rounded(exact: Array, dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
    """Return numbers in a dtype, and how far each is from the exact one."""
    stored = exact.astype(dtype)
    return stored, np.abs(stored.astype(np.float64) - exact)


def unit_slack(keys: int, arithmetic: Arithmetic) -> float:
    """Return how far a weighted mean of ones may be from 1.

    The bound of NUMERICS.md section 1 with V = o = 1: the centred term is 0, whatever the weights are, and
    2 gamma_{n+2}(u_acc) + 2 u_p (1 + u_p), the output's roundings, and what may flush to zero are left.
    """
    sums = 2 * gamma(keys + 2, arithmetic.u_acc)
    weights = max(arithmetic.u_p, arithmetic.u_s, arithmetic.u)
    relative = sums + 2 * weights * (1 + weights)
    output = arithmetic.c_o * max(arithmetic.u_out, arithmetic.u)
    return float((relative * (1 + output) + output) + 2 * keys * arithmetic.omega + arithmetic.eta)
