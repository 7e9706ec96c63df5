"""ONNX Runtime's own attention operators: the oracle against ONNX Runtime, and against plain loops in float64.

Two parties, because either alone may be wrong: the loops say what the documentation says, one query and one key at a
time, and ONNX Runtime must lie within the bound.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError

FP32 = PROFILES["fp32"]
FLOAT64_ROUNDING = (
    2.0**-40
)  # of loops and oracle: some hundred operations, and logits of -10000 in rows of padding
KERNELS = (Kernel("online, blocks of 3", 3, online=True), Kernel("sequential", 1))
FILTER = -10000.0
BATCH, HEADS, KV_HEADS, QUERIES, KEYS, SIZE, VALUE_SIZE, PAST = 3, 6, 2, 5, 7, 16, 12, 4
INPUTS = {
    "MultiHeadAttention": (
        "query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value",
        "past_sequence_length", "cache_indirection",
    ),
    "Attention": ("input", "weights", "bias", "mask_index", "past", "attention_bias", "past_sequence_length"),
    "GroupQueryAttention": (
        "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache",
        "sin_cache", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight",
        "k_norm_weight",
    ),
}  # fmt: skip
"""The inputs of each operator in their order."""
OUTPUTS = {
    "MultiHeadAttention": ("output", "present_key", "present_value", "qk"),
    "Attention": ("output", "present"),
    "GroupQueryAttention": ("output", "present_key", "present_value", "output_qk"),
}


def normal(*shape, seed=0, scale=1.0):
    rng = np.random.default_rng([seed, *shape])
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def int32(values):
    return np.asarray(values, np.int32)


def model_of(operator, feed, outputs=1, **attributes):
    names = [name if name in feed else "" for name in INPUTS[operator]]
    while not names[-1]:
        names.pop()
    asked = list(OUTPUTS[operator][:outputs])
    node = onnx.helper.make_node(operator, names, asked, domain="com.microsoft", **attributes)
    graph = onnx.helper.make_graph(
        [node], "g",
        [onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(feed[name].dtype), feed[name].shape
        ) for name in names if name],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in asked],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run_onnxruntime(model, feed):
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([value.name for value in model.graph.output], session.run(None, feed), strict=True))


def evaluated(model, feed, arithmetic=FP32, **options):
    return GraphOracle(model, **options).evaluate(feed, arithmetic).outputs


def split(x, heads):
    batch, length, width = x.shape
    return x.astype(np.float64).reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def merged(x):
    batch, heads, length, size = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * size)


def attend(q, k, v, *, scale, added=None, allowed=None, softcap=0.0, sink=None):
    """Return softmax(cap(scale q k) + added) v, one query at a time.

    Arrays are (batch, heads, length, size); `added` and `allowed` broadcast to (batch, heads, queries, keys); `sink`
    is one logit a head, of a key without a value.
    """
    batch, heads, queries, _ = q.shape
    keys, groups = k.shape[2], heads // k.shape[1]
    shape = (batch, heads, queries, keys)
    added = np.broadcast_to(np.zeros(1) if added is None else np.asarray(added, np.float64), shape)
    allowed = np.broadcast_to(np.ones(1, bool) if allowed is None else allowed, shape)
    output = np.zeros((batch, heads, queries, v.shape[-1]))
    for b, h, i in np.ndindex(batch, heads, queries):
        seen = [j for j in range(keys) if allowed[b, h, i, j]]
        dots = [scale * float(q[b, h, i] @ k[b, h // groups, j]) for j in seen]
        if softcap:
            dots = [softcap * np.tanh(dot / softcap) for dot in dots]
        logits = [dot + added[b, h, i, j] for dot, j in zip(dots, seen, strict=True)]
        extra = [] if sink is None else [float(sink[h])]
        top = max(logits + extra)
        total = sum(np.exp(logit - top) for logit in logits + extra)
        for logit, j in zip(logits, seen, strict=True):
            output[b, h, i] += np.exp(logit - top) / total * v[b, h // groups, j]
    return output


def assert_within(bounded, actual, name):
    assert bounded.value.shape == actual.shape, name
    errors = np.broadcast_to(bounded.errors(), bounded.value.shape)
    excess = np.abs(actual.astype(np.float64) - bounded.value) - errors
    assert np.isfinite(actual[np.isfinite(errors)]).all(), name
    assert np.nanmax(np.where(np.isinf(errors), -np.inf, excess)) <= 0, name


def assert_three_agree(operator, feed, expected, *, runs=True, **attributes):
    """Oracle and loops on the exact value, ONNX Runtime and correct kernels within the bound; return the oracle's outputs."""
    model = model_of(operator, feed, outputs=len(expected), **attributes)
    outputs = evaluated(model, feed)
    for name, value in expected.items():
        own = outputs[name]
        assert own.value.shape == value.shape, name
        specified = np.isfinite(np.broadcast_to(own.errors(), own.value.shape))
        np.testing.assert_allclose(
            own.value[specified], value[specified], rtol=FLOAT64_ROUNDING, atol=FLOAT64_ROUNDING, err_msg=name
        )
    assert outputs["output"].attended is not None
    errors = outputs["output"].errors()
    assert errors[np.isfinite(errors)].max() < 0.1  # a bound that says something
    for kernel in KERNELS:
        for name, computed in evaluated(model, feed, replace(FP32, kernel=kernel)).items():
            assert_within(outputs[name], computed.value, f"{kernel.name}: {name}")
    if runs:
        for name, actual in run_onnxruntime(model, feed).items():
            assert_within(outputs[name], actual, name)
    return outputs


