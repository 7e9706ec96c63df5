"""Matrix products with what was before and behind them: transpositions, a scale, an activation."""

from __future__ import annotations

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Array, Bounded
from onnx_attest.verify.oracle.ops import linear
from onnx_attest.verify.oracle.ops.fusions.activations import fast_gelu
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    optional,
    required,
)
from onnx_attest.verify.oracle.ops.pointwise.named_activations import named
from onnx_attest.verify.oracle.ops.products import product


def _fused_matmul(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """FusedMatMul: alpha a b, each with its last two axes swapped, or its first one put before the last."""
    a, b = (
        _transposed(
            required(inputs, index),
            batch=bool(node.get(f"transBatch{name}", 0)),
            last=bool(node.get(f"trans{name}", 0)),
        )
        for index, name in enumerate("AB")
    )
    result, alpha = product(a, b, node.empty_rows, arithmetic), node.real("alpha", 1.0)
    if alpha.value[0] == 1.0:
        return [result]
    return [bounded.multiply(result, alpha, arithmetic)]


def _transposed(a: Bounded, *, batch: bool, last: bool) -> Bounded:
    """Return (batch, ..., rows, columns); of a vector there is nothing to swap."""
    rank = a.value.ndim
    if rank < 2 or not (batch or last):
        return a

    def move(array: Array) -> Array:
        moved = np.moveaxis(array, 0, -2) if batch else array
        return moved.swapaxes(-1, -2) if last else moved

    return a.moved(move)


def _with_activation(operator: Operator) -> Operator:
    """Return the operator with the activation that an attribute names behind it, if one does."""

    def fused(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
        result, name = required(operator(node, inputs, arithmetic), 0), node.get("activation", "")
        alpha, beta, gamma, axis = (
            node.get(f"activation_{argument}") for argument in ("alpha", "beta", "gamma", "axis")
        )
        if axis is not None or (gamma is None) == (name == "Selu"):
            raise UnsupportedOperatorError(
                f"{node.operator} with activation {name}, gamma {gamma}, axis {axis}"
            )
        if not name:
            return [result]
        arguments = ([] if value is None else [value] for value in (alpha, beta))
        activated = named(["Elu" if name == "Selu" else name], *arguments)[0](result, arithmetic)
        if gamma is None:
            return [activated]
        return [bounded.multiply(activated, node.real("activation_gamma", 1.0), arithmetic)]

    return fused


def _gemm_fast_gelu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    result, bias = (
        product(required(inputs, 0), required(inputs, 1), node.empty_rows, arithmetic),
        optional(inputs, 2),
    )
    return [fast_gelu(result if bias is None else bounded.add(result, bias, arithmetic), arithmetic)]


OPERATORS: dict[str, Operator] = {
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "FusedMatMulActivation": _with_activation(_fused_matmul),
    "FusedGemm": _with_activation(linear.OPERATORS["Gemm"]),
    "GemmFastGelu": _gemm_fast_gelu,
}
