"""What a case asks of Attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnx_attest.verify.conformance.asked import Asked
from onnx_attest.verify.conformance.masking import Masking, Sizes, sizes_of


def attention_features(asked: Asked) -> Iterator[str]:
    """Yield the features of an Attention of opset 23 and newer."""
    sizes = sizes_of(asked)
    yield f"opset {asked.opset}"
    yield f"{asked.required(0).ndim} axes"
    yield from _heads(asked, sizes)
    yield from _lengths(sizes)
    yield from _causal(asked, sizes)
    yield from _mask(asked, sizes)
    yield from (f"empty row: {kind}" for kind in Masking(asked, sizes).empty_kinds())
    yield from _extras(asked)


def _heads(asked: Asked, sizes: Sizes) -> Iterator[str]:
    if sizes.kv_heads < sizes.heads:
        yield "one head of K and V" if sizes.kv_heads == 1 else "grouped heads"
    if sizes.value_size != sizes.size:
        yield "other head size of V"
    rank = asked.required(0).ndim
    if 1 in asked.symbolic and rank == 4:
        yield "symbolic number of heads"
    if rank - 1 in asked.symbolic:
        yield "symbolic head size"


def _lengths(sizes: Sizes) -> Iterator[str]:
    if sizes.batch == 0:
        yield "batch 0"
    if sizes.queries in (0, 1):
        yield f"L = {sizes.queries}"
    if sizes.keys in (0, 1):
        yield f"S = {sizes.keys}"


def _causal(asked: Asked, sizes: Sizes) -> Iterator[str]:
    if not asked.get("is_causal", 0):
        return
    if asked.optional(4) is not None:
        yield "causal with a past"
    elif asked.optional(6) is not None:
        yield "causal with nonpad_kv_seqlen"
    else:
        sign = "=" if sizes.queries == sizes.keys else "<" if sizes.queries < sizes.keys else ">"
        yield f"causal, L {sign} S"


def _mask(asked: Asked, sizes: Sizes) -> Iterator[str]:
    mask = asked.optional(3)
    if mask is None:
        return
    if mask.dtype == np.bool_:
        yield "boolean mask"
    else:
        yield "float mask"
        if np.isneginf(mask.astype(np.float64)).any():
            yield "float mask with -inf"
        if mask.dtype != asked.required(0).dtype:
            yield "float mask of another type than Q"
    yield f"mask of {mask.ndim} axes" if mask.ndim > 1 else "mask of 1 axis"
    yield from _broadcast(mask.shape, sizes)
    if 1 < mask.shape[-1] < sizes.keys:
        yield "mask shorter than the keys"


def _broadcast(shape: tuple[int, ...], sizes: Sizes) -> Iterator[str]:
    """Yield the axes in which the mask has one entry for all; those that it lacks are told by their number."""
    full = (
        ("batch", sizes.batch),
        ("heads", sizes.heads),
        ("queries", sizes.queries),
        ("keys", sizes.keys),
    )
    for (name, size), own in zip(full[4 - len(shape) :], shape, strict=True):
        if own == 1 < size:
            yield f"mask broadcast over {name}"


def _extras(asked: Asked) -> Iterator[str]:
    if asked.get("scale") is not None:
        yield "scale 0" if asked.get("scale") == 0 else "scale given"
    if asked.get("softcap", 0.0):
        yield "softcap"
    if asked.optional(4) is not None:
        yield "past and present"
    if asked.optional(6) is not None:
        yield "nonpad_kv_seqlen"
    if max(asked.get("left_window_size", -1), asked.get("right_window_size", -1)) >= 0:
        yield "window"
    if asked.get("softmax_precision") is not None:
        yield "softmax_precision"
    if asked.asks_for(3):
        yield f"qk_matmul_output_mode {asked.get('qk_matmul_output_mode', 0)}"
