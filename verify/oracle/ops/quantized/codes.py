"""Codes, integers that stand for (code - zero point) * scale, and where rounding may decide one of them.

A code is off only where the number before rounding lies within its own error of a half: everywhere else all correct
runtimes have the same. Errors of codes are in codes, and so are their variances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import KAPPA, Array, Bounded, Floats
from onnx_attest.verify.oracle.kernels import VALUES_ALONE
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, UnsupportedOperatorError, optional, required

_KINDS = ("uint8", "int8", "uint16", "int16", "uint4", "int4", "uint2", "int2")


def counting(arithmetic: Arithmetic, *operands: Bounded) -> Arithmetic:
    """Return an arithmetic in which nothing is rounded: errors come from the operands alone, if at all."""
    certain = all(operand.error is None for operand in operands)
    return replace(
        arithmetic,
        u=0.0,
        u_acc=0.0,
        u_in=0.0,
        u_s=0.0,
        omega=0.0,
        kernel=VALUES_ALONE if certain else None,
        deviations=arithmetic.deviations and not certain,
    )


@dataclass(frozen=True, eq=False)
class Grid:
    """A scale, positive, and a zero point, None for 0, that broadcast against the codes or numbers they belong to."""

    scale: Bounded
    zero: Bounded | None = None

    def numbers(self, codes: Bounded, arithmetic: Arithmetic) -> Bounded:
        """Return the numbers that codes stand for: one rounding, and one more where an integer is too long for a float."""
        distance = differences(codes, self.zero)
        exact = counting(arithmetic, distance, self.scale)
        product = bounded.multiply(distance, self.scale, exact)
        if arithmetic.kernel is not None:
            return Bounded(arithmetic.kernel.stored(product.value))
        u = max(arithmetic.u, arithmetic.u_s)
        long = np.abs(distance.value) * u > 1
        inherited = product.errors() + np.where(long, u * np.abs(product.value), 0.0)
        return bounded.rounded(product.value, inherited, arithmetic, variance=product.variances())

    def codes(self, numbers: Bounded, dtype: Any, arithmetic: Arithmetic) -> Bounded:
        """Return the codes of numbers inside an operator, which may add the zero point before it rounds."""
        u = max(arithmetic.u, arithmetic.u_s)
        return rounded_with_zero(in_units(numbers, self.scale, u, arithmetic), self.zero, dtype, arithmetic)


def differences(codes: Bounded, zero: Bounded | None) -> Bounded:
    """Return codes less their zero point, in float64, which holds such integers exactly."""
    value, parts = codes.value.astype(np.float64), [codes]
    if zero is not None:
        value, parts = value - zero.value.astype(np.float64), [codes, zero]
    error = None if all(part.error is None for part in parts) else _summed(part.errors() for part in parts)
    variance = (
        None if all(part.variance is None for part in parts) else _summed(part.variances() for part in parts)
    )
    return Bounded(
        value,
        None if error is None else np.broadcast_to(error, value.shape),
        variance=None if variance is None else np.broadcast_to(variance, value.shape),
    )


def _summed(parts: Any) -> Floats:
    return np.asarray(sum(parts), np.float64)


def in_units(numbers: Bounded, scale: Bounded, u: float, arithmetic: Arithmetic) -> Bounded:
    """Return numbers / scale as a runtime has it before it rounds to a code.

    Two roundings, of a runtime that multiplies by the reciprocal; none if the scale is a power of two, for then the
    quotient has the digits of the number, and a half is a half.
    """
    x, s = numbers.value.astype(np.float64), np.abs(scale.value)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = x / scale.value
        if arithmetic.kernel is not None:
            return Bounded(arithmetic.kernel.stored(value))
        remaining = np.maximum(s - scale.errors(), 0.0)
        inherited = numbers.errors() + np.where(x == 0, 0.0, np.abs(value) * scale.errors())
        inherited = np.where(inherited > 0, inherited / remaining, 0.0)
        exponent_only = (np.frexp(s)[0] == 0.5) & (np.asarray(scale.errors()) == 0)
        roundings = np.where(exponent_only, 0.0, 2.0 + u)
        if not numbers.is_float:  # an integer that is too long for a float is rounded first
            roundings = roundings + (np.abs(x) * u > 1)
        error = inherited + roundings * u * (np.abs(value) + inherited)
        variance = None
        if arithmetic.deviations:
            given = numbers.variances() + value**2 * scale.variances()
            variance = np.broadcast_to(given / s**2 + KAPPA * (u * value) ** 2 * (roundings > 0), value.shape)
    return Bounded(value, _settled(value, error), variance=variance)


def _settled(value: Floats, error: Floats) -> Floats:
    """Return an error of the value's shape: none on an infinity, which has the last code; infinite where it is unknown."""
    known = np.where(np.isnan(error), np.inf, error)
    return np.broadcast_to(np.where(np.isfinite(value), known, 0.0), value.shape)


