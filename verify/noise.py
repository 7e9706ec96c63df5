"""The gates *noise* and *direction*: how far outputs are from exact in units of their deviation, and along what.

z = (y - o) / sigma is one scale for every length, width, dtype and range of logits (NUMERICS.md sections 2 and 3).

*noise*: RMS z and max |z| of a runtime are held against those of four deliberately different correct implementations
on the same inputs at the same precision. *direction*: a matched filter. A fault moves the outputs along a known
direction D; eps = <(y - o) / sigma^2, D> / <D / sigma^2, D> is its size, and t = |sum_i g_i| / sqrt(sum_i g_i^2) over
rows, g_i = sum_c D_ic (y - o)_ic / sigma_ic^2, tells it from roundings, which do not agree with each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.oracle.bounded import Bounded, Floats, is_floating
from onnx_attest.verify.oracle.kernels import VALUES_ALONE, pool

if TYPE_CHECKING:
    from onnx_attest.verify.oracle.graph import Evaluation

Arrays = Mapping[str, NDArray[Any]]
NOISE_FACTOR = 3.0
"""At 2 the largest statistic of correct runs came to 1.97: no margin (NUMERICS.md section 3)."""
LEAST_RMS_Z, LEAST_MAX_Z = 0.25, 2.0
LEAST_SIZE, LEAST_T = 4.0, 6.0
"""A fault along a direction is flagged above 4 roundings, which a constant may be off by, and t above 6."""
_STEP = 2.0**-12
_ROUNDED_IN_DOUBLE = 2.0**-40
_TINY = 2.0**-200  # its inverse, squared twice, is still a number
_LINEAR = 0.3  # the derivative says little of a factor that is farther from 1
_NEARLY_ALL = 0.9
_FEW_ROWS = 0.5  # of the rows of the outputs are made from different inputs
_ONE_IN_A_MILLION = 4.75  # standard deviations


@dataclass(frozen=True)
class Noise:
    """RMS and largest |z| over all elements that are finite on both sides; how many, and how many say nothing.

    Attributes:
        floored: elements whose deviation is that of what may flush to zero: z is far too small there.
    """

    rms_z: float
    max_z: float
    count: int = 0
    floored: int = 0


@dataclass(frozen=True)
class Along:
    """What of an error lies along a direction.

    Attributes:
        size: of the fault, relative.
        t: how surely it is there.
        explained: by how much it lowers the sum of z^2; of two directions that are alike, the right one lowers it more.
        least: the size from which on it is told: four roundings, or three times what a correct implementation has on
            these inputs. Truncated operands, TF32's, make all products too small, and all logits with them.
    """

    label: str
    size: float
    t: float
    explained: float
    least: float = 0.0


@dataclass(frozen=True, eq=False)
class Yardstick:
    """All that outputs of one case are measured with.

    Attributes:
        exact: outputs with their variances.
        pool: what the correct implementations came to, the worst of each.
        pool_along: the same along each direction, the largest size.
        directions: of faults, by their name: what a fault of relative size 1 would add to each output.
        witnesses: a number for each row of an output; rows of the same number share their roundings, see `witnesses`.
        coded: numbers become codes on the way: see `Measured.limits`.
    """

    arithmetic: Arithmetic
    exact: Mapping[str, Bounded]
    pool: Noise
    pool_along: Mapping[str, float]
    directions: Mapping[str, Mapping[str, Floats]]
    witnesses: Mapping[str, NDArray[np.intp]]
    coded: bool = False

    @staticmethod
    def of(
        evaluate: Callable[..., Evaluation],
        arithmetic: Arithmetic,
        storing: np.dtype[Any],
        exact: Mapping[str, Bounded] | None = None,
        inputs: Arrays = MappingProxyType({}),
        *,
        coded: bool = False,
    ) -> Yardstick:
        """Make the yardstick of one case.

        Args:
            evaluate: the oracle on the case's inputs, as a function of the arithmetic and `logit_factor`.
            arithmetic: declared.
            storing: dtype of the outputs.
            exact: the outputs with their deviations, if they have been evaluated already.
            inputs: of the case; equal ones among them have equal roundings.
            coded: whether numbers become codes on the way.

        Raises:
            UnsupportedOperatorError: as `evaluate` does.
        """
        exact = evaluate(replace(arithmetic, deviations=True)).outputs if exact is None else exact
        exact = {name: bounded for name, bounded in exact.items() if bounded.is_float}
        # Values alone are enough here, and a kernel makes no bounds.
        moved = evaluate(replace(arithmetic, kernel=VALUES_ALONE), logit_factor=1 + _STEP).outputs
        moves = {name: _moved(moved[name].value, exact[name].value) for name in exact}
        directions = {"all logits": moves, "all outputs": {name: exact[name].value for name in exact}}
        rows = {name: witnesses(inputs, bounded.value.shape) for name, bounded in exact.items()}
        bare = Yardstick(arithmetic, exact, Noise(0.0, 0.0), {}, directions, rows, coded)
        seen = []
        for kernel in pool(arithmetic, storing):
            outputs = evaluate(replace(arithmetic, kernel=kernel)).outputs
            seen.append(bare.measure({name: outputs[name].value for name in exact}))
        worst = Noise(max(one.noise.rms_z for one in seen), max(one.noise.max_z for one in seen))
        along: dict[str, float] = {}
        for one in (found for measured in seen for found in measured.along):
            along[one.label] = max(along.get(one.label, 0.0), abs(one.size))
        return replace(bare, pool=worst, pool_along=along)

    @property
    def least_rms_z(self) -> float:
        """What the RMS z of the pool counts as at least: of few numbers that differ, a mean says little.

        Of w independent errors the mean square is a chi-squared over w; by Wilson and Hilferty (1931) it stays below
        the cube of 1 - 2 / (9 w) + z sqrt(2 / (9 w)), and z = 4.75 is exceeded once in a million times.
        """
        different = self._different
        if different == 0:
            return LEAST_RMS_Z
        return _least_of(different)

    @property
    def unlike_rows(self) -> int:
        """How many rows of the outputs are independent at least: elements of one row share the roundings of its weights."""
        return sum(len(np.unique(numbers)) for numbers in self.witnesses.values())

    @cached_property
    def _different(self) -> int:
        """How many roundings are independent: equal numbers share theirs, and so do rows made from equal inputs."""
        rows = sum(numbers.size for numbers in self.witnesses.values())
        unlike = self.unlike_rows
        if unlike <= _FEW_ROWS * rows:
            return unlike
        return sum(len(np.unique(places)) for places in self._places.values())

    @cached_property
    def _places(self) -> dict[str, NDArray[np.intp]]:
        """A number for each element of an output: equal where elements are, but for what float64 itself has rounded."""
        with np.errstate(over="ignore"):
            return {
                name: np.unique(bounded.value.astype(np.float32).reshape(-1), return_inverse=True)[1]
                for name, bounded in self.exact.items()
            }

    def _together(self, name: str, terms: Floats) -> float:
        """Return the sum of squares of terms, one an element, once those are summed that share their roundings.

        Rows made from equal inputs do, and so do equal numbers: of both sums of squares the larger one counts.
        """
        rows = self.witnesses[name]
        by_row = np.bincount(rows, terms.reshape(rows.size, -1).sum(-1))
        different, counts = np.unique(by_row, return_counts=True)  # equal sums are of rows that are alike
        by_number = np.bincount(self._places[name], terms.reshape(-1))
        return max(float(((different * counts) ** 2).sum()), float((by_number**2).sum()))

    def measure(self, actual: Arrays) -> Measured:
        """Return what outputs of the right form come to; those without a number on either side are left out."""
        return Measured(self, noise_of(actual, self.exact, self.arithmetic), self._along(actual))

    def _least(self, label: str) -> float:
        roundings = LEAST_SIZE * self.arithmetic.resolution
        return max(roundings, NOISE_FACTOR * self.pool_along.get(label, 0.0))

    def _along(self, actual: Arrays) -> tuple[Along, ...]:
        found = []
        for label, direction in self.directions.items():
            numerator, squares, length = 0.0, 0.0, 0.0
            for name, bounded in self.exact.items():
                difference, weight = _difference(actual[name], bounded), _weight(bounded, self.arithmetic)
                D = np.where(np.isfinite(direction[name]), direction[name], 0.0)
                if difference.size == 0:
                    continue
                terms = D * difference * weight
                numerator += float(terms.sum())
                squares += self._together(name, terms)
                length += float((D * D * weight).sum())
            if length > 0 and squares > 0 and math.isfinite(length) and math.isfinite(squares):
                t = abs(numerator) / math.sqrt(squares)
                found.append(Along(label, numerator / length, t, numerator**2 / length, self._least(label)))
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Measured:
    """One set of outputs against a yardstick."""

    yardstick: Yardstick
    noise: Noise
    along: Sequence[Along]

    @property
    def limits(self) -> Noise:
        """What the noise of a correct runtime stays below.

        Where numbers become codes, roundings are few: one of a scale moves all that is quantised with it, and a code that
        flips is a rare error and a large one, of which a small case may have one and the pool none. So the mean counts as
        that of one rounding, and the largest z is compared with nothing: a flip of probability p is a z of 1 / sqrt(p).
        """
        pool_ = self.yardstick.pool
        if self.yardstick.coded:
            return Noise(NOISE_FACTOR * max(pool_.rms_z, _least_of(1)), math.inf)
        least = self.yardstick.least_rms_z
        return Noise(NOISE_FACTOR * max(pool_.rms_z, least), NOISE_FACTOR * max(pool_.max_z, LEAST_MAX_Z))

    @property
    def effective_bits(self) -> float | None:
        """Bits, p - log2(RMS z): from p on, the runtime computes in more than was declared. None without noise."""
        return bits_of(self.noise, self.yardstick.arithmetic)

    @property
    def shift(self) -> Along | None:
        """The direction along which the outputs are surely off; None if there is none."""
        sure = [one for one in self.along if abs(one.size) > one.least and one.t > LEAST_T]
        return max(sure, key=lambda one: one.explained, default=None)

    @property
    def is_a_shift(self) -> bool:
        """Whether nearly all of the error is one direction: then it is that fault, and no shorter arithmetic."""
        whole = self.noise.rms_z**2 * self.noise.count
        return self.shift is not None and self.shift.explained > _NEARLY_ALL * whole

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Return what both gates find."""
        found, limits, noise = [], self.limits, self.noise
        if (shift := self.shift) is not None:
            more = ", or more" if abs(shift.size) > _LINEAR else ""
            text = f"off as if {shift.label} were times 1 {shift.size:+.3g}{more} (t = {shift.t:.3g})"
            found.append(finding("OA311", text))
        if noise.rms_z > limits.rms_z or noise.max_z > limits.max_z:
            text = too_loud(noise, limits)
            found.append(finding("OA310", text))
        return tuple(found)


