"""RoiAlign: means or maxima over samples between the numbers of an image, in the parts of rectangles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle.bounded import KAPPA, Array, Bounded, Floats, rounded, sum_variance
from onnx_attest.verify.oracle.ops.images.interpolation import SINGLE, TRIANGLE, Places, Taps, Window, taps_at
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    placing,
    required,
)

_SINCE_HALF_PIXEL = 16
"""Before opset 16, rectangles are not moved by half a number, and are at least 1 wide and high."""


@dataclass(frozen=True, eq=False)
class _Samples:
    """Where the samples of each rectangle are along one axis: (rectangles, parts, samples of a part).

    Attributes:
        places: within the image.
        taps: the numbers around, with weights.
        counted: samples there are, for a rectangle may have fewer, and that are not outside of the image.
        unsure: samples that are outside within their error.
        counts: how many samples each rectangle has.
        size: of the axis.
    """

    places: Places
    taps: Taps
    counted: Array
    unsure: Array
    counts: Floats
    size: int


@dataclass(frozen=True, eq=False)
class _Means:
    """Means of samples along one axis as products with matrices (rectangles, parts, size).

    Attributes:
        exact: the weights.
        moved: and how far the places may move them.
        most: and how far they may be rounded.
        slope: their change per unit of the place; None if no variance is asked for.
        spread: variance of the places, (rectangles, parts).
    """

    exact: Floats
    moved: Floats
    most: Floats
    slope: Floats | None
    spread: Floats


Pooled = Callable[[Floats, Floats, Array], Floats]


def _roi_align(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x, images = required(inputs, 0), placing(inputs, 2).reshape(-1)
    lengths = int(node.get("output_height", 1)), int(node.get("output_width", 1))
    axes = _samples(node, required(inputs, 1), x.value.shape[2:], lengths, arithmetic)
    mode = node.get("mode", "avg")
    if mode not in ("avg", "max"):
        raise UnsupportedOperatorError(f"RoiAlign in the mode {mode}")
    if mode == "max":
        return [_largest(x, images, axes, arithmetic)]
    return [_average(x, images, axes, arithmetic)]


def _samples(
    node: Node, rectangles: Bounded, sizes: tuple[int, ...], lengths: tuple[int, int], arithmetic: Arithmetic
) -> list[_Samples]:
    """Return the samples along height and width; a rectangle is (left, top, right, bottom)."""
    halved = "output_half_pixel"
    if node.opset >= _SINCE_HALF_PIXEL:
        halved = node.get("coordinate_transformation_mode", "half_pixel")
    if halved not in ("half_pixel", "output_half_pixel"):
        raise UnsupportedOperatorError(f"RoiAlign with coordinate_transformation_mode={halved}")
    factor = Places.of(node.real("spatial_scale", 1.0))
    ratio, aligned = int(node.get("sampling_ratio", 0)), halved == "half_pixel"
    corners = []
    for column in range(4):
        own = Places.of(rectangles.moved(lambda array, column=column: array[:, column]))  # type: ignore[misc]
        scaled = own * factor
        corners.append(scaled - Places.exactly(0.5) if aligned else scaled)
    ends = (corners[1], corners[3]), (corners[0], corners[2])
    return [
        _along_axis(start, _extent(start, end, aligned=aligned), length, size, ratio, arithmetic)
        for (start, end), length, size in zip(ends, lengths, sizes, strict=True)
    ]


def _extent(start: Places, end: Places, *, aligned: bool) -> Places:
    extent = end - start
    return extent if aligned else extent.within(1.0, np.inf)


def _along_axis(
    start: Places, extent: Places, length: int, size: int, ratio: int, arithmetic: Arithmetic
) -> _Samples:
    part = extent / Places.exactly(length)
    counts = np.full(part.value.shape, ratio) if ratio > 0 else _adaptive(part)
    most = max(int(counts.max(initial=0)), 1)
    number, sample = np.arange(length).reshape(1, -1, 1), np.arange(most).reshape(1, 1, -1)
    each, first = part.reshaped(-1, 1, 1), start.reshaped(-1, 1, 1)
    steps = Places.exactly(np.maximum(counts, 1).reshape(-1, 1, 1))
    places = first + Places.exactly(number) * each + Places.exactly(sample + 0.5) * each / steps
    there = np.broadcast_to(sample < counts.reshape(-1, 1, 1), places.value.shape)
    outside = (places.value < -1) | (places.value > size)
    unsure = places.near(-1.0) | places.near(float(size))
    inside = places.within(0.0, size - 1.0)
    taps = taps_at(inside, Window(TRIANGLE), arithmetic)
    return _Samples(inside, taps, there & ~outside, there & unsure, counts.astype(np.float64), size)


def _adaptive(part: Places) -> Array:
    """Return how many samples a part has: one for each number that it covers.

    Raises:
        UnsupportedOperatorError: it covers a whole number of them within its rounding error.
    """
    counts = np.ceil(part.value)
    if np.any(np.ceil(part.value - part.error) != np.ceil(part.value + part.error)):
        raise UnsupportedOperatorError("a number of samples that is whole within its rounding error")
    return np.maximum(counts, 0).astype(np.int64)


def _means(samples: _Samples) -> _Means:
    taps, counted = samples.taps, samples.counted[..., None]
    index = np.clip(taps.index, 0, samples.size - 1)
    share = 1 / np.maximum(samples.counts, 1).reshape(-1, 1, 1)

    def matrix(weights: Floats) -> Floats:
        rectangles, parts = index.shape[:2]
        result = np.zeros((rectangles, parts, samples.size))
        rows = np.arange(rectangles).reshape(-1, 1, 1, 1), np.arange(parts).reshape(1, -1, 1, 1)
        np.add.at(result, (*rows, index), weights)
        return result * share

    exact = np.where(counted, taps.weight, 0.0)
    moved = np.where(counted, taps.moved, 0.0)
    lost = np.where(samples.unsure[..., None], np.abs(taps.weight) + taps.moved, 0.0)
    own = np.where(counted, taps.rounded, 0.0) + lost
    slope = None if taps.slope is None else matrix(np.where(counted, taps.slope, 0.0))
    spread = taps.spread.mean(-1)
    return _Means(matrix(exact), matrix(exact + moved), matrix(exact + moved + own), slope, spread)


def _average(x: Bounded, images: Array, axes: list[_Samples], arithmetic: Arithmetic) -> Bounded:
    """Return the means over samples: a product with a matrix for each axis.

    The matrices of all samples that are inside have rows of the same sum whatever the places are: what moves is held
    against the mean of the channel, see `interpolation`.
    """
    high, wide = (_means(samples) for samples in axes)

    def pooled(above: Floats, beside: Floats, array: Array) -> Floats:
        return _pooled(above, beside, np.broadcast_to(array, x.value.shape), images)

    with np.errstate(invalid="ignore", over="ignore"):
        value = pooled(high.exact, wide.exact, x.value)
        if arithmetic.kernel is not None:
            return Bounded(arithmetic.kernel.stored(value))
        terms = 4 * int(np.prod([samples.taps.index.shape[2] for samples in axes])) + 3
        relative = gamma(terms, max(arithmetic.u, arithmetic.u_acc))
        size = np.abs(x.value)
        centred = np.abs(x.value - x.value.mean((2, 3), keepdims=True))
        error = pooled(high.most, wide.most, (1 + relative) * (size + x.errors()))
        error -= pooled(high.moved, wide.moved, size - centred) + pooled(high.exact, wide.exact, centred)
        variance = _variance(x, value, high, wide, pooled, terms, arithmetic)
        # The sum is divided, or multiplied with the rounded reciprocal.
        return rounded(value, np.maximum(error, 0.0), arithmetic, 2.0, variance=variance)


def _variance(
    x: Bounded, value: Floats, high: _Means, wide: _Means, pooled: Pooled, terms: int, arithmetic: Arithmetic
) -> Floats | float:
    if not arithmetic.deviations or high.slope is None or wide.slope is None:
        return 0.0
    u = max(arithmetic.u, SINGLE)
    squares = pooled(high.exact**2, wide.exact**2, x.value**2)
    given = pooled(high.exact**2, wide.exact**2, np.asarray(x.variances()))
    own = sum_variance(value, squares, terms, arithmetic) + 4 * KAPPA * u**2 * squares
    above = high.spread[:, None, :, None] * pooled(high.slope, wide.exact, x.value) ** 2
    beside = wide.spread[:, None, None, :] * pooled(high.exact, wide.slope, x.value) ** 2
    return given + own + above + beside


_CHUNK = 1 << 23


def _pooled(above: Floats, beside: Floats, x: Array, images: Array) -> Floats:
    """Return above @ x @ beside^T for the image of each rectangle, (rectangles, channels, parts, parts)."""
    _, channels, height, width = x.shape
    parts = above.shape[1]
    result = np.zeros((len(images), channels, parts, beside.shape[1]))
    step = max(1, _CHUNK // max(1, channels * parts * width))
    for image in np.unique(images):
        flat = x[image].transpose(1, 0, 2).reshape(height, channels * width)
        for chosen in _chunks(np.flatnonzero(images == image), step):
            rows = above[chosen].reshape(-1, height) @ flat
            rows = rows.reshape(len(chosen), parts, channels, width)
            result[chosen] = np.matmul(rows, beside[chosen].swapaxes(1, 2)[:, None]).swapaxes(1, 2)
    return result


def _chunks(numbers: Array, step: int) -> Iterator[Array]:
    for start in range(0, len(numbers), step):
        yield numbers[start : start + step]


def _largest(x: Bounded, images: Array, axes: list[_Samples], arithmetic: Arithmetic) -> Bounded:
    """Return the maxima over samples of the four weighted numbers around each, which is what ONNX's cases define.

    They are no interpolated values (onnx/onnx#4764). Of two sets of numbers that differ by d in pairs, the maxima
    differ by no more than d; where a place is in the next cell, a number of weight D takes the place of another.
    """
    high, wide = axes
    shape = (len(images), x.value.shape[1], high.counted.shape[1], wide.counted.shape[1])
    value, error, variance = np.full(shape, -np.inf), np.zeros(shape), np.zeros(shape)
    steps = itertools.product(*(range(samples.counted.shape[2]) for samples in axes), range(2), range(2))
    for down, right, below, behind in steps:
        there = ((down < high.counts) & (right < wide.counts))[:, None, None, None]
        own = _product_at(x, images, _corner(high, down, below), _corner(wide, right, behind))
        variance = np.where(there & (own.value > value), own.variances(), variance)
        value = np.where(there, np.maximum(value, own.value), value)
        error = np.where(there, np.maximum(error, own.errors()), error)
    return rounded(np.where(np.isneginf(value), 0.0, value), error, arithmetic, 3.0, variance=variance)


@dataclass(frozen=True, eq=False)
class _Corner:
    """The number before or after a sample of each part, (rectangles, parts): where it is, and its weight.

    Attributes:
        most: the largest weight that a runtime may have.
        other: the weight that a number outside of the cell may have.
        spread: variance of the weight.
    """

    index: Array
    weight: Floats
    most: Floats
    other: Floats
    spread: Floats


def _corner(samples: _Samples, number: int, after: int) -> _Corner:
    """Return one end of the cell that a sample is in, 0 the one before; on the last number both ends are the same."""
    places, counted = samples.places, samples.counted[:, :, number]
    place, off = places.value[:, :, number], places.error[:, :, number]
    low = np.floor(place)
    fraction = place - low
    crossing = (off > 0) & (np.minimum(fraction, 1 - fraction) <= off)
    weight = np.where(counted, fraction if after else 1 - fraction, 0.0)
    unsure = np.where(samples.unsure[:, :, number], 1.0, 0.0)
    most = np.where(counted, weight + off + 2 * SINGLE * (weight + off), 0.0) + unsure
    index = np.clip(low + after, 0, samples.size - 1).astype(np.int64)
    other = np.where(crossing, 4 * off, 0.0)
    return _Corner(index, weight, most, other, np.where(counted, places.variance[:, :, number], 0.0))


def _product_at(x: Bounded, images: Array, one: _Corner, other: _Corner) -> Bounded:
    """Return the weighted numbers at a corner."""
    chosen = (images[:, None, None], slice(None), one.index[:, :, None], other.index[:, None, :])

    def picked(array: Floats | float) -> Floats:
        return np.broadcast_to(np.asarray(array), x.value.shape)[chosen].transpose(0, 3, 1, 2)

    def crossed(above: Floats, beside: Floats) -> Floats:
        return (above[:, :, None] * beside[:, None, :])[:, None]

    number = picked(x.value)
    exact, most = crossed(one.weight, other.weight), crossed(one.most, other.most)
    largest = (np.abs(x.value) + x.errors()).max((2, 3), initial=0.0)[images][:, :, None, None]
    elsewhere = (one.other[:, :, None] + other.other[:, None, :])[:, None] * largest
    error = (most - exact) * np.abs(number) + most * picked(x.errors()) + elsewhere
    moved = crossed(one.spread, other.weight**2) + crossed(one.weight**2, other.spread)
    own = KAPPA * (2 * SINGLE * exact * number) ** 2
    variance = moved * number**2 + own + exact**2 * picked(x.variances())
    return Bounded(exact * number, error, variance=variance)


OPERATORS: dict[str, Operator] = {"RoiAlign": _roi_align}
