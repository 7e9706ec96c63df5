"""ONNX's Attention, opset 23 to 25: all of ONNX's own node cases, and what they leave open."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.backend.test.case.node import collect_testcases
from onnx.inliner import inline_selected_functions
from onnx.reference import ReferenceEvaluator

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.node_cases import COMPUTED_IN, as_array
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError

FP32 = PROFILES["fp32"]
FLOAT64_ROUNDING = 2.0**-45  # the oracle's own rounding, some hundred operations deep


@cache
def node_cases():
    """Return ONNX's own cases of Attention by name; those written out as functions are no Attention any more."""
    with np.errstate(all="ignore"):
        collected = collect_testcases(None)  # a list that grows with each call, with the same names
    return {
        case.name.removeprefix("test_"): case
        for case in collected
        if [node.op_type for node in case.model.graph.node] == ["Attention"]
    }


def assert_within(bounded, actual):
    """The positions of infinities and NaN, then every number within the bound and the rounding of how it is stored."""
    assert bounded.value.shape == actual.shape
    number, value = actual.astype(np.float64), bounded.value
    finite = np.isfinite(value)
    np.testing.assert_array_equal(number[~finite], value[~finite])
    stored = float(ml_dtypes.finfo(actual.dtype).eps) / 2 * np.abs(number[finite])
    allowance = np.broadcast_to(bounded.errors(), value.shape)[finite] + stored
    assert (np.abs(number[finite] - value[finite]) - allowance).max(initial=-np.inf) <= 0


def test_all_cases_of_onnx_are_there():
    """A renamed case or operator would empty the test below without failing it."""
    dtypes = {as_array(case.data_sets[0][0][0]).dtype.name for case in node_cases().values()}
    assert len(node_cases()) >= 80
    assert dtypes == {"float32", "float16", "bfloat16"}


@pytest.mark.parametrize("name", sorted(node_cases()))
def test_case_of_onnx(name):
    """None is refused, and each output is within the bound: softmax weights, scores and caches as well."""
    case = node_cases()[name]
    for inputs, outputs in case.data_sets:
        given = [as_array(value) for value in inputs]
        arithmetic = PROFILES[COMPUTED_IN[given[0].dtype.name]]
        names = [value.name for value in case.model.graph.output]
        fed = dict(zip((value.name for value in case.model.graph.input), given, strict=True))
        evaluation = GraphOracle(case.model).evaluate(fed, arithmetic)
        assert len(evaluation.attentions) == 1
        for output, expected in zip(names, outputs, strict=True):
            assert_within(evaluation.outputs[output], as_array(expected))


# What ONNX's cases leave open: sizes are distinct on every axis, and ONNX Runtime is held to the bound as well

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, SIZE, VALUE_SIZE, PAST = 2, 6, 3, 4, 5, 8, 7, 3
CAP = 0.75
LOWEST = np.finfo(np.float32).min
INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def arrays(axes=4, past=0):
    """Return query, key, value, and a past if it is asked for, by input name."""
    feed = {
        "Q": normal(BATCH, HEADS, QUERIES, SIZE, seed=1),
        "K": normal(BATCH, KV_HEADS, KEYS, SIZE, seed=2),
        "V": normal(BATCH, KV_HEADS, KEYS, VALUE_SIZE, seed=3),
    }
    if axes == 3:
        feed = {name: x.swapaxes(1, 2).reshape(BATCH, x.shape[2], -1) for name, x in feed.items()}
    if past:
        feed["past_key"] = normal(BATCH, KV_HEADS, past, SIZE, seed=4)
        feed["past_value"] = normal(BATCH, KV_HEADS, past, VALUE_SIZE, seed=5)
    return feed


def model_of(feed, opset=24, outputs=("Y",), **attributes):
    if feed["Q"].ndim == 3:
        attributes = {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS} | attributes
    names = [name if name in feed else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    asked = [name if name in outputs else "" for name in OUTPUTS[: 1 + OUTPUTS.index(outputs[-1])]]
    node = onnx.helper.make_node("Attention", names, asked, **attributes)
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feed.items()
    ]
    results = [
        onnx.helper.make_tensor_value_info(name, infos[0].type.tensor_type.elem_type, None)
        for name in outputs
    ]
    graph = onnx.helper.make_graph([node], "g", infos, results)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)