# MultiHeadAttention


def separate(past=0, queries=QUERIES, keys=KEYS):
    """Return query, key and value of three axes, and a past if it is asked for."""
    feed = {
        "query": normal(BATCH, queries, HEADS * SIZE, seed=1),
        "key": normal(BATCH, keys, HEADS * SIZE, seed=2),
        "value": normal(BATCH, keys, HEADS * (SIZE if past else VALUE_SIZE), seed=3),
    }
    if past:
        feed["past_key"] = normal(BATCH, HEADS, past, SIZE, seed=4)
        feed["past_value"] = normal(BATCH, HEADS, past, SIZE, seed=5)
    return feed


def heads_of(feed):
    """Return query, key and value as (batch, heads, length, size) in float64, bias added, behind the past."""
    q, k, v = (feed[name].astype(np.float64) for name in ("query", "key", "value"))
    if "bias" in feed:
        q, k, v = (
            part + share
            for part, share in zip(
                (q, k, v), np.split(feed["bias"], np.cumsum([q.shape[-1], k.shape[-1]])), strict=True
            )
        )
    q, k, v = (part if part.ndim == 4 else split(part, HEADS) for part in (q, k, v))
    if "past_key" in feed:
        k = np.concatenate([feed["past_key"], k], 2)
        v = np.concatenate([feed["past_value"], v], 2)
    return q, k, v


def filters(hidden):
    return np.where(hidden, FILTER, 0.0)


def padding_masks(batch, queries, keys):
    """Return each form of padding mask with what it hides, (batch, 1, queries or 1, keys)."""
    key = np.arange(keys)
    lengths = int32([keys - 2, keys, 1])[:batch]
    holes = np.ones((batch, keys), np.int32)
    holes[0, :3], holes[1, [1, 4]], holes[2, -2:] = 0, 0, 0  # on the left, in the middle, on the right
    per_query = np.random.default_rng(0).integers(0, 2, (batch, queries, keys)).astype(np.int32)
    per_query[..., 0] = 1
    right = (key >= lengths[:, None])[:, None, None]
    offsets = int32([*np.arange(batch + 1) * queries, *np.arange(batch + 1) * keys])
    return {
        "lengths": (lengths, right),
        "lengths and offsets": (np.concatenate([lengths, offsets]), right),
        "holes": (holes, (holes == 0)[:, None, None]),
        "per query": (per_query, (per_query == 0)[:, None]),
    }


MASKS = ("lengths", "lengths and offsets", "holes", "per query")


@pytest.mark.parametrize("queries", [1, QUERIES])
@pytest.mark.parametrize("kind", MASKS)
def test_padding_masks_of_multi_head_attention(kind, queries):
    feed = separate(queries=queries)
    mask, hidden = padding_masks(BATCH, queries, KEYS)[kind]
    q, k, v = heads_of(feed)
    output = merged(attend(q, k, v, scale=SIZE**-0.5, added=filters(hidden)))
    feed["key_padding_mask"] = mask
    outputs = assert_three_agree("MultiHeadAttention", feed, {"output": output}, num_heads=HEADS)
    masked = outputs["output"].attended.masked
    np.testing.assert_array_equal(masked, np.broadcast_to(hidden, masked.shape))


def test_rows_of_padding_only_attend_it():
    """The filter value is finite: such a row is an average, with the digits that a logit of -10000 leaves."""
    feed = separate()
    q, k, v = heads_of(feed)
    feed["key_padding_mask"] = int32([[0] * KEYS, [1] * KEYS, [1] * KEYS])
    expected = {"output": merged(attend(q, k, v, scale=SIZE**-0.5))}
    outputs = assert_three_agree("MultiHeadAttention", feed, expected, num_heads=HEADS)
    assert not outputs["output"].attended.empty.any()
    assert outputs["output"].error[0].max() > 100 * outputs["output"].error[1].max()


