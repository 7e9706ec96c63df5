"""Resize, Upsample and GridSample: numbers at other places than those there are, and the grids that say where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import KAPPA, Array, Bounded, Floats
from onnx_attest.verify.oracle.ops.images.interpolation import (
    SINGLE,
    TRIANGLE,
    Filter,
    Outside,
    Places,
    Window,
    along,
    border_outside,
    cubic,
    nearest,
    sampled,
    taps_at,
    zeros_outside,
)
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    placing,
    required,
)

_SINCE_MODES = 11
"""Before opset 11, Resize has neither regions nor modes for places: they are x / scale."""
_LAST_TF_HALF_PIXEL = 12
_SINCE_AXES = 18
"""And since that opset there are filters against aliasing."""


@dataclass(frozen=True)
class Stretch:
    """What becomes of one axis.

    Attributes:
        axis: its number.
        size: before.
        length: after.
        scale: as it is given, or the quotient of both.
        given: whether it is given; then length / size may be another number.
        region: where the part to crop starts and ends, as shares of the axis.
    """

    axis: int
    size: int
    length: int
    scale: Places
    given: bool = False
    region: tuple[float, float] = (0.0, 1.0)

    @property
    def kept(self) -> bool:
        """Whether the axis stays as it is."""
        return self.size == self.length and bool(self.scale.value == 1.0)


def _resize(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x = required(inputs, 0)
    if node.opset < _SINCE_MODES:
        return [_upsampled(node, x, placing(inputs, 1).tolist(), arithmetic)]
    mode = node.get("coordinate_transformation_mode", "half_pixel")
    stretches = _stretches(node, inputs, x.value.shape)
    if mode == "tf_crop_and_resize":
        stretches = _with_regions(node, inputs, stretches)
    if mode not in _COORDINATES or (mode == "tf_half_pixel_for_nn" and node.opset > _LAST_TF_HALF_PIXEL):
        raise UnsupportedOperatorError(f"Resize with coordinate_transformation_mode={mode}")
    cropped = mode == "tf_crop_and_resize"
    moved = [one for one in stretches if cropped or not one.kept]
    for one in moved:
        _refuse_two_lengths(one, mode)
    places = [_COORDINATES[mode](one) for one in moved]
    result = _resized(node, x, moved, places, arithmetic)
    return [_extrapolated(node, result, moved, places, arithmetic) if cropped else result]


def _stretches(node: Node, inputs: Inputs, shape: tuple[int, ...]) -> list[Stretch]:
    chosen = node.get("axes") if node.opset >= _SINCE_AXES else None
    axes = [axis % len(shape) for axis in (chosen or range(len(shape)))]
    policy = node.get("keep_aspect_ratio_policy", "stretch") if node.opset >= _SINCE_AXES else "stretch"
    scales, sizes = optional(inputs, 2), optional(inputs, 3)
    if scales is not None and scales.value.size:
        factors = placing(inputs, 2).reshape(-1)
        return [_scaled(axis, shape[axis], scale) for axis, scale in zip(axes, factors, strict=True)]
    if sizes is None:
        raise UnsupportedOperatorError("Resize without scales and sizes")
    lengths = integers(inputs, 3)
    if policy == "stretch":
        return [_sized(axis, shape[axis], length) for axis, length in zip(axes, lengths, strict=True)]
    return _in_proportion(axes, shape, lengths, policy)


def _scaled(axis: int, size: int, scale: float) -> Stretch:
    """Return a stretch by a scale; its length is rounded down.

    Raises:
        UnsupportedOperatorError: the length is another if the product is rounded to float32 first.
    """
    product = float(scale) * size
    if np.floor(product) != np.floor(np.float32(product)):
        raise UnsupportedOperatorError("a length that is a whole number within its rounding error")
    return Stretch(axis, size, int(np.floor(product)), Places.exactly(scale), given=True)


def _sized(axis: int, size: int, length: int) -> Stretch:
    scale = Places.exactly(length) / Places.exactly(size) if size else Places.exactly(1.0)
    return Stretch(axis, size, length, scale)


def _in_proportion(
    axes: Sequence[int], shape: tuple[int, ...], lengths: Sequence[int], policy: str
) -> list[Stretch]:
    """Return the stretches by the same scale, the smallest or the largest that is asked for."""
    scales = [
        Places.exactly(length) / Places.exactly(shape[axis])
        for axis, length in zip(axes, lengths, strict=True)
    ]
    if policy not in ("not_larger", "not_smaller"):
        raise UnsupportedOperatorError(f"Resize with keep_aspect_ratio_policy={policy}")
    choose = min if policy == "not_larger" else max
    scale = choose(scales, key=lambda one: float(one.value))
    stretches = []
    for axis in axes:
        product = scale * Places.exactly(shape[axis])
        half = np.floor(product.value) + 0.5
        if product.near(half):
            raise UnsupportedOperatorError("a length that is half a number within its rounding error")
        stretches.append(Stretch(axis, shape[axis], int(np.floor(product.value + 0.5)), scale, given=True))
    return stretches


def _with_regions(node: Node, inputs: Inputs, stretches: Sequence[Stretch]) -> list[Stretch]:
    region = placing(inputs, 1).reshape(-1)
    if region.size != 2 * len(stretches):
        raise UnsupportedOperatorError("tf_crop_and_resize without a roi for each axis")
    ends = zip(region[: len(stretches)].tolist(), region[len(stretches) :].tolist(), strict=True)
    result = [replace(one, region=ends_of) for one, ends_of in zip(stretches, ends, strict=True)]
    if any(one.given and one.region != (0.0, 1.0) for one in result):
        # The text multiplies the length with the region's, ONNX Runtime and the reference evaluator do not.
        raise UnsupportedOperatorError("tf_crop_and_resize of a region by scales")
    return result


def _refuse_two_lengths(one: Stretch, mode: str) -> None:
    """Refuse modes that need the length, where a scale gives one that is no whole number.

    The text takes the length of the result, as ONNX Runtime does; the reference evaluator, which made the cases
    resize_downsample_scales_*_align_corners, the product of size and scale.
    """
    if mode not in ("align_corners", "tf_crop_and_resize") or not one.given:
        return
    if float(one.scale.value) * one.size != one.length:
        raise UnsupportedOperatorError(f"{mode} with a scale that gives no whole length")


def _results(one: Stretch) -> Places:
    return Places.exactly(np.arange(one.length))


_HALF = Places.exactly(0.5)


def _half_pixel(one: Stretch) -> Places:
    return (_results(one) + _HALF) / one.scale - _HALF


def _pytorch_half_pixel(one: Stretch) -> Places:
    return _half_pixel(one) if one.length > 1 else Places.exactly(np.zeros(one.length))


def _half_pixel_symmetric(one: Stretch) -> Places:
    adjustment = Places.exactly(one.length) / (one.scale * Places.exactly(one.size))
    offset = Places.exactly(one.size / 2) * (Places.exactly(1.0) - adjustment)
    return offset + (_results(one) + _HALF) / one.scale - _HALF


def _align_corners(one: Stretch) -> Places:
    if one.length <= 1:
        return Places.exactly(np.zeros(one.length))
    return _results(one) * Places.exactly(one.size - 1) / Places.exactly(one.length - 1)


def _crop_and_resize(one: Stretch) -> Places:
    start, end = (Places.exactly(share) for share in one.region)
    last = Places.exactly(one.size - 1)
    if one.length <= 1:
        return (_HALF * (start + end) * last).reshaped(1)
    return start * last + _results(one) * (end - start) * last / Places.exactly(one.length - 1)


_COORDINATES: dict[str, Callable[[Stretch], Places]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": lambda one: _results(one) / one.scale,
    "tf_half_pixel_for_nn": lambda one: (_results(one) + _HALF) / one.scale,
    "tf_crop_and_resize": _crop_and_resize,
}


def _resized(
    node: Node, x: Bounded, stretches: Sequence[Stretch], places: Sequence[Places], arithmetic: Arithmetic
) -> Bounded:
    """Return x resampled along one axis after the other, which is the same as all at once."""
    mode, rounds = node.get("mode", "nearest"), node.get("nearest_mode", "round_prefer_floor")
    exclude = bool(node.get("exclude_outside", 0))
    stretched = node.opset >= _SINCE_AXES and bool(node.get("antialias", 0))
    coefficient = node.real("cubic_coeff_a", -0.75)
    if mode == "nearest":
        if rounds not in _ROUNDED:
            raise UnsupportedOperatorError(f"Resize with nearest_mode={rounds}")
        for one, own in zip(stretches, places, strict=True):
            x = _taken(x, one, own, _ROUNDED[rounds])
        return x
    if mode not in ("linear", "cubic"):
        raise UnsupportedOperatorError(f"Resize in the mode {mode}")
    filter_ = TRIANGLE if mode == "linear" else cubic(coefficient)
    windows = [
        Window(filter_, min(1.0, float(one.scale.value)) if stretched else 1.0, one.size if exclude else None)
        for one in stretches
    ]
    return _interpolated(x, stretches, places, windows, arithmetic)


def _interpolated(
    x: Bounded,
    stretches: Sequence[Stretch],
    places: Sequence[Places],
    windows: Sequence[Window],
    arithmetic: Arithmetic,
) -> Bounded:
    """Return x interpolated along all axes; the terms of all are counted in each, whichever way a runtime sums them."""
    if not x.is_float:
        raise UnsupportedOperatorError("interpolation of integers: how it is rounded is not said")
    if any(one.size == 0 for one in stretches):
        raise UnsupportedOperatorError("interpolation of an axis without numbers")
    taps = []
    for one, own, window in zip(stretches, places, windows, strict=True):
        widest = window.filter.support / window.scale + 2
        taps.append(taps_at(own.within(-widest, one.size + widest), window, arithmetic))
    terms = int(np.prod([one.count for one in taps], dtype=np.int64)) + len(taps)
    for one, own_taps in zip(stretches, taps, strict=True):
        x = along(x, one.axis, own_taps, terms, arithmetic)
    return x


def _taken(x: Bounded, one: Stretch, places: Places, rounds: Callable[[Floats], Floats]) -> Bounded:
    """Return the numbers at rounded places of one axis."""
    ends = (places.value, places.value - places.error, places.value + places.error)
    choices = tuple(np.clip(rounds(end), 0, one.size - 1).astype(np.int64) for end in ends)

    def pick(array: Array, own: tuple[int, ...]) -> Array:
        return np.take(np.broadcast_to(array, x.value.shape), choices[own[0]], one.axis)

    return nearest(x, pick, [(choices[0], choices[1], choices[2])])


_ROUNDED: dict[str, Callable[[Floats], Floats]] = {
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _extrapolated(
    node: Node,
    result: Bounded,
    stretches: Sequence[Stretch],
    places: Sequence[Places],
    arithmetic: Arithmetic,
) -> Bounded:
    """Return the result with extrapolation_value where a place is off the axis."""
    beyond, unsure = np.zeros(result.value.shape, np.bool_), np.zeros(result.value.shape, np.bool_)
    for one, own in zip(stretches, places, strict=True):
        shape = (-1, *(1,) * (result.value.ndim - one.axis - 1))
        last = one.size - 1.0
        beyond = beyond | ((own.value < 0) | (own.value > last)).reshape(shape)
        unsure = unsure | (own.near(0.0) | own.near(last)).reshape(shape)
    fill = node.real("extrapolation_value", 0.0)
    value = np.where(beyond, fill.value.astype(result.value.dtype), result.value)
    if arithmetic.kernel is not None:
        return Bounded(value)
    error = np.where(beyond, fill.errors(), result.errors())
    error = np.where(unsure, np.abs(result.value - fill.value) + result.errors() + fill.errors(), error)
    variance = None if result.variance is None else np.where(beyond, 0.0, result.variance)
    return Bounded(value, error, variance=variance)


def _upsample(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Upsample: scales are attributes before opset 9, and an input then."""
    x = required(inputs, 0)
    if optional(inputs, 1) is not None:
        scales = placing(inputs, 1).tolist()
    elif node.get("scales"):
        scales = node.get("scales")
    else:  # opset 1
        scales = [1.0, 1.0, node.get("height_scale"), node.get("width_scale")]
    return [_upsampled(node, x, scales, arithmetic)]


