"""Operators of com.microsoft that several of ONNX's become: what ONNX Runtime's optimisers put into a graph.

They are documented in ContribOperators.md. For the CPU, ONNX Runtime 1.31 itself makes FusedMatMul, FusedGemm, Gelu,
BiasGelu, FastGelu, QuickGelu, SkipLayerNormalization and SimplifiedLayerNormalization; its tools for transformers make
SkipSimplifiedLayerNormalization, EmbedLayerNormalization and RotaryEmbedding as well, and those that run on CUDA only.
"""

from onnx_attest.verify.oracle.ops.fusions import activations, moves, normalization, products
from onnx_attest.verify.oracle.ops.operator import Operator

OPERATORS: dict[str, Operator] = {
    **{f"com.microsoft.{name}": operator for name, operator in products.OPERATORS.items()},
    **{f"com.microsoft.{name}": operator for name, operator in activations.OPERATORS.items()},
    **{f"com.microsoft.{name}": operator for name, operator in normalization.OPERATORS.items()},
    **{f"com.microsoft.{name}": operator for name, operator in moves.OPERATORS.items()},
    # Registered in ONNX's own domain, though it is none of ONNX's.
    "SimplifiedLayerNormalization": normalization.simplified_layer_normalization,
}

__all__ = ["OPERATORS"]
