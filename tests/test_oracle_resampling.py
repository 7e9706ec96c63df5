"""Resize of every opset, Upsample, GridSample and AffineGrid: places that are computed, and what is between numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from spatial import (
    FP32,
    FP64,
    apply,
    assert_within,
    longs,
    moved,
    normal,
    on_runtime,
    root_mean_square,
    with_errors,
)

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.kernels import pool
from onnx_attest.verify.oracle.ops.images.interpolation import TRIANGLE, Places, Window, cubic, taps_at
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError

U = FP32.u
IMAGE, SOLID = normal(2, 3, 9, 14), normal(1, 2, 4, 5, 6)
GRID = np.random.default_rng(1).uniform(-1.5, 1.5, (2, 6, 7, 2)).astype(np.float32)
SOLID_GRID = np.random.default_rng(2).uniform(-1.2, 1.2, (1, 3, 4, 5, 3)).astype(np.float32)


def floats(*numbers):
    return np.array(numbers, np.float32)


def resized(*scales, x=IMAGE, sizes=None, roi=None, opset=19, **attributes):
    """Return a case of Resize."""
    given = [x, roi, floats(*scales) if scales else None, None if sizes is None else longs(*sizes)]
    while given[-1] is None:
        given.pop()
    return "Resize", given, {"opset": opset, **attributes}


def grid(mode, padding="zeros", aligned=0):
    return (
        "GridSample",
        [IMAGE, GRID],
        {"mode": mode, "padding_mode": padding, "align_corners": aligned, "opset": 20},
    )


REGION = floats(0, 0, 0.13, 0.21, 1, 1, 0.84, 0.9)
ROUNDED = {
    "twice": resized(1, 1, 2, 2, mode="linear"),
    "odd scales": resized(1, 1, 0.6, 1.7, mode="linear"),
    "fewer": resized(sizes=(2, 3, 5, 6), mode="linear"),
    "corners": resized(sizes=(2, 3, 20, 9), mode="linear", coordinate_transformation_mode="align_corners"),
    "asymmetric": resized(1, 1, 1.3, 3, mode="linear", coordinate_transformation_mode="asymmetric", opset=13),
    "symmetric": resized(1, 1, 1.7, 2.3, mode="linear", coordinate_transformation_mode="half_pixel_symmetric"),
    "like torch": resized(sizes=(2, 3, 1, 6), mode="linear", coordinate_transformation_mode="pytorch_half_pixel"),
    "region": resized(
        sizes=(2, 3, 7, 8), roi=REGION, mode="linear", coordinate_transformation_mode="tf_crop_and_resize", opset=13
    ),
    "three axes": resized(1, 1, 1.7, 2.3, 0.8, x=SOLID, mode="linear"),
    "opset 10": ("Resize", [IMAGE, floats(1, 1, 1.7, 2.3)], {"mode": "linear", "opset": 10}),
    "upsample": ("Upsample", [IMAGE, floats(1, 1, 1.7, 2.3)], {"mode": "linear", "opset": 9}),
    "cubic": resized(1, 1, 1.3, 2.6, mode="cubic"),
    "cubic, coefficient": resized(1, 1, 1.3, 2.6, mode="cubic", cubic_coeff_a=-0.5),
    "cubic, inside": resized(sizes=(2, 3, 13, 6), mode="cubic", exclude_outside=1),
    "antialias": resized(sizes=(4, 5), axes=[2, 3], mode="linear", antialias=1),
    "antialias, inside": resized(sizes=(4, 5), axes=[2, 3], mode="linear", antialias=1, exclude_outside=1),
    "antialias, cubic": resized(sizes=(3, 8), axes=[-2, -1], mode="cubic", antialias=1),
    "in proportion": resized(sizes=(20, 20), axes=[2, 3], mode="linear", keep_aspect_ratio_policy="not_larger"),
    "grid": grid("linear"),
    "grid, border": grid("linear", "border", 1),
    "grid, reflection": grid("linear", "reflection"),
    "grid, cubic": grid("cubic", "reflection", 1),
    "grid, cubic border": grid("cubic", "border"),
    "grid, opset 16": (
        "GridSample", [IMAGE, GRID], {"mode": "bicubic", "padding_mode": "border", "align_corners": 1, "opset": 16}
    ),
    "grid, three axes": ("GridSample", [SOLID, SOLID_GRID], {"padding_mode": "border", "opset": 20}),
    "affine": ("AffineGrid", [normal(2, 2, 3), longs(2, 3, 5, 6)], {"opset": 20}),
    "affine, corners": ("AffineGrid", [normal(1, 3, 4), longs(1, 3, 4, 5, 6)], {"align_corners": 1, "opset": 20}),
}  # fmt: skip
CASES = pytest.mark.parametrize("case", ROUNDED)


@CASES
def test_onnx_runtime_is_within_a_bound_that_says_something(case):
    operator, inputs, attributes = ROUNDED[case]
    expected = apply(operator, *inputs, **attributes)
    assert_within(expected, on_runtime(operator, *inputs, **attributes))
    # Places up to 14 are off by some 40 u, and cubic weights by 50 u; sums of 16 products by 17 u.
    assert np.median(expected.error) < 2e-4 * np.sqrt(np.mean(expected.value**2))


@CASES
def test_onnx_runtime_deviates_as_the_variance_says(case):
    operator, inputs, attributes = ROUNDED[case]
    expected = apply(operator, *inputs, **attributes)
    assert 0.1 < root_mean_square(expected, on_runtime(operator, *inputs, **attributes)) < 3


@CASES
def test_operands_anywhere_within_their_errors_stay_within_the_bound(case):
    operator, inputs, attributes = ROUNDED[case]
    moving = {0, 1} if operator == "GridSample" else {0}
    given = [with_errors(one, 1e-3) if place in moving else one for place, one in enumerate(inputs)]
    expected, reached = apply(operator, *given, **attributes), 0.0
    for seed in range(6):
        actual = apply(operator, *moved(given, seed), arithmetic=FP64, **attributes).value
        difference = np.abs(actual - expected.value)
        assert (difference <= expected.error).all()
        reached = np.maximum(reached, difference)
    assert (reached / expected.error.clip(1e-300)).max() > 0.1


@CASES
def test_kernels_stay_within_the_bound(case):
    operator, inputs, attributes = ROUNDED[case]
    expected = apply(operator, *inputs, **attributes)
    kernel = replace(PROFILES["fp32"], kernel=pool(PROFILES["fp32"])[0])
    carried = apply(operator, *inputs, arithmetic=kernel, **attributes)
    assert carried.error is None
    assert_within(expected, carried.value.astype(np.float32))


NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@pytest.mark.parametrize("rounds", NEAREST)
@pytest.mark.parametrize("scales", [(2, 3), (0.5, 0.25), (1.7, 0.6), (3, 1)])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "pytorch_half_pixel"])
def test_nearest_numbers(coordinates, scales, rounds):
    attributes = {"nearest_mode": rounds, "coordinate_transformation_mode": coordinates}
    operator, inputs, attributes = resized(1, 1, *scales, **attributes)
    expected = apply(operator, *inputs, **attributes)
    assert_within(expected, on_runtime(operator, *inputs, **attributes))
    assert np.mean(np.asarray(expected.errors()) > 0) < 0.5


def test_what_is_exact_in_float32_decides_ties():
    """At 2 / 4 the places are 0, 0.5, 1, ...: every runtime has them alike, and halves go down, or up."""
    x = np.arange(4.0, dtype=np.float32).reshape(1, 1, 4)
    for rounds, places in (
        ("round_prefer_floor", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("round_prefer_ceil", [0, 1, 1, 2, 2, 3, 3, 3]),
    ):
        attributes = {"nearest_mode": rounds, "coordinate_transformation_mode": "asymmetric"}
        found = apply(*_flat(resized(1, 1, 2, x=x)), **attributes, opset=19)
        np.testing.assert_array_equal(found.value.reshape(-1), places)
        assert found.error is None


def _flat(case):
    operator, inputs, _ = case
    return operator, *inputs


def test_where_rounding_decides_both_neighbours_are_within_the_bound():
    """From 10 numbers to 7 the place of the fourth is 4.5, which float32 may have below or above."""
    x = (np.arange(10.0, dtype=np.float32) ** 2).reshape(1, 1, 10)
    found = apply(*_flat(resized(sizes=(1, 1, 7), x=x)), opset=19)
    assert set(np.flatnonzero(found.error)) == {3}
    assert found.value[0, 0, 3] == 16
    assert found.error[0, 0, 3] == 25 - 16
    places = Places.exactly(3.5) / (Places.exactly(7) / Places.exactly(10)) - Places.exactly(0.5)
    assert 0 < float(places.error) < 1e-5


def test_grids_between_two_numbers_take_the_even_one():
    x = np.arange(4.0, dtype=np.float32).reshape(1, 1, 1, 4)
    at = np.array([-0.5, 0.0, 0.5], np.float32)  # places 0.5, 1.5 and 2.5
    found = apply("GridSample", x, np.stack([at, 0 * at], -1).reshape(1, 1, 3, 2), mode="nearest", opset=20)
    np.testing.assert_array_equal(found.value.reshape(-1), [0, 2, 2])
    assert found.error is None


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_nearest_on_a_grid(padding, aligned):
    attributes = {"mode": "nearest", "padding_mode": padding, "align_corners": aligned, "opset": 20}
    expected = apply("GridSample", IMAGE, GRID, **attributes)
    assert_within(expected, on_runtime("GridSample", IMAGE, GRID, **attributes))


def test_a_grid_of_the_numbers_themselves_gives_them_back_within_the_bound():
    """Places are whole numbers, or nearly so: the cell on either side may be a runtime's."""
    rows, columns = np.meshgrid(np.linspace(-1, 1, 9), np.linspace(-1, 1, 14), indexing="ij")
    own = np.stack([columns, rows], -1)[None].repeat(2, 0).astype(np.float32)
    expected = apply("GridSample", IMAGE, own, align_corners=1, opset=20)
    assert_within(expected, on_runtime("GridSample", IMAGE, own, align_corners=1, opset=20))
    assert expected.error.max() < 2e-5
    np.testing.assert_allclose(expected.value, IMAGE, atol=1e-5)