def _upsampled(node: Node, x: Bounded, scales: Sequence[float], arithmetic: Arithmetic) -> Bounded:
    """Return what Upsample, and Resize before opset 11, make of x: places are x / scale, the nearest one below."""
    shape, mode = x.value.shape, node.get("mode", "nearest")
    stretches = [_scaled(axis, shape[axis], scale) for axis, scale in enumerate(scales)]
    moved = [one for one in stretches if not one.kept]
    places = [_COORDINATES["asymmetric"](one) for one in moved]
    if mode in ("linear", "bilinear"):
        return _interpolated(x, moved, places, [Window(TRIANGLE)] * len(moved), arithmetic)
    if mode != "nearest":
        raise UnsupportedOperatorError(f"{node.operator} in the mode {mode}")
    for one, own in zip(moved, places, strict=True):
        if one.scale.value < 1 and np.any(own.value % 1):
            # ONNX Runtime takes the one above there.
            raise UnsupportedOperatorError(
                "Resize before opset 11 to fewer numbers: which is nearest is not said"
            )
        x = _taken(x, one, own, np.floor)
    return x


def _repeated(times: int, axis: int, array: Array) -> Array:
    return np.repeat(array, times, axis)


def upsampled_whole(node: Node, x: Bounded, scales: Sequence[int], arithmetic: Arithmetic) -> Bounded:
    """Return x upsampled by whole numbers, as ONNX Runtime's channel-blocked Upsample does: asymmetric by default."""
    how = node.get("coordinate_transformation_mode", "asymmetric")
    if how not in _COORDINATES:
        raise UnsupportedOperatorError(f"Upsample with coordinate_transformation_mode={how}")
    if node.get("mode", "nearest") == "nearest":  # each number so many times, whatever the places
        for axis, scale in enumerate(scales):
            x = x.moved(partial(_repeated, scale, axis))
        return x
    stretches = [_scaled(axis, size, scales[axis]) for axis, size in enumerate(x.value.shape)]
    moved = [one for one in stretches if not one.kept]
    places = [_COORDINATES[how](one) for one in moved]
    return _interpolated(x, moved, places, [Window(TRIANGLE)] * len(moved), arithmetic)