def too_loud(noise: Noise, limits: Noise) -> str:
    """Return what is said of noise beyond its limits."""
    if math.isinf(limits.max_z):
        return (
            f"RMS z {noise.rms_z:.3g}; correct implementations stay below {limits.rms_z:.3g} on these inputs"
        )
    return (
        f"RMS z {noise.rms_z:.3g} and max |z| {noise.max_z:.3g}; correct implementations stay below "
        f"{limits.rms_z:.3g} and {limits.max_z:.3g} on these inputs"
    )


def _least_of(different: int) -> float:
    """Return what the RMS z of the pool counts as at least, of so many independent roundings."""
    tail = 2 / (9 * different)
    return float(LEAST_RMS_Z * (1 - tail + _ONE_IN_A_MILLION * tail**0.5) ** 1.5)


def witnesses(inputs: Arrays, shape: tuple[int, ...]) -> NDArray[np.intp]:
    """Return a number for each row (all axes but the last) of an output of this shape: equal where roundings are shared.

    A row of an output is made from the row of the same place of an input. Where such input rows are equal, padding or
    one token again and again, so are the roundings of whatever is computed from them, even if a mask makes the results
    differ. Of several inputs the one with the fewest different rows decides.
    """
    lead = shape[:-1]
    numbers = np.arange(math.prod(lead))
    for array in inputs.values():
        if array.ndim == len(shape) and array.shape[:-1] == lead and is_floating(array.dtype) and array.size:
            rows = np.ascontiguousarray(array).reshape(numbers.size, -1)
            alike = np.unique(
                rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))), return_inverse=True
            )[1]
            if alike.max() < numbers.max():
                numbers = alike.reshape(-1)
    return numbers


