"""Quantised operators: ONNX's, and those of com.microsoft that ONNX Runtime's optimiser and tools make of them.

A quantised tensor is an array of codes whose error says by how many codes a correct runtime may be off: 0 but where
the number before rounding lies within its own error of a half. Sums of products of codes are exact. Where ONNX
Runtime's documents are silent, what is computed between dequantised input and quantised output is the float operator.
"""

from onnx_attest.verify.oracle.ops.operator import Operator
from onnx_attest.verify.oracle.ops.quantized import (
    attention,
    bits,
    dynamic,
    elementwise,
    integer,
    linear,
    pooling,
    products,
)

OPERATORS: dict[str, Operator] = {
    **linear.OPERATORS,
    **dynamic.OPERATORS,
    **integer.OPERATORS,
    **products.OPERATORS,
    **elementwise.OPERATORS,
    **pooling.OPERATORS,
    **attention.OPERATORS,
    **bits.OPERATORS,
}

__all__ = ["OPERATORS"]
