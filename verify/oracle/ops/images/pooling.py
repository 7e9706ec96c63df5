"""Pooling: maxima, means and norms over windows or whole images, and regions aligned to a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Array, Bounded, Floats, rounded, sum_variance
from onnx_attest.verify.oracle.ops.images import regions
from onnx_attest.verify.oracle.ops.images.windows import Windows, sizes_in, windows_of
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    placing,
    required,
)

_SINCE_CEIL = 10
"""ceil_mode of AveragePool and MaxPool, and dilations of MaxPool."""
_SINCE_CEIL_OF_NORMS = 18
"""ceil_mode and dilations of LpPool."""
_SINCE_DILATED_MEANS = 19
_SINCE_COUNTING_PADS = 7


def pooled_windows(node: Node, x: Bounded, *, ceil: bool, dilated: bool) -> Windows:
    """Return the windows of a pooling node, with what its opset has of ceil_mode and dilations."""
    kernel, up = sizes_in(node, "kernel_shape", ()), ceil and bool(node.get("ceil_mode", 0))
    return windows_of(node, x.value.shape[2:], kernel, ceil=up, dilated=dilated)


def _max_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """MaxPool; the second output says where each maximum is, the first of equal ones."""
    x = required(inputs, 0)
    windows = pooled_windows(node, x, ceil=node.opset >= _SINCE_CEIL, dilated=node.opset >= _SINCE_CEIL)
    by_column = bool(node.get("storage_order", 0))
    result = maximum(x, windows)
    if not any(node.outputs[1:]):
        return [result]
    return [result, Bounded(_indices(x, windows, result, by_column=by_column))]


def maximum(x: Bounded, windows: Windows) -> Bounded:
    """Return the maximum of each window: off by no more than the worst number that may be the largest."""
    lowest = lowest_of(x.value.dtype)
    value = _extreme(windows.taps(windows.padded(x.value, lowest)))
    if x.error is None or not np.any(x.error):
        return Bounded(value, None if x.error is None else np.zeros(value.shape))
    with np.errstate(invalid="ignore"):
        low, high = (windows.padded(x.value + sign * x.error, lowest) for sign in (-1, 1))
    surely = _extreme(windows.taps(low))
    error, variance = (
        None if own is None else _extreme(_candidates(windows, high, surely, own))
        for own in (x.error, x.variance)
    )
    return Bounded(value, error, variance=variance)


def _extreme(taps: Iterator[Array]) -> Array:
    result = next(taps).copy()
    for tap in taps:
        np.maximum(result, tap, out=result)
    return result


def _candidates(windows: Windows, high: Array, surely: Array, own: Array) -> Iterator[Array]:
    """Yield an array at each place of the windows, 0 where the number there cannot be the largest."""
    padded = windows.padded(own, 0.0)
    for top, tap in zip(windows.taps(high), windows.taps(padded), strict=True):
        yield np.where(top >= surely, tap, 0.0)


def lowest_of(dtype: np.dtype[Any]) -> Any:
    """Return what is below every other number of a dtype."""
    return -np.inf if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).min


def _indices(x: Bounded, windows: Windows, largest: Bounded, *, by_column: bool) -> Array:
    """Return where each maximum is among the numbers of x, counted by rows or by columns of each image.

    Raises:
        UnsupportedOperatorError: another number may be the largest, within their errors.
    """
    sizes = windows.sizes
    size = int(np.prod(sizes, dtype=np.int64))
    order = np.arange(size).reshape(sizes, order="F" if by_column else "C")
    places = windows.padded(order, -1)
    lowest = lowest_of(x.value.dtype)
    found = np.full(largest.value.shape, -1, np.int64)
    errors = np.broadcast_to(x.errors(), x.value.shape)
    with np.errstate(invalid="ignore"):
        high, low = windows.padded(x.value + errors, lowest), windows.padded(x.value - errors, lowest)
    surely, rivals = _extreme(windows.taps(low)), np.zeros(found.shape, np.int64)
    padded = windows.padded(x.value, lowest)
    for number, top, place in zip(
        windows.taps(padded), windows.taps(high), windows.taps(places), strict=True
    ):
        found = np.where((found < 0) & (place >= 0) & (number == largest.value), place, found)
        rivals += (place >= 0) & (top >= surely)
    if np.any((rivals > 1) & (np.asarray(largest.errors()) > 0)):
        raise UnsupportedOperatorError("the place of a maximum that is one within its rounding error")
    if np.any(found < 0):
        raise UnsupportedOperatorError("the place of a maximum among NaN")
    batch, channels = x.value.shape[:2]
    images = np.arange(batch * channels).reshape(batch, channels, *(1,) * len(sizes))
    return np.asarray(found + images * size)


def _average_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x, dilated = required(inputs, 0), node.opset >= _SINCE_DILATED_MEANS
    windows = pooled_windows(node, x, ceil=node.opset >= _SINCE_CEIL, dilated=dilated)
    counting = node.opset >= _SINCE_COUNTING_PADS and bool(node.get("count_include_pad", 0))
    return [mean(x, windows, arithmetic, pads=counting)]


def mean(x: Bounded, windows: Windows, arithmetic: Arithmetic, *, pads: bool) -> Bounded:
    """Return the mean of each window.

    Args:
        x: the numbers.
        windows: over them.
        arithmetic: what it is carried out in.
        pads: whether the padding counts as zeros; what a window has beyond it never counts.
    """
    if arithmetic.kernel is not None:
        kernel = arithmetic.kernel
        stacked = np.stack(list(windows.taps(windows.padded(x.value, 0.0))), -1)
        return Bounded(kernel.stored(kernel.total(stacked, (-1,)) / _counts(windows, pads=pads)))
    with np.errstate(invalid="ignore", over="ignore"):
        count = _counts(windows, pads=pads)
        value = _sums(windows, x.value) / count
        inherited = _sums(windows, np.broadcast_to(x.errors(), x.value.shape)) / count
        size = _sums(windows, np.abs(x.value)) / count + inherited
        accumulated = gamma(windows.places, arithmetic.u_acc) * size
        variance: Floats | float = 0.0
        if arithmetic.deviations:
            given = _sums(windows, np.broadcast_to(x.variances(), x.value.shape)) / count**2
            squares = _sums(windows, x.value**2) / count**2
            variance = given + sum_variance(value, squares, count, arithmetic)
        # The sum is divided, or multiplied with the rounded reciprocal.
        return rounded(value, inherited + accumulated, arithmetic, 2.0, variance=variance)


def _sums(windows: Windows, array: Array) -> Floats:
    taps = windows.taps(windows.padded(array, 0.0))
    result = next(taps).astype(np.float64)
    for tap in taps:
        result += tap
    return result


def _counts(windows: Windows, *, pads: bool) -> Floats:
    """Return how many places of each window are on the input, or on it and its padding."""
    inside = np.ones(windows.sizes)
    if pads:
        inside = np.pad(inside, list(zip(windows.fronts, windows.backs, strict=True)), constant_values=1.0)
        sizes = tuple(
            size + front + back
            for size, front, back in zip(windows.sizes, windows.fronts, windows.backs, strict=True)
        )
        nothing = (0,) * len(sizes)
        windows = Windows(
            sizes, windows.kernel, windows.strides, windows.dilations, nothing, nothing, windows.counts
        )
    return _sums(windows, inside)


def _lp_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x, late = required(inputs, 0), node.opset >= _SINCE_CEIL_OF_NORMS
    windows = pooled_windows(node, x, ceil=late, dilated=late)
    return [
        _norm(x, windows.places, lambda array: _sums(windows, array), float(node.get("p", 2)), arithmetic)
    ]


def _global_lp_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x = required(inputs, 0)
    axes, count = _spatial(x)

    def sums(array: Array) -> Floats:
        return np.asarray(array.sum(axes, keepdims=True))

    return [_norm(x, count, sums, float(node.get("p", 2)), arithmetic)]


def _norm(
    x: Bounded, terms: int, sums: Callable[[Array], Floats], p: float, arithmetic: Arithmetic
) -> Bounded:
    """Return (sum |x|^p)^(1/p), p from 1 up.

    The errors of x come in as their own norm (Minkowski). The sum has no cancellation: it is off by gamma_n and the
    error of the powers, relative to it, and the root takes the p-th part of that.
    """
    if p < 1:
        raise UnsupportedOperatorError(f"a norm with p={p:g}")
    size = np.abs(x.value)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        total = sums(size**p)
        value = total ** (1 / p)
        if arithmetic.kernel is not None:
            return Bounded(arithmetic.kernel.stored(value))
        inherited = sums(np.broadcast_to(np.asarray(x.errors()) ** p, size.shape)) ** (1 / p)
        powers, root = _function_errors(size, total, sums, p, arithmetic)
        relative = (1 + gamma(terms, arithmetic.u_acc)) * (1 + powers) - 1
        relative = np.expm1(np.log1p(relative) / p) + root
        flushed = np.where(value > 0, (terms * arithmetic.omega) ** (1 / p), 0.0)
        error = inherited + relative * (value + inherited) + flushed
        variance: Floats | float = 0.0
        if arithmetic.deviations:
            weight = np.where(total > 0, total, 1.0) ** (2 / p - 2)
            given = weight * sums(size ** (2 * p - 2) * x.variances())
            own = weight / p**2 * sum_variance(total, sums(size ** (2 * p)), terms, arithmetic)
            variance = given + own
        return rounded(value, error, arithmetic, variance=variance)


_SQUARES = 2


def _function_errors(
    size: Array, total: Floats, sums: Callable[[Array], Floats], p: float, arithmetic: Arithmetic
) -> tuple[Floats | float, Floats | float]:
    """Return the relative errors of the sum of powers, and of its root.

    A square and its root are rounded once; any other power is at worst e^(p ln x), each function off by c_exp u.
    """
    if p in (1.0, float(_SQUARES)):
        return (p - 1) * arithmetic.u, (p - 1) * arithmetic.u
    c, u = arithmetic.c_exp, arithmetic.u
    power = np.where(
        size > 0, size**p * (c + (c + 1) * p * np.abs(np.log(np.where(size > 0, size, 1.0)))), 0.0
    )
    sizes = np.where(total > 0, total, 1.0)
    return u * sums(power) / sizes, u * (c + (c + 2) * np.abs(np.log(sizes)) / p)


def _spatial(x: Bounded) -> tuple[tuple[int, ...], int]:
    axes = tuple(range(2, x.value.ndim))
    return axes, int(np.prod(x.value.shape[2:], dtype=np.int64))


def _global_average_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x = required(inputs, 0)
    return [global_mean(x, arithmetic)]


def global_mean(x: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the mean of each channel of each image."""
    axes, count = _spatial(x)
    total = bounded.total(x, axes, keepdims=True, arithmetic=arithmetic)
    return bounded.divide(total, Bounded(np.array(float(count))), arithmetic)


