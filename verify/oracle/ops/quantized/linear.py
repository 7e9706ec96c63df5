"""QuantizeLinear and DequantizeLinear of all opsets, and ONNX Runtime's own of the same names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, UnsupportedOperatorError, required
from onnx_attest.verify.oracle.ops.pointwise import casts
from onnx_attest.verify.oracle.ops.quantized.codes import Grid, given_grid, in_units, limits, to_codes

_SHORT: dict[int, Any] = {
    onnx.TensorProto.FLOAT16: np.float16,
    onnx.TensorProto.BFLOAT16: ml_dtypes.bfloat16,
}
_UNITS = {
    onnx.TensorProto.FLOAT: 2.0**-24,
    onnx.TensorProto.FLOAT16: 2.0**-11,
    onnx.TensorProto.BFLOAT16: 2.0**-8,
}


def _quantize_linear(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x, u = required(inputs, 0), _unit_of_division(node, arithmetic)
    grid = given_grid(node, inputs, x.value.shape)
    node.get("saturate")  # of eight-bit floats only, which are refused
    dtype = _kind_of_codes(node, grid)
    if node.get("precision", 0):
        x, grid = _cast(node, x, arithmetic), Grid(_cast(node, grid.scale, arithmetic), grid.zero)
    return [to_codes(in_units(x, grid.scale, u, arithmetic), grid.zero, dtype)]


def _unit_of_division(node: Node, arithmetic: Arithmetic) -> float:
    """Return the unit roundoff of x / scale: of `precision`, or of the scale's own type."""
    precision = node.get("precision", 0)
    kind = precision or node.type_of(node.inputs[1])
    declared = arithmetic.u if precision else max(arithmetic.u, arithmetic.u_s)
    return max(declared, _UNITS.get(kind, 0.0))


def _cast(node: Node, a: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return a number in the format that the node divides in; no integer is short enough to be sure of a short one."""
    precision = node.get("precision")
    if precision == onnx.TensorProto.FLOAT or not a.is_float:
        if precision in _SHORT:
            raise UnsupportedOperatorError("QuantizeLinear of integers in half precision")
        return a
    caster = replace(node, operator="Cast", attributes={"to": precision}, asked=set())
    (result,) = casts.OPERATORS["Cast"](caster, [a], arithmetic)
    assert isinstance(result, Bounded)
    return result


def _kind_of_codes(node: Node, grid: Grid) -> Any:
    """Return the codes' dtype: that of the zero point, or what is asked for since opset 21, or uint8."""
    asked = node.get("output_dtype", 0)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(asked) if asked else np.dtype(np.uint8)
    if grid.zero is not None:
        if asked and grid.zero.value.dtype != dtype:
            raise UnsupportedOperatorError(
                "QuantizeLinear with a zero point of another type than output_dtype"
            )
        dtype = grid.zero.value.dtype
    limits(dtype)
    return dtype


def _dequantize_linear(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    codes = required(inputs, 0)
    if codes.value.dtype != np.int32:
        limits(codes.value.dtype)
    grid = given_grid(node, inputs, codes.value.shape)
    kind = node.get("output_dtype", 0) or node.type_of(node.outputs[0]) or node.type_of(node.inputs[1])
    return [grid.numbers(codes, _stored_as(kind, arithmetic))]


def _stored_as(kind: int, arithmetic: Arithmetic) -> Arithmetic:
    """Return the arithmetic of an operator whose output is of this type, which its multiplication has as well."""
    if kind not in _SHORT:
        return arithmetic
    info = ml_dtypes.finfo(_SHORT[kind])
    kernel = None if arithmetic.kernel is None else replace(arithmetic.kernel, storing=_SHORT[kind])
    return replace(
        arithmetic,
        u=max(arithmetic.u, float(info.eps) / 2),
        omega=max(arithmetic.omega, float(info.smallest_subnormal)),
        kernel=kernel,
    )


OPERATORS: dict[str, Operator] = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "com.microsoft.QuantizeLinear": _quantize_linear,
    "com.microsoft.DequantizeLinear": _dequantize_linear,
}
