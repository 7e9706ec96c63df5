"""Cases beyond ONNX's suite of the operators around attention: softmax, normalisations, Gelu, rotary positions, caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx

from onnx_attest.verify.conformance.building import BFLOAT16, Array, Given, Made, case_of, normal
from onnx_attest.verify.conformance.case import Case

_SHAPE = (2, 3, 5)
_TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": BFLOAT16, "float64": np.float64}
_OTHERS = {name: dtype for name, dtype in _TYPES.items() if name != "float32"}
_HALF = {name: dtype for name, dtype in _OTHERS.items() if name != "float64"}


def row_cases() -> Iterator[Case]:
    """Yield the cases, operator by operator."""
    for operator in ("Softmax", "LogSoftmax"):
        yield from _softmax(operator)
    yield from _layer_normalization()
    yield from _rms_normalization()
    yield from _gelu()
    yield from _rotary()
    yield from _tensor_scatter()


def _unary(name: str, operator: str, x: Array, opset: int, **attributes: Any) -> Case:
    return case_of(name, operator, [Made("x", x)], {"y": (x.dtype, x.ndim)}, opset, attributes)


def _softmax(operator: str) -> Iterator[Case]:
    label = operator.lower()

    def case(name: str, x: Array, opset: int = 13, **attributes: Any) -> Case:
        return _unary(f"{label}_{name}", operator, x, opset, **attributes)

    for opset in (
        1,
        11,
    ):  # they flatten what comes before the axis and what comes from it on, and sum over a block
        yield case(f"{opset}_default_axis", normal(f"{label} {opset}", _SHAPE), opset)
        yield case(f"{opset}_axis_2", normal(f"{label} {opset} 2", _SHAPE), opset, axis=2)
        yield case(f"{opset}_axis_0", normal(f"{label} {opset} 0", _SHAPE), opset, axis=0)
    yield case("11_two_axes", normal(f"{label} two", _SHAPE[1:]), 11)
    for axis in range(-3, 3):
        yield case(f"13_axis_{axis}", normal(f"{label} axis {axis}", _SHAPE), axis=axis)
    for name, dtype in _OTHERS.items():
        yield case(f"{name}", normal(f"{label} {name}", (3, 33), dtype, scale=3.0))
    x = normal(f"{label} inf", (3, 5))
    yield case("some_inf", np.where(np.arange(5) < 2, np.float32(-np.inf), x))
    yield case("row_of_inf", np.where(np.arange(3)[:, None] == 1, np.float32(-np.inf), x))
    yield case("beyond_exp", np.array([[0, 88.8, 100], [-200, -100, -104], [1e30, 1e30, 0]], np.float32))
    yield case(
        "equal_beyond_exp", np.full((2, 1025), 85.0, np.float32)
    )  # the sum overflows, no exponential does
    yield case("one_number", normal(f"{label} one", (3, 1)))
    yield case("no_row", np.zeros((0, 5), np.float32))
    yield case("long", normal(f"{label} long", (2, 4099), scale=2.0))


def _layer_normalization() -> Iterator[Case]:
    yield _layer("plain", normal("layer", _SHAPE))
    yield _layer("without_bias", normal("layer bias", _SHAPE), bias=False)
    yield _layer("one_output", normal("layer one", _SHAPE), outputs=1)
    yield _layer("several_axes", normal("layer axes", _SHAPE), axis=1)
    # The variance is 0 and epsilon all that is left: small numbers, since E[x^2] - E[x]^2 is right too, with its error.
    yield _layer("constant_rows", np.full(_SHAPE, 0.03, np.float32))
    yield _layer("far_from_zero", (64 + normal("layer far", _SHAPE)).astype(np.float32))
    # The square of each number is beyond 65504, and stage one in float32 all the same.
    yield _layer("float16_large", normal("layer large", _SHAPE, np.float16, scale=600.0))
    yield _layer("long", normal("layer long", (2, 4099)))
    yield _layer("no_row", np.zeros((0, 5), np.float32))
    for name, dtype in _HALF.items():  # in float64, stage one is in float32: no stash_type is wider
        yield _layer(name, normal(f"layer {name}", (3, 33), dtype))
        yield _layer(f"{name}_one_output", normal(f"layer {name}", (3, 33), dtype), outputs=1)


def _layer(name: str, x: Array, *, axis: int = -1, bias: bool = True, outputs: int = 3) -> Case:
    name = f"layer_normalization_{name}"
    shape = x.shape[axis:]
    made: list[Made | None] = [Made("x", x), Made("scale", normal(f"{name} scale", shape, x.dtype))]
    if bias:
        made.append(Made("bias", normal(f"{name} bias", shape, x.dtype)))
    given: dict[str, Given] = {"y": (x.dtype, x.ndim)}
    if outputs > 1:  # of the type that stage one is computed in
        given |= {"mean": (np.float32, x.ndim), "inverse_deviation": (np.float32, x.ndim)}
    return case_of(name, "LayerNormalization", made, given, 17, {} if axis == -1 else {"axis": axis})


def _rms_normalization() -> Iterator[Case]:
    yield _rms("plain", normal("rms", _SHAPE))
    yield _rms("several_axes", normal("rms axes", _SHAPE), axis=1)
    yield _rms("one_scale", normal("rms one", _SHAPE), scale_shape=(1,))
    yield _rms("zeros", np.zeros(_SHAPE, np.float32))
    yield _rms("small_epsilon", normal("rms small", _SHAPE, scale=1e-3), epsilon=1e-12)
    yield _rms("float16_large", normal("rms large", _SHAPE, np.float16, scale=600.0))
    yield _rms("long", normal("rms long", (2, 4099)))
    yield _rms("no_row", np.zeros((0, 5), np.float32))
    for name, dtype in _HALF.items():
        yield _rms(name, normal(f"rms {name}", (3, 33), dtype))
    double = normal("rms float64", (3, 33), np.float64)
    # Epsilon as float32 has it, whoever reads the attribute.
    yield _rms("float64", double, stash_type=onnx.TensorProto.DOUBLE, epsilon=2.0**-17)


def _rms(name: str, x: Array, *, scale_shape: Sequence[int] | None = None, **attributes: Any) -> Case:
    name, axis = f"rms_normalization_{name}", attributes.get("axis", -1)
    scale = normal(f"{name} scale", scale_shape or x.shape[axis:], x.dtype)
    made = [Made("x", x), Made("scale", scale)]
    return case_of(name, "RMSNormalization", made, {"y": (x.dtype, x.ndim)}, 23, attributes)


def _gelu() -> Iterator[Case]:
    ends = np.array([[-1e4, -90.0, -12.0, -5.5, -1e-6], [0.0, 1e-6, 5.5, 12.0, 1e4]], np.float32)
    for approximate in ("none", "tanh"):
        for name, dtype in _TYPES.items():
            yield _unary(f"gelu_{approximate}_{name}", "Gelu", normal(f"gelu {name}", (3, 33), dtype, scale=2.0),
                         20, approximate=approximate)  # fmt: skip
        yield _unary(f"gelu_{approximate}_far", "Gelu", ends, 20, approximate=approximate)
    yield _unary("gelu_no_row", "Gelu", np.zeros((0, 5), np.float32), 20)


def _rotary() -> Iterator[Case]:
    for name, dtype in {"float32": np.float32, **_HALF}.items():
        yield _rotated(name, normal(f"rotary {name}", (2, 3, 5, 8), dtype))
    x = normal("rotary", (2, 3, 5, 8))
    yield _rotated("positions", x, positions=True)
    yield _rotated("positions_interleaved", x, positions=True, interleaved=1)
    yield _rotated("partial", x, positions=True, rotary_embedding_dim=4)
    yield _rotated("partial_interleaved", x, positions=True, rotary_embedding_dim=4, interleaved=1)
    yield _rotated("one_token", x[:, :, :1], positions=True)
    yield _rotated("no_token", x[:, :, :0], positions=True)
    flat = x.swapaxes(1, 2).reshape(2, 5, 24)
    yield _rotated("3d", flat, positions=True, num_heads=3)
    yield _rotated("3d_partial_interleaved", flat, num_heads=3, rotary_embedding_dim=4, interleaved=1)


def _rotated(name: str, x: Array, *, positions: bool = False, **attributes: Any) -> Case:
    """Return a case whose positions, where given, are neither in order nor those of the first tokens."""
    batch, tokens = x.shape[0], x.shape[-2]
    half = (attributes.get("rotary_embedding_dim") or 8) // 2
    rows = np.array([[9, 2, 7, 0, 4], [1, 8, 3, 6, 5]], np.int64)[:batch, :tokens]
    angle = np.arange(11)[:, None] / 10.0 ** (2 * np.arange(half) / half)
    if not positions:
        angle = np.broadcast_to(angle[:tokens], (batch, tokens, half))
    made = [
        Made("x", x),
        Made("cos", np.cos(angle).astype(x.dtype)),
        Made("sin", np.sin(angle).astype(x.dtype)),
    ]
    if positions:
        made.append(Made("position_ids", rows))
    return case_of(
        f"rotary_embedding_{name}", "RotaryEmbedding", made, {"y": (x.dtype, x.ndim)}, 23, attributes
    )


def _tensor_scatter() -> Iterator[Case]:
    for name, dtype in {**_TYPES, "int64": np.int64, "int8": np.int8}.items():
        yield _scattered(name, dtype, (1, 4))
    yield _scattered("without_indices", np.float32, None)
    yield _scattered("circular_around", np.float32, (5, 6), mode="circular")
    yield _scattered("circular_far", np.float32, (12, 20), mode="circular")
    yield _scattered("to_the_end", np.float32, (4, 4))
    yield _scattered("axis_1", np.float32, (0, 1), axis=1)


def _scattered(name: str, dtype: Any, indices: tuple[int, int] | None, **attributes: Any) -> Case:
    shape, axis = [2, 3, 7, 4], attributes.get("axis", -2)
    cache = normal(f"cache {name}", shape, np.float32, scale=9.0).astype(dtype)
    shape[axis] = 3 if axis == -2 else 1
    update = normal(f"update {name}", shape, np.float32, scale=9.0).astype(dtype)
    made = [Made("past_cache", cache), Made("update", update)]
    if indices is not None:
        made.append(Made("write_indices", np.array(indices, np.int64)))
    return case_of(
        f"tensorscatter_{name}", "TensorScatter", made, {"present_cache": (dtype, 4)}, 24, attributes
    )