@pytest.mark.parametrize(("policy", "fill"), [("zero", 0.0), ("nan", np.nan)])
def test_declared_policy_of_empty_rows_holds_for_padding(policy, fill):
    feed = separate()
    feed["key_padding_mask"] = int32([[0] * KEYS, [1] * KEYS, [1] * KEYS])
    model = model_of("MultiHeadAttention", feed, num_heads=HEADS)
    output = evaluated(model, feed, empty_rows=policy)["output"]
    np.testing.assert_array_equal(output.value[0], fill)
    assert np.isfinite(output.value[1:]).all()


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention_without_a_mask(scale, bias):
    feed = separate()
    if bias:
        feed["bias"] = normal(HEADS * (2 * SIZE + VALUE_SIZE), seed=6)
    attributes = {} if scale is None else {"scale": scale}
    q, k, v = heads_of(feed)
    used = SIZE**-0.5 if scale is None else float(np.float32(scale))
    expected = {"output": merged(attend(q, k, v, scale=used))}
    assert_three_agree("MultiHeadAttention", feed, expected, num_heads=HEADS, **attributes)


@pytest.mark.parametrize("shape", [(BATCH, HEADS), (1, HEADS), (BATCH, 1), (1, 1)])
def test_attention_bias_broadcasts(shape):
    feed = separate() | {"attention_bias": normal(*shape, QUERIES, KEYS, seed=7)}
    feed["key_padding_mask"] = padding_masks(BATCH, QUERIES, KEYS)["holes"][0]
    hidden = padding_masks(BATCH, QUERIES, KEYS)["holes"][1]
    q, k, v = heads_of(feed)
    added = feed["attention_bias"] + filters(hidden)
    expected = {"output": merged(attend(q, k, v, scale=SIZE**-0.5, added=added))}
    assert_three_agree("MultiHeadAttention", feed, expected, num_heads=HEADS)


@pytest.mark.parametrize("queries", [1, QUERIES])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_past_of_multi_head_attention(unidirectional, queries):
    feed = separate(past=PAST, queries=queries, keys=queries)
    feed["bias"] = normal(HEADS * 3 * SIZE, seed=6)
    q, k, v = heads_of(feed)
    allowed = np.tril(np.ones((queries, PAST + queries), bool), PAST) if unidirectional else None
    expected = {
        "output": merged(attend(q, k, v, scale=SIZE**-0.5, allowed=allowed)), "present_key": k, "present_value": v
    }  # fmt: skip
    attributes = {"num_heads": HEADS, "unidirectional": unidirectional}
    assert_three_agree("MultiHeadAttention", feed, expected, **attributes)


def test_past_with_padding_and_causal_mask():
    feed = separate(past=PAST, keys=QUERIES)
    total = PAST + QUERIES
    mask, hidden = padding_masks(BATCH, QUERIES, total)["holes"]
    q, k, v = heads_of(feed)
    feed["key_padding_mask"] = mask
    allowed = np.tril(np.ones((QUERIES, total), bool), PAST)
    output = merged(attend(q, k, v, scale=SIZE**-0.5, allowed=allowed, added=filters(hidden)))
    expected = {"output": output, "present_key": k, "present_value": v}
    assert_three_agree("MultiHeadAttention", feed, expected, num_heads=HEADS, unidirectional=1)


def test_key_and_value_with_heads_apart():
    feed = separate()
    feed["key"], feed["value"] = (normal(BATCH, HEADS, KEYS, SIZE, seed=seed) for seed in (2, 3))
    q, k, v = heads_of(feed)
    expected = {"output": merged(attend(q, k, v, scale=SIZE**-0.5))}
    assert_three_agree("MultiHeadAttention", feed, expected, num_heads=HEADS)


@pytest.mark.parametrize("form", ["query, key and value", "key and value"])
def test_packed_forms(form):
    """ONNX Runtime's CPU provider has neither of them: oracle and loops only."""
    keys = QUERIES if form == "query, key and value" else KEYS
    q, k, v = (
        normal(BATCH, length, HEADS, SIZE, seed=seed) for seed, length in enumerate((QUERIES, keys, keys))
    )
    if form == "key and value":
        feed = {"query": q.reshape(BATCH, QUERIES, -1), "key": np.stack([k, v], 3)}
    else:
        feed = {"query": np.stack([q, k, v], 3)}
    q, k, v = (part.swapaxes(1, 2).astype(np.float64) for part in (q, k, v))
    expected = {"output": merged(attend(q, k, v, scale=SIZE**-0.5))}
    assert_three_agree("MultiHeadAttention", feed, expected, runs=False, num_heads=HEADS)


