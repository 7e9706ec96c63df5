"""Operators that make a tensor out of attributes or a few numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import KAPPA, Bounded, Floats, exact, is_floating
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    is_short,
    required,
    rounds,
)

_NUMBERS: dict[str, Any] = {
    "value_float": np.float64,
    "value_floats": np.float64,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def _constant(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    (name,) = node.attributes
    value = node.get(name)
    if name == "value":
        return [exact(onnx.numpy_helper.to_array(value))]
    if name == "sparse_value":
        return [exact(_dense(value))]
    if name not in _NUMBERS:
        raise UnsupportedOperatorError(f"Constant with {name}")
    array = np.asarray(value, _NUMBERS[name])
    if array.dtype != np.float64 or not node.attribute_error:
        return [Bounded(array)]
    return [Bounded(array, np.where(is_short(array), 0.0, node.attribute_error * np.abs(array)))]


def _dense(sparse: Any) -> Any:
    """Return a sparse tensor with its zeros; the places are flat ones, or one index for each axis."""
    values, places = onnx.numpy_helper.to_array(sparse.values), onnx.numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if places.ndim == 2:
        dense[tuple(places.T)] = values
    else:
        dense.reshape(-1)[places] = values
    return dense


def _constant_of_shape(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    fill = node.get("value")
    value = np.zeros(1, np.float64) if fill is None else exact(onnx.numpy_helper.to_array(fill)).value
    return [Bounded(np.full(integers(inputs, 0), value.reshape(-1)[0], value.dtype))]


def _eye_like(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    (rows, columns), dtype = required(inputs, 0).value.shape, required(inputs, 0).value.dtype
    if node.get("dtype") is not None:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(node.get("dtype"))
    kind = np.float64 if is_floating(dtype) else dtype
    return [Bounded(np.eye(rows, columns, node.get("k", 0), kind))]


def _range(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    start, limit, delta = (
        required(inputs, index).moved(lambda array: array.reshape(())) for index in range(3)
    )
    node.get("stash_type")  # opset 27: a wider format to compute in, which is within the bound
    if not start.is_float:
        if any(rounds(end) for end in (start, limit, delta)):
            raise UnsupportedOperatorError("Range whose length is within its rounding error of another one")
        ends = (int(end.value) for end in (start, limit, delta))
        return [Bounded(np.arange(*ends).astype(start.value.dtype))]
    steps = np.arange(_length(start, limit, delta, arithmetic), dtype=np.float64)
    if arithmetic.kernel is not None:
        return [Bounded(_carried_out(start, delta, steps, arithmetic))]
    return [_stepped(start, delta, steps, arithmetic)]


def _length(start: Bounded, limit: Bounded, delta: Bounded, arithmetic: Arithmetic) -> int:
    """Return how many numbers there are: ceil((limit - start) / delta), if every runtime gets that.

    Rounding is monotonic: a quotient below a whole number is never rounded above it, so that it is only just above
    one that rounding decides, unless the difference was rounded before.
    """
    u = max(arithmetic.u, arithmetic.u_s)
    error = float(start.errors() + limit.errors())
    difference, step = float(limit.value - start.value), float(delta.value)
    if not _fits(abs(difference), _quantum(float(start.value), float(limit.value)), u):
        error += u * (abs(difference) + error)
    if not math.isfinite(difference) or abs(step) <= float(delta.errors()):
        raise UnsupportedOperatorError("Range whose limit or delta gives no length")
    quotients = [
        (difference + one) / (step + other)
        for one in (-error, error)
        for other in (-float(delta.errors()), float(delta.errors()))
    ]
    low, high = min(quotients), max(quotients)
    lengths = {max(math.ceil(low - u * abs(low)), 0), max(math.ceil(high), 0)}
    if len(lengths) > 1:
        raise UnsupportedOperatorError("Range whose length is within its rounding error of another one")
    return lengths.pop()


def _stepped(start: Bounded, delta: Bounded, steps: Floats, arithmetic: Arithmetic) -> Bounded:
    """Return start + i delta, whether it is computed like that or by adding delta i times, as ONNX Runtime does.

    With M the larger one of |start| and |start + i delta|, adding up is off by ((1 + u)^i - 1) M, for no partial sum is
    larger; the product and the sum by gamma_3 (|start| + i |delta|), where i may itself be rounded.

    The variance is that of adding up. What is added is always the same, so within a binade all roundings are equal:
    i of them are one of i times the size, at the mean size of the partial sums.
    """
    value = start.value + steps * delta.value
    u = max(arithmetic.u, arithmetic.u_s)
    sizes = np.maximum(np.abs(start.value), np.abs(value))
    inherited = start.errors() + steps * delta.errors()
    variance = start.variances() + steps**2 * delta.variances()
    quantum = _quantum(float(start.value), float(delta.value))
    fits = _fits(float(sizes.max(initial=0.0)), quantum, u)
    if not fits or rounds(start) or rounds(delta):
        with np.errstate(over="ignore", invalid="ignore"):
            added = np.expm1(steps * np.log1p(u)) * (sizes + inherited)
            product = 3 * u / (1 - 3 * u) * (np.abs(start.value) + np.abs(value - start.value) + inherited)
        own = np.maximum(added, product) + steps * arithmetic.omega
        inherited = inherited + np.where(steps > 0, own, 0.0)  # the first number is start, as it is
        mean = (np.abs(start.value) + np.abs(value)) / 2
        variance = variance + KAPPA * (arithmetic.u**2 + arithmetic.u_s**2) * (steps * mean) ** 2
    if not np.any(inherited):
        return Bounded(value)
    shaped = [np.broadcast_to(one, value.shape) for one in (inherited, variance)]
    return Bounded(value, shaped[0], variance=shaped[1] if arithmetic.deviations else None)


def _carried_out(start: Bounded, delta: Bounded, steps: Floats, arithmetic: Arithmetic) -> Floats:
    kernel = arithmetic.kernel
    assert kernel is not None
    if kernel.block == 1:  # one after another
        terms = np.where(steps > 0, delta.value, start.value).astype(kernel.working)
        return kernel.stored(np.add.accumulate(terms))
    return kernel.stored(start.value + kernel.stored(steps * delta.value))


def _quantum(*numbers: float) -> float:
    """Return the largest power of two that all of these numbers are multiples of; 1 of zeros."""
    known = [number.as_integer_ratio() for number in numbers if number and math.isfinite(number)]
    return min(((numerator & -numerator) / denominator for numerator, denominator in known), default=1.0)


def _fits(size: float, quantum: float, u: float) -> bool:
    """Whether a multiple of the quantum up to this size has no more digits than the format: it is never rounded."""
    return size * u <= quantum


OPERATORS: dict[str, Operator] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
    "Range": _range,
}