def bits_of(noise: Noise, arithmetic: Arithmetic) -> float | None:
    """Return p - log2(RMS z), None without noise, or where most of what there is may flush to zero."""
    if not 0 < noise.rms_z < math.inf or 2 * noise.floored > noise.count:
        return None
    return max(0.0, arithmetic.bits - math.log2(noise.rms_z))


def noise_of(actual: Arrays, exact: Mapping[str, Bounded], arithmetic: Arithmetic) -> Noise:
    """Return RMS and largest |z| of outputs of the right form, over all elements that are numbers on both sides."""
    total, count, largest, floored = 0.0, 0, 0.0, 0
    for name, bounded in exact.items():
        if not bounded.is_float:
            continue
        difference = _difference(actual[name], bounded)
        z2 = difference**2 * _weight(bounded, arithmetic)
        # What is exact, and exactly right, would only dilute the mean.
        known = (
            np.isfinite(bounded.value)
            & np.isfinite(z2)
            & ((np.asarray(bounded.variances()) > 0) | (difference != 0))
        )
        total += float(z2[known].sum())
        count += int(known.sum())
        floored += int((known & (np.asarray(bounded.variances()) < flushed_variance(arithmetic))).sum())
        largest = max(largest, float(z2[known].max(initial=0.0)))
    return Noise(math.sqrt(total / count) if count else 0.0, math.sqrt(largest), count, floored)


