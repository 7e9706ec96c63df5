"""Branches, loops, sequences and optionals: their semantics, and the bounds that go through them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.kernels import pool
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.oracle.values import Listed

FP32 = PROFILES["fp32"]
SPREAD = replace(FP32, deviations=True)


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def model_of(text, opset=17):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


def evaluate(model, feed, arithmetic=FP32):
    """Return all outputs by name."""
    evaluation = GraphOracle(model).evaluate(feed, arithmetic)
    return {**evaluation.outputs, **evaluation.others}


def run_onnxruntime(model, feed):
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([value.name for value in model.graph.output], session.run(None, feed), strict=True))


def assert_agree(model, feed):
    """The outputs of ONNX Runtime are within the bounds."""
    found, actual = evaluate(model, feed), run_onnxruntime(model, feed)
    for name, expected in actual.items():
        assert found[name].value.shape == expected.shape
        assert (np.abs(expected - found[name].value) <= found[name].errors()).all()
    return found


# Branches

BRANCHES = """
g (bool c, float[n] x) => (float[m] y) {
  y = If (c) <then_branch = t () => (float[n] a) { a = Add (x, x) },
              else_branch = e () => (float[n] b) { b = Neg (x) }>
}
"""


@pytest.mark.parametrize(("condition", "factor"), [(True, 2), (False, -1)])
def test_if_takes_one_branch_and_sees_what_is_around(condition, factor):
    x = numbers(4)
    found = evaluate(model_of(BRANCHES), {"c": np.array(condition), "x": x})["y"]
    np.testing.assert_array_equal(found.value, factor * x.astype(float))
    assert (found.error is None) == (not condition)  # a sign is exact, a sum is not


def test_if_whose_condition_rounding_decides_is_refused():
    model = model_of("""
    g (float[1] x, float[1] z) => (float[1] y) {
      s = Add (x, z) c = Less (s, x)
      y = If (c) <then_branch = t () => (float[1] a) { a = Neg (x) },
                  else_branch = e () => (float[1] b) { b = Abs (x) }>
    }
    """)
    with pytest.raises(UnsupportedOperatorError, match="equal within their rounding errors"):
        evaluate(model, {"x": np.ones(1, np.float32), "z": np.zeros(1, np.float32)})


# Loops

POWERS = """
g (int64 n, float[3, 3] w, float[3, 3] x) => (float[3, 3] y, float[k, 3, 3] all) {
  y, all = Loop (n, , x) <body = b (int64 i, bool c, float[3, 3] v) => (bool go, float[3, 3] next, float[3, 3] out) {
    go = Identity (c)
    next = MatMul (v, w)
    out = Identity (next)
  }>
}
"""


def steps(count):
    return np.array(count, np.int64)


def test_loop_multiplies_within_its_bound():
    feed = {"n": steps(8), "w": numbers(3, 3), "x": numbers(3, 3, seed=1)}
    found = assert_agree(model_of(POWERS), feed)
    power = np.linalg.matrix_power(feed["w"].astype(float), 8)
    np.testing.assert_allclose(found["y"].value, feed["x"] @ power, rtol=2.0**-40)
    assert found["y"].error.max() < 1e-3 * np.abs(found["y"].value).max()
    assert found["all"].error.shape == (8, 3, 3)
    np.testing.assert_array_equal(found["all"].error[-1], found["y"].error)


def test_bound_of_a_loop_covers_a_loop_on_perturbed_inputs():
    """As if every product were as far off as it may be, in turn up and down."""
    rng, feed = np.random.default_rng(0), {"n": steps(5), "w": numbers(3, 3), "x": numbers(3, 3, seed=1)}
    bound = evaluate(model_of(POWERS), feed)["y"]
    w = feed["w"].astype(float)
    for _ in range(30):
        value = feed["x"].astype(float)
        for _ in range(5):
            own = 3 * 2.0**-24 * (np.abs(value) @ np.abs(w))
            value = value @ w + rng.choice([-1, 1], own.shape) * own
        assert (np.abs(value - bound.value) <= bound.error).all()


def test_deviation_goes_through_a_loop():
    feed = {"n": steps(6), "w": numbers(3, 3), "x": numbers(3, 3, seed=1)}
    z = []
    for seed in range(20):
        feed["x"] = numbers(3, 3, seed=seed)
        y = evaluate(model_of(POWERS), feed, SPREAD)["y"]
        value = feed["x"]
        for _ in range(6):
            value = value @ feed["w"]
        z.append((value - y.value) / np.sqrt(y.variance))
    assert 0.1 < np.sqrt(np.mean(np.square(z))) < 3


def test_kernel_goes_through_a_loop():
    feed = {"n": steps(6), "w": numbers(3, 3), "x": numbers(3, 3, seed=1)}
    exact = evaluate(model_of(POWERS), feed)["y"]
    found = evaluate(model_of(POWERS), feed, replace(FP32, kernel=pool(FP32)[0]))["y"]
    assert found.error is None
    assert np.abs(found.value - exact.value).max() > 0
    assert (np.abs(found.value - exact.value) <= exact.error).all()


WHILE = """
g (int64 n, bool c, int64 start) => (int64 y, int64[k] seen) {
  y, seen = Loop (n, c, start) <body = b (int64 i, bool ci, int64 v) => (bool go, int64 next, int64 out)
  <int64 ten = {10}> {
    next = Add (v, i)
    out = Identity (v)
    go = Less (next, ten)
  }>
}
"""


@pytest.mark.parametrize("feed", [(99, True), (2, True), (99, False), (0, True)])
def test_loop_ends_by_condition_or_count(feed):
    assert_agree(
        model_of(WHILE), {"n": steps(feed[0]), "c": np.array(feed[1]), "start": np.array(1, np.int64)}
    )


def test_body_that_ends_a_loop_without_a_condition_is_refused():
    """The standard ignores what the body says then, ONNX Runtime does not."""
    model = model_of(WHILE.replace("Loop (n, c, start)", "Loop (n, , start)"))
    feed = {"n": steps(9), "c": np.array(False), "start": np.array(1, np.int64)}
    with pytest.raises(UnsupportedOperatorError, match="given no condition"):
        evaluate(model, feed)
    assert len(evaluate(model, {**feed, "n": steps(5)})["seen"].value) == 5  # it ends by its count


def test_loop_without_an_end_is_refused():
    text = WHILE.replace("Loop (n, c, start)", "Loop ( , , start)")
    feed = {"n": steps(9), "c": np.array(True), "start": np.array(1, np.int64)}
    with pytest.raises(UnsupportedOperatorError, match="without an end"):
        evaluate(model_of(text), feed)


def test_loop_of_no_turns_gives_what_it_was_given():
    feed = {"n": steps(0), "w": numbers(3, 3), "x": numbers(3, 3, seed=1)}
    found = assert_agree(model_of(POWERS), feed)
    assert found["all"].value.shape == (0, 3, 3)
    np.testing.assert_array_equal(found["y"].value, feed["x"])


GROWING = """
g (int64 n, float[3] x) => (seq(float[3]) y, int64 length, float[m] joined) {
  none = SequenceEmpty ()
  y = Loop (n, , none) <body = b (int64 i, bool c, seq(float[3]) s) => (bool go, seq(float[3]) longer) {
    go = Identity (c)
    f = CastLike (i, x)
    item = Mul (x, f)
    longer = SequenceInsert (s, item)
  }>
  length = SequenceLength (y)
  joined = ConcatFromSequence <axis = 0> (y)
}
"""


def test_loop_carries_a_sequence():
    text = GROWING.replace("CastLike (i, x)", "Cast <to = 1> (i)")
    x = numbers(3)
    found = evaluate(model_of(text), {"n": steps(4), "x": x})
    assert isinstance(found["y"], Listed)
    assert found["length"].value == 4
    np.testing.assert_array_equal(
        found["joined"].value, np.concatenate([k * x.astype(float) for k in range(4)])
    )
    assert (found["joined"].error[3:] > 0).all()


# Scans

SUMS = """
g (float[2] start, float[T, 2] x) => (float[2] last, float[T, 2] sums) {
  last, sums = Scan <num_scan_inputs = 1 EXTRA, body = b (float[2] s, float[2] e) => (float[2] next, float[2] out) {
    next = Add (s, e)
    out = Identity (next)
  }> (start, x)
}
"""


@pytest.mark.parametrize(
    "extra",
    ["", ", scan_input_directions = [1]", ", scan_output_directions = [1]", ", scan_output_axes = [-1]",
     ", scan_output_axes = [1], scan_output_directions = [1], scan_input_directions = [1]"],
)  # fmt: skip
def test_scan_is_that_of_onnxruntime(extra):
    text = SUMS.replace("EXTRA", extra).replace("float[T, 2] sums", "float[A, B] sums")
    assert_agree(model_of(text), {"start": numbers(2), "x": numbers(7, 2)})


def test_scan_along_another_axis():
    text = SUMS.replace("EXTRA", ", scan_input_axes = [-1]").replace("float[T, 2] x", "float[2, T] x")
    found = assert_agree(model_of(text), {"start": numbers(2), "x": numbers(2, 7)})
    assert found["sums"].value.shape == (7, 2)


def test_scan_over_nothing_gives_no_outputs():
    feed = {"start": numbers(2), "x": numbers(0, 2)}
    found = evaluate(model_of(SUMS.replace("EXTRA", "")), feed)
    np.testing.assert_array_equal(found["last"].value, feed["start"])
    assert found["sums"].value.shape == (0, 2)


BATCHES = """
g (int64[B] lengths, float[B, 2] start, float[B, T, 2] x) => (float[B, 2] last, float[B, T, 2] sums) {
  last, sums = Scan <num_scan_inputs = 1 EXTRA, body = b (float[2] s, float[2] e) => (float[2] next, float[2] out) {
    next = Add (s, e)
    out = Identity (next)
  }> (LENGTHS, start, x)
}
"""


@pytest.mark.parametrize("extra", ["", ", directions = [1]"])
def test_scan_of_opset_8_walks_through_batches(extra):
    model = model_of(BATCHES.replace("EXTRA", extra).replace("LENGTHS", ""), opset=8)
    feed = {"lengths": np.array([4, 4]), "start": numbers(2, 2), "x": numbers(2, 4, 2)}
    assert_agree(model, feed)


def test_scan_of_opset_8_leaves_open_what_is_behind_a_sequence():
    model = model_of(BATCHES.replace("EXTRA", "").replace("LENGTHS", "lengths"), opset=8)
    feed = {"lengths": np.array([4, 2]), "start": numbers(2, 2), "x": numbers(2, 4, 2)}
    with pytest.raises(UnsupportedOperatorError, match="the rest is left open"):
        evaluate(model, feed)


def test_scan_of_opset_8_keeps_the_state_at_the_end_of_each_sequence():
    text = BATCHES.replace("EXTRA", "").replace("LENGTHS", "lengths").replace("last, sums =", "last =")
    text = text.replace(", float[B, T, 2] sums", "").replace(", float[2] out", "")
    text = text.replace("    out = Identity (next)\n", "")
    feed = {"lengths": np.array([4, 2]), "start": numbers(2, 2), "x": numbers(2, 4, 2)}
    found = evaluate(model_of(text, opset=8), feed)["last"]
    x = feed["x"].astype(float)
    np.testing.assert_allclose(found.value, feed["start"] + np.stack([x[0].sum(0), x[1, :2].sum(0)]))


# Sequences and optionals

SEQUENCES = """
g (float[3] a, float[3] b, int64 at) => (float[3] y, int64 n, float[p, q] z) {
  both = SequenceConstruct (a, b)
  three = SequenceInsert (both, a, at)
  shorter = SequenceErase (three)
  y = SequenceAt (shorter, at)
  n = SequenceLength (shorter)
  z = ConcatFromSequence <axis = -1, new_axis = 1> (three)
}
"""


@pytest.mark.parametrize("at", [0, -1, -2, 1])
def test_sequences_are_those_of_onnxruntime(at):
    assert_agree(
        model_of(SEQUENCES), {"a": numbers(3), "b": numbers(3, seed=1), "at": np.array(at, np.int64)}
    )


def test_place_beyond_a_sequence_is_refused():
    feed = {"a": numbers(3), "b": numbers(3, seed=1), "at": np.array(3, np.int64)}
    with pytest.raises(UnsupportedOperatorError, match="place 3 in a sequence of 2"):
        evaluate(model_of(SEQUENCES), feed)


SPLITS = {
    "SplitToSequence <axis = 1> (x)": [np.s_[:, k : k + 1] for k in range(4)],
    "SplitToSequence <axis = -1, keepdims = 0> (x)": [np.s_[:, k] for k in range(4)],
    # With a split keepdims is ignored; ONNX Runtime fails there.
    "SplitToSequence <axis = 0, keepdims = 0> (x, two)": [np.s_[:2], np.s_[2:4], np.s_[4:]],
    "SplitToSequence (x, sizes)": [np.s_[:1], np.s_[1:]],
}


@pytest.mark.parametrize("call", SPLITS)
def test_split_to_sequence(call):
    model = model_of(f"""
    g (float[5, 4] x) => (seq(float) y) <int64 two = {{2}}, int64[2] sizes = {{1, 4}}> {{ y = {call} }}
    """)
    x = numbers(5, 4)
    found = evaluate(model, {"x": x})["y"]
    for item, part in zip(found.items, SPLITS[call], strict=True):
        np.testing.assert_array_equal(item.value, x[part])


MAPPED = """
g (seq(float[n]) s, float[1] t) => (seq(float[n]) y) {
  y = SequenceMap (s, t) <body = b (float[n] item, float[1] u) => (float[n] out) { out = Add (item, u) }>
}
"""


def test_sequence_map_gives_tensors_to_every_item():
    items = [numbers(2), numbers(3)]
    found = evaluate(model_of(MAPPED), {"s": items, "t": np.ones(1, np.float32)})["y"]
    assert [item.value.shape for item in found.items] == [(2,), (3,)]
    for item, x in zip(found.items, items, strict=True):
        np.testing.assert_array_equal(item.value, x.astype(float) + 1)
        assert (item.error > 0).all()


OPTIONALS = """
g (optional(float[3]) o, float[3] x) => (bool has, float[3] y) {
  has = OptionalHasElement (o)
  y = If (has) <then_branch = t () => (float[3] a) { a = OptionalGetElement (o) },
                else_branch = e () => (float[3] b) { b = Identity (x) }>
}
"""


@pytest.mark.parametrize("given", [True, False])
def test_optional_has_an_element_or_not(given):
    x, other = numbers(3), numbers(3, seed=1)
    found = evaluate(model_of(OPTIONALS, 18), {"o": other if given else None, "x": x})
    assert found["has"].value == given
    np.testing.assert_array_equal(found["y"].value, other if given else x)


def test_element_of_an_empty_optional_is_refused():
    model = model_of("g (optional(float[3]) o) => (float[3] y) { y = OptionalGetElement (o) }", 18)
    with pytest.raises(UnsupportedOperatorError, match="empty optional"):
        evaluate(model, {"o": None})