def test_fourth_output_of_multi_head_attention():
    feed = separate(past=PAST, keys=QUERIES)
    total = PAST + QUERIES
    feed["key_padding_mask"], hidden = padding_masks(BATCH, QUERIES, total)["holes"]
    feed["attention_bias"] = normal(1, HEADS, QUERIES, total, seed=7)
    q, k, v = heads_of(feed)
    added = feed["attention_bias"] + filters(hidden)
    expected = {
        "output": merged(attend(q, k, v, scale=SIZE**-0.5, added=added)), "present_key": k, "present_value": v,
        "qk": SIZE**-0.5 * np.matmul(q, k.swapaxes(2, 3)) + added,
    }  # fmt: skip
    assert_three_agree("MultiHeadAttention", feed, expected, num_heads=HEADS)


# Attention of com.microsoft


def projected(feed, sizes=None, heads=HEADS):
    whole = feed["input"].astype(np.float64) @ feed["weights"].astype(np.float64) + feed.get("bias", 0.0)
    sizes = sizes or [whole.shape[-1] // 3] * 3
    q, k, v = (split(part, heads) for part in np.split(whole, np.cumsum(sizes)[:-1], -1))
    if "past" in feed:
        k, v = (np.concatenate([feed["past"][index], part], 2) for index, part in enumerate((k, v)))
    return q, k, v


def packed(widths, past=0, queries=QUERIES):
    feed = {
        "input": normal(BATCH, queries, 20, seed=1),
        "weights": normal(20, sum(widths), seed=2, scale=0.3),
        "bias": normal(sum(widths), seed=3),
    }
    return feed | ({"past": normal(2, BATCH, HEADS, past, SIZE, seed=4)} if past else {})


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("kind", ["none", *MASKS, "ends and starts"])
def test_attention_of_microsoft(kind, unidirectional):
    widths = [HEADS * SIZE, HEADS * SIZE, HEADS * VALUE_SIZE]
    feed, hidden = packed(widths), np.zeros((1, 1, 1, QUERIES), bool)
    if kind == "ends and starts":
        ends, starts, key = int32([5, 4, 3]), int32([0, 2, 1]), np.arange(QUERIES)
        feed["mask_index"] = np.concatenate([ends, starts])
        hidden = ((key >= ends[:, None]) | (key < starts[:, None]))[:, None, None]
    elif kind != "none":
        feed["mask_index"], hidden = padding_masks(BATCH, QUERIES, QUERIES)[kind]
    q, k, v = projected(feed, widths)
    allowed = np.tril(np.ones((QUERIES, QUERIES), bool)) if unidirectional else None
    expected = {"output": merged(attend(q, k, v, scale=SIZE**-0.5, added=filters(hidden), allowed=allowed))}
    attributes = {"num_heads": HEADS, "qkv_hidden_sizes": widths, "unidirectional": unidirectional}
    assert_three_agree("Attention", feed, expected, **attributes)


@pytest.mark.parametrize("queries", [1, QUERIES])
def test_past_of_attention_of_microsoft(queries):
    feed = packed([HEADS * SIZE] * 3, past=PAST, queries=queries)
    total = PAST + queries
    feed["mask_index"], hidden = padding_masks(BATCH, queries, total)["holes"]
    q, k, v = projected(feed)
    allowed = np.tril(np.ones((queries, total), bool), PAST)
    expected = {
        "output": merged(attend(q, k, v, scale=0.25, added=filters(hidden), allowed=allowed)),
        "present": np.stack([k, v]),
    }
    assert_three_agree("Attention", feed, expected, num_heads=HEADS, unidirectional=1, scale=0.25)


def test_attention_of_microsoft_without_a_bias():
    """The schema lets it be absent; ONNX Runtime 1.31.1 does not look, and the process dies: oracle and loops only."""
    feed = packed([HEADS * SIZE] * 3)
    del feed["bias"]
    expected = {"output": merged(attend(*projected(feed), scale=SIZE**-0.5))}
    assert_three_agree("Attention", feed, expected, runs=False, num_heads=HEADS)


def test_attention_bias_of_attention_of_microsoft():
    feed = packed([HEADS * SIZE] * 3) | {"attention_bias": normal(BATCH, 1, QUERIES, QUERIES, seed=7)}
    q, k, v = projected(feed)
    expected = {"output": merged(attend(q, k, v, scale=SIZE**-0.5, added=feed["attention_bias"]))}
    assert_three_agree("Attention", feed, expected, num_heads=HEADS)


# GroupQueryAttention


def grouped(queries=QUERIES, past=0, lengths=None, batch=BATCH):
    """Return query, key, value, a past of `past` entries, and lengths: total ones, of each sequence."""
    lengths = [queries] * batch if lengths is None else lengths
    feed = {
        "query": normal(batch, queries, HEADS * SIZE, seed=1),
        "key": normal(batch, queries, KV_HEADS * SIZE, seed=2),
        "value": normal(batch, queries, KV_HEADS * SIZE, seed=3),
        "seqlens_k": int32(lengths) - 1,
        "total_sequence_length": int32([max(lengths)]),
    }
    if past:
        feed["past_key"] = normal(batch, KV_HEADS, past, SIZE, seed=4)
        feed["past_value"] = normal(batch, KV_HEADS, past, SIZE, seed=5)
    return feed


def rotated(x, positions, cos, sin, interleaved):
    """Return each pair of numbers as a complex one, turned by its angle; x is (batch, heads, length, size)."""
    half = cos.shape[1]
    turn = (cos.astype(np.float64) + 1j * sin.astype(np.float64))[positions][:, None]
    out = x.copy()
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(half), slice(half, 2 * half))
    )
    turned = (x[..., first] + 1j * x[..., second]) * turn
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def grouped_loops(
    feed, *, rotary=None, window=None, causal=True, scale=SIZE**-0.5, softcap=0.0, sink=None, size=None
):
    """Return what GroupQueryAttention gives, one sequence at a time: output, present key and value.

    Queries behind a sequence's end are padding: they attend all keys here, and nothing says what they give.
    """
    q, k, v = split(feed["query"], HEADS), split(feed["key"], KV_HEADS), split(feed["value"], KV_HEADS)
    valid, total, queries = feed["seqlens_k"] + 1, int(feed["total_sequence_length"][0]), q.shape[2]
    start = valid * 0 if queries == total else valid - queries
    if rotary is not None:
        positions = start[:, None] + np.arange(queries) if rotary[0] is None else rotary[0]
        q, k = (rotated(part, positions, feed["cos_cache"], feed["sin_cache"], rotary[1]) for part in (q, k))
    size = size or max(total, feed["past_key"].shape[2] if "past_key" in feed else 0)
    output, present = np.zeros(q.shape), np.zeros((2, q.shape[0], KV_HEADS, size, SIZE))
    for b, (length, first) in enumerate(zip(valid, start, strict=True)):
        for index, (name, part) in enumerate((("past_key", k), ("past_value", v))):
            if first:
                present[index, b, :, :first] = feed[name][b, :, :first]
            present[index, b, :, first : first + queries] = part[b]
        keys = present[:, b : b + 1, :, :length]
        end = np.minimum(first + np.arange(queries) + 1, length) if causal else np.full(queries, length)
        allowed = np.arange(length) < end[:, None]
        if window:
            allowed[: length - first] &= np.arange(length) >= end[: length - first, None] - window
        bias = feed.get("attention_bias")
        if bias is not None:
            bias = bias[b : b + 1] if bias.shape[0] > 1 else bias
            bias = bias[..., :length]
        output[b : b + 1] = attend(
            q[b : b + 1],
            keys[0],
            keys[1],
            scale=scale,
            added=bias,
            allowed=allowed,
            softcap=softcap,
            sink=sink,
        )
    return {"output": merged(output), "present_key": present[0], "present_value": present[1]}


