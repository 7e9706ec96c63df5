"""Matrix products."""

from __future__ import annotations

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.attention import weighted_sum, with_policy
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, optional, required


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


OPERATORS: dict[str, Operator] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
}
