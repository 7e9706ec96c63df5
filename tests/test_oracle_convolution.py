"""Convolutions, pooling, regions, and the layouts of ONNX Runtime's optimiser."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from spatial import (
    FP32,
    FP64,
    OPERATORS,
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
from onnx_attest.verify.oracle.bounded import exact
from onnx_attest.verify.oracle.kernels import pool
from onnx_attest.verify.oracle.ops.images.nchwc import block_of
from onnx_attest.verify.oracle.ops.operator import Node, NoRoomError, UnsupportedOperatorError

U = FP32.u
IMAGE, LINE, SOLID = normal(2, 6, 11, 13), normal(2, 6, 17), normal(1, 4, 6, 7, 5)
FILTERS = {6: normal(8, 6, 3, 2), 3: normal(8, 3, 3, 3), 1: normal(12, 1, 3, 3)}
BIAS = normal(8)
REGIONS = np.array([[0, 0, 19, 19], [2.3, 1.1, 8, 7.5], [1, 1, 30, 20], [5, 6, 5.2, 6.1]], np.float32)
OFFSETS = np.random.default_rng(1).uniform(-2, 2, (2, 36, 9, 11)).astype(np.float32)
ROUNDED = {
    "conv": ("Conv", [IMAGE, FILTERS[6], BIAS], {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    "conv, groups": ("Conv", [IMAGE, FILTERS[3], BIAS], {"group": 2, "dilations": [2, 1]}),
    "conv, depthwise": ("Conv", [IMAGE, FILTERS[1], normal(12)], {"group": 6, "auto_pad": "SAME_UPPER"}),
    "conv, same": ("Conv", [IMAGE, FILTERS[6], BIAS], {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "conv, one axis": ("Conv", [LINE, normal(5, 6, 3)], {"auto_pad": "VALID"}),
    "conv, three axes": ("Conv", [SOLID, normal(6, 4, 2, 3, 3), normal(6)], {"pads": [1, 1, 1, 0, 1, 1]}),
    "transposed": ("ConvTranspose", [IMAGE, normal(6, 4, 3, 3), normal(4)], {"strides": [2, 3], "pads": [1, 0, 1, 2]}),
    "transposed, groups": (
        "ConvTranspose", [IMAGE, normal(6, 4, 3, 2)],
        {"group": 3, "strides": [2, 2], "output_padding": [1, 1], "dilations": [2, 1]},
    ),
    "transposed, shape": (
        "ConvTranspose", [IMAGE, normal(6, 4, 4, 4)], {"strides": [2, 2], "output_shape": [21, 25]}
    ),
    "transposed, same": (
        "ConvTranspose", [LINE, normal(6, 4, 4)], {"strides": [3], "auto_pad": "SAME_UPPER"}
    ),
    "deformed": (
        "DeformConv", [normal(2, 4, 11, 13), normal(6, 2, 3, 3), OFFSETS, normal(6), normal(2, 18, 9, 11)],
        {"group": 2, "offset_group": 2},
    ),
    "blocks": ("Col2Im", [normal(2, 18, 20), longs(6, 5), longs(2, 3)], {"pads": [0, 0, 0, 1]}),
    "mean": ("AveragePool", [IMAGE], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "mean, pads": ("AveragePool", [IMAGE], {"kernel_shape": [3, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    "mean, dilated": ("AveragePool", [IMAGE], {"kernel_shape": [3, 2], "dilations": [2, 3]}),
    "norm 1": ("LpPool", [IMAGE], {"kernel_shape": [3, 3], "p": 1}),
    "norm 2": ("LpPool", [IMAGE], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "norm 3": ("LpPool", [IMAGE], {"kernel_shape": [2, 3], "p": 3, "strides": [2, 2]}),
    "global mean": ("GlobalAveragePool", [IMAGE], {}),
    "global norm": ("GlobalLpPool", [IMAGE], {"p": 3}),
    "regions": (
        "RoiAlign", [normal(2, 3, 20, 24), REGIONS, longs(0, 1, 1, 0)],
        {"output_height": 3, "output_width": 4, "spatial_scale": 0.3, "sampling_ratio": 2},
    ),
    "regions, adaptive": (
        "RoiAlign", [normal(2, 3, 20, 24), REGIONS, longs(0, 1, 1, 0)],
        {"output_height": 2, "output_width": 2, "spatial_scale": 0.7, "coordinate_transformation_mode": "output_half_pixel"},
    ),
    "regions, largest": (
        "RoiAlign", [normal(2, 3, 20, 24), REGIONS, longs(0, 1, 1, 0)],
        {"output_height": 3, "output_width": 4, "spatial_scale": 0.3, "sampling_ratio": 2, "mode": "max"},
    ),
    "fused": ("com.microsoft.FusedConv", [IMAGE, FILTERS[6], BIAS], {"activation": "Sigmoid"}),
}  # fmt: skip
SAYS_SOMETHING = 2e-4
"""Of a result: sums of up to 60 products are off by 60 u, places on an image of 20 by 20 u times the differences."""
CASES = pytest.mark.parametrize("case", ROUNDED)


@CASES
def test_onnx_runtime_is_within_a_bound_that_says_something(case):
    operator, inputs, attributes = ROUNDED[case]
    expected = apply(operator, *inputs, **attributes)
    actual = on_runtime(operator, *inputs, **attributes)
    assert_within(expected, actual)
    assert np.median(expected.error) < SAYS_SOMETHING * np.sqrt(np.mean(expected.value**2))


@CASES
def test_onnx_runtime_deviates_as_the_variance_says(case):
    operator, inputs, attributes = ROUNDED[case]
    expected = apply(operator, *inputs, **attributes)
    assert 0.1 < root_mean_square(expected, on_runtime(operator, *inputs, **attributes)) < 3


@CASES
def test_operands_anywhere_within_their_errors_stay_within_the_bound(case):
    operator, inputs, attributes = ROUNDED[case]
    reals = [one.dtype == np.float32 for one in inputs]
    given = [with_errors(one, 1e-3) if real else one for one, real in zip(inputs, reals, strict=True)]
    if operator == "RoiAlign" and "sampling_ratio" not in attributes:
        given[1] = inputs[1]  # the number of samples may be another
    expected, reached = apply(operator, *given, **attributes), 0.0
    for seed in range(6):
        actual = apply(operator, *moved(given, seed), arithmetic=FP64, **attributes).value
        difference = np.abs(actual - expected.value)
        assert (difference <= expected.error).all()
        reached = np.maximum(reached, difference)
    assert (reached / expected.error).max() > 0.05


@CASES
def test_kernels_stay_within_the_bound(case):
    operator, inputs, attributes = ROUNDED[case]
    expected = apply(operator, *inputs, **attributes)
    for kernel in pool(PROFILES["fp32"]):
        carried = apply(operator, *inputs, arithmetic=replace(PROFILES["fp32"], kernel=kernel), **attributes)
        assert carried.error is None
        assert_within(expected, carried.value.astype(np.float32))


def test_a_bias_that_the_sum_starts_with_is_within_the_bound():
    """However large it is: each addition then rounds a number of its size."""
    x, w, bias = (
        np.full(shape, size, np.float32)
        for shape, size in (((1, 64, 1, 1), 0.3), ((1, 64, 1, 1), 1), (1, 1e6))
    )
    expected, without = apply("Conv", x, w, bias), apply("Conv", x, w)
    actual = bias.copy()
    for product in x.reshape(-1):
        actual = actual + product
    error = np.abs(actual - expected.value).max()
    assert without.error.max() + 3 * U * expected.value.max() < error <= expected.error.max()


def test_tf32_operands_are_within_their_own_bound_only():
    cut = (IMAGE.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    exactly = apply("Conv", cut, FILTERS[6]).value
    full, short = (apply("Conv", IMAGE, FILTERS[6], arithmetic=PROFILES[name]) for name in ("fp32", "tf32"))
    assert (np.abs(exactly - full.value) > full.error).any()
    assert (np.abs(exactly - short.value) <= short.error).all()


def test_large_convolutions_are_done_in_parts():
    x, w = normal(3, 64, 80, 90), normal(4, 64, 3, 3)
    whole = apply("Conv", x, w, pads=[1, 1, 1, 1])
    one = apply("Conv", x[2:, :, 40:45, :], w, pads=[0, 1, 0, 1])
    np.testing.assert_allclose(whole.value[2:, :, 41:44], one.value, rtol=1e-12)


def test_no_images_are_no_images():
    x = normal(0, 6, 11, 13)
    assert apply("Conv", x, normal(8, 6, 3, 3)).value.shape == (0, 8, 9, 11)
    assert apply("MaxPool", x, kernel_shape=[3, 3]).value.shape == (0, 6, 9, 11)


@pytest.mark.parametrize("width", [1, 2])
def test_windows_without_room_are_refused_by_name(width):
    """The formula of the sizes gives 0 at a width of 2; torch refuses that too, and ONNX Runtime pools to 1."""
    x = normal(2, 6, 3, width)
    with pytest.raises(NoRoomError, match=f"no room for windows of 3 x 3 in 3 x {width}"):
        apply("Conv", x, normal(8, 6, 3, 3))
    with pytest.raises(NoRoomError, match="no room for windows"):
        apply("MaxPool", x, kernel_shape=[3, 3])


def test_infinities_are_where_a_runtime_has_them():
    x = IMAGE.copy()
    x[0, 0, 4, 4] = np.inf
    expected, actual = apply("Conv", x, FILTERS[6]), on_runtime("Conv", x, FILTERS[6])
    np.testing.assert_array_equal(np.isfinite(expected.value), np.isfinite(actual))
    assert np.isfinite(expected.error).all()


@pytest.mark.parametrize(
    ("opset", "outcome"), [(10, None), (11, (1, 2))], ids=["opset 10 says the opposite", "opset 11"]
)
def test_transposed_convolution_splits_odd_padding(opset, outcome):
    x, w = np.ones((1, 1, 3), np.float32), np.arange(1.0, 6.0, dtype=np.float32).reshape(1, 1, 5)
    attributes = {"strides": [2], "auto_pad": "SAME_UPPER", "opset": opset}
    if outcome is None:
        with pytest.raises(UnsupportedOperatorError, match="odd number of pads"):
            apply("ConvTranspose", x, w, **attributes)
        return
    full = apply("ConvTranspose", x, w, strides=[2]).value
    front, back = outcome
    found = apply("ConvTranspose", x, w, **attributes).value
    np.testing.assert_array_equal(found, full[..., front : full.shape[2] - back])


# Pooling

POOLED = [
    {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 0]},
    {"kernel_shape": [2, 3], "strides": [3, 3], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "dilations": [3, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [3, 3], "auto_pad": "VALID", "storage_order": 1},
]


@pytest.mark.parametrize("attributes", POOLED, ids=str)
def test_maxima_and_where_they_are(attributes):
    value, indices = apply("MaxPool", IMAGE, outputs=2, **attributes)
    actual, places = on_runtime("MaxPool", IMAGE, outputs=2, **attributes)
    np.testing.assert_array_equal(value.value, actual.astype(float))
    np.testing.assert_array_equal(indices.value, places)
    if not attributes.get("storage_order"):
        np.testing.assert_array_equal(IMAGE.reshape(-1)[indices.value], actual)


@pytest.mark.parametrize("pads", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_means_count_no_place_beyond_the_padding(ceil, pads):
    attributes = {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1]}
    attributes |= {"ceil_mode": ceil, "count_include_pad": pads}
    expected = apply("AveragePool", np.ones_like(IMAGE), **attributes)
    assert_within(expected, on_runtime("AveragePool", np.ones_like(IMAGE), **attributes))
    assert (expected.value.min() < 1) == bool(pads)


def test_maxima_of_integers_and_the_first_of_equal_ones():
    x = np.array([[[-128, -128, 3, 3, 1]]], np.int8)
    value, indices = apply("MaxPool", x, outputs=2, kernel_shape=[2])
    assert value.value.dtype == np.int8
    np.testing.assert_array_equal(value.value, [[[-128, 3, 3, 3]]])
    np.testing.assert_array_equal(indices.value, [[[0, 2, 2, 3]]])


def test_maxima_are_as_sure_as_the_numbers_that_may_be_the_largest():
    x = exact(np.array([[[5.0, 1.0, 4.9999, 0.0]]]))
    given = replace(x, error=np.array([[[1e-3, 9.0, 1e-4, 1e-5]]]))
    found = apply("MaxPool", given, kernel_shape=[2], strides=[2])
    np.testing.assert_array_equal(found.error, [[[9.0, 1e-4]]])
    with pytest.raises(UnsupportedOperatorError, match="within its rounding error"):
        apply("MaxPool", given, outputs=2, kernel_shape=[2], strides=[2])


def test_attributes_of_later_opsets_are_refused():
    for operator, opset, attributes in (
        ("AveragePool", 18, {"dilations": [2, 2]}), ("AveragePool", 6, {"count_include_pad": 1}),
        ("LpPool", 11, {"ceil_mode": 1}), ("MaxPool", 9, {"ceil_mode": 1}),
    ):  # fmt: skip
        with pytest.raises(UnsupportedOperatorError, match=next(iter(attributes))):
            apply(operator, IMAGE, opset=opset, kernel_shape=[2, 2], **attributes)


def test_unpooling_puts_maxima_back():
    value, indices = apply("MaxPool", IMAGE[:, :, :10, :12], outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    found = apply("MaxUnpool", value, indices, kernel_shape=[2, 2], strides=[2, 2]).value
    np.testing.assert_array_equal(
        found[found != 0], np.sort(indices.value.reshape(-1)) * 0 + found[found != 0]
    )
    np.testing.assert_array_equal(found.reshape(-1)[indices.value], value.value)
    assert np.count_nonzero(found) == value.value.size
    with pytest.raises(UnsupportedOperatorError, match="another shape"):
        apply("MaxUnpool", value, indices, longs(2, 6, 11, 12), kernel_shape=[2, 2], strides=[2, 2])


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("pooling", ["avg", "max"])
def test_regions_are_those_of_the_reference(mode, pooling):
    """ONNX's own cases of means have four digits only."""
    attributes = {
        "output_height": 2,
        "output_width": 3,
        "mode": pooling,
        "coordinate_transformation_mode": mode,
    }
    inputs = [normal(2, 3, 9, 8), REGIONS / 3, longs(1, 0, 1, 0)]
    node = helper.make_node("RoiAlign", ["x", "r", "i"], ["y"], **attributes)
    kinds = [helper.make_tensor_value_info(n, k, None) for n, k in (("x", 1), ("r", 1), ("i", 7))]
    graph = helper.make_graph([node], "g", kinds, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    (actual,) = ReferenceEvaluator(model).run(None, dict(zip("xri", inputs, strict=True)))
    assert_within(apply("RoiAlign", *inputs, opset=22, **attributes), actual)


def test_a_number_of_samples_that_rounding_decides_is_refused():
    third = np.array([[0, 0, 0.9, 0.9]], np.float32)  # times a third is not the third of it
    with pytest.raises(UnsupportedOperatorError, match="whole within its rounding error"):
        apply("RoiAlign", normal(1, 1, 9, 9), third * np.float32(10 / 3), longs(0), opset=10, output_height=3)


# What ONNX Runtime's optimiser makes of it

ACTIVATED = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": (0.1,), "Clip": (0.0, 6.0), "HardSigmoid": (0.2, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATED)
def test_convolutions_with_an_activation(name):
    attributes = {"activation": name, "pads": [1, 1, 1, 1]}
    if ACTIVATED[name]:
        attributes["activation_params"] = list(ACTIVATED[name])
    inputs = [IMAGE, normal(8, 6, 3, 3), BIAS, normal(2, 8, 11, 13, seed=7)]
    expected = apply("com.microsoft.FusedConv", *inputs, **attributes)
    assert_within(expected, on_runtime("com.microsoft.FusedConv", *inputs, **attributes))
    assert (expected.value != apply("Conv", *inputs[:3], pads=[1, 1, 1, 1]).value).any()


def test_unknown_activations_are_refused():
    with pytest.raises(UnsupportedOperatorError, match="Gelu"):
        apply("com.microsoft.FusedConv", IMAGE, FILTERS[6], activation="Gelu")


def convolutional(batch=2):
    """Return a model whose convolutions ONNX Runtime lays out in blocks, with every operator of that domain."""
    weights = {
        "w1": normal(24, 3, 3, 3), "b1": normal(24), "w2": normal(24, 1, 3, 3), "w3": normal(32, 24, 1, 1),
        "w4": normal(32, 32, 3, 3), "b4": normal(32), "w5": normal(64, 16, 3, 3), "w6": normal(20, 64, 1, 1),
        "low": np.float32(0), "high": np.float32(6), "scales": np.array([1, 1, 2, 2], np.float32),
    }  # fmt: skip
    same, half = {"pads": [1, 1, 1, 1]}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], strides=[2, 2], **same), node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w2"], ["c"], group=24, **same), node("Clip", ["c", "low", "high"], ["d"]),
        node("Conv", ["d", "w3"], ["e"]), node("Conv", ["e", "w4", "b4"], ["f"], **same),
        node("Add", ["e", "f"], ["g"]), node("MaxPool", ["g"], ["h"], **half),
        node("Conv", ["h", "w5"], ["i"], group=2, **same), node("LeakyRelu", ["i"], ["j"], alpha=0.1),
        node("Resize", ["j", "", "scales"], ["k"], mode="linear"),
        node("AveragePool", ["k"], ["l"], count_include_pad=1, **half), node("Conv", ["l", "w6"], ["m"]),
        node("GlobalAveragePool", ["k"], ["n"]), node("GlobalMaxPool", ["k"], ["o"]),
        node("Transpose", ["m"], ["p"], perm=[0, 2, 3, 1]),
    ]  # fmt: skip
    floats = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [floats("x", 1, [batch, 3, 20, 20])], [floats(name, 1, None) for name in "nop"],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def session_of(runtime, model, level, path=None):
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    if path is not None:
        options.optimized_model_filepath = str(path)
    return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def blocked(tmp_path_factory):
    """Return the graph that ONNX Runtime runs, its values, and the numbers they come from."""
    runtime = pytest.importorskip("onnxruntime")
    path, levels = tmp_path_factory.mktemp("blocked") / "blocked.onnx", runtime.GraphOptimizationLevel
    session_of(runtime, convolutional(), levels.ORT_ENABLE_ALL, path)
    model = onnx.load(path)
    made = {output.name for output in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name and name not in made]
    model.graph.output.extend(helper.make_tensor_value_info(name, 1, None) for name in names)
    feed = {"x": normal(2, 3, 20, 20)}
    session = session_of(runtime, model, levels.ORT_DISABLE_ALL)
    found = session.run(None, feed)
    values = dict(zip((output.name for output in session.get_outputs()), found, strict=True))
    constants = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    return model.graph.node, values | feed | constants


