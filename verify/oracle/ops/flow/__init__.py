"""Graphs inside graphs, sequences and optionals."""

from onnx_attest.verify.oracle.ops.flow import control, sequences
from onnx_attest.verify.oracle.ops.operator import Operator

OPERATORS: dict[str, Operator] = {
    **control.OPERATORS,
    **sequences.OPERATORS,
}