def rounded_with_zero(before: Bounded, zero: Bounded | None, dtype: Any, arithmetic: Arithmetic) -> Bounded:
    """Return the codes of numbers in units of the scale; the zero point may be added, and rounded, before or after.

    So ONNX's own reference and MLAS have it. It is never exact: where a half meets an odd zero point, the order counts.
    """
    if arithmetic.kernel is None:
        u = max(arithmetic.u, arithmetic.u_s)
        with np.errstate(invalid="ignore"):
            size = np.abs(before.value) + before.errors()
            size = size + (0.0 if zero is None else np.abs(zero.value.astype(np.float64)))
        before = replace(before, error=_settled(before.value, before.errors() + u * size))
    return to_codes(before, zero, dtype)


def to_codes(before: Bounded, zero: Bounded | None, dtype: Any) -> Bounded:
    """Return the codes of numbers in units of the scale: rounded to the nearest, halves to even, and saturated.

    The error is that of the farthest code within the number's error. NaN may become any code.
    """
    least, most = limits(dtype)
    shift = 0.0 if zero is None else zero.value.astype(np.float64)
    slack = 0.0 if zero is None else zero.errors()
    value = np.where(np.isnan(before.value), 0.0, before.value)
    code = np.asarray(np.clip(np.rint(value) + shift, least, most))
    uncertain = np.isnan(before.value)
    low, high = reachable(before)
    low = np.where(uncertain, least, np.clip(low + (shift - slack), least, most))
    high = np.where(uncertain, most, np.clip(high + (shift + slack), least, most))
    error = np.asarray(np.maximum(high - code, code - low))
    if not error.any():
        return Bounded(code.astype(dtype))
    variance = None
    if before.variance is not None:
        spread = _flips(before) + (0.0 if zero is None else zero.variances())
        variance = np.asarray(np.minimum(np.where(error > 0, spread, 0.0), error**2))
    return Bounded(code.astype(dtype), error, variance=variance)


def limits(dtype: Any) -> tuple[float, float]:
    """Return the least and the largest code.

    Raises:
        UnsupportedOperatorError: codes of this kind are no integers.
    """
    if np.dtype(dtype).name not in _KINDS:
        raise UnsupportedOperatorError(f"codes in {np.dtype(dtype).name}")
    info = ml_dtypes.iinfo(dtype)
    return float(info.min), float(info.max)


def reachable(before: Bounded) -> tuple[Floats, Floats]:
    """Return the least and the largest whole number that a number within its error may be rounded to."""
    value = np.where(np.isnan(before.value), 0.0, before.value)
    error = np.broadcast_to(before.errors(), value.shape)
    nearest = np.rint(value)
    low = np.where(error > 0, np.ceil(value - error - 0.5), nearest)
    high = np.where(error > 0, np.floor(value + error + 0.5), nearest)
    return low, high


