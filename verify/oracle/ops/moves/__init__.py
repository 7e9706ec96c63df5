"""Operators that move, choose and make numbers, and do not compute with them."""

from onnx_attest.verify.oracle.ops.moves import (
    generators,
    indexing,
    padding,
    ranking,
    scattering,
    shape,
    suppression,
)
from onnx_attest.verify.oracle.ops.operator import Operator

OPERATORS: dict[str, Operator] = {
    **generators.OPERATORS,
    **indexing.OPERATORS,
    **padding.OPERATORS,
    **ranking.OPERATORS,
    **scattering.OPERATORS,
    **shape.OPERATORS,
    **suppression.OPERATORS,
}
