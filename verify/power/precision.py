"""Faults of precision: numbers that pass through a shorter format than the graph declares."""

from __future__ import annotations

import functools
from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx

from onnx_attest.verify.power.fault import Fault, Inapplicable, Offer, in_chain
from onnx_attest.verify.power.sites import Chain, Operator, Site
from onnx_attest.verify.power.workbench import Workbench

BLOCKS = 8
INT8_SCALE_ERROR = 0.01
_SPLIT = 2.0**13 + 1
"""Veltkamp's: c = (2^s + 1) x, then c - (c - x) is x rounded to 24 - s = 11 bits, TF32's, if x < 2^114."""
_SHORT = {"fp16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}


def faults(bench: Workbench, site: Site) -> Offer:
    """Yield the faults of precision of one attention; a graph in half precision has its own."""
    first = bench.read(site.edge(0) if isinstance(site, Operator) else site.query)
    dtype = bench.dtype(first)
    for name, element in _SHORT.items():
        yield _cast("weights", name, element, dtype)
        yield _cast("logits", name, element, dtype)
    if dtype != np.dtype(np.float32):
        reason = f"the graph computes in {dtype.name}"
        yield from (Inapplicable(kind, reason) for kind in ("products-tf32", "accumulate-fp16"))
    else:
        yield in_chain("products-tf32", "operands of both products rounded to TF32", _tf32, size=2.0**-11)
        yield in_chain(
            "accumulate-fp16", f"sums of both products kept in float16 between {BLOCKS} blocks", _accumulated,
            size=2.0**-11,
        )  # fmt: skip
    yield Fault(
        "int8-scale", INT8_SCALE_ERROR, f"keys and values in int8, scale x (1 + {INT8_SCALE_ERROR:g})", _int8
    )


def _cast(what: str, name: str, element: int, dtype: np.dtype[np.float32]) -> Fault | Inapplicable:
    bits, own = (
        ml_dtypes.finfo(kind).nmant + 1 for kind in (onnx.helper.tensor_dtype_to_np_dtype(element), dtype)
    )
    kind = f"{what}-{name}"
    if bits >= own:
        return Inapplicable(kind, f"the graph computes in {dtype.name}, which has no more digits")
    own_element = onnx.helper.np_dtype_to_tensor_dtype(dtype)

    def change(bench: Workbench, chain: Chain) -> None:
        value = bench.read(chain.weights) if what == "weights" else chain.logits
        bench.replace(value, lambda x: bench.op("Cast", bench.op("Cast", x, to=element), to=own_element))

    return in_chain(kind, f"{what} cast through {name}", change, size=2.0**-bits)


def _tf32(bench: Workbench, chain: Chain) -> None:
    for edge in (chain.query, chain.key, chain.weights, chain.value):
        bench.insert(edge, functools.partial(_eleven_bits, bench))


def _eleven_bits(bench: Workbench, value: str) -> str:
    """Return x rounded to nearest with 11 significant bits, exactly, in float32's own arithmetic."""
    c = bench.op("Mul", value, bench.constant(_SPLIT, np.float32))
    return bench.op("Sub", c, bench.op("Sub", c, value))


def _accumulated(bench: Workbench, chain: Chain) -> None:
    for output in (chain.product, chain.output):
        left, right = (bench.producer(output).input[index] for index in (0, 1))  # type: ignore[union-attr]
        bench.replace(output, _blockwise(bench, left, right))


def _blockwise(bench: Workbench, left: str, right: str) -> Callable[[str], str]:
    """Return the product, its terms in blocks; what has been summed is rounded to float16 after each block."""

    def change(_: str) -> str:
        length = bench.axis_length(left, -1)
        total = ""
        for block in range(BLOCKS):
            start, end = _fraction(bench, length, block), _fraction(bench, length, block + 1)
            part = bench.op("MatMul", bench.part(left, start, end, -1), bench.part(right, start, end, -2))
            total = _through_half(bench, bench.op("Add", total, part) if total else part)
        return total

    return change


def _fraction(bench: Workbench, length: str, block: int) -> str:
    return bench.op("Div", bench.op("Mul", length, bench.constant([block])), bench.constant([BLOCKS]))


def _through_half(bench: Workbench, value: str) -> str:
    short = bench.op("Cast", value, to=onnx.TensorProto.FLOAT16)
    return bench.op("Cast", short, to=onnx.TensorProto.FLOAT)


def _int8(bench: Workbench, site: Site) -> None:
    operator = isinstance(site, Operator)
    edges = (site.edge(1), site.edge(2)) if operator else (site.key, site.value)  # type: ignore[union-attr]
    for edge in edges:
        bench.insert(edge, functools.partial(_quantised, bench))


def _quantised(bench: Workbench, value: str) -> str:
    """Return round(x / s) s (1 + error), s = max |x| / 127 of the whole tensor, in float32."""
    dtype = bench.dtype(value)
    single = value if dtype == np.dtype(np.float32) else bench.op("Cast", value, to=onnx.TensorProto.FLOAT)
    largest = bench.op("ReduceMax", bench.op("Abs", single), keepdims=0)
    # The smallest normal number: zeros alone have no scale.
    tiny = bench.constant(2.0**-126, np.float32)
    scale = bench.op("Max", bench.op("Div", largest, bench.constant(127.0, np.float32)), tiny)
    zero = bench.constant(0, np.int8)
    codes = bench.op("QuantizeLinear", single, scale, zero)
    wrong = bench.op("Mul", scale, bench.constant(1 + INT8_SCALE_ERROR, np.float32))
    back = bench.op("DequantizeLinear", codes, wrong, zero)
    return back if single == value else bench.op("Cast", back, to=onnx.helper.np_dtype_to_tensor_dtype(dtype))
