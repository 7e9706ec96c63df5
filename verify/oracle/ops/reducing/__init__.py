"""Operators that make one number of many along an axis, and those that follow from such."""

from onnx_attest.verify.oracle.ops.operator import Operator
from onnx_attest.verify.oracle.ops.reducing import cumulation, log_softmax, maxima, reductions

OPERATORS: dict[str, Operator] = {
    **cumulation.OPERATORS,
    **log_softmax.OPERATORS,
    **maxima.OPERATORS,
    **reductions.OPERATORS,
}
