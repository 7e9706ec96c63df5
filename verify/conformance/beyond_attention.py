"""Cases of Attention beyond ONNX's suite: as a rule one thing at a time.

What is right is the oracle's to say, which follows the text of the operator (onnx 1.23); a test holds it against the
operator's function body on each of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import onnx

from onnx_attest.verify.conformance.attention_model import BATCH, HEADS, KEYS, PAST, QUERIES, Shape, attention
from onnx_attest.verify.conformance.building import BFLOAT16, Array, normal
from onnx_attest.verify.conformance.case import Case

_EMPTY_ROW = 2
_LOWEST = float(np.finfo(np.float32).min)
_SOFTCAP = 1.5
_GROUPED = Shape(kv_heads=2)


def attention_cases() -> Iterator[Case]:
    """Yield the cases, in the order in which a table reads well."""
    yield from _lengths()
    yield from _causal()
    yield from _masks()
    yield from _empty_rows()
    yield from _scales()
    yield from _shown()
    yield from _heads()
    yield from _caches()
    yield from _windows()
    yield from _types()


def _lengths() -> Iterator[Case]:
    for opset in (23, 24, 25):
        yield attention(f"attention_{opset}", opset=opset)
        yield attention(f"attention_{opset}_3d", Shape(three_axes=True), opset=opset)
    yield attention("attention_one_query", Shape(queries=1))
    yield attention("attention_one_key", Shape(keys=1))
    yield attention("attention_no_query", Shape(queries=0))
    yield attention("attention_no_key", Shape(keys=0))
    yield attention("attention_no_key_3d", Shape(keys=0, three_axes=True))
    yield attention("attention_no_batch", Shape(batch=0))
    # Kernels walk over keys and queries in blocks, of 32 to 512: none of these lengths is a multiple.
    yield attention("attention_beyond_a_block", Shape(batch=1, heads=2, kv_heads=2, queries=67, keys=523))
    yield attention(
        "attention_causal_beyond_a_block",
        Shape(batch=1, heads=2, kv_heads=2, queries=523, keys=523),
        is_causal=1,
    )


def _causal() -> Iterator[Case]:
    """Alignment: without a past the first query sees the first key, whatever the lengths."""
    lengths = {"same": (KEYS, KEYS), "fewer": (QUERIES, KEYS), "more": (KEYS, QUERIES), "one": (1, KEYS)}
    for opset, (label, (queries, keys)) in product((23, 24), lengths.items()):
        shape = Shape(queries=queries, keys=keys)
        yield attention(f"attention_{opset}_causal_{label}", shape, opset=opset, is_causal=1)
    yield attention("attention_causal_more_3d", Shape(queries=9, three_axes=True), is_causal=1)
    for opset, queries in product((23, 24), (1, QUERIES)):
        shape = Shape(queries=queries, keys=queries, past=PAST)
        yield attention(f"attention_{opset}_causal_past_{queries}", shape, opset=opset, is_causal=1)
        # A chunk of keys that is no chunk of queries: the first query stands right behind the past all the same.
        shape = Shape(queries=queries, keys=KEYS, past=PAST)
        yield attention(
            f"attention_{opset}_causal_past_{queries}_other_keys", shape, opset=opset, is_causal=1
        )
    shape = Shape(queries=QUERIES, keys=QUERIES, past=0)
    yield attention("attention_causal_past_of_none", shape, is_causal=1)


def _masks() -> Iterator[Case]:
    """Every shape that broadcasts to (batch, heads, queries, keys)."""
    shapes = {
        "keys": (KEYS,),
        "queries_keys": (QUERIES, KEYS),
        "1_keys": (1, KEYS),
        "queries_1": (QUERIES, 1),
        "heads_queries_keys": (HEADS, QUERIES, KEYS),
        "1_queries_keys": (1, QUERIES, KEYS),
        "batch_1_1_keys": (BATCH, 1, 1, KEYS),
        "batch_1_queries_keys": (BATCH, 1, QUERIES, KEYS),
        "1_heads_queries_keys": (1, HEADS, QUERIES, KEYS),
        "1_1_queries_keys": (1, 1, QUERIES, KEYS),
        "batch_heads_queries_keys": (BATCH, HEADS, QUERIES, KEYS),
        "batch_heads_1_keys": (BATCH, HEADS, 1, KEYS),
    }
    for label, axes in shapes.items():
        yield attention(f"attention_bool_mask_{label}", mask=_boolean(label, axes))
        yield attention(f"attention_float_mask_{label}", mask=normal(label, axes))
    everywhere = (BATCH, HEADS, QUERIES, KEYS)
    for label, mask in {
        "bool": _boolean("causal", everywhere),
        "float": normal("causal", everywhere),
    }.items():
        yield attention(f"attention_{label}_mask_causal", mask=mask, is_causal=1)
    yield attention("attention_float_mask_some_inf", mask=_hidden("some", everywhere, -np.inf))
    yield attention("attention_float_mask_lowest", mask=_hidden("lowest", everywhere, _LOWEST))
    total = (BATCH, 1, QUERIES, PAST + QUERIES)
    cached = Shape(keys=QUERIES, past=PAST)
    yield attention("attention_bool_mask_past", cached, mask=_boolean("past", total))
    yield attention("attention_bool_mask_past_causal", cached, mask=_boolean("past", total), is_causal=1)
    yield attention("attention_float_mask_past_causal", cached, mask=normal("past", total), is_causal=1)
    for label, mask in {"bool": _boolean("24", everywhere), "float": normal("24", everywhere)}.items():
        yield attention(f"attention_24_{label}_mask", opset=24, mask=mask)
        yield attention(f"attention_24_{label}_mask_queries_keys", opset=24, mask=mask[0, 0])
    short = (QUERIES, KEYS - 2)
    yield attention("attention_24_bool_mask_short", opset=24, mask=_boolean("short", short))
    yield attention("attention_24_float_mask_short", opset=24, mask=normal("short", short))
    yield attention("attention_24_float_mask_of_one_key", opset=24, mask=normal("one", (QUERIES, 1)))


def _boolean(name: str, shape: tuple[int, ...]) -> Array:
    """Return a mask that leaves every query its first key, so that no row is empty, and hides some others."""
    mask = normal(f"{name} mask", shape) > -0.3
    mask[..., 0] = True
    return mask


def _hidden(name: str, shape: tuple[int, ...], hides: float) -> Array:
    return np.where(_boolean(name, shape), normal(f"{name} bias", shape), np.float32(hides))


def _empty_rows() -> Iterator[Case]:
    """Rows without any key are 0, in the output and in the weights shown; a finite mask empties no row."""
    everywhere = (BATCH, HEADS, QUERIES, KEYS)
    allowed = _boolean("empty", everywhere)
    allowed[:, :, _EMPTY_ROW] = False
    bias = np.where(allowed, np.float32(0), np.float32(-np.inf))
    lowest = np.where(allowed, np.float32(0), np.float32(_LOWEST))
    nobody = {"bool": np.zeros((QUERIES, KEYS), bool), "float": np.full((QUERIES, KEYS), -np.inf, np.float32)}
    for opset, (label, mask) in product((23, 24), {"bool": allowed, "float": bias, "lowest": lowest}.items()):
        yield attention(f"attention_{opset}_empty_row_{label}", opset=opset, mask=mask)
        yield attention(f"attention_{opset}_empty_row_{label}_weights", opset=opset, mask=mask, shown=3)
    for label, mask in nobody.items():
        yield attention(f"attention_all_rows_empty_{label}", mask=mask)
    yield attention("attention_empty_row_bool_keys", mask=np.zeros(KEYS, bool))
    yield attention("attention_empty_row_bool_3d", Shape(three_axes=True), mask=allowed)
    yield attention("attention_empty_row_bool_gqa", _GROUPED, mask=allowed)
    yield attention("attention_empty_row_softcap", mask=bias, softcap=_SOFTCAP)
    late = np.arange(KEYS) > np.arange(QUERIES)[:, None]
    yield attention("attention_empty_row_causal_and_bool", mask=late, is_causal=1)
    late_bias = np.where(late, np.float32(0), np.float32(-np.inf))
    yield attention("attention_empty_row_causal_and_float", mask=late_bias, is_causal=1)
    yield attention("attention_24_empty_row_no_valid_key", opset=24, lengths=(0, KEYS))
    yield attention("attention_24_empty_row_before_the_cache", opset=24, lengths=(PAST, KEYS), is_causal=1)


def _scales() -> Iterator[Case]:
    for scale in (1.0, 0.0):
        yield attention(f"attention_scale_{scale:g}", scale=scale)
    everywhere = (BATCH, HEADS, QUERIES, KEYS)
    bias = _hidden("softcap", everywhere, -np.inf)
    yield attention("attention_softcap", softcap=_SOFTCAP)
    yield attention("attention_softcap_causal", softcap=_SOFTCAP, is_causal=1)
    # A cap after the mask would turn -inf into -1.5, and the key would be seen.
    yield attention("attention_softcap_bool_mask", softcap=_SOFTCAP, mask=_boolean("softcap", everywhere))
    yield attention("attention_softcap_float_mask", softcap=_SOFTCAP, mask=bias)
    yield attention("attention_softcap_gqa_past", Shape(kv_heads=2, past=PAST), softcap=_SOFTCAP, is_causal=1)


def _shown() -> Iterator[Case]:
    """What qk_matmul_output holds: scaled products, after the softcap, after the mask, after the softmax."""
    everywhere = (BATCH, HEADS, QUERIES, KEYS)
    bias = normal("shown", everywhere)
    for mode in range(4):
        name = f"attention_shown_{mode}"
        yield attention(name, shown=mode)
        yield attention(f"{name}_softcap", shown=mode, softcap=_SOFTCAP)
        yield attention(f"{name}_float_mask", shown=mode, mask=bias)
        yield attention(f"{name}_bool_mask", shown=mode, mask=_boolean(name, everywhere))
        yield attention(f"{name}_softcap_float_mask", shown=mode, softcap=_SOFTCAP, mask=bias)
        yield attention(f"{name}_causal", shown=mode, is_causal=1)
        yield attention(f"{name}_gqa", _GROUPED, shown=mode)
        yield attention(f"{name}_3d", Shape(three_axes=True), shown=mode)
        yield attention(f"{name}_past", Shape(past=PAST), shown=mode, softcap=_SOFTCAP)


def _heads() -> Iterator[Case]:
    for label, kv_heads in {"gqa": 2, "mqa": 1}.items():
        yield attention(f"attention_{label}", Shape(kv_heads=kv_heads))
        yield attention(f"attention_{label}_3d", Shape(three_axes=True, kv_heads=kv_heads))
        yield attention(f"attention_{label}_causal", Shape(kv_heads=kv_heads), is_causal=1)
    open_axes = ("batch", "queries", "keys", "past")
    for label, axes in {"heads": ("heads", "kv_heads"), "size": ("size", "value_size")}.items():
        for kind, kv_heads in {"mha": HEADS, "gqa": 2, "mqa": 1}.items():
            shape = Shape(kv_heads=kv_heads, symbolic=(*open_axes, *axes))
            yield attention(f"attention_symbolic_{label}_{kind}", shape)
    every = Shape(kv_heads=2, symbolic=(*open_axes, "heads", "kv_heads", "size", "value_size"))
    yield attention("attention_symbolic_all_axes", every)
    yield attention("attention_symbolic_all_axes_causal", every, is_causal=1)
    yield attention("attention_fixed_axes", Shape(symbolic=()))


def _caches() -> Iterator[Case]:
    yield attention("attention_past", Shape(past=PAST))
    yield attention("attention_past_gqa", Shape(past=PAST, kv_heads=2))
    yield attention("attention_past_3d", Shape(past=PAST, three_axes=True))
    yield attention("attention_24_lengths", opset=24, lengths=(4, KEYS))
    yield attention("attention_24_lengths_full", opset=24, lengths=(KEYS, KEYS))
    yield attention("attention_24_lengths_causal", opset=24, lengths=(QUERIES, KEYS), is_causal=1)
    yield attention(
        "attention_24_lengths_causal_one", Shape(queries=1), opset=24, lengths=(4, KEYS), is_causal=1
    )
    yield attention("attention_24_lengths_3d", Shape(three_axes=True), opset=24, lengths=(4, KEYS))
    yield attention("attention_24_lengths_gqa", _GROUPED, opset=24, lengths=(4, KEYS))
    mask = _boolean("lengths", (BATCH, 1, QUERIES, KEYS))
    yield attention("attention_24_lengths_bool_mask", opset=24, lengths=(4, KEYS), mask=mask)


def _windows() -> Iterator[Case]:
    sides: dict[str, dict[str, Any]] = {
        "left": {"left_window_size": 2},
        "right": {"right_window_size": 1},
        "both": {"left_window_size": 1, "right_window_size": 2},
        "self": {"left_window_size": 0, "right_window_size": 0},
    }
    for label, attributes in sides.items():
        yield attention(f"attention_25_window_{label}", opset=25, **attributes)
    yield attention("attention_25_window_causal", opset=25, left_window_size=2, is_causal=1)
    yield attention(
        "attention_25_window_causal_past", Shape(past=PAST), opset=25, left_window_size=2, is_causal=1
    )
    yield attention(
        "attention_25_window_beyond_the_keys", Shape(queries=9, keys=4), opset=25, left_window_size=2
    )


def _types() -> Iterator[Case]:
    everywhere = (BATCH, HEADS, QUERIES, KEYS)
    kinds: dict[str, Any] = {"float16": np.float16, "bfloat16": BFLOAT16, "float64": np.float64}
    for label, dtype in kinds.items():
        shape = Shape(dtype=dtype)
        name = f"attention_{label}"
        yield attention(name, shape)
        yield attention(f"{name}_causal", shape, is_causal=1)
        yield attention(f"{name}_bool_mask", shape, mask=_boolean(name, everywhere))
        yield attention(f"{name}_float_mask", shape, mask=normal(name, everywhere, dtype))
        yield attention(f"{name}_softcap", shape, softcap=_SOFTCAP)
        yield attention(f"{name}_weights", shape, shown=3)
        yield attention(f"{name}_gqa_past", Shape(dtype=dtype, kv_heads=2, past=PAST), is_causal=1)
        yield attention(f"{name}_softmax_in_float32", shape, softmax_precision=onnx.TensorProto.FLOAT)
    half = Shape(dtype=np.float16)
    yield attention("attention_float16_float32_mask", half, mask=normal("mixed", everywhere))
    yield attention("attention_softmax_in_float16", softmax_precision=onnx.TensorProto.FLOAT16)
    yield attention("attention_softmax_in_float64", softmax_precision=onnx.TensorProto.DOUBLE)
    empty = _boolean("empty half", everywhere)
    empty[:, :, _EMPTY_ROW] = False
    yield attention("attention_float16_empty_row", half, mask=empty)
