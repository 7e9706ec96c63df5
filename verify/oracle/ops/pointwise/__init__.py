"""Operators that take each number on its own: arithmetic, functions, comparisons, casts, activations."""

from onnx_attest.verify.oracle.ops.operator import Operator
from onnx_attest.verify.oracle.ops.pointwise import (
    activations,
    casts,
    comparisons,
    elementwise,
    functions,
    jumps,
    limits,
    powers,
    rectifiers,
)

OPERATORS: dict[str, Operator] = {
    **activations.OPERATORS,
    **casts.OPERATORS,
    **comparisons.OPERATORS,
    **elementwise.OPERATORS,
    **functions.OPERATORS,
    **jumps.OPERATORS,
    **limits.OPERATORS,
    **powers.OPERATORS,
    **rectifiers.OPERATORS,
}
