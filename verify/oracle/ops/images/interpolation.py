"""Values between the numbers of a grid: weighted sums of those around a place, which is itself computed.

Runtimes compute places in float32, whatever the data. A step whose exact result float32 holds is exact, any other is
rounded. What a place off by D does to the result is bounded by the local differences: the weights of each place add up
to one, so that a change of theirs, dw, makes sum dw (x - c) for any c, of which the number in the middle is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle.bounded import KAPPA, Array, Bounded, Floats, rounded, sum_variance
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError

SINGLE = 2.0**-24
"""Unit roundoff of float32."""


@dataclass(frozen=True, eq=False)
class Places:
    """Places along one axis, in units of its numbers, and how far off float32 arithmetic may have them."""

    value: Floats
    error: Floats
    variance: Floats

    @classmethod
    def exactly(cls, value: Any) -> Places:
        """Return places that every runtime has alike."""
        array = np.asarray(value, np.float64)
        return cls(array, np.zeros(array.shape), np.zeros(array.shape))

    @classmethod
    def of(cls, numbers: Bounded) -> Places:
        """Return places that are given.

        Raises:
            UnsupportedOperatorError: NaN or an infinity is among them.
        """
        value = np.asarray(numbers.value, np.float64)
        if not np.isfinite(value).all():
            raise UnsupportedOperatorError("places that are no finite numbers")
        error, variance = (
            np.broadcast_to(own, value.shape) for own in (numbers.errors(), numbers.variances())
        )
        return cls(value, error, variance)

    def __add__(self, other: Places) -> Places:
        return _single(self.value + other.value, self.error + other.error, self.variance + other.variance)

    def __sub__(self, other: Places) -> Places:
        return _single(self.value - other.value, self.error + other.error, self.variance + other.variance)

    def __mul__(self, other: Places) -> Places:
        a, b = np.abs(self.value), np.abs(other.value)
        error = a * other.error + self.error * (b + other.error)
        return _single(self.value * other.value, error, a**2 * other.variance + b**2 * self.variance)

    def __truediv__(self, other: Places) -> Places:
        """Divide, or multiply with the reciprocal: where it is not exact there are two roundings."""
        value, divisor = self.value / other.value, np.abs(other.value)
        rest = np.maximum(divisor - other.error, 0.0)
        with np.errstate(divide="ignore"):
            error = np.where(
                (self.error == 0) & (other.error == 0), 0.0, (self.error + np.abs(value) * other.error) / rest
            )
        variance = (self.variance + value**2 * other.variance) / divisor**2
        return _single(value, error, variance, 2)

    def reshaped(self, *shape: int) -> Places:
        """Return the same places in another shape."""
        return Places(*(own.reshape(shape) for own in (self.value, self.error, self.variance)))

    def within(self, lowest: float, highest: float) -> Places:
        """Return the nearest places within limits: no place moves further than the one it comes from."""
        return Places(np.clip(self.value, lowest, highest), self.error, self.variance)

    def near(self, limit: Floats | float) -> Array:
        """Return where it is a matter of rounding on which side of a limit a place is."""
        return (self.error > 0) & (np.abs(self.value - limit) <= self.error)


def _single(value: Floats, error: Floats, variance: Floats, roundings: float = 1.0) -> Places:
    with np.errstate(over="ignore"):
        inexact = (error > 0) | (value.astype(np.float32) != value)
    own = np.where(inexact, SINGLE, 0.0)
    return Places(
        value,
        error + roundings * own * (np.abs(value) + error),
        variance + roundings * KAPPA * (own * value) ** 2,
    )


@dataclass(frozen=True)
class Filter:
    """The weight of a number by its distance from the place.

    Attributes:
        support: distance from which on it is zero.
        steepness: of its steepest slope.
        weight: evaluated in float64.
        roundings: of evaluating it, by distance: the absolute error in units of u, and the sum of the squares of what is
            rounded on the way.
        sensitivity: how much a weight changes with the filter's own parameter, if that is not known exactly.
    """

    support: int
    steepness: float
    weight: Callable[[Floats], Floats]
    roundings: Callable[[Floats], tuple[Floats, Floats]]
    sensitivity: float = 0.0


def _triangle(distance: Floats) -> Floats:
    return np.maximum(0.0, 1.0 - np.abs(distance))


def _triangle_roundings(distance: Floats) -> tuple[Floats, Floats]:
    """The fraction of a place is exact, and one minus it is rounded."""
    weight = _triangle(distance)
    return 2 * weight, weight**2


TRIANGLE = Filter(1, 1.0, _triangle, _triangle_roundings)
"""Linear interpolation."""


def cubic(a: Bounded) -> Filter:
    """Return the filter of cubic convolution with coefficient a (Keys 1981, equation 4).

    Its roundings are those of Horner's rule, twice for other ways to write it, and the distance's own through the slope.
    """
    coefficient, uncertain = float(a.value.reshape(())), float(np.max(a.errors()))
    inner = (coefficient + 2, -(coefficient + 3), 0.0, 1.0)
    outer = (coefficient, -5 * coefficient, 8 * coefficient, -4 * coefficient)
    steepness = _steepest(inner, outer)
    numbers = np.array([*inner, *outer])
    slack = 0.0 if np.array_equal(numbers.astype(np.float32), numbers) else 1.0

    def pieces(distance: Floats, evaluated: Callable[[Sequence[float], Floats], Floats]) -> Floats:
        x = np.abs(distance)
        return np.where(x <= 1, evaluated(inner, x), np.where(x < 2 + SINGLE, evaluated(outer, x), 0.0))

    def weight(distance: Floats) -> Floats:
        return np.where(np.abs(distance) < 2, pieces(distance, _polynomial), 0.0)

    def roundings(distance: Floats) -> tuple[Floats, Floats]:
        error = 2 * pieces(distance, lambda part, x: _horner(part, x, slack)[0])
        return error + 2 * steepness, pieces(distance, lambda part, x: _horner(part, x, slack)[1])

    return Filter(2, steepness, weight, roundings, uncertain * _BY_COEFFICIENT)


def _polynomial(coefficients: Sequence[float], x: Floats) -> Floats:
    return np.asarray(np.polyval(coefficients, x), np.float64)


def _horner(coefficients: Sequence[float], x: Floats, slack: float) -> tuple[Floats, Floats]:
    """Return the running error of Horner's rule in units of u (Higham, section 5.1), and the sum of squares.

    Args:
        coefficients: highest power first.
        x: not negative.
        slack: roundings of each coefficient.
    """
    value: Floats = np.full_like(x, coefficients[0])
    error, squares = slack * np.abs(value), np.zeros_like(x)
    for number in coefficients[1:]:
        product = value * x
        value = product + number
        error = error * x + np.abs(product) + np.abs(value) + slack * abs(number)
        squares = squares + product**2 + value**2
    return error, squares


_BY_COEFFICIENT = 0.15
"""The largest of |x^3 - x^2| on [0, 1] and of |x^3 - 5 x^2 + 8 x - 4| on [1, 2] is 4/27."""


def _steepest(inner: Sequence[float], outer: Sequence[float]) -> float:
    """Return the steepest slope of the two parts, which are cubic: it is at an end or where they bend over."""
    slopes = []
    for part, start in ((inner, 0.0), (outer, 1.0)):
        bend = start if part[0] == 0 else -part[1] / (3 * part[0])
        points = np.array([start, np.clip(bend, start, start + 1), start + 1])
        slopes.append(np.abs(np.polyval(np.polyder(np.asarray(part)), points)).max())
    return float(max(slopes))


@dataclass(frozen=True, eq=False)
class Taps:
    """The numbers around places, on the last axis, and their weights.

    Attributes:
        index: of the number on its axis; beyond its ends for one that is outside.
        weight: exact.
        moved: how far it may be off because the place is; such changes add up to zero.
        rounded: how far it may be off because it is itself rounded.
        slope: its change per unit of the place; None if no variance is asked for.
        spread: variance of the places.
        own: variance of rounding the weight, in units of u^2.
    """

    index: Array
    weight: Floats
    moved: Floats
    rounded: Floats
    slope: Floats | None
    spread: Floats
    own: Floats

    @property
    def count(self) -> int:
        """How many numbers around each place."""
        return int(self.index.shape[-1])


@dataclass(frozen=True)
class Window:
    """How weights are taken: the filter, and what is done to it.

    Attributes:
        scale: distances are multiplied by it; below one where a filter against aliasing is stretched.
        size: of the axis, if what is outside has no weight; None: it has.
    """

    filter: Filter
    scale: float = 1.0
    size: int | None = None

    @property
    def normalised(self) -> bool:
        """Whether weights have to be divided by their sum, which is one otherwise."""
        return self.scale != 1.0 or self.size is not None


def taps_at(places: Places, window: Window, arithmetic: Arithmetic) -> Taps:
    """Return the numbers that have a weight, or may have one, at each place."""
    if arithmetic.kernel is not None:
        places = _as_computed(places, arithmetic.kernel)
    half = int(np.ceil(window.filter.support / window.scale))
    fraction = places.value - np.floor(places.value)
    crossing = (places.error > 0) & (np.minimum(fraction, 1 - fraction) <= places.error)
    if np.any(crossing):  # the cell beside it may be the runtime's
        start, count = np.rint(places.value) - half, 2 * half + 1
    else:
        start, count = np.floor(places.value) - half + 1, 2 * half
    index = np.asarray(start[..., None] + np.arange(count), np.float64)
    weight, moved, rounding, own = _weights(places, index, window, max(arithmetic.u, SINGLE))
    if window.normalised and arithmetic.kernel is not None and arithmetic.kernel.block == 1:
        weight = weight + np.where(np.isfinite(rounding), rounding, 0.0)  # of the sum that all are divided by
    slope = None
    if arithmetic.deviations:
        up, down = (_exact_weights(places.value + step, index, window) for step in (_STEP, -_STEP))
        slope = (up - down) / (2 * _STEP)
    used = np.any((weight != 0) | (moved > 0), axis=tuple(range(weight.ndim - 1)))
    kept = np.flatnonzero(used) if used.any() else np.arange(1)
    index, weight, moved = (part[..., kept] for part in (index, weight, moved))
    slope = None if slope is None else slope[..., kept]
    whole = index.astype(np.int64)
    return Taps(whole, weight, moved, rounding[..., kept], slope, places.variance, own[..., kept])


def _as_computed(places: Places, kernel: Kernel) -> Places:
    """Return places as a kernel has them: exact, or, by the one that sums one after another, as far off as is correct.

    What is off is shared by all numbers along the other axes, so that a pool with exact places would allow nothing.
    """
    if kernel.block != 1:
        return places
    signs = np.where(np.arange(places.value.size) % 2, -1.0, 1.0).reshape(places.value.shape)
    return Places(places.value + signs * places.error, places.error, places.variance)


_STEP = 2.0**-17
"""Of a central difference in float64."""


def _exact_weights(value: Floats, index: Floats, window: Window) -> Floats:
    weight = window.filter.weight(window.scale * (index - value[..., None])) * _counted(index, window)
    return _normalised(weight) if window.normalised else weight


def _counted(index: Floats, window: Window) -> Array:
    if window.size is None:
        return np.ones(index.shape, np.bool_)
    return (index >= 0) & (index < window.size)


def _normalised(weight: Floats) -> Floats:
    total = weight.sum(-1, keepdims=True)
    return weight / np.where(total == 0, 1.0, total)


def _weights(
    places: Places, index: Floats, window: Window, u: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the weights, how far the places may move them, how far they may be rounded, and the variance of that."""
    filter_, counted = window.filter, _counted(index, window)
    distance = window.scale * (index - places.value[..., None])
    error = np.broadcast_to(window.scale * places.error[..., None], distance.shape)
    if window.scale != 1.0:  # the scale, its reciprocal, and the product
        error = error + 3 * u * np.abs(distance)
    reached = counted & (np.abs(distance) < filter_.support + error)
    weight = np.where(counted, filter_.weight(distance), 0.0)
    moved = np.where(reached, filter_.steepness * error + filter_.sensitivity, 0.0)
    roundings, squares = filter_.roundings(distance)
    rounding = np.where(reached, u * roundings * (1 + 8 * u) + u * moved, 0.0)
    own = np.where(reached, KAPPA * squares, 0.0)
    if not window.normalised:
        return weight, moved, rounding, own
    total = weight.sum(-1, keepdims=True)
    count = index.shape[-1] + 1
    summed = rounding.sum(-1, keepdims=True) + gamma(count, u) * np.abs(weight).sum(-1, keepdims=True)
    shift = moved.sum(-1, keepdims=True)
    rest = np.abs(total) - shift - summed
    normal = _normalised(weight)
    with np.errstate(divide="ignore", invalid="ignore"):
        moved, rounding = (
            np.where(rest > 0, (part + np.abs(normal) * whole) / rest, np.where(reached, np.inf, 0.0))
            for part, whole in ((moved, shift), (rounding, summed))
        )
        own = np.where(total != 0, (own + normal**2 * own.sum(-1, keepdims=True)) / total**2, 0.0)
    return normal, moved, rounding + 2 * u * np.abs(normal), own + 2 * KAPPA * normal**2