def outputs_of(feed, arithmetic=FP32, **attributes):
    return GraphOracle(model_of(feed, **attributes)).evaluate(feed, arithmetic).outputs


def run_onnxruntime(feed, **attributes):
    ort = pytest.importorskip("onnxruntime")
    model, options = model_of(feed, **attributes), ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([value.name for value in model.graph.output], session.run(None, feed), strict=True))


def run_reference(feed, **attributes):
    model = model_of(feed, **attributes)
    found = ReferenceEvaluator(model).run(None, feed)
    return dict(zip([value.name for value in model.graph.output], found, strict=True))


def heads_of(feed):
    """Return q, k and v in float64, as many heads of each, (batch, heads, length, size)."""
    parts = []
    for name, heads, past in (("Q", HEADS, None), ("K", KV_HEADS, "past_key"), ("V", KV_HEADS, "past_value")):
        x = feed[name].astype(np.float64)
        if x.ndim == 3:
            x = x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)
        if past in feed:
            x = np.concatenate([feed[past], x], 2)
        parts.append(x.repeat(HEADS // heads, 1))
    return parts


def attention_in_steps(feed, *, bias=0.0, softcap=0.0):
    """Return the four things that qk_matmul_output may be, and the output of four axes: softmax(cap(q k) + bias) v."""
    q, k, v = heads_of(feed)
    product = q @ k.swapaxes(2, 3) / np.sqrt(SIZE)
    capped = softcap * np.tanh(product / softcap) if softcap else product
    masked = capped + bias
    with np.errstate(invalid="ignore"):
        weights = np.exp(masked - masked.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
    weights = np.where(np.isneginf(masked).all(-1, keepdims=True), 0.0, weights)
    return (product, capped, masked, weights), weights @ v


def assert_close(value, expected):
    np.testing.assert_allclose(value, expected, rtol=FLOAT64_ROUNDING, atol=FLOAT64_ROUNDING)


@pytest.mark.parametrize("axes", [3, 4])
@pytest.mark.parametrize("mode", range(4))
def test_all_modes_of_qk_matmul_output(mode, axes):
    """K11 among them: mode 0 is the scaled product, before softcap."""
    feed = arrays(axes, past=PAST) | {"attn_mask": normal(BATCH, 1, QUERIES, PAST + KEYS, seed=6)}
    attributes = {"qk_matmul_output_mode": mode, "softcap": CAP, "is_causal": 1, "outputs": OUTPUTS}
    causal = np.where(np.tril(np.ones((QUERIES, PAST + KEYS)), PAST), 0, -np.inf)
    steps, output = attention_in_steps(feed, bias=feed["attn_mask"] + causal, softcap=CAP)
    found = outputs_of(feed, **attributes)
    assert_close(found["qk_matmul_output"].value, steps[mode])
    expected = output if axes == 4 else output.swapaxes(1, 2).reshape(BATCH, QUERIES, -1)
    assert_close(found["Y"].value, expected)
    assert found["Y"].attended.masked.any()
    actual = run_onnxruntime(feed, **attributes)
    hidden = np.isneginf(found["qk_matmul_output"].value)
    # ONNX Runtime shows the lowest number where causality hides a key, and the schema -inf.
    assert (actual["qk_matmul_output"][hidden] <= LOWEST).all()
    actual["qk_matmul_output"][hidden] = -np.inf
    for name in OUTPUTS:
        assert_within(found[name], actual[name])


@pytest.mark.pinned
def test_reference_evaluator_shows_capped_scores_as_products():
    """K11, microsoft/onnxruntime#26813: it alone is wrong."""
    feed, attributes = arrays(), {"softcap": CAP, "outputs": ("Y", "qk_matmul_output")}
    own = outputs_of(feed, **attributes)["qk_matmul_output"]
    shown = run_reference(feed, **attributes)["qk_matmul_output"]
    assert (np.abs(shown - own.value) / own.error).max() > 1e4
    assert_within(outputs_of(feed, qk_matmul_output_mode=1, **attributes)["qk_matmul_output"], shown)


EMPTY_ROW = np.array([[True] * 5, [False] * 5, [True, False, True, False, True], [False] * 4 + [True]])


@pytest.mark.parametrize("kind", ["bool", "-inf", "lowest"])
def test_rows_without_a_key(kind):
    """Hidden by a boolean mask or -inf they are 0; a finite number hides nothing where it hides all: the mean of V."""
    mask = EMPTY_ROW if kind == "bool" else np.where(EMPTY_ROW, 0, -np.inf if kind == "-inf" else LOWEST)
    feed = arrays() | {"attn_mask": mask if kind == "bool" else mask.astype(np.float32)}
    attributes = {"outputs": ("Y", "qk_matmul_output"), "qk_matmul_output_mode": 3}
    found = outputs_of(feed, **attributes)
    mean = heads_of(feed)[2].mean(2)
    assert_close(found["Y"].value[:, :, 1], mean if kind == "lowest" else 0 * mean)
    assert_close(found["qk_matmul_output"].value[:, :, 1], 1 / KEYS if kind == "lowest" else 0)
    parties = [run_reference(feed, **attributes)]
    if kind != "lowest":  # ONNX Runtime's gives 0 there: see below
        parties.append(run_onnxruntime(feed, **attributes))
    for actual in parties:
        assert_within(found["Y"], actual["Y"])
        assert_within(found["qk_matmul_output"], actual["qk_matmul_output"])
    kernel = replace(FP32, kernel=Kernel("sequential", 1))
    assert_within(found["Y"], outputs_of(feed, kernel, **attributes)["Y"].value.astype(np.float32))


@pytest.mark.parametrize("causal", [0, 1])
def test_without_any_key_every_row_is_zero(causal):
    """S = 0: no key is attended, and exactly 0 comes out, without an error; a runtime that reads memory is off."""
    feed = {name: array[:, :, :0] if name in "KV" else array for name, array in arrays().items()}
    found = outputs_of(feed, outputs=("Y", "qk_matmul_output"), qk_matmul_output_mode=3, is_causal=causal)
    assert not found["Y"].value.any()
    assert not np.any(found["Y"].errors())
    assert found["qk_matmul_output"].value.shape[-1] == 0


@pytest.mark.pinned
def test_onnxruntime_takes_the_lowest_number_for_a_hidden_key():
    """ORT 1.31.1 gives 0 in a row of float32's lowest number, which the schema adds like any other.

    torch's scaled_dot_product_attention and the reference evaluator give the mean of V, and so does ORT itself with
    the next number.
    """
    for number, is_zero in ((LOWEST, True), (np.nextafter(LOWEST, np.float32(0)), False)):
        feed = arrays() | {"attn_mask": np.where(EMPTY_ROW, np.float32(0), number)}
        row = run_onnxruntime(feed)["Y"][:, :, 1]
        assert np.all(row == 0) == is_zero


@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("lengths", [(5, 3), (4, 5), (1, 2)])
def test_valid_lengths_of_a_cache_kept_outside(lengths, causal, mask):
    """nonpad_kv_seqlen: the last query stands at the last valid key; more queries than keys leave rows without any."""
    feed = arrays() | {"nonpad_kv_seqlen": np.array(lengths)}
    valid, key = np.array(lengths)[:, None, None, None], np.arange(KEYS)
    hidden = key >= valid
    if causal:
        hidden = hidden | (key > np.arange(QUERIES)[:, None] + valid - QUERIES)
    bias = np.where(hidden, -np.inf, 0)
    if mask == "bool":
        feed["attn_mask"] = np.random.default_rng(0).random((HEADS, QUERIES, KEYS)) < 0.7
        bias = bias + np.where(feed["attn_mask"], 0, -np.inf)
    elif mask == "float":
        feed["attn_mask"] = normal(1, HEADS, QUERIES, KEYS, seed=6)
        bias = bias + feed["attn_mask"]
    output = outputs_of(feed, is_causal=causal)["Y"]
    assert_close(output.value, attention_in_steps(feed, bias=bias)[1])
    assert_within(output, run_onnxruntime(feed, is_causal=causal)["Y"])


SHAPES = [(KEYS,), (QUERIES, KEYS), (HEADS, QUERIES, KEYS), (HEADS, 1, KEYS), (BATCH, 1, 1, KEYS)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_of_all_ranks(shape, kind):
    mask = normal(*shape, seed=6)
    if kind == "bool":
        mask = mask > -1
        mask[..., 0] = True
    feed = arrays() | {"attn_mask": mask}
    found = outputs_of(feed)["Y"]
    bias = np.where(mask, 0, -np.inf) if kind == "bool" else mask
    assert_close(found.value, attention_in_steps(feed, bias=bias)[1])
    assert_within(found, run_reference(feed)["Y"])


@pytest.mark.parametrize("opset", [23, 24])
def test_mask_of_one_key(opset):
    """As far as opset 23 it broadcasts, from opset 24 on it is padded with hidden keys: so the operator's own function.

    ONNX Runtime refuses it, and the reference evaluator pads it in both.
    """
    feed = arrays() | {"attn_mask": normal(BATCH, 1, QUERIES, 1, seed=6)}
    found = outputs_of(feed, opset=opset)["Y"]
    bias = feed["attn_mask"] if opset == 23 else np.where(np.arange(KEYS) < 1, 0, -np.inf)
    assert_close(found.value, attention_in_steps(feed, bias=bias)[1])
    inlined = inline_selected_functions(
        model_of(feed, opset), [("", "Attention")], inline_schema_functions=True
    )
    assert_within(found, ReferenceEvaluator(inlined).run(None, feed)[0])


def test_softmax_in_half_precision_has_its_own_bound():
    feed, attributes = arrays(), {"softmax_precision": onnx.TensorProto.FLOAT16}
    actual = run_reference(feed, **attributes)["Y"]
    short, full = outputs_of(feed, **attributes)["Y"], outputs_of(feed)["Y"]
    assert_within(short, actual)
    np.testing.assert_array_equal(short.value, full.value)
    assert (np.abs(actual - full.value) > full.error).any()


def test_scores_of_scaled_operands_in_half_precision():
    """The reference scales q and k in float16 each before their product: near 0 that is all the error there is."""
    feed = {name: normal(2, 6, 32, 64, seed=seed).astype(np.float16) for seed, name in enumerate("QKV")}
    shown = run_reference(feed, outputs=OUTPUTS)["qk_matmul_output"]
    found = outputs_of(feed, PROFILES["fp16-unfused"], outputs=OUTPUTS)["qk_matmul_output"]
    assert_within(found, shown)


def test_softmax_in_double_rounds_no_more():
    feed, attributes = arrays(), {"softmax_precision": onnx.TensorProto.DOUBLE}
    found = outputs_of(feed, **attributes)["Y"]
    np.testing.assert_array_equal(found.error, outputs_of(feed)["Y"].error)
    assert_within(found, run_reference(feed, **attributes)["Y"])


@pytest.mark.parametrize("axes", [3, 4])
def test_deviations_go_along(axes):
    feed = arrays(axes, past=PAST)
    found = outputs_of(feed, replace(FP32, deviations=True))["Y"]
    ratio = (run_onnxruntime(feed, outputs=OUTPUTS[:3])["Y"] - found.value) / np.sqrt(found.variance)
    assert 0.01 < np.sqrt(np.mean(ratio**2)) < 3


HUGE = np.full((BATCH, HEADS, QUERIES, SIZE), 1e6, np.float32)
PAST_AND_LENGTHS = {"nonpad_kv_seqlen": np.array([5, 3]), "past_key": normal(BATCH, KV_HEADS, 1, SIZE)}


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ({"attn_mask": np.ones((QUERIES, KEYS), np.int32)}, {}, "a mask of integers"),
        (PAST_AND_LENGTHS, {}, "both a past and nonpad_kv_seqlen"),
        ({}, {"softmax_precision": onnx.TensorProto.INT8}, "softmax_precision 3"),
        ({"Q": HUGE}, {"softmax_precision": onnx.TensorProto.FLOAT16}, "logits beyond 65504"),
        ({"Q": normal(BATCH, QUERIES, SIZE)}, {"q_num_heads": 0}, "without q_num_heads and kv_num_heads"),
    ],
    ids=["integers", "past and lengths", "precision", "overflow", "no heads"],
)
def test_forms_that_are_refused(inputs, attributes, message):
    feed = arrays() | inputs
    with pytest.raises(UnsupportedOperatorError, match=message):
        outputs_of(feed, **attributes)