def _flips(before: Bounded) -> Floats:
    """Return the expected squared distance between the codes of a number and of one with its variance.

    A code that is off tells that the number was off by its distance d from the half, at least: that has no more than
    the probability v / (v + d^2) (Cantelli), so that such a code is as many deviations off as the number was.
    """
    variance = np.broadcast_to(before.variances(), before.value.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        offset = before.value - np.rint(before.value)
        beyond = sum(variance / (variance + (0.5 + sign * offset) ** 2) for sign in (-1.0, 1.0))
        whole = beyond + variance
    return np.where((variance > 0) & np.isfinite(whole), whole, 0.0)


def scaled(
    count: Bounded, factors: Sequence[Bounded], divisors: Sequence[Bounded], arithmetic: Arithmetic
) -> Bounded:
    """Return an exact count times scales, over others: the scales are folded into one factor, which is rounded.

    One rounding for each product of two scales, two for each quotient, one for the count as a float, one for the
    product with it. In a short format the product of scales may be flushed to zero.
    """
    exact = counting(arithmetic, count, *factors, *divisors)
    factor = factors[0]
    for other in factors[1:]:
        factor = bounded.multiply(factor, other, exact)
    for other in divisors:
        factor = bounded.divide(factor, other, exact)
    product = bounded.multiply(count, factor, exact)
    roundings = len(factors) - 1 + 2 * len(divisors) + 2
    if arithmetic.kernel is not None:
        stored = arithmetic.kernel.stored
        return Bounded(stored(stored(count.value) * stored(factor.value)))
    shrunk = np.prod([np.abs(divisor.value) for divisor in divisors], axis=0) if divisors else 1.0
    flushed = arithmetic.omega * np.abs(count.value) / shrunk
    u = max(arithmetic.u, arithmetic.u_s)
    variance = product.variances() + (roundings - 1) * KAPPA * (u * product.value) ** 2
    return bounded.rounded(
        product.value,
        product.errors() + flushed,
        arithmetic,
        roundings * (1 + roundings * u),
        variance=variance,
    )


def scalar(inputs: Inputs, index: int) -> Bounded:
    """Return an input that is one number, as such.

    Raises:
        UnsupportedOperatorError: it is more than one.
    """
    given = required(inputs, index)
    if given.value.size != 1:
        raise UnsupportedOperatorError(
            f"input {index}, a scale or zero point, with {given.value.size} numbers"
        )
    return given.moved(lambda array: array.reshape(()))


def scalar_grid(inputs: Inputs, index: int) -> Grid:
    """Return the scale at an index and the zero point behind it, which may be missing: one number each."""
    zero = None if optional(inputs, index + 1) is None else scalar(inputs, index + 1)
    return Grid(real_scale(scalar(inputs, index)), zero)


def real_scale(scale: Bounded) -> Bounded:
    """Return the scale.

    Raises:
        UnsupportedOperatorError: it is no float: ONNX does not say how to divide by an integer.
    """
    if not scale.is_float:
        raise UnsupportedOperatorError(f"a scale in {scale.value.dtype.name}")
    return scale


def by_column(given: Bounded) -> Bounded:
    """Return parameters of a whole right factor, or of each of its columns."""
    return given.moved(lambda array: array.reshape(())) if given.value.size == 1 else given


def by_row(given: Bounded) -> Bounded:
    """Return parameters of a whole left factor, or of each of its rows, (rows) or (..., rows, 1)."""
    if given.value.ndim == 1 and given.value.size > 1:
        return given.moved(lambda array: array[:, None])
    return by_column(given)


def along(given: Bounded, shape: tuple[int, ...], axis: int, block: int) -> Bounded:
    """Return parameters of a tensor of this shape so that they broadcast: one, or one for each index or block of an axis.

    Raises:
        UnsupportedOperatorError: they do not fit.
    """
    if given.value.size == 1 and not block:
        return given.moved(lambda array: array.reshape(()))
    rank = len(shape)
    place = axis + rank if axis < 0 else axis
    if not 0 <= place < rank:
        raise UnsupportedOperatorError(f"scales along axis {axis} of {rank}")
    if block:
        given = given.moved(lambda array: _repeated(array, block, place, shape))
    elif given.value.ndim == 1:
        given = given.moved(lambda array: array.reshape(-1, *(1,) * (rank - place - 1)))
    fits = np.broadcast_shapes(given.value.shape, (1,) * rank)[place] == shape[place]
    if given.value.ndim > rank or not fits:
        raise UnsupportedOperatorError(f"scales of shape {given.value.shape} along axis {axis} of {shape}")
    return given


def _repeated(array: Array, block: int, axis: int, shape: tuple[int, ...]) -> Array:
    if array.ndim != len(shape) or array.shape[axis] * block < shape[axis]:
        raise UnsupportedOperatorError(f"scales of shape {array.shape} for blocks of {block} in {shape}")
    return np.take(np.repeat(array, block, axis), range(shape[axis]), axis)


def given_grid(node: Node, inputs: Inputs, shape: tuple[int, ...]) -> Grid:
    """Return the grid of inputs 1 and 2, along an axis or in blocks as the node says."""
    axis, block = node.get("axis", 1), node.get("block_size", 0)
    scale, zero = real_scale(required(inputs, 1)), optional(inputs, 2)
    return Grid(along(scale, shape, axis, block), None if zero is None else along(zero, shape, axis, block))