def _grid_sample(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x, grid = required(inputs, 0), required(inputs, 1)
    mode = node.get("mode", "linear")
    padding, aligned = node.get("padding_mode", "zeros"), bool(node.get("align_corners", 0))
    if padding not in ("zeros", "border", "reflection"):
        raise UnsupportedOperatorError(f"GridSample with padding_mode={padding}")
    batch, channels, *sizes = x.value.shape
    places = _on_grid(grid, sizes, aligned=aligned)
    outside = _OUTSIDE[padding] if padding != "reflection" else partial(_reflected_index, aligned=aligned)
    if mode == "nearest":
        result = _nearest_on_grid(x, places, outside)
    elif mode in _GRID_FILTERS:
        if not x.is_float:
            raise UnsupportedOperatorError("interpolation of integers: how it is rounded is not said")
        ends = [(0.0, size - 1.0) if aligned else (-0.5, size - 0.5) for size in sizes]
        if padding == "reflection":
            places = [_reflected(own, *ends_of) for own, ends_of in zip(places, ends, strict=True)]
        # Beyond a border it is the neighbours that are brought back, not the place, as in PyTorch and ONNX Runtime; the
        # reference evaluator moves the place, which is another result with cubic weights (onnxruntime#10607).
        result = sampled(x, places, _GRID_FILTERS[mode], arithmetic, outside)
    else:
        raise UnsupportedOperatorError(f"GridSample in the mode {mode}")
    shape = (batch, channels, *grid.value.shape[1:-1])
    return [result.moved(lambda array: array.reshape(shape))]


_GRID_FILTERS: dict[str, Filter] = {
    "linear": TRIANGLE,
    "bilinear": TRIANGLE,
    "cubic": cubic(Bounded(np.array(-0.75))),
    "bicubic": cubic(Bounded(np.array(-0.75))),
}


def _column(number: int, grid: Array) -> Array:
    return grid[..., number].reshape(grid.shape[0], -1)


def _on_grid(grid: Bounded, sizes: Sequence[int], *, aligned: bool) -> list[Places]:
    """Return the places of a grid on each axis, (images, points); it has the last axis first."""
    one, two = Places.exactly(1.0), Places.exactly(2.0)
    places = []
    for axis, size in enumerate(sizes):
        own = Places.of(grid.moved(partial(_column, len(sizes) - 1 - axis)))
        if aligned:
            places.append((own + one) / two * Places.exactly(size - 1.0))
        else:
            places.append(((own + one) * Places.exactly(float(size)) - one) / two)
    return places


def _reflected(places: Places, low: float, high: float) -> Places:
    """Return places beyond the ends reflected at them, as often as it takes."""
    beyond = (places.value < low) | (places.value > high)
    span = high - low
    turned = (places.value - low) % (2 * span) if span > 0 else np.zeros_like(places.value)
    value = np.where(beyond, low + np.minimum(turned, 2 * span - turned), places.value)
    exact = (places.error == 0) & (value.astype(np.float32) == value)
    own = np.where(beyond & ~exact, _REFLECTING * SINGLE * (np.abs(places.value) + span), 0.0)
    return Places(value, places.error + own, places.variance + KAPPA * own**2)


_REFLECTING = 4.0
"""Roundings of reflecting: the distance, its multiple of the span, the rest, and the sum."""


def _reflected_index(index: Array, size: int, *, aligned: bool) -> tuple[Array, Array]:
    period = max(2 * (size - 1) if aligned else 2 * size, 1)
    turned = index % period
    last = period if aligned else period - 1
    return np.where(turned < size, turned, last - turned), np.ones(index.shape, np.bool_)


_OUTSIDE: dict[str, Outside] = {"zeros": zeros_outside, "border": border_outside}


def _nearest_on_grid(x: Bounded, places: Sequence[Places], outside: Outside) -> Bounded:
    """Return the numbers at rounded places, halves to even."""
    batch, channels, *sizes = x.value.shape
    candidates, located = [], []
    for own, size in zip(places, sizes, strict=True):
        ends = (own.value, own.value - own.error, own.value + own.error)
        rounded = [np.rint(np.clip(end, -_FAR, _FAR)).astype(np.int64) for end in ends]
        candidates.append((rounded[0], rounded[1], rounded[2]))
        located.append([outside(choice, size) for choice in rounded])

    def pick(array: Array, chosen: tuple[int, ...]) -> Array:
        flat = np.broadcast_to(array, x.value.shape).reshape(batch, channels, -1)
        place: Array = np.zeros((), np.int64)
        there: Array = np.ones((), np.bool_)
        for choices, size, number in zip(located, sizes, chosen, strict=True):
            index, inside = choices[number]
            place, there = place * size + index, there & inside
        found = np.take_along_axis(flat, np.broadcast_to(place, candidates[0][0].shape)[:, None], 2)
        return np.where(np.broadcast_to(there, place.shape)[:, None], found, np.zeros((), array.dtype))

    return nearest(x, pick, candidates)


_FAR = 2.0**31
"""Places further away are outside in any case."""


def _affine_grid(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """AffineGrid: theta times each place (x, y, 1), the places from -1 to 1."""
    theta, (batch, _, *sizes) = required(inputs, 0), integers(inputs, 1)
    aligned = bool(node.get("align_corners", 0))
    columns = [_spaced(size, aligned=aligned) for size in sizes]
    grids = [grid.reshape(-1) for grid in np.meshgrid(*columns, indexing="ij")]
    base = np.stack([*grids[::-1], np.ones_like(grids[0])])
    u = max(arithmetic.u, arithmetic.u_s)
    # First place, step and their multiple are rounded, none of them above 2; the ones are exact.
    off = np.concatenate([np.full((len(sizes), base.shape[1]), _SPACING * u), np.zeros((1, base.shape[1]))])
    variance = 3 * KAPPA * (off / _SPACING) ** 2 if arithmetic.deviations else None
    product = bounded.matmul(theta, Bounded(base, off, variance=variance), arithmetic)
    shape = (batch, *sizes, len(sizes))
    return [product.moved(lambda array: array.swapaxes(1, 2).reshape(shape))]


_SPACING = 6.0
"""Of -1 + step / 2 + i step in units of u: 2 each for the rounded step and the product, one for each sum."""


def _spaced(size: int, *, aligned: bool) -> Floats:
    if not aligned:
        return (2 * np.arange(size) + 1.0) / size - 1.0
    if size == 1:
        raise UnsupportedOperatorError("AffineGrid of a single place with align_corners")
    return np.linspace(-1.0, 1.0, size)


OPERATORS: dict[str, Operator] = {
    "Resize": _resize,
    "Upsample": _upsample,
    "GridSample": _grid_sample,
    "AffineGrid": _affine_grid,
}
