"""Matrix products and reductions."""

from __future__ import annotations

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.attention import weighted_sum, with_policy
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, integers, optional, required


def _matmul(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a, b = required(inputs, 0), required(inputs, 1)
    if a.softmax is not None and min(a.value.ndim, b.value.ndim) >= 2:
        # Once more: a guard between softmax and product, Where(IsNaN(p), 0, p), undoes the policy `nan`.
        return [weighted_sum(with_policy(a, node.empty_rows, arithmetic), b, arithmetic)]
    return [bounded.matmul(a, b, arithmetic)]


def _gemm(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a = _transposed(required(inputs, 0), transpose=bool(node.get("transA", 0)))
    b = _transposed(required(inputs, 1), transpose=bool(node.get("transB", 0)))
    product = bounded.matmul(a, b, arithmetic)
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if alpha != 1.0:
        product = bounded.multiply(product, exact([alpha]), arithmetic)
    c = optional(inputs, 2)
    if c is None:
        return [product]
    if beta != 1.0:
        c = bounded.multiply(c, exact([beta]), arithmetic)
    return [bounded.add(product, c, arithmetic)]


def _transposed(a: Bounded, *, transpose: bool) -> Bounded:
    if not transpose:
        return a
    return a.moved(lambda array: array.T)


def reduced_axes(node: Node, inputs: Inputs, rank: int) -> tuple[int, ...]:
    """Return the axes to reduce: an attribute before opset 13 (sum) or 18 (max), an input since; all by default."""
    given = integers(inputs, 1) if optional(inputs, 1) is not None else node.get("axes", ())
    if node.get("noop_with_empty_axes", 0) and not given:
        return ()
    return tuple(axis % rank for axis in given) or tuple(range(rank))


def _reduce_sum(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a = required(inputs, 0)
    axes, keepdims = reduced_axes(node, inputs, a.value.ndim), bool(node.get("keepdims", 1))
    return [bounded.total(a, axes, keepdims=keepdims, arithmetic=arithmetic)]


def _reduce_max(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    a = required(inputs, 0)
    return [
        bounded.largest(a, reduced_axes(node, inputs, a.value.ndim), keepdims=bool(node.get("keepdims", 1)))
    ]


OPERATORS: dict[str, Operator] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "ReduceSum": _reduce_sum,
    "ReduceMax": _reduce_max,
}