def test_the_optimiser_lays_out_every_operator_in_blocks(blocked):
    """Otherwise the test below is about less than it says."""
    nodes, _ = blocked
    kinds = {node.op_type for node in nodes if node.domain == "com.microsoft.nchwc"}
    if not kinds:
        pytest.skip("this CPU has no such layout")
    everything = {name.rpartition(".")[2] for name in OPERATORS if name.startswith("com.microsoft.nchwc.")}
    assert kinds | {"ReorderInput"} == everything


def test_each_node_in_blocks_is_within_its_bound(blocked):
    nodes, values = blocked
    for node in nodes:
        if node.domain != "com.microsoft.nchwc":
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
        operator = f"{node.domain}.{node.op_type}"
        given = [exact(values[name]) if name else None for name in node.input]
        own = Node(node.name, operator, 1, attributes, tuple(node.input), tuple(node.output))
        (expected,) = OPERATORS[operator](own, given, FP32)
        own.refuse_unasked()
        actual = values[node.output[0]]
        assert_within(expected, actual)
        if expected.error is not None and node.op_type == "Conv":
            assert 0.05 < root_mean_square(expected, actual) < 3
            assert np.median(expected.error) < SAYS_SOMETHING * np.sqrt(np.mean(expected.value**2))


def test_channels_are_reordered_to_blocks_and_back():
    """No runtime takes these alone from outside; the layout is its own inverse."""
    x, domain = normal(2, 20, 3, 4), "com.microsoft.nchwc."
    for last in (0, 1):
        turned = x.transpose(0, 2, 3, 1) if last else x
        blocks = apply(domain + "ReorderInput", turned, channels_last=last)
        assert blocks.value.shape[1] in (24, 32)
        back = apply(domain + "ReorderOutput", blocks, channels=20, channels_last=last)
        np.testing.assert_array_equal(back.value, turned)


def test_the_size_of_a_block_is_read_from_the_channels_where_they_tell():
    assert block_of(24) == 8
    assert block_of(32, 40) == 8
    assert block_of(32) in (8, 16)
