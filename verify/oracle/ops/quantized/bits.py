"""MatMulNBits: a product with weights of a few bits, packed into bytes, with a scale for each block of each column."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import KAPPA, Array, Bounded, Floats, rounded
from onnx_attest.verify.oracle.ops.contrib.attended import refuse_attributes, refuse_inputs
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    optional,
    placing,
    required,
)

_SHORT_INPUT = {2: 2.0**-11, 3: 2.0**-8}
"""Unit roundoffs of the formats that `accuracy_level` allows the left factor to be cast to: float16, bfloat16."""
_INT8_LEVEL, _INT8_MOST = 4, 127.0


def _matmul_nbits(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    refuse_attributes(node, "weight_prepacked")
    refuse_inputs(node, inputs, {4: "g_idx"})
    bits, block = int(node.get("bits", 4)), int(node.get("block_size"))
    if bits not in (2, 4, 8):
        raise UnsupportedOperatorError(f"MatMulNBits of {bits} bits")
    level = int(node.get("accuracy_level", 0))
    depth, columns = int(node.get("K")), int(node.get("N"))
    blocks = -(-depth // block)
    codes = _unpacked(placing(inputs, 1), bits).reshape(columns, blocks * block)[:, :depth]
    scale = _spread(required(inputs, 2), (columns, blocks), block, depth)
    zero = _zero_points(inputs, bits, (columns, blocks), block, depth)
    weights = _weights(codes, scale, zero, arithmetic).moved(np.transpose)
    x = _allowed(required(inputs, 0), level, block, arithmetic)
    product = bounded.matmul(x, weights, arithmetic)
    bias = optional(inputs, 5)
    return [product if bias is None else bounded.add(product, bias, arithmetic)]


def _unpacked(packed: Array, bits: int) -> Array:
    """Return the codes of bytes, the lowest bits of each first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(codes.reshape(*packed.shape[:-1], -1))


def _spread(given: Bounded, shape: tuple[int, int], block: int, depth: int) -> Bounded:
    """Return parameters of blocks, in whatever shape they come, for each weight."""
    return given.moved(lambda array: np.repeat(array.reshape(shape), block, 1)[:, :depth])


def _zero_points(inputs: Inputs, bits: int, shape: tuple[int, int], block: int, depth: int) -> Bounded:
    """Return the zero points: packed as the codes are, or numbers; in the middle if they are not given."""
    given = optional(inputs, 3)
    if given is None:
        return Bounded(np.full((), float(1 << (bits - 1))))
    if given.is_float:
        return _spread(given, shape, block, depth)
    columns, blocks = shape
    unpacked = _unpacked(placing(inputs, 3).reshape(columns, -1), bits)[:, :blocks].astype(np.float64)
    return _spread(Bounded(unpacked), shape, block, depth)


def _weights(codes: Array, scale: Bounded, zero: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return (code - zero point) scale; a runtime may multiply out, or sum codes and zero points apart.

    So the two roundings, of the difference and of the product, are as large as code and zero point apart.
    """
    code = codes.astype(np.float64)
    value = (code - zero.value) * scale.value
    if arithmetic.kernel is not None:
        return Bounded(arithmetic.kernel.stored(value))
    size = (code + np.abs(zero.value) + zero.errors()) * (np.abs(scale.value) + scale.errors())
    inherited = np.abs(code - zero.value) * scale.errors()
    inherited = inherited + zero.errors() * (np.abs(scale.value) + scale.errors())
    u = max(arithmetic.u, arithmetic.u_s)
    variance = (code - zero.value) ** 2 * scale.variances() + zero.variances() * scale.value**2
    return rounded(value, inherited + 2 * u * size, arithmetic, variance=variance)


def _allowed(x: Bounded, level: int, block: int, arithmetic: Arithmetic) -> Bounded:
    """Return the left factor with the error of the format that `accuracy_level` allows it to be cast to.

    Level 4: in each block of the weights, codes of eight bits with a scale of the largest number over 127. A code is
    off by half a scale; the scale itself, the quotient and the product with it are rounded: 127 scales, three times.
    """
    if arithmetic.kernel is not None or level not in (_INT8_LEVEL, *_SHORT_INPUT):
        return x
    if level in _SHORT_INPUT:
        relative = _SHORT_INPUT[level]
        cast = relative * (np.abs(x.value) + x.errors()) + arithmetic.omega
        spread: Floats = KAPPA * (relative * x.value) ** 2
    else:
        scale = _largest_of_blocks(np.abs(x.value) + x.errors(), block) / _INT8_MOST
        cast = scale * (0.5 + 3 * _INT8_MOST * arithmetic.u)
        spread = scale**2 / 12
    variance = x.variances() + spread if arithmetic.deviations else None
    return replace(x, error=np.asarray(x.errors() + cast), variance=variance)


def _largest_of_blocks(sizes: Floats, block: int) -> Floats:
    """Return, for each number, the largest of its block along the last axis."""
    depth = sizes.shape[-1]
    padded = np.pad(sizes, [(0, 0)] * (sizes.ndim - 1) + [(0, -depth % block)])
    tops = padded.reshape(*padded.shape[:-1], -1, block).max(-1)
    return np.asarray(np.repeat(tops, block, -1)[..., :depth])


OPERATORS: dict[str, Operator] = {"com.microsoft.MatMulNBits": _matmul_nbits}
