"""Convolutions, pooling and resampling, in ONNX's layout and in the blocked one of ONNX Runtime."""

from onnx_attest.verify.oracle.ops.images import convolution, nchwc, pooling, resampling
from onnx_attest.verify.oracle.ops.operator import Operator

OPERATORS: dict[str, Operator] = {
    **convolution.OPERATORS,
    **nchwc.OPERATORS,
    **pooling.OPERATORS,
    **resampling.OPERATORS,
}
