"""The operators that the oracle evaluates, by name; each takes its own opset's attributes and defaults."""

from onnx_attest.verify.oracle.ops import (
    activations,
    attention,
    contrib,
    control,
    elementwise,
    generators,
    indexing,
    linear,
    normalization,
    padding,
    ranking,
    scattering,
    sequences,
    shape,
    suppression,
)
from onnx_attest.verify.oracle.ops.operator import Operator

OPERATORS: dict[str, Operator] = {
    **elementwise.OPERATORS,
    **linear.OPERATORS,
    **shape.OPERATORS,
    **generators.OPERATORS,
    **indexing.OPERATORS,
    **scattering.OPERATORS,
    **padding.OPERATORS,
    **ranking.OPERATORS,
    **suppression.OPERATORS,
    **sequences.OPERATORS,
    **control.OPERATORS,
    **activations.OPERATORS,
    **normalization.OPERATORS,
    **attention.OPERATORS,
    **contrib.OPERATORS,
}

__all__ = ["OPERATORS", "Operator"]
