"""RNN, GRU and LSTM: against ONNX Runtime, against plain loops, under perturbed inputs, and their attributes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops.operator import Node, UnsupportedOperatorError
from onnx_attest.verify.oracle.ops.pointwise.named_activations import KINDS, named
from onnx_attest.verify.oracle.ops.recurrent import OPERATORS

FP32 = PROFILES["fp32"]
FLOAT64_SLACK = 1 + 2.0**-30
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
OUTPUTS = ("Y", "Y_h", "Y_c")
STEPS, BATCH, WIDTH, HIDDEN = 7, 3, 12, 16
LENGTHS = np.array([7, 1, 5], np.int32)


def feed(operator, *, directions=1, seed=0, only=INPUTS, lengths=None):
    """Return weights as torch initialises them, and the inputs that are asked for, by name."""
    rng = np.random.default_rng(seed)
    gates, reach = GATES[operator], HIDDEN**-0.5

    def uniform(*shape):
        return rng.uniform(-reach, reach, shape).astype(np.float32)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    everything = {
        "X": normal(STEPS, BATCH, WIDTH),
        "W": uniform(directions, gates * HIDDEN, WIDTH),
        "R": uniform(directions, gates * HIDDEN, HIDDEN),
        "B": uniform(directions, 2 * gates * HIDDEN),
        "sequence_lens": lengths,
        "initial_h": 0.5 * normal(directions, BATCH, HIDDEN),
        "initial_c": normal(directions, BATCH, HIDDEN) if operator == "LSTM" else None,
        "P": uniform(directions, 3 * HIDDEN) if operator == "LSTM" else None,
    }
    kept = {"X", "W", "R", *only}
    return {name: value for name, value in everything.items() if value is not None and name in kept}


PLAIN = ("B",)
BOTH = {"direction": "bidirectional"}
CASES = {
    "rnn": ("RNN", feed("RNN", only=PLAIN), {}),
    "rnn, all": ("RNN", feed("RNN", directions=2, lengths=LENGTHS), {**BOTH, "activations": ["Relu", "Softsign"]}),
    "rnn with alpha and beta": (
        "RNN", feed("RNN", directions=2),
        {**BOTH, "activations": ["HardSigmoid", "ScaledTanh"], "activation_alpha": [0.3, 1.2], "activation_beta": [0.4, 0.7]},
    ),
    "rnn of leaky activations": (
        "RNN", feed("RNN", directions=2), {**BOTH, "activations": ["LeakyRelu", "Elu"], "activation_alpha": [0.2, 0.7]}
    ),
    "rnn, affine": (
        "RNN", feed("RNN"), {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]}
    ),
    "gru": ("GRU", feed("GRU", only=PLAIN), {}),
    "gru, all": ("GRU", feed("GRU", directions=2, lengths=LENGTHS), BOTH),
    "gru of torch": ("GRU", feed("GRU", directions=2), {**BOTH, "linear_before_reset": 1}),
    "gru backwards": ("GRU", feed("GRU", lengths=LENGTHS), {"direction": "reverse"}),
    "gru, clipped": ("GRU", feed("GRU"), {"clip": 0.6}),
    "lstm": ("LSTM", feed("LSTM", only=PLAIN), {}),
    "lstm of torch": ("LSTM", feed("LSTM", directions=2, only=("B", "initial_h", "initial_c")), BOTH),
    "lstm, all": ("LSTM", feed("LSTM", directions=2, lengths=LENGTHS), BOTH),
    "lstm backwards": ("LSTM", feed("LSTM", lengths=LENGTHS), {"direction": "reverse"}),
    "lstm with coupled gates": ("LSTM", feed("LSTM", only=PLAIN), {"input_forget": 1}),
    "lstm of other activations": (
        "LSTM", feed("LSTM", only=PLAIN),
        {"activations": ["HardSigmoid", "Softsign", "Relu"], "activation_alpha": [0.25], "activation_beta": [0.45]},
    ),
}  # fmt: skip


def evaluated(operator, given, attributes, arithmetic=FP32, opset=14):
    names = [name if name in given else "" for name in INPUTS]
    inputs = [given.get(name) for name in INPUTS]
    inputs = [value if value is None or isinstance(value, Bounded) else exact(value) for value in inputs]
    outputs = OUTPUTS if operator == "LSTM" else OUTPUTS[:2]
    node = Node("n", operator, opset, {"hidden_size": HIDDEN, **attributes}, tuple(names), outputs)
    results = OPERATORS[operator](node, inputs, arithmetic)
    node.refuse_unasked()
    return results


def run_onnxruntime(operator, given, attributes):
    ort = pytest.importorskip("onnxruntime")
    names = [name if name in given else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    outputs = OUTPUTS if operator == "LSTM" else OUTPUTS[:2]
    node = onnx.helper.make_node(operator, names, outputs, hidden_size=HIDDEN, **attributes)
    graph = onnx.helper.make_graph(
        [node], "g",
        [onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
         for name, x in given.items()],
        [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [y.astype(np.float64) for y in session.run(None, given)]


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_is_within_the_bound_and_the_bound_says_something(name):
    results = evaluated(*CASES[name])
    for result, y in zip(results, run_onnxruntime(*CASES[name]), strict=True):
        assert y.shape == result.value.shape
        assert (np.abs(y - result.value) <= result.error).all()
        assert np.median(result.error[result.error > 0]) < 2e-4 * np.sqrt(np.mean(result.value**2))


@pytest.mark.parametrize("name", CASES)
def test_deviation_is_of_the_size_of_onnxruntimes_error(name):
    result, *_ = evaluated(*CASES[name], arithmetic=replace(FP32, deviations=True))
    y = run_onnxruntime(*CASES[name])[0]
    known = result.variance > 0
    z = (y - result.value)[known] / np.sqrt(result.variance[known])
    assert 0.1 < np.sqrt(np.mean(z**2)) < 3


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_inputs_anywhere_within_their_errors_stay_within_the_bound(name, seed):
    operator, given, attributes = CASES[name]
    rng = np.random.default_rng(seed)
    uncertain, moved = dict(given), dict(given)
    for key, x in given.items():
        if x.dtype == np.float32:
            wide = x.astype(np.float64)
            error = 1e-6 * np.abs(wide) + 1e-7
            side = 1.0 if seed == 0 else rng.choice([-1.0, 1.0], x.shape)
            uncertain[key], moved[key] = Bounded(wide, error), Bounded(wide + side * error)
    for result, other in zip(
        evaluated(operator, uncertain, attributes), evaluated(operator, moved, attributes), strict=True
    ):
        assert (np.abs(other.value - result.value) <= result.error * FLOAT64_SLACK).all()


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_same_and_have_no_bounds(name):
    expected = evaluated(*CASES[name])
    kernel = Kernel("sequential", 1)
    for computed, exactly in zip(
        evaluated(*CASES[name], replace(FP32, kernel=kernel)), expected, strict=True
    ):
        assert computed.error is None
        assert (np.abs(computed.value - exactly.value) <= exactly.error).all()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_lstm_is_its_definition_one_sequence_at_a_time():
    """Peepholes, lengths, both directions: plain loops over what ONNX writes."""
    given = {name: x.astype(np.float64) for name, x in feed("LSTM", directions=2).items()}
    given["sequence_lens"] = LENGTHS
    y, y_h, y_c = evaluated("LSTM", given, BOTH)
    for direction in range(2):
        W, R, B, P = (given[name][direction] for name in ("W", "R", "B", "P"))
        pi, po, pf = np.split(P, 3)
        for sequence, length in enumerate(LENGTHS):
            h, c = (given[name][direction, sequence] for name in ("initial_h", "initial_c"))
            for t in range(length) if direction == 0 else reversed(range(length)):
                whole = W @ given["X"][t, sequence] + R @ h + B[: 4 * HIDDEN] + B[4 * HIDDEN :]
                i, o, f, new = np.split(whole, 4)
                i, f = sigmoid(i + pi * c), sigmoid(f + pf * c)
                c = f * c + i * np.tanh(new)
                h = sigmoid(o + po * c) * np.tanh(c)
                np.testing.assert_allclose(y.value[t, direction, sequence], h, rtol=0, atol=1e-12)
            np.testing.assert_allclose(y_h.value[direction, sequence], h, rtol=0, atol=1e-12)
            np.testing.assert_allclose(y_c.value[direction, sequence], c, rtol=0, atol=1e-12)
            assert not y.value[length:, direction, sequence].any()


@pytest.mark.parametrize("operator", GATES)
def test_layout_with_the_batch_first_is_the_same_in_other_places(operator):
    given = feed(operator, directions=2, lengths=LENGTHS)
    first = dict(given)
    for name in ("X", "initial_h", "initial_c"):
        if name in given:
            first[name] = given[name].swapaxes(0, 1)
    y, *last = evaluated(operator, given, BOTH)
    y_first, *last_first = evaluated(operator, first, {**BOTH, "layout": 1})
    np.testing.assert_array_equal(y_first.value, y.value.transpose(2, 0, 1, 3))
    for one, other in zip(last, last_first, strict=True):
        np.testing.assert_array_equal(other.value, one.value.swapaxes(0, 1))


def test_clip_is_of_what_goes_into_the_activations():
    given = {name: 50 * x for name, x in feed("RNN", only=PLAIN).items()}
    y, _ = evaluated(
        "RNN",
        given,
        {"clip": 0.25, "activations": ["Affine"], "activation_alpha": [1.0], "activation_beta": [0.0]},
    )
    assert np.abs(y.value).max() == 0.25


@pytest.mark.parametrize("operator", GATES)
def test_bound_of_a_long_sequence_is_no_more_than_the_activations_can_reach(operator):
    """Through the absolute weights alone it would be 1e70."""
    given = feed(operator, only=PLAIN)
    given["R"] = 20 * given["R"]
    given["X"] = np.tile(given["X"], (8, 1, 1))
    y, *_ = evaluated(operator, given, {})
    reached = np.arange(1, 8 * STEPS + 1)[
        :, None, None, None
    ]  # a mean of states is known through the one before only
    assert (y.error <= 2 * reached).all()


def test_sequence_without_a_step_is_refused():
    given = feed("RNN", only=PLAIN) | {"sequence_lens": np.array([7, 0, 2], np.int32)}
    with pytest.raises(UnsupportedOperatorError, match="no step"):
        evaluated("RNN", given, {})


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"direction": "sideways"}, "direction sideways"),
        ({"activations": ["Gelu"]}, "activation Gelu"),
        ({"activations": ["Affine"]}, "Affine without alpha"),
        ({"hidden_size": 3}, "do not fit"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(attributes, message):
    with pytest.raises(UnsupportedOperatorError, match=message):
        evaluated("RNN", feed("RNN", only=PLAIN), attributes)


def test_arguments_are_taken_in_the_order_of_the_functions_that_need_them():
    tanh, leaky, hard = named(["Tanh", "LeakyRelu", "HardSigmoid"], [0.5, 0.3], [0.1])
    assert (tanh.alpha, leaky.alpha, hard.alpha, hard.beta) == (0.0, 0.5, 0.3, 0.1)


def test_defaults_are_those_of_onnxs_own_operators():
    threshold, leaky = named(["ThresholdedRelu", "LeakyRelu"])
    assert (threshold.alpha, leaky.alpha) == (1.0, 0.01)


@pytest.mark.parametrize("name", KINDS)
def test_activations_stay_within_the_bound_of_what_they_are_given(name):
    """On a fine grid, with errors from nothing to much, and every place within them."""
    (function,) = named([name], [0.7], [0.3])
    x, error = (
        part.reshape(-1) for part in np.meshgrid(np.linspace(-4, 4, 161), [0.0, 1e-7, 1e-2, 0.5, 3.0])
    )
    result = function(Bounded(x, error), FP32)
    for share in np.linspace(-1, 1, 41):
        other = function(Bounded(x + share * error), FP32)
        assert (np.abs(other.value - result.value) <= result.error * FLOAT64_SLACK).all()
