"""The operators that the oracle evaluates, by name; each takes its own opset's attributes and defaults."""

from onnx_attest.verify.oracle.ops import (
    attention,
    contrib,
    flow,
    fusions,
    images,
    linear,
    moves,
    normalization,
    pointwise,
    products,
    quantized,
    recurrent,
    reducing,
    rotary,
    statistics,
)
from onnx_attest.verify.oracle.ops.operator import Operator

OPERATORS: dict[str, Operator] = {
    **attention.OPERATORS,
    **contrib.OPERATORS,
    **flow.OPERATORS,
    **fusions.OPERATORS,
    **images.OPERATORS,
    **linear.OPERATORS,
    **moves.OPERATORS,
    **normalization.OPERATORS,
    **pointwise.OPERATORS,
    **products.OPERATORS,
    **quantized.OPERATORS,
    **recurrent.OPERATORS,
    **reducing.OPERATORS,
    **rotary.OPERATORS,
    **statistics.OPERATORS,
}

__all__ = ["OPERATORS", "Operator"]
