"""ONNX Runtime's own attention operators, domain com.microsoft: what its fusions and model builders put into a graph.

They are documented in ContribOperators.md; where that is silent, what the CPU provider of 1.31 does is what counts,
and what that leaves open as well, the unused rest of a cache for example, may be anything: its error is infinite.

A padding mask is not a mask: it adds mask_filter_value, a finite number, -10000 by default. A query whose keys are all
padding therefore attends them as if they were not, with logits that have lost digits.
"""

from onnx_attest.verify.oracle.ops.contrib.decoder import decoder_masked_multi_head_attention
from onnx_attest.verify.oracle.ops.contrib.group_query import group_query_attention
from onnx_attest.verify.oracle.ops.contrib.multi_head import attention, multi_head_attention
from onnx_attest.verify.oracle.ops.operator import Operator

OPERATORS: dict[str, Operator] = {
    "com.microsoft.Attention": attention,
    "com.microsoft.MultiHeadAttention": multi_head_attention,
    "com.microsoft.GroupQueryAttention": group_query_attention,
    "com.microsoft.DecoderMaskedMultiHeadAttention": decoder_masked_multi_head_attention,
}

__all__ = ["OPERATORS"]
