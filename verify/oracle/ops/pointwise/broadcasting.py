"""The two operands of an operator, and how the second one was aligned with the first before opset 7."""

from __future__ import annotations

from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, UnsupportedOperatorError, required

_SINCE_NUMPY = 7
"""From opset 7 on operands broadcast as NumPy's do; before, the second one did if it was asked for, from `axis` on."""


def operands(node: Node, inputs: Inputs) -> tuple[Bounded, Bounded]:
    """Return both operands so that they broadcast as NumPy's do.

    Raises:
        UnsupportedOperatorError: shapes that differ without the attribute that lets them.
    """
    a, b = required(inputs, 0), required(inputs, 1)
    if node.opset >= _SINCE_NUMPY:
        return a, b
    node.get("consumed_inputs")  # of opset 1, about memory
    axis = node.get("axis")
    if not node.get("broadcast", 0):
        if a.value.shape != b.value.shape:
            raise UnsupportedOperatorError(f"{node.operator} of different shapes without broadcast")
        return a, b
    if axis is None or b.value.size == 1:
        return a, b
    behind = a.value.ndim - axis % a.value.ndim - b.value.ndim
    return a, b.moved(lambda array: array.reshape(*array.shape, *(1,) * behind))