def _global_max_pool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x = required(inputs, 0)
    return [bounded.largest(x, _spatial(x)[0], keepdims=True)]


def _max_unpool(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """MaxUnpool: numbers go where the indices say, zeros stand everywhere else."""
    x, indices = required(inputs, 0), placing(inputs, 1)
    batch, channels, *sizes = x.value.shape
    rank = len(sizes)
    kernel, strides = sizes_in(node, "kernel_shape", ()), sizes_in(node, "strides", (1,) * rank)
    pads = sizes_in(node, "pads", (0, 0) * rank)
    natural = [
        (size - 1) * stride - pads[axis] - pads[axis + rank] + window
        for axis, (size, stride, window) in enumerate(zip(sizes, strides, kernel, strict=True))
    ]
    shape = [batch, channels, *natural]
    if optional(inputs, 2) is not None and integers(inputs, 2) != shape:
        # ONNX's own case takes the indices for those of the natural shape, its text and ONNX Runtime for those of
        # output_shape (onnx/onnx#2398).
        raise UnsupportedOperatorError("MaxUnpool to another shape than the one its windows give")

    def move(array: Array) -> Array:
        result = np.zeros(int(np.prod(shape, dtype=np.int64)), array.dtype)
        result[indices.reshape(-1)] = array.reshape(-1)
        return result.reshape(shape)

    return [x.moved(move)]


OPERATORS: dict[str, Operator] = {
    "AveragePool": _average_pool,
    "MaxPool": _max_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "GlobalLpPool": _global_lp_pool,
    "MaxUnpool": _max_unpool,
    **regions.OPERATORS,
}