def noise_together(parts: Sequence[Noise]) -> Noise:
    """Return the noise of all elements from that of the parts they are in."""
    count = sum(part.count for part in parts)
    total = sum(part.rms_z**2 * part.count for part in parts)
    return Noise(
        math.sqrt(total / count) if count else 0.0,
        max((part.max_z for part in parts), default=0.0),
        count,
        sum(part.floored for part in parts),
    )


def _moved(after: Floats, before: Floats) -> Floats:
    """Return the derivative from a step; what float64 itself may have rounded is none."""
    with np.errstate(invalid="ignore"):  # of infinities; they are left out
        difference = after - before
        return np.where(np.abs(difference) <= _ROUNDED_IN_DOUBLE * np.abs(before), 0.0, difference / _STEP)


def _difference(actual: NDArray[Any], exact: Bounded) -> Floats:
    """Return actual - exact, 0 where either is no number."""
    y = actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(y) & np.isfinite(exact.value), y - exact.value, 0.0)


def _weight(exact: Bounded, arithmetic: Arithmetic) -> Floats:
    """Return 1 / sigma^2 in the value's shape; what may flush to zero counts into sigma."""
    return np.asarray(
        1 / (np.broadcast_to(exact.variances(), exact.value.shape) + flushed_variance(arithmetic))
    )


def flushed_variance(arithmetic: Arithmetic) -> float:
    """Return the variance of what may flush to zero."""
    return float(max(arithmetic.eta + arithmetic.omega, _TINY) ** 2)
