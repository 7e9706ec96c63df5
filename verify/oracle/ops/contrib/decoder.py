"""DecoderMaskedMultiHeadAttention: MultiHeadAttention of one new token, with its inputs in another order."""

from __future__ import annotations

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.contrib.attended import refuse_attributes, refuse_inputs
from onnx_attest.verify.oracle.ops.contrib.multi_head import multi_head_attention
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, UnsupportedOperatorError, optional, required

_OUTPUTS = 3
"""Those that are the same as MultiHeadAttention's; the fourth one is the weights."""


def decoder_masked_multi_head_attention(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """DecoderMaskedMultiHeadAttention without a shared buffer and without beams."""
    refuse_attributes(node, "past_present_share_buffer", "output_qk")
    refuse_inputs(
        node, inputs, {7: "a buffer that past and present share", 8: "beams", 9: "cache_indirection"}
    )
    if any(node.outputs[_OUTPUTS:]):
        raise UnsupportedOperatorError(f"{node.operator} with a fourth output")
    query, key, value, mask, attention_bias, past_key, past_value = (optional(inputs, i) for i in range(7))
    if key is None:  # all three are side by side in the query, as long as each other but for the value
        whole = required(inputs, 0)
        query, key, value = (
            whole.moved(lambda array, index=index: np.split(array, 3, -1)[index])  # type: ignore[misc]
            for index in range(3)
        )
    ordered = [query, key, value, optional(inputs, 10), mask, attention_bias, past_key, past_value]
    return multi_head_attention(node, ordered, arithmetic)[:_OUTPUTS]