Picker = Callable[[Array, tuple[int, ...]], Array]
"""Takes, from an array, the numbers that the taps of all axes point at."""


def weighted(x: Bounded, pick: Picker, axes: Sequence[Taps], terms: int, arithmetic: Arithmetic) -> Bounded:
    """Return the weighted sum of the numbers around each place.

    Args:
        x: the numbers.
        pick: takes them.
        axes: taps whose weights broadcast against what is picked.
        terms: how many roundings each product goes through.
        arithmetic: what the sum is taken in.
    """
    products = list(itertools.product(*(range(axis.count) for axis in axes)))
    middle = tuple((axis.count - 1) // 2 for axis in axes)
    with np.errstate(invalid="ignore", over="ignore"):
        value = np.asarray(sum(_product(axes, own, _exactly) * pick(x.value, own) for own in products))
        if arithmetic.kernel is not None:
            return Bounded(arithmetic.kernel.stored(value))
        relative = gamma(terms, max(arithmetic.u, arithmetic.u_acc))
        centre, error = pick(x.value, middle), np.zeros(value.shape)
        for own in products:
            exact, moved, most = (_product(axes, own, size) for size in (_size, _moved, _most))
            number = pick(x.value, own)
            error += (most * (1 + relative) - moved) * np.abs(number)
            if np.any(moved > exact):
                error += (moved - exact) * np.abs(number - centre)
            if x.error is not None:
                error += most * (1 + relative) * pick(x.error, own)
        error = error + terms * arithmetic.omega
        variance = _variance(x, value, pick, axes, products, arithmetic)
        return rounded(value, error, arithmetic, 0.0 if arithmetic.u_s == 0 else 1.0, variance=variance)


def _exactly(taps: Taps, tap: int) -> Floats:
    return taps.weight[..., tap]


def _size(taps: Taps, tap: int) -> Floats:
    return np.abs(taps.weight[..., tap])


def _moved(taps: Taps, tap: int) -> Floats:
    return _size(taps, tap) + taps.moved[..., tap]


def _most(taps: Taps, tap: int) -> Floats:
    return _moved(taps, tap) + taps.rounded[..., tap]


def _product(axes: Sequence[Taps], own: tuple[int, ...], size: Callable[[Taps, int], Floats]) -> Floats:
    result = np.ones(())
    for taps, tap in zip(axes, own, strict=True):
        result = result * size(taps, tap)
    return result


def _variance(
    x: Bounded,
    value: Floats,
    pick: Picker,
    axes: Sequence[Taps],
    products: Sequence[tuple[int, ...]],
    arithmetic: Arithmetic,
) -> Floats | float:
    """Return the variance: through the numbers, the roundings of weights and sums, and the slope along each axis."""
    if not arithmetic.deviations:
        return 0.0
    given, squares, weights = (np.zeros(value.shape) for _ in range(3))
    slopes = [np.zeros(value.shape) for _ in axes]
    for own in products:
        weight, number = _product(axes, own, _exactly), pick(x.value, own)
        squares += (weight * number) ** 2
        if x.variance is not None:
            given += weight**2 * pick(x.variance, own)
        for turned, slope in enumerate(slopes):
            slope += number * _with_one(axes, own, turned, _exactly, _sloping)
            weights += number**2 * _with_one(axes, own, turned, _squared, _own)
    u = max(arithmetic.u, SINGLE)
    summing = sum_variance(value, squares, 2 ** len(axes), arithmetic)
    through = sum(taps.spread * slope**2 for taps, slope in zip(axes, slopes, strict=True))
    return given + summing + u**2 * (weights + len(axes) * KAPPA * squares) + through


def _squared(taps: Taps, tap: int) -> Floats:
    return taps.weight[..., tap] ** 2


def _own(taps: Taps, tap: int) -> Floats:
    return taps.own[..., tap]


def _sloping(taps: Taps, tap: int) -> Floats:
    return np.zeros(()) if taps.slope is None else taps.slope[..., tap]


def _with_one(
    axes: Sequence[Taps],
    own: tuple[int, ...],
    turned: int,
    others: Callable[[Taps, int], Floats],
    one: Callable[[Taps, int], Floats],
) -> Floats:
    """Return the product over axes, of which one has something else than the others."""
    result = np.ones(())
    for place, (taps, tap) in enumerate(zip(axes, own, strict=True)):
        result = result * (one if place == turned else others)(taps, tap)
    return result


Outside = Callable[[Array, int], tuple[Array, Array]]
"""Returns, for indices and the size of their axis, those that stand for them, and whether there is a number at all."""


def zeros_outside(index: Array, size: int) -> tuple[Array, Array]:
    """Beyond the ends there are zeros."""
    return np.clip(index, 0, size - 1), (index >= 0) & (index < size)


def border_outside(index: Array, size: int) -> tuple[Array, Array]:
    """Beyond the ends the last number continues."""
    return np.clip(index, 0, size - 1), np.ones(index.shape, np.bool_)


def sampled(
    x: Bounded,
    places: Sequence[Places],
    filter_: Filter,
    arithmetic: Arithmetic,
    outside: Outside = zeros_outside,
) -> Bounded:
    """Return what is at places between the numbers of x.

    Args:
        x: (images, channels, ...).
        places: for each spatial axis (images, points).
        filter_: the interpolation.
        arithmetic: what it is carried out in.
        outside: what there is beyond the ends.

    Returns:
        (images, channels, points).
    """
    sizes, widest = x.value.shape[2:], float(filter_.support + 2)
    kept = [place.within(-widest, size + widest) for place, size in zip(places, sizes, strict=True)]
    axes = [_beside_channels(taps_at(place, Window(filter_), arithmetic)) for place in kept]
    located = [outside(taps.index, size) for taps, size in zip(axes, sizes, strict=True)]
    count = int(np.prod(sizes, dtype=np.int64))

    def pick(flat: Array, own: tuple[int, ...]) -> Array:
        place: Array = np.zeros((), np.int64)
        there: Array = np.ones((), np.bool_)
        for (index, inside), size, tap in zip(located, sizes, own, strict=True):
            place, there = place * size + index[..., tap], there & inside[..., tap]
        return np.take_along_axis(flat, np.where(there, place, count), 2)

    terms = (2 * filter_.support) ** len(axes) + len(axes)
    return weighted(x.moved(_flat_with_zero), pick, axes, terms, arithmetic)


def _flat_with_zero(images: Array) -> Array:
    """Return the numbers of each channel in a row, and a zero behind them for those that are outside."""
    flat = images.reshape(*images.shape[:2], -1)
    return np.concatenate([flat, np.zeros((*flat.shape[:2], 1))], -1)


def _beside_channels(taps: Taps) -> Taps:
    """Return taps of (images, points) for (images, channels, points)."""
    slope = None if taps.slope is None else taps.slope[:, None]
    own = taps.own[:, None]
    return Taps(
        taps.index[:, None],
        taps.weight[:, None],
        taps.moved[:, None],
        taps.rounded[:, None],
        slope,
        taps.spread[:, None],
        own,
    )


def along(x: Bounded, axis: int, taps: Taps, terms: int, arithmetic: Arithmetic) -> Bounded:
    """Return x resampled along one axis; beyond the ends the last number continues."""
    size, beside = x.value.shape[axis], (1,) * (x.value.ndim - axis - 1)
    index, _ = border_outside(taps.index, size)

    def pick(array: Array, own: tuple[int, ...]) -> Array:
        return np.take(np.broadcast_to(array, x.value.shape), index[:, own[0]], axis)

    def aligned(part: Floats) -> Floats:
        return part.reshape(part.shape[0], *beside, *part.shape[1:])

    slope = None if taps.slope is None else aligned(taps.slope)
    shaped = Taps(
        taps.index,
        aligned(taps.weight),
        aligned(taps.moved),
        aligned(taps.rounded),
        slope,
        aligned(taps.spread),
        aligned(taps.own),
    )
    return weighted(x, pick, [shaped], terms, arithmetic)


def nearest(x: Bounded, pick: Picker, candidates: Sequence[tuple[Array, Array, Array]]) -> Bounded:
    """Return the numbers at rounded places; where rounding decides, the bound covers both candidates.

    Args:
        x: the numbers.
        pick: takes them by the choice on each axis: 0 the exact one, 1 and 2 those at the ends of the error.
        candidates: the three choices on each axis, to tell where they differ.
    """
    exactly = (0,) * len(candidates)
    chosen = Bounded(pick(x.value, exactly))
    errors, variances = ((None if own is None else pick(own, exactly)) for own in (x.error, x.variance))
    if not any(np.any(low != high) for _, low, high in candidates):
        return Bounded(chosen.value, errors, variance=variances)
    error = np.zeros(chosen.value.shape) if errors is None else errors
    for own in itertools.product((1, 2), repeat=len(candidates)):
        other = np.abs(pick(x.value, own).astype(np.float64) - chosen.value)
        error = np.maximum(error, other + (0.0 if x.error is None else pick(x.error, own)))
    variance = None if variances is None else variances + (error - (0.0 if errors is None else errors)) ** 2
    return Bounded(chosen.value, error, variance=variance)