def test_places_off_the_axis_are_extrapolated():
    region = floats(0, 0, -0.2, 0.3, 1, 1, 1.3, 0.4)
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5}
    case = resized(sizes=(2, 3, 7, 8), roi=region, mode="linear", opset=13, **attributes)
    operator, inputs, attributes = case
    expected = apply(operator, *inputs, **attributes)
    assert_within(expected, on_runtime(operator, *inputs, **attributes))
    np.testing.assert_array_equal(
        np.isclose(expected.value, 7.5).all((0, 1, 3)), [True, *[False] * 4, True, True]
    )
    assert expected.error[expected.value == 7.5].max() == 0


def test_lengths_in_proportion():
    for policy, shape in (
        ("not_larger", (2, 3, 7, 11)),
        ("not_smaller", (2, 3, 8, 12)),
        ("stretch", (2, 3, 8, 11)),
    ):
        attributes = {"axes": [2, 3], "keep_aspect_ratio_policy": policy}
        found = apply(*_flat(resized(sizes=(8, 11))), **attributes, opset=19)
        assert found.value.shape == shape


def test_integers_keep_their_type_where_they_are_only_chosen():
    x = np.arange(12, dtype=np.uint8).reshape(1, 1, 3, 4)
    found = apply(*_flat(resized(1, 1, 2, 2, x=x)), opset=19)
    assert found.value.dtype == np.uint8
    np.testing.assert_array_equal(found.value, x.repeat(2, 2).repeat(2, 3))
    with pytest.raises(UnsupportedOperatorError, match="of integers"):
        apply(*_flat(resized(1, 1, 2, 2, x=x)), opset=19, mode="linear")


