"""Operators that move, index, scatter, pad and order numbers: against ONNX Runtime, and where rounding decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.kernels import pool
from onnx_attest.verify.oracle.ops import OPERATORS
from onnx_attest.verify.oracle.ops.operator import Node, UnsupportedOperatorError

FP32 = PROFILES["fp32"]
SPREAD = replace(FP32, deviations=True)
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
LARGEST, LOWEST = 2**63 - 1, -(2**63)


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def ordered(*shape):
    """Return 1, 2, 3 and so on: each number tells where it came from."""
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def whole(*items):
    return np.array(items, np.int64)


def model_of(operator, feed, opset=18, kinds=(FLOAT,), **attributes):
    names = [f"x{index}" if given is not None else "" for index, given in enumerate(feed)]
    outputs = [f"y{index}" for index in range(len(kinds))]
    node = onnx.helper.make_node(operator, names, outputs, **attributes)
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, feed, strict=True)
        if name
    ]
    results = [
        onnx.helper.make_tensor_value_info(name, kind, None)
        for name, kind in zip(outputs, kinds, strict=True)
    ]
    graph = onnx.helper.make_graph([node], "g", infos, results)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


def fed(feed):
    return {f"x{index}": x for index, x in enumerate(feed) if x is not None}


def evaluate(operator, feed, arithmetic=FP32, **options):
    outputs = GraphOracle(model_of(operator, feed, **options)).evaluate(fed(feed), arithmetic).outputs
    return list(outputs.values())


def run_onnxruntime(operator, feed, **options):
    ort = pytest.importorskip("onnxruntime")
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    model = model_of(operator, feed, **options).SerializeToString()
    session = ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    return session.run(None, fed(feed))


def apply(operator, *inputs, opset=18, arithmetic=FP32, outputs=1, **attributes):
    """Return what the operator makes of values that carry errors."""
    names = tuple(f"x{index}" for index in range(len(inputs)))
    made = tuple(f"y{index}" for index in range(outputs))
    node = Node("n", operator, opset, attributes, names, made)
    with np.errstate(all="ignore"):
        results = OPERATORS[operator](node, inputs, arithmetic)
    node.refuse_unasked()
    return results


def rounded(value, error, variance=None):
    value = np.asarray(value, np.float64)
    return Bounded(value, np.broadcast_to(np.asarray(error, np.float64), value.shape), variance=variance)


X = ordered(2, 3, 4)
MOVES = {
    "flatten": ("Flatten", [X], {}),
    "flatten axis 0": ("Flatten", [X], {"axis": 0}),
    "flatten axis -1": ("Flatten", [X], {"axis": -1}),
    "flatten axis rank, opset 9": ("Flatten", [X], {"axis": 3, "opset": 9}),
    "flatten scalar": ("Flatten", [ordered()], {"axis": 0}),
    "flatten nothing": ("Flatten", [ordered(0, 3)], {}),
    "tile": ("Tile", [X, whole(2, 1, 3)], {}),
    "reshape": ("Reshape", [X, whole(0, -1)], {}),
    "reshape opset 5": ("Reshape", [X, whole(4, 0, -1)], {"opset": 5}),
    "reshape allowzero": ("Reshape", [ordered(0, 3), whole(3, 0)], {"allowzero": 1}),
    "transpose": ("Transpose", [X], {"perm": [2, 0, 1]}),
    "transpose reversed": ("Transpose", [X], {}),
    "expand": ("Expand", [ordered(3, 1), whole(2, 1, 4)], {}),
    "squeeze": ("Squeeze", [ordered(1, 3, 1)], {}),
    "squeeze attribute": ("Squeeze", [ordered(1, 3, 1)], {"axes": [-1], "opset": 11}),
    "unsqueeze attribute": ("Unsqueeze", [X], {"axes": [0, -1], "opset": 11}),
    "unsqueeze input": ("Unsqueeze", [X, whole(-1, 0)], {}),
    "concat opset 4": ("Concat", [X, X], {"axis": 2, "opset": 4}),
    "slice attributes": ("Slice", [X], {"starts": [1, -2], "ends": [9, -1], "axes": [1, 2], "opset": 9}),
    "slice without axes": ("Slice", [X], {"starts": [0, 1], "ends": [1, 9], "opset": 1}),
    "slice backwards": ("Slice", [X, whole(-1), whole(LOWEST), whole(1), whole(-2)], {}),
    "slice from before the front": ("Slice", [X, whole(-99), whole(-99), whole(2), whole(-1)], {}),
    "slice beyond": ("Slice", [X, whole(1, -99), whole(LARGEST, 2), whole(-1, 1)], {"opset": 10}),
    "triu far above": ("Trilu", [X, np.array(LARGEST)], {}),
    "tril far above": ("Trilu", [X, np.array(99)], {"upper": 0}),
    "triu below": ("Trilu", [X, np.array(-1)], {}),
    "gather from the back": ("Gather", [X, whole(-1, 0, -3)], {"axis": 1}),
    "gather one": ("Gather", [X, np.array(-1)], {"axis": -1}),
    "gather elements": ("GatherElements", [X, whole(2, -1, 0, 1).reshape(1, 1, 4)], {"axis": 1}),
    "gather nd": ("GatherND", [X, whole(1, 2, 0, -1).reshape(2, 2)], {}),
    "gather nd batch": ("GatherND", [X, whole(2, 0).reshape(2, 1)], {"batch_dims": 1}),
    "compress": ("Compress", [X, np.array([True, False, True])], {"axis": -1}),
    "compress flat": ("Compress", [X, np.array([False, True, True])], {}),
    "reverse sequence": ("ReverseSequence", [X, whole(3, 1)], {"time_axis": 1, "batch_axis": 0}),
    "reverse sequence, time first": ("ReverseSequence", [X, whole(2, 0, 1)], {}),
    "depth to space": ("DepthToSpace", [ordered(1, 8, 2, 3)], {"blocksize": 2, "opset": 10}),
    "depth to space crd": ("DepthToSpace", [ordered(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
    "space to depth": ("SpaceToDepth", [ordered(1, 2, 4, 6)], {"blocksize": 2}),
    "pad attributes": ("Pad", [X], {"pads": [0, 1, -1, 0, 2, 0], "opset": 10}),
    "pad constant": ("Pad", [X, whole(0, 1, -1, 0, 2, 3), np.zeros((), np.float32)], {}),
    "pad axes": ("Pad", [X, whole(1, 2, 0, 1), None, whole(-1, 0)], {}),
    "pad reflect": ("Pad", [X, whole(0, 2, 3, 0, 1, 0)], {"mode": "reflect"}),
    "pad reflect what is left": ("Pad", [X, whole(0, 0, -1, 0, 0, 2)], {"mode": "reflect"}),
    "pad edge": ("Pad", [X, whole(0, 2, 1, 3, 0, -2)], {"mode": "edge"}),
    "pad wrap": ("Pad", [X, whole(0, 2, -3, 1, 5, 3)], {"mode": "wrap", "opset": 19}),
    "top k": ("TopK", [X, whole(2)], {"axis": 1, "largest": 0}),
    "top k opset 1": ("TopK", [X], {"k": 3, "opset": 1}),
    "dropout": ("Dropout", [X], {}),
    "dropout opset 7": ("Dropout", [X], {"ratio": 0.25, "opset": 7}),
    "center crop pad": ("CenterCropPad", [X, whole(5, 2)], {"axes": [0, -1]}),
    "split": ("Split", [ordered(5, 2)], {"num_outputs": 2}),
    "identity": ("Identity", [X], {}),
}  # fmt: skip
OUTPUTS = {"TopK": (FLOAT, INT64), "Split": (FLOAT, FLOAT)}


@pytest.mark.parametrize("move", MOVES)
def test_moves_like_onnxruntime(move):
    operator, feed, options = MOVES[move]
    kinds = OUTPUTS.get(operator, (FLOAT,))
    found = evaluate(operator, feed, kinds=kinds, **options)
    for one, expected in zip(found, run_onnxruntime(operator, feed, kinds=kinds, **options), strict=True):
        np.testing.assert_array_equal(one.value, expected)


@pytest.mark.parametrize("move", MOVES)
def test_error_and_variance_move_with_the_number(move):
    """Each number carries itself as its error: a filled place has none."""
    operator, feed, options = MOVES[move]
    options = dict(options)
    feed = [None if x is None else Bounded(x) for x in feed]
    given = feed[0].value.astype(np.float64)
    # The errors are a ten-thousandth of the number, so that they leave the order as it is.
    feed[0] = Bounded(given, given * 1e-4, variance=given)
    if operator == "Concat":
        feed[1] = feed[0]
    outputs = len(OUTPUTS.get(operator, (FLOAT,)))
    for one in apply(operator, *feed, outputs=outputs, opset=options.pop("opset", 18), **options)[:outputs]:
        if one.is_float:
            np.testing.assert_array_equal(one.error, one.value * 1e-4)
            np.testing.assert_array_equal(one.variance, one.value)


BY_HAND = {
    "reshape attribute": ("Reshape", [X], {"shape": [0, -1], "opset": 1}, X.reshape(2, 12)),
    "concat default axis": ("Concat", [X, X], {"opset": 1}, np.concatenate([X, X], 1)),
    "tile opset 1": ("Tile", [X, whole(2), whole(1)], {"opset": 1}, np.tile(X, (1, 2, 1))),
    "pad opset 1": (
        "Pad", [ordered(2)], {"paddings": [1, 2], "value": 7.0, "opset": 1}, np.float32([7, 1, 2, 7, 7]),
    ),
    "shape from the back": ("Shape", [X], {"start": -2, "end": 9, "kinds": (INT64,)}, whole(3, 4)),
    "shape of nothing": ("Shape", [X], {"start": 2, "end": 1, "kinds": (INT64,)}, whole()),
    "size": ("Size", [X], {"kinds": (INT64,)}, np.array(24)),
    "eye like": ("EyeLike", [ordered(2, 3)], {"k": -1, "dtype": INT64, "kinds": (INT64,)}, np.eye(2, 3, -1)),
    "nonzero scalar": ("NonZero", [np.array(3, np.float32)], {"kinds": (INT64,)}, np.zeros((0, 1))),
    "nonzero": ("NonZero", [np.float32([[0, 2], [3, 0]])], {"kinds": (INT64,)}, np.array([[0, 1], [1, 0]])),
    "one hot": (
        "OneHot", [whole(-1, 3, 5), np.array(4), np.float32([2, 9])], {"axis": 0},
        np.array([[2, 2, 2], [2, 2, 2], [2, 2, 2], [9, 9, 2]]),
    ),
    "space to depth crd": (
        "SpaceToDepth", [ordered(1, 2, 2, 2)], {"blocksize": 2, "mode": "CRD", "opset": 28},
        ordered(1, 8, 1, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_forms_that_onnxruntime_lacks_or_that_are_easy_to_write_down(name):
    operator, feed, options, expected = BY_HAND[name]
    (found,) = evaluate(operator, feed, **options)
    np.testing.assert_array_equal(found.value, expected)


def test_split_follows_its_own_opset():
    sizes = [len(part.value) for part in evaluate("Split", [ordered(5)], kinds=(FLOAT,) * 2, num_outputs=2)]
    assert sizes == [3, 2]
    with pytest.raises(UnsupportedOperatorError, match="equal parts"):
        evaluate("Split", [ordered(5)], kinds=(FLOAT,) * 2, opset=13)
    parts = evaluate("Split", [ordered(5)], kinds=(FLOAT,) * 2, opset=2, split=[1, 4])
    assert [len(part.value) for part in parts] == [1, 4]


def test_split_into_more_parts_than_fit_is_refused():
    with pytest.raises(UnsupportedOperatorError, match="Split of 5 into 4"):
        evaluate("Split", [ordered(5)], kinds=(FLOAT,) * 4, num_outputs=4)


def test_dropout_mask_is_known_since_opset_12():
    _, mask = evaluate("Dropout", [X], kinds=(FLOAT, BOOL), opset=13)
    assert mask.value.all()
    with pytest.raises(UnsupportedOperatorError, match="2 outputs"):
        evaluate("Dropout", [X], kinds=(FLOAT, BOOL), opset=10)


@pytest.mark.parametrize(
    ("feed", "options"),
    [([X], {"opset": 1}), ([X, np.array(0.5, np.float32), np.array(True)], {"opset": 13})],
)
def test_dropout_in_training_is_refused(feed, options):
    with pytest.raises(UnsupportedOperatorError, match="in training"):
        evaluate("Dropout", feed, **options)


def test_constant_attributes():
    sparse = onnx.helper.make_sparse_tensor(
        onnx.numpy_helper.from_array(np.float32([5, 6]), "v"),
        onnx.numpy_helper.from_array(np.array([[0, 1], [1, 0]]), "i"),
        [2, 2],
    )
    values = [apply("Constant", sparse_value=sparse), apply("Constant", value_floats=[0.5, 1.5])]
    np.testing.assert_array_equal(values[0][0].value, [[0, 5], [6, 0]])
    np.testing.assert_array_equal(values[1][0].value, [0.5, 1.5])
    with pytest.raises(UnsupportedOperatorError, match="value_string"):
        apply("Constant", value_string="a")


# Scattering

REDUCTIONS = ("add", "mul", "max", "min")
UNBUFFERED = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def scattering(seed=0, updates=400):
    """Return data, indices that meet many times, and updates."""
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((8, 5)).astype(np.float32)
    indices = rng.integers(-8, 8, (updates, 5))
    return data, indices, np.exp(0.1 * rng.standard_normal((updates, 5))).astype(np.float32)


def scattered_exactly(data, indices, updates, reduction):
    result = data.astype(np.float64)
    columns = np.broadcast_to(np.arange(5), indices.shape)
    UNBUFFERED[reduction].at(result, (indices, columns), updates.astype(np.float64))
    return result


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatter_elements_of_onnxruntime_is_within_the_bound(reduction):
    feed = scattering()
    (found,) = evaluate("ScatterElements", feed, SPREAD, reduction=reduction)
    (actual,) = run_onnxruntime("ScatterElements", feed, reduction=reduction)
    difference = np.abs(actual - found.value)
    if reduction in ("max", "min"):
        np.testing.assert_array_equal(difference, 0)
        return
    assert (difference <= found.error).all()
    assert found.error.max() < 1e-3 * np.abs(found.value).max()
    z = np.sqrt(np.mean(difference**2 / found.variance))
    assert 0.1 < z < 3


def test_scatter_nd_of_onnxruntime_is_within_the_bound():
    rng = np.random.default_rng(1)
    feed = [numbers(6, 4), rng.integers(0, 6, (300, 1)), numbers(300, 4, seed=1)]
    (found,) = evaluate("ScatterND", feed, SPREAD, reduction="add")
    (actual,) = run_onnxruntime("ScatterND", feed, reduction="add")
    difference = np.abs(actual - found.value)
    assert (difference <= found.error).all()
    assert 0.1 < np.sqrt(np.mean(difference**2 / found.variance)) < 3


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatter_passes_on_the_errors_of_its_operands(reduction):
    """Operands anywhere within their errors, in float64: the result stays within the bound."""
    rng, (data, indices, updates) = np.random.default_rng(0), scattering(updates=30)
    errors = [1e-3 * rng.random(data.shape), 1e-3 * rng.random(updates.shape)]
    inputs = (rounded(data, errors[0]), Bounded(indices), rounded(updates, errors[1]))
    (found,) = apply("ScatterElements", *inputs, reduction=reduction)
    reached = 0.0
    for _ in range(50):
        moved = [
            one + rng.choice([-1, 1], one.shape) * error
            for one, error in zip((data.astype(np.float64), updates), errors, strict=True)
        ]
        difference = np.abs(scattered_exactly(moved[0], indices, moved[1], reduction) - found.value)
        assert (difference <= found.error + 2.0**-50).all()  # x + E - x in float64
        reached = max(reached, (difference / found.error).max())
    assert reached > 0.3  # the bound is not vacuous


def test_scatter_leaves_untouched_numbers_exact():
    inputs = (rounded([1, 2], [0, 0.5]), Bounded(whole(0)), rounded([3], [0.25]))
    (found,) = apply("ScatterElements", *inputs, reduction="add")
    assert found.error[1] == 0.5
    assert found.error[0] == pytest.approx(0.25, rel=1e-5)


def test_scatter_without_reduction_takes_the_error_along():
    inputs = (rounded([1, 2], 0.5), Bounded(whole(-1)), rounded([3], 0.25))
    (found,) = apply("ScatterElements", *inputs)
    np.testing.assert_array_equal(found.error, [0.5, 0.25])


@pytest.mark.parametrize("operator", ["Scatter", "ScatterElements", "ScatterND"])
def test_two_unlike_updates_of_one_place_are_refused(operator):
    indices = whole(1, 1) if operator != "ScatterND" else whole(1, 1).reshape(2, 1)
    opset = 9 if operator == "Scatter" else 18
    with pytest.raises(UnsupportedOperatorError, match="several updates of one place"):
        evaluate(operator, [ordered(3), indices, np.float32([5, 6])], opset=opset)


def test_scatter_adds_whole_numbers_that_wrap_around():
    feed = [np.uint8([250, 0]), whole(0, 0), np.uint8([5, 5])]
    (found,) = evaluate("ScatterElements", feed, kinds=(onnx.TensorProto.UINT8,), reduction="add")
    np.testing.assert_array_equal(found.value, np.uint8([4, 0]))


def test_kernels_scatter_in_their_own_precision():
    feed = scattering()
    exact = evaluate("ScatterElements", feed, reduction="add")[0]
    for kernel in pool(FP32):
        (found,) = evaluate("ScatterElements", feed, replace(FP32, kernel=kernel), reduction="add")
        difference = np.abs(found.value - exact.value)
        assert difference.max() > 0
        assert (difference <= exact.error).all()


def test_tensor_scatter_wraps_around():
    past, update = ordered(2, 4, 1), -ordered(2, 3, 1)
    (found,) = evaluate("TensorScatter", [past, update, whole(0, 2)], opset=24, mode="circular")
    np.testing.assert_array_equal(found.value[..., 0], [[-1, -2, -3, 4], [-6, 6, -4, -5]])
    with pytest.raises(UnsupportedOperatorError, match="out of bounds"):
        evaluate("TensorScatter", [past, update, whole(0, 2)], opset=24)


# Ranges


def scalars(*items):
    return [np.array(item, np.float32) for item in items]


@pytest.mark.parametrize("ends", [(0, 100.05, 0.1), (-3, 7, 0.001), (1000, 990, -0.003)])
def test_range_of_onnxruntime_is_within_the_bound(ends):
    (found,) = evaluate("Range", scalars(*ends), SPREAD)
    (actual,) = run_onnxruntime("Range", scalars(*ends))
    difference = np.abs(actual - found.value)
    assert difference.shape == found.value.shape
    assert (difference <= found.error).all()
    assert (difference[1:] / found.error[1:]).max() > 0.02
    assert 0.1 < np.sqrt(np.mean(difference[1:] ** 2 / found.variance[1:])) < 3


@pytest.mark.parametrize("kernel", pool(FP32), ids=lambda kernel: kernel.name)
def test_kernels_step_within_the_bound(kernel):
    (exact,) = evaluate("Range", scalars(0, 100.05, 0.1))
    (found,) = evaluate("Range", scalars(0, 100.05, 0.1), replace(FP32, kernel=kernel))
    assert (np.abs(found.value - exact.value) <= exact.error).all()


@pytest.mark.parametrize("ends", [(0, 3, 0.25), (-2, 2.5, 0.5), (5, 0, -1), (0, 0, 1), (3, 1, 1)])
def test_range_of_short_numbers_is_exact(ends):
    (found,) = evaluate("Range", scalars(*ends))
    assert found.error is None
    np.testing.assert_array_equal(found.value, np.arange(*ends))


def test_range_whose_length_rounding_decides_is_refused():
    """0.3 / 0.1 in float32 is 3 when rounded, and 3.0000001 if not."""
    with pytest.raises(UnsupportedOperatorError, match="length is within"):
        evaluate("Range", scalars(0, 0.3, 0.1))
    with pytest.raises(UnsupportedOperatorError, match="length is within"):
        apply("Range", *(rounded(end, 1e-9) for end in (0, 3, 1)))


def test_range_passes_on_the_errors_of_its_ends():
    found = apply("Range", rounded(1.0, 0.25), rounded(4.5, 0.0), rounded(1.0, 0.0625))[0]
    assert (found.error >= 0.25 + 0.0625 * np.arange(4)).all()
    assert found.error.max() < 0.44


# Where rounding decides


def test_places_within_rounding_are_refused():
    indices = Bounded(whole(0, 1), np.array([0.0, 1.0]))
    for operator in ("Gather", "GatherElements"):
        with pytest.raises(UnsupportedOperatorError, match="says where numbers go"):
            apply(operator, rounded([1, 2], 0), indices)


def test_top_k_of_certain_order_keeps_each_error():
    values, indices = apply("TopK", rounded([1, 5, 3], [0.5, 0.25, 0.125]), Bounded(whole(2)), outputs=2)
    np.testing.assert_array_equal(indices.value, [1, 2])
    np.testing.assert_array_equal(values.error, [0.25, 0.125])


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_at_the_boundary_is_refused(largest):
    """Second and third are equal within their errors: the second place is open, the first is not."""
    a = rounded([9, 5, 5.2, 1] if largest else [1, 5, 5.2, 9], 0.2)
    _, indices = apply("TopK", a, Bounded(whole(1)), outputs=2, largest=largest)
    assert indices.value == [0]
    with pytest.raises(UnsupportedOperatorError, match="equal within their rounding errors"):
        apply("TopK", a, Bounded(whole(2)), outputs=2, largest=largest)


def test_top_k_values_alone_are_as_far_off_as_the_worst():
    rng = np.random.default_rng(0)
    value, error = rng.standard_normal((4, 50)), 0.3 * rng.random((4, 50))
    (found,) = apply("TopK", rounded(value, error), Bounded(whole(10)))
    for _ in range(50):
        moved = value + rng.choice([-1, 1], value.shape) * error
        difference = np.abs(-np.sort(-moved)[:, :10] - found.value)
        assert (difference <= found.error + 2.0**-50).all()


def test_top_k_of_exact_ties_takes_the_first():
    a = rounded([-np.inf, 2, 2, -np.inf, 7], [0, 0, 0, 0, 0.5])
    _, indices = apply("TopK", a, Bounded(whole(5)), outputs=2)
    np.testing.assert_array_equal(indices.value, [4, 1, 2, 0, 3])


@pytest.mark.parametrize(
    ("feed", "options"),
    [([np.float32([1, np.nan]), whole(1)], {}), ([ordered(3), whole(2)], {"sorted": 0})],
)
def test_top_k_that_is_left_open_is_refused(feed, options):
    with pytest.raises(UnsupportedOperatorError, match="TopK"):
        evaluate("TopK", feed, kinds=(FLOAT, INT64), **options)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_unique_is_that_of_onnxruntime(axis, is_sorted):
    x = np.random.default_rng(0).integers(0, 2, (7, 3)).astype(np.float32)[:, [0, 1, 0]]
    options = {"kinds": (FLOAT, INT64, INT64, INT64), "sorted": is_sorted}
    options |= {} if axis is None else {"axis": axis}
    found = evaluate("Unique", [x], **options)
    for one, expected in zip(found, run_onnxruntime("Unique", [x], **options), strict=True):
        np.testing.assert_array_equal(one.value, expected)


def test_unique_of_rounded_numbers_that_are_apart():
    found, *_ = apply("Unique", rounded([5, 1, 3, 3], [0.5, 0.5, 0, 0]), outputs=4)
    np.testing.assert_array_equal(found.value, [1, 3, 5])
    np.testing.assert_array_equal(found.error, [0.5, 0, 0.5])
    with pytest.raises(UnsupportedOperatorError, match="may be equal"):
        apply("Unique", rounded([5, 1, 3, 3], [0.5, 0.5, 0, 2]), outputs=4)


def test_nonzero_of_a_number_that_may_be_zero_is_refused():
    assert apply("NonZero", rounded([0, 2], [0, 0.5]))[0].value == [[1]]
    with pytest.raises(UnsupportedOperatorError, match="zero within"):
        apply("NonZero", rounded([0, 2], [0.1, 0.5]))


# Boxes


def random_boxes(count, *, centred):
    rng = np.random.default_rng(0)
    corners = rng.random((2, count, 2)), 0.05 + 0.3 * rng.random((2, count, 2))
    parts = corners if centred else (corners[0], corners[0] + corners[1])
    return np.concatenate(parts, -1).astype(np.float32)


@pytest.mark.parametrize("centred", [0, 1])
def test_suppression_is_that_of_onnxruntime(centred):
    rng = np.random.default_rng(1)
    scores = rng.random((2, 3, 60)).astype(np.float32)
    feed = [random_boxes(60, centred=centred), scores, np.array(20), *scalars(0.4, 0.1)]
    options = {"kinds": (INT64,), "center_point_box": centred}
    (found,) = evaluate("NonMaxSuppression", feed, **options)
    assert len(found.value) > 30
    np.testing.assert_array_equal(found.value, run_onnxruntime("NonMaxSuppression", feed, **options)[0])


def suppressed(scores, errors, threshold=0.5, least=None, second=0.0):
    """Suppress two boxes; the second is as large as the first, and starts at `second`."""
    boxes = Bounded(np.array([[[0, 0, 1, 1], [0, second, 1, 1 + second]]], np.float64))
    inputs = [boxes, rounded([[scores]], [[errors]]), Bounded(np.array(5)), Bounded(np.array(threshold))]
    return apply("NonMaxSuppression", *inputs, *([Bounded(np.array(least))] if least is not None else []))[0]


def test_suppression_by_scores_within_rounding():
    """Two boxes apart come in an open order; of the same place, one is certainly taken, and which one is open."""
    with pytest.raises(UnsupportedOperatorError, match="equal within rounding"):
        suppressed([0.9, 0.8], [0.06, 0.06], second=3.0)
    found = suppressed([0.9, 0.8], [0.04, 0.04], second=3.0)
    np.testing.assert_array_equal(found.value[:, 2], [0, 1])


def test_suppressed_box_needs_no_certain_score():
    """The second box may be below the threshold, and goes in either case."""
    np.testing.assert_array_equal(suppressed([0.9, 0.5], [0, 0.1], least=0.5).value, [[0, 0, 0]])
    with pytest.raises(UnsupportedOperatorError, match="equal within rounding"):
        suppressed([0.9, 0.5], [0, 0.1], least=0.5, second=3.0)


def test_overlap_that_is_the_threshold_within_rounding_is_refused():
    third = 1 / 3  # boxes of size 1, half a side apart: a third of the union, were it not for the rounding
    with pytest.raises(UnsupportedOperatorError, match="threshold within rounding"):
        suppressed([0.9, 0.8], [0, 0], threshold=third * (1 + 2e-8), second=0.5 + 1e-9)
    assert len(suppressed([0.9, 0.8], [0, 0], threshold=third * (1 + 1e-5), second=0.5).value) == 2
    assert len(suppressed([0.9, 0.8], [0, 0], threshold=third * (1 - 1e-5), second=0.5).value) == 1


def test_boxes_that_touch_do_not_overlap():
    assert len(suppressed([0.9, 0.8], [0, 0], threshold=0.0, second=1.0).value) == 2
