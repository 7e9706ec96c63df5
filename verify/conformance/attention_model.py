"""One Attention as a case: sizes all different, axes as exporters leave them open, seeded inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_attest.verify.conformance.building import Array, Axes, Given, Made, case_of, normal
from onnx_attest.verify.conformance.case import Case

BATCH, HEADS, QUERIES, KEYS, SIZE, VALUE_SIZE, PAST = 2, 4, 5, 7, 8, 6, 3
"""All different, since a swapped axis would pass where two are the same; lengths off multiples of 8."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of an Attention, and how the file declares them.

    Attributes:
        past: tokens in past_key and past_value, None without them; with them present_key and present_value are asked
            for.
        three_axes: heads side by side in the last axis, and their numbers as attributes.
        symbolic: axes that the file leaves open.
    """

    batch: int = BATCH
    heads: int = HEADS
    kv_heads: int = HEADS
    queries: int = QUERIES
    keys: int = KEYS
    size: int = SIZE
    value_size: int = VALUE_SIZE
    past: int | None = None
    dtype: Any = np.float32
    three_axes: bool = False
    symbolic: tuple[str, ...] = ("batch", "queries", "keys", "past")

    def of(self, kind: str) -> dict[str, int]:
        """Return the axes of Q, K, V, past_key or past_value with their sizes, in four axes."""
        length, heads = {"Q": ("queries", "heads"), "K": ("keys", "kv_heads"), "V": ("keys", "kv_heads")}.get(
            kind, ("past", "kv_heads")
        )
        size = "value_size" if kind in ("V", "past_value") else "size"
        return {axis: getattr(self, axis) for axis in ("batch", heads, length, size)}


def attention(
    name: str,
    shape: Shape | None = None,
    *,
    opset: int = 23,
    mask: Array | None = None,
    lengths: Sequence[int] | None = None,
    shown: int | None = None,
    **attributes: Any,
) -> Case:
    """Return a case of Attention.

    Args:
        name: of the case.
        shape: sizes and open axes.
        opset: 23 and newer.
        mask: attn_mask.
        lengths: nonpad_kv_seqlen.
        shown: qk_matmul_output_mode; then that output is asked for.
        attributes: further ones.
    """
    shape = shape or Shape()
    if shape.three_axes:
        attributes |= {"q_num_heads": shape.heads, "kv_num_heads": shape.kv_heads}
    if shown is not None:
        attributes["qk_matmul_output_mode"] = shown
    made = [_made(name, kind, shape) for kind in "QKV"]
    made.append(None if mask is None else Made("attn_mask", mask))
    made += [None if shape.past is None else _made(name, kind, shape) for kind in ("past_key", "past_value")]
    made.append(None if lengths is None else Made("nonpad_kv_seqlen", np.array(lengths, np.int64)))
    return case_of(name, "Attention", _to_the_last(made), _outputs(shape, shown), opset, attributes)


def _made(name: str, kind: str, shape: Shape) -> Made | None:
    sizes = shape.of(kind)
    array = normal(f"{name} {kind}", tuple(sizes.values()), shape.dtype)
    axes: Axes = [axis if axis in shape.symbolic else size for axis, size in sizes.items()]
    if not shape.three_axes or kind.startswith("past"):
        return Made(kind, array, axes)
    batch, heads, length, size = array.shape
    merged = array.swapaxes(1, 2).reshape(batch, length, heads * size)
    return Made(kind, merged, (axes[0], axes[2], merged.shape[2]))


def _outputs(shape: Shape, shown: int | None) -> Mapping[str, Given]:
    four: Given = (shape.dtype, 4)
    present = None if shape.past is None else four
    asked: dict[str, Given] = {"Y": (shape.dtype, 3) if shape.three_axes else four}
    if present or shown is not None:
        asked |= {"present_key": present, "present_value": present}
    return asked if shown is None else {**asked, "qk_matmul_output": four}


def _to_the_last(made: list[Made | None]) -> list[Made | None]:
    count = max(index for index, one in enumerate(made) if one is not None)
    return made[: count + 1]