def test_upsampling_of_every_opset():
    expected = IMAGE.repeat(2, 2).repeat(3, 3)
    for opset, inputs, attributes in (
        (9, [IMAGE, floats(1, 1, 2, 3)], {}),
        (7, [IMAGE], {"scales": [1.0, 1.0, 2.0, 3.0]}),
        (1, [IMAGE], {"height_scale": 2.0, "width_scale": 3.0}),
    ):
        np.testing.assert_array_equal(apply("Upsample", *inputs, opset=opset, **attributes).value, expected)
    resize = apply("Resize", IMAGE, floats(1, 1, 2, 3), opset=10)
    np.testing.assert_array_equal(resize.value, expected)


CROP = {"coordinate_transformation_mode": "tf_crop_and_resize", "opset": 13}
REFUSED = {
    "which is nearest is not said": ("Resize", [IMAGE, floats(1, 1, 0.6, 0.6)], {"opset": 10}),
    "no whole length": resized(1, 1, 0.6, 0.6, mode="linear", coordinate_transformation_mode="align_corners"),
    "of a region by scales": ("Resize", [IMAGE, REGION, floats(1, 1, 2, 2)], CROP),
    "a whole number within its rounding error": resized(1, 1, 0.7, 1, x=normal(1, 1, 10, 3)),
    "half a number within its rounding error": resized(
        sizes=(7, 40), x=normal(1, 1, 10, 25), axes=[2, 3], keep_aspect_ratio_policy="not_larger"
    ),
    "tf_half_pixel_for_nn": resized(1, 1, 2, 2, coordinate_transformation_mode="tf_half_pixel_for_nn"),
    "antialias": resized(1, 1, 2, 2, antialias=1, opset=13),
    "no finite numbers": ("GridSample", [IMAGE, np.full((2, 1, 1, 2), np.nan)], {"opset": 20}),
    "a single place": ("AffineGrid", [normal(1, 2, 3), longs(1, 1, 1, 5)], {"align_corners": 1, "opset": 20}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_forms_that_are_refused(message):
    operator, inputs, attributes = REFUSED[message]
    with pytest.raises(UnsupportedOperatorError, match=message):
        apply(operator, *inputs, **attributes)


def test_opset_11_has_places_for_nearest_neighbours_of_its_own():
    attributes = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}
    operator, inputs, attributes = resized(
        1, 1, 2, 2, roi=floats(0, 0, 0, 0, 1, 1, 1, 1), opset=11, **attributes
    )
    assert_within(apply(operator, *inputs, **attributes), on_runtime(operator, *inputs, **attributes))


@pytest.mark.parametrize("a", [-0.75, -0.5, -0.6])
def test_cubic_weights_in_float32_are_within_their_own_error(a):
    """By Horner's rule and by another way to write it, for distances in [0, 2]."""
    filter_, distance = cubic(exact(np.array(np.float32(a)))), np.linspace(0, 2, 20001).astype(np.float32)
    a, one = np.float32(a), np.float32(1)
    near = ((a + 2) * distance - (a + 3)) * distance * distance + one
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    other = (((distance - 5) * distance + 8) * distance - 4) * a
    bound = U * filter_.roundings(distance.astype(float))[0]
    for outer in (far, other):
        weight = np.where(distance <= 1, near, outer)
        ratio = np.abs(weight - filter_.weight(distance.astype(float))) / bound
        assert 0.05 < ratio.max() <= 1


def test_a_cubic_coefficient_may_be_off_by_its_attribute():
    filter_ = cubic(Bounded(np.array(-0.6), np.array(1e-3)))
    distance = np.linspace(0, 2, 1001)
    for sign in (-1, 1):
        other = cubic(exact(np.array(-0.6 + sign * 1e-3))).weight(distance)
        assert np.abs(other - filter_.weight(distance)).max() <= filter_.sensitivity


@pytest.mark.parametrize("filter_", [TRIANGLE, cubic(exact(np.array(-0.75)))], ids=["linear", "cubic"])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_weights_of_places_within_their_error(scale, filter_):
    """Each weight is within what it may be moved by, the cells beside included."""
    at = np.linspace(2.0, 4.0, 41)
    places = Places(at, np.full(at.shape, 0.01), np.zeros(at.shape))
    window = Window(filter_, scale)
    taps = taps_at(places, window, FP32)
    for shift in (-0.01, 0.004, 0.01):
        other = taps_at(Places.exactly(at + shift), window, FP32)
        dense, slack, true = (np.zeros((41, 60)) for _ in range(3))
        rows = np.arange(41)[:, None]
        np.add.at(dense, (rows, taps.index + 20), taps.weight)
        np.add.at(slack, (rows, taps.index + 20), taps.moved)
        np.add.at(true, (rows, other.index + 20), other.weight)
        assert (np.abs(true - dense) <= slack + 1e-12).all()
        np.testing.assert_allclose(true.sum(1), 1, atol=1e-12)
