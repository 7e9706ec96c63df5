"""QAttention: the projection of com.microsoft's Attention with codes, and the rest of it in numbers."""

from __future__ import annotations

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.contrib.attended import refuse_attributes
from onnx_attest.verify.oracle.ops.contrib.multi_head import multi_head_attention
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, optional, required
from onnx_attest.verify.oracle.ops.quantized.codes import by_column, scalar, scaled
from onnx_attest.verify.oracle.ops.quantized.integer import counted


def _qattention(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    refuse_attributes(node, "do_rotary", "past_present_share_buffer")
    projected = _projected(inputs, arithmetic)
    q, k, v = (
        projected.moved(lambda array, index=index: np.split(array, 3, -1)[index])  # type: ignore[misc]
        for index in range(3)
    )
    past = optional(inputs, 8)
    halves = [None, None] if past is None else [past.moved(lambda array, i=i: array[i]) for i in range(2)]  # type: ignore[misc]
    given = [q, k, v, None, optional(inputs, 5), None, *halves]
    output, *present = multi_head_attention(node, given, arithmetic)[:3]
    return [output, bounded.concatenated([part.moved(lambda array: array[None]) for part in present], 0)]


def _projected(inputs: Inputs, arithmetic: Arithmetic) -> Bounded:
    """Return queries, keys and values side by side: the count of codes, scaled, and the bias."""
    zero = None if optional(inputs, 6) is None else scalar(inputs, 6)
    count = counted(required(inputs, 0), required(inputs, 1), (zero, optional(inputs, 7)), arithmetic)
    scales = [scalar(inputs, 3), by_column(required(inputs, 4))]
    return bounded.add(scaled(count, scales, [], arithmetic), required(inputs, 2), arithmetic)


OPERATORS: dict[str, Operator] = {"com.microsoft.QAttention": _qattention}