GROUPED = {
    "prompt": {},
    "padded prompt": {"lengths": [QUERIES, 2, QUERIES - 1]},
    "one query": {"queries": 1, "past": KEYS, "lengths": [KEYS + 1, 3, 5]},
    "long buffer": {"queries": 1, "past": KEYS, "lengths": [KEYS - 1, 3, 5]},
    "chunk": {"batch": 1, "past": KEYS, "lengths": [KEYS + QUERIES]},
}
ATTRIBUTES = {"num_heads": HEADS, "kv_num_heads": KV_HEADS}


@pytest.mark.parametrize("form", GROUPED)
@pytest.mark.parametrize("window", [None, 3])
def test_grouped_heads(form, window):
    feed = grouped(**GROUPED[form])
    attributes = ATTRIBUTES | ({} if window is None else {"local_window_size": window})
    assert_three_agree("GroupQueryAttention", feed, grouped_loops(feed, window=window), **attributes)


def test_packed_query_key_and_value():
    feed = grouped()
    expected = grouped_loops(feed)
    feed["query"] = np.concatenate([feed.pop(name) for name in ("query", "key", "value")], -1)
    assert_three_agree("GroupQueryAttention", feed, expected, **ATTRIBUTES)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("half", [SIZE // 2, 4])
@pytest.mark.parametrize("form", GROUPED)
def test_rotary(form, half, interleaved):
    feed = grouped(**GROUPED[form])
    angles = np.random.default_rng(0).uniform(0, 6.3, (KEYS + QUERIES + 4, half))
    feed |= {"cos_cache": np.cos(angles).astype(np.float32), "sin_cache": np.sin(angles).astype(np.float32)}
    expected = grouped_loops(feed, rotary=(None, bool(interleaved)))
    attributes = ATTRIBUTES | {"do_rotary": 1, "rotary_interleaved": interleaved}
    assert_three_agree("GroupQueryAttention", feed, expected, runs=half % 8 == 0, **attributes)


@pytest.mark.parametrize("form", ["prompt", "one query"])
def test_rotary_at_given_positions(form):
    """A first prompt's positions are counted on from the first one that is given."""
    feed = grouped(**GROUPED[form])
    angles = np.random.default_rng(0).uniform(0, 6.3, (20, SIZE // 2))
    feed |= {"cos_cache": np.cos(angles).astype(np.float32), "sin_cache": np.sin(angles).astype(np.float32)}
    queries = feed["query"].shape[1]
    given = np.arange(3, 3 + queries) + np.zeros((BATCH, 1), np.int64)
    if form == "one query":
        given += np.array([[0], [5], [2]])
    feed["position_ids"] = given
    expected = grouped_loops(feed, rotary=(given, False))
    assert_three_agree("GroupQueryAttention", feed, expected, do_rotary=1, **ATTRIBUTES)


@pytest.mark.parametrize("form", ["padded prompt", "one query"])
@pytest.mark.parametrize("kind", ["smooth_softmax", "head_sink", "both"])
@pytest.mark.parametrize("bias", [None, (1, 1), (BATCH, HEADS)])
def test_sinks(form, kind, bias):
    """A key that is not there takes a share of the weight: its logit is 0, or the head's own."""
    feed, attributes, sink = grouped(**GROUPED[form]), dict(ATTRIBUTES), np.zeros(HEADS)
    if kind != "head_sink":
        attributes["smooth_softmax"] = 1
    if kind != "smooth_softmax":
        feed["head_sink"] = sink = normal(HEADS, seed=8)
    if bias is not None:
        total = int(feed["total_sequence_length"][0])
        feed["attention_bias"] = normal(*bias, feed["query"].shape[1], total, seed=9)
    attributes |= {"local_window_size": 2, "softcap": 0.75}
    expected = grouped_loops(feed, window=2, softcap=0.75, sink=sink)
    outputs = assert_three_agree("GroupQueryAttention", feed, expected, **attributes)
    weights = outputs["output"].attended.weights
    assert (weights[..., :-1].sum(-1) < 1).all()


def test_scale_and_softcap_and_bias_of_grouped_heads():
    feed = grouped(past=KEYS, batch=1, lengths=[KEYS + QUERIES])
    feed["attention_bias"] = normal(1, HEADS, QUERIES, KEYS + QUERIES, seed=9)
    expected = grouped_loops(feed, scale=0.5, softcap=2.0)
    assert_three_agree("GroupQueryAttention", feed, expected, scale=0.5, softcap=2.0, **ATTRIBUTES)


def test_grouped_heads_without_a_causal_mask():
    feed = grouped(lengths=[QUERIES, 2, QUERIES - 1])
    assert_three_agree("GroupQueryAttention", feed, grouped_loops(feed, causal=False), causal=0, **ATTRIBUTES)


@pytest.mark.parametrize("shown", [1, 2])
def test_fourth_output_of_grouped_heads(shown):
    feed = grouped(past=KEYS, batch=1, lengths=[KEYS + QUERIES])
    total = KEYS + QUERIES
    expected = grouped_loops(feed)
    q, k = split(feed["query"], HEADS), np.repeat(expected["present_key"], HEADS // KV_HEADS, 1)
    scores = SIZE**-0.5 * np.matmul(q, k.swapaxes(2, 3))
    allowed = np.tril(np.ones((QUERIES, total), bool), KEYS)
    weights = np.where(allowed, np.exp(scores), 0.0)
    expected["output_qk"] = scores if shown == 1 else weights / weights.sum(-1, keepdims=True)
    assert_three_agree("GroupQueryAttention", feed, expected, qk_output=shown, **ATTRIBUTES)


# What is wrong must be seen


def excess_of_wrong(operator, feed, right, wrong):
    """Return the largest error over bound of ONNX Runtime when it runs with other attributes or inputs than the oracle."""
    attributes, inputs = wrong
    outputs = evaluated(model_of(operator, feed, **right), feed)
    changed = feed | inputs
    actual = run_onnxruntime(model_of(operator, changed, **(right | attributes)), changed)["output"]
    errors = outputs["output"].errors()
    return (np.abs(actual - outputs["output"].value) / errors)[np.isfinite(errors)].max()


FEATURES = {"do_rotary": 1, "local_window_size": 4, "softcap": 3.0, "smooth_softmax": 1, "scale": 0.25}


@pytest.mark.parametrize(
    "wrong",
    [
        ({"rotary_interleaved": 1}, {}),
        ({"do_rotary": 0}, {}),
        ({"local_window_size": 5}, {}),
        ({"local_window_size": 3}, {}),
        ({"softcap": 0.0}, {}),
        ({"smooth_softmax": 0}, {}),
        ({"scale": 0.25 * (1 + 2.0**-13)}, {}),
        ({}, {"head_sink": np.full(HEADS, 2.0**-13, np.float32)}),
        ({}, {"position_ids": np.arange(1, QUERIES + 1) + np.zeros((BATCH, 1), np.int64)}),
    ],
    ids=str,
)
def test_wrong_grouped_heads_break_the_bound(wrong):
    feed = grouped()
    angles = np.random.default_rng(0).uniform(0, 6.3, (QUERIES + 1, SIZE // 2))
    feed |= {"cos_cache": np.cos(angles).astype(np.float32), "sin_cache": np.sin(angles).astype(np.float32)}
    right = ATTRIBUTES | FEATURES
    if "position_ids" in wrong[1]:  # the angles are random: one position further is another turn
        feed["position_ids"] = wrong[1]["position_ids"] - 1
    assert excess_of_wrong("GroupQueryAttention", feed, right, ({}, {})) <= 1
    assert excess_of_wrong("GroupQueryAttention", feed, right, wrong) > 1


@pytest.mark.parametrize(
    "wrong",
    [
        ({"unidirectional": 0}, {}),
        ({"mask_filter_value": -3.0}, {}),
        ({"scale": SIZE**-0.5 * (1 + 2.0**-13)}, {}),
        ({}, {"key_padding_mask": int32([QUERIES, QUERIES, 1])}),
        ({}, {"bias": np.zeros(HEADS * (2 * SIZE + VALUE_SIZE), np.float32)}),
    ],
    ids=str,
)
def test_wrong_multi_head_attention_breaks_the_bound(wrong):
    feed = separate(keys=QUERIES) | {"bias": normal(HEADS * (2 * SIZE + VALUE_SIZE), seed=6)}
    feed["key_padding_mask"] = int32([QUERIES - 2, QUERIES, 1])
    right = {"num_heads": HEADS, "unidirectional": 1}
    assert excess_of_wrong("MultiHeadAttention", feed, right, ({}, {})) <= 1
    assert excess_of_wrong("MultiHeadAttention", feed, right, wrong) > 1


def test_lengths_that_a_fusion_made_of_a_mask():
    """K14: [0, 1, 0, 1, 1, 0] fused to the length 3; of padding on the right nothing is lost.

    The operator does what its documentation says with a length: what is wrong is the length, against the graph before
    the fusion.
    """
    right, left = int32([[1, 1, 1, 0, 0, 0]] * 2), int32([[0, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
    for mask, excess in ((right, False), (left, True)):
        feed = {
            "input": normal(2, 6, 20, seed=1), "weights": normal(20, 3 * HEADS * SIZE, seed=2), "bias": normal(3 * HEADS * SIZE)
        }  # fmt: skip
        fused, feed["mask_index"] = feed | {"mask_index": int32(mask.sum(-1))}, mask
        meant = evaluated(model_of("Attention", feed, num_heads=HEADS), feed)["output"]
        model = model_of("Attention", fused, num_heads=HEADS)
        actual, as_written = run_onnxruntime(model, fused)["output"], evaluated(model, fused)["output"]
        assert_within(as_written, actual, "output")
        assert (np.abs(actual - meant.value) > meant.error).any() == excess


@pytest.mark.pinned
@pytest.mark.parametrize("operator", ["MultiHeadAttention", "GroupQueryAttention"])
def test_onnxruntime_needs_the_present_to_see_the_past(operator):
    """ORT 1.31.1 on the CPU: without both present outputs, which are optional, it counts the past's keys and does not have them.

    It reads on behind each head's new keys instead, into the next head's: here the first sequence's output shows it.
    """
    if operator == "MultiHeadAttention":
        feed, attributes = separate(past=PAST, keys=QUERIES), {"num_heads": HEADS}
        q, k, v = heads_of(feed)
        expected = {"output": merged(attend(q, k, v, scale=SIZE**-0.5)), "present_key": k, "present_value": v}
    else:
        feed, attributes = grouped(**GROUPED["one query"]), ATTRIBUTES
        expected = grouped_loops(feed)
    outputs = assert_three_agree(operator, feed, expected, **attributes)
    actual = run_onnxruntime(model_of(operator, feed, **attributes), feed)["output"]
    assert (np.abs(actual - outputs["output"].value)[0] / outputs["output"].error[0]).max() > 1e4


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_many_keys_stay_within_the_bound(unidirectional):
    """Long enough for the blocks of ONNX Runtime's flash kernel, and not a multiple of anything."""
    feed = {
        name: normal(1, 701, 2 * SIZE, seed=seed, scale=3.0)
        for seed, name in enumerate(("query", "key", "value"))
    }
    model = model_of("MultiHeadAttention", feed, num_heads=2, unidirectional=unidirectional)
    assert_within(evaluated(model, feed)["output"], run_onnxruntime(model, feed)["output"], "output")


def test_half_precision_stays_within_the_bound():
    feed = grouped(past=KEYS, batch=1, lengths=[KEYS + QUERIES]) | {"head_sink": normal(HEADS, seed=8)}
    feed = {name: x.astype(np.float16) if x.dtype == np.float32 else x for name, x in feed.items()}
    model = model_of("GroupQueryAttention", feed, 3, **ATTRIBUTES)
    for value in model.graph.output:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    outputs = evaluated(model, feed, PROFILES["fp16-unfused"])
    for name, actual in run_onnxruntime(model, feed).items():
        assert_within(outputs[name], actual, name)


def test_deviations_go_along():
    feed = grouped() | {"head_sink": normal(HEADS, seed=8)}
    model = model_of("GroupQueryAttention", feed, 3, **ATTRIBUTES)
    output = evaluated(model, feed, replace(FP32, deviations=True))["output"]
    error = run_onnxruntime(model, feed)["output"] - output.value
    deviations = np.sqrt(output.variance)
    assert 0.01 < np.sqrt(np.mean((error / deviations) ** 2)) < 3


# What the oracle refuses, and says so


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "message"),
    [
        ("MultiHeadAttention", {"past_sequence_length": int32([2])}, {}, "a buffer that past and present share"),
        ("MultiHeadAttention", {"cache_indirection": int32([[[0]]])}, {}, "cache_indirection"),
        ("MultiHeadAttention", {"key_padding_mask": int32([[1, 0]])}, {}, r"a mask of shape \(1, 2\) for 3 sequences of 7"),
        ("MultiHeadAttention", {}, {"unidirectional": 1}, "unidirectional, with 7 keys for 5 queries"),
        ("MultiHeadAttention", {"bias": np.zeros(5, np.float32)}, {}, "a bias of another width"),
        ("MultiHeadAttention", {}, {"window": 1}, "with the attribute window"),
        ("Attention", {}, {"do_rotary": 1}, "the attribute do_rotary"),
        ("Attention", {}, {"past_present_share_buffer": 1}, "the attribute past_present_share_buffer"),
        ("GroupQueryAttention", {}, {"k_quant_type": "PER_TENSOR"}, "the attribute k_quant_type"),
        ("GroupQueryAttention", {"k_scale": np.ones(1, np.float32)}, {}, "a quantized cache"),
        ("GroupQueryAttention", {}, {"sliding_window_cache": 1}, "the attribute sliding_window_cache"),
        ("GroupQueryAttention", {"q_norm_weight": np.ones(SIZE, np.float32)}, {}, "q_norm_weight"),
        ("GroupQueryAttention", {}, {"local_window_size": 0}, "no key is left"),
        ("GroupQueryAttention", {"total_sequence_length": int32([9])}, {}, "lengths in seqlens_k that its past"),
    ],
)  # fmt: skip
def test_forms_that_are_refused(operator, inputs, attributes, message):
    feed, own = {
        "MultiHeadAttention": (separate(), {"num_heads": HEADS}),
        "Attention": (packed([HEADS * SIZE] * 3), {"num_heads": HEADS}),
        "GroupQueryAttention": (
            grouped(lengths=[4] * BATCH) | {"total_sequence_length": int32([5])},
            ATTRIBUTES,
        ),
    }[operator]
    feed = feed | inputs
    with pytest.raises(UnsupportedOperatorError, match=message):
        evaluated(model_of(operator, feed, **own, **attributes), feed)


@pytest.mark.parametrize("operator", ["PagedAttention", "SparseAttention"])
def test_other_operators_are_named(operator):
    feed = {"input": normal(1, 2, 3)}
    node = onnx.helper.make_node(operator, ["input"], ["output"], domain="com.microsoft")
    model = model_of("Attention", feed | {"weights": normal(3, 3)}, num_heads=1)
    model.graph.node[0].CopyFrom(node)
    assert GraphOracle(model).unsupported() == (f"com.microsoft.{operator}",)
