"""What ONNX Runtime had before ONNX: operators that only move numbers."""

from __future__ import annotations

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    required,
)


def _gather_nd(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """GatherND: an index of the first axes in each row of the last axis."""
    indices = np.moveaxis(required(inputs, 1).value, -1, 0)
    data = required(inputs, 0)
    sizes = np.array(data.value.shape[: len(indices)]).reshape(-1, *(1,) * (indices.ndim - 1))
    if np.any(indices < -sizes) or np.any(indices >= sizes):
        raise UnsupportedOperatorError("GatherND with an index that the data does not have")
    return [data.moved(lambda array: array[tuple(indices)])]


def _expand_dims(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    axis = integers(inputs, 1)[0]
    return [required(inputs, 0).moved(lambda array: np.expand_dims(array, axis))]


def _trilu(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    diagonal = integers(inputs, 1)[0] if optional(inputs, 1) is not None else 0
    keep = np.triu if node.get("upper", 1) else np.tril
    return [required(inputs, 0).moved(lambda array: keep(array, diagonal))]


OPERATORS: dict[str, Operator] = {
    "GatherND": _gather_nd,
    "ExpandDims": _expand_dims,
    "Trilu": _trilu,
}
