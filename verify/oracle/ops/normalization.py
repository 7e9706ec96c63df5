"""Normalisation over the last axes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.blocks import in_blocks
from onnx_attest.verify.oracle.bounded import KAPPA, Bounded, Floats, rounded, sum_variance
from onnx_attest.verify.oracle.kernels import Kernel
from onnx_attest.verify.oracle.ops.operator import Inputs, Node, Operator, optional, required


def _layer_normalization(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """LayerNormalization of opset 17: (x - mean) / sqrt(variance + epsilon) * scale + bias."""
    x, scale, bias = required(inputs, 0), required(inputs, 1), optional(inputs, 2)
    node.get("stash_type")  # the format of mean and variance; never shorter than the bound's own
    first = node.get("axis", -1) % x.value.ndim
    axes = tuple(range(first, x.value.ndim))
    normal, mean, deviation = normalized(x, axes, node.real("epsilon", 1e-5), arithmetic)
    result = bounded.multiply(normal, scale, arithmetic)
    return [result if bias is None else bounded.add(result, bias, arithmetic), mean, deviation]


def normalized(
    x: Bounded, axes: tuple[int, ...], epsilon: Bounded, arithmetic: Arithmetic
) -> tuple[Bounded, Bounded, Bounded]:
    """Return (x - mean) r, the mean, and r = 1 / sqrt(variance + epsilon).

    With d = x - mean and r = 1 / sqrt(variance + epsilon): E_d = E + mean E + gamma_n mean|x| + u|d|;
    E_variance = mean(2|d| E_d + E_d^2) + gamma_(n+3) (mean x^2 + mean^2), which covers kernels that take the variance
    as mean x^2 - mean^2; the relative error of r is half of E_variance / (variance + epsilon - E_variance).
    """
    if arithmetic.kernel is not None:
        return _carried_out(x.value, axes, epsilon.value, arithmetic.kernel)
    last = tuple(range(x.value.ndim - len(axes), x.value.ndim)) == axes

    def of(value: Floats, error: Floats, variance: Floats | None) -> tuple[Any, ...]:
        return _normalized(value, error, variance, axes, epsilon, arithmetic)

    operands: tuple[Any, ...] = (x.value, x.errors(), x.variances() if arithmetic.deviations else None)
    # A row at a time, in the processor's cache: there are a dozen passes.
    parts = (
        in_blocks(of, operands, whole_axes=len(axes)) if last and epsilon.value.ndim == 0 else of(*operands)
    )
    y, inherited, variance, centre, centre_error, r, r_error = parts
    result = rounded(y, inherited, arithmetic, variance=0.0 if variance is None else variance)
    return result, Bounded(centre, centre_error), Bounded(r, r_error)


def _normalized(
    x: Floats,
    error: Floats,
    given: Floats | None,
    axes: tuple[int, ...],
    epsilon: Bounded,
    arithmetic: Arithmetic,
) -> tuple[Floats | None, ...]:
    """Return y with its inherited error and variance, the mean with its error, r with its error."""
    n = math.prod(x.shape[axis] for axis in axes)
    u, slack = max(arithmetic.u, arithmetic.u_s), gamma(n + 3, arithmetic.u_acc)
    error = np.broadcast_to(error, x.shape)

    def mean(values: Floats) -> Floats:
        return np.asarray(values.mean(axes, keepdims=True))

    centre, mean_square = mean(x), mean(x * x)
    # Sum, mean, squares and variance are kept in the format of the operator's own steps: one rounding each.
    steps = 3 * arithmetic.u
    centre_error = mean(error) + slack * mean(np.abs(x)) + steps * np.abs(centre)
    d = x - centre
    size = np.abs(d)
    d_error = error + centre_error
    d_error = d_error + u * (size + d_error)
    spread = mean(d * d) + epsilon.value
    spread_error = (
        mean((2 * size + d_error) * d_error)
        + slack * (mean_square + centre**2)
        + (u + steps) * spread
        + epsilon.errors()
    )
    remaining = np.maximum(spread - spread_error, 0.0)
    with np.errstate(divide="ignore"):
        relative = 0.5 * spread_error / remaining + 4 * u
    r = 1 / np.sqrt(spread)
    y = d * r
    inherited = r * (1 + relative) * d_error + size * (r * relative)
    variance = None
    if given is not None:
        # y = d r: through d, through its mean, and through r, whose own roundings are those of summing n squares.
        given, square = np.broadcast_to(given, x.shape), y * y
        of_sum = sum_variance(centre, mean_square / n, n, arithmetic)
        of_squares = sum_variance(np.ones_like(r), mean(square * square) / n, n, arithmetic) / 4
        through = given + mean(given) / n + square * (mean(square * given) / n)
        variance = r**2 * (through + of_sum) + square * (of_squares + 3 * KAPPA * u**2)
    return y, inherited, variance, centre, centre_error, r, r * relative


def _carried_out(
    x: Floats, axes: tuple[int, ...], epsilon: Floats, kernel: Kernel
) -> tuple[Bounded, Bounded, Bounded]:
    """Return the same as a kernel computes it: mean, differences, mean of their squares.

    One that sums one after another has passed over the numbers once, as ONNX Runtime does: mean x^2 - mean^2.
    """
    work = replace(kernel, storing=kernel.working)
    n = float(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    centre = work.stored(work.total(x, axes, keepdims=True) / n)
    d = work.stored(x - centre)
    terms = work.stored((x if kernel.block == 1 else d) ** 2)
    spread = work.stored(work.total(terms, axes, keepdims=True) / n)
    if kernel.block == 1:
        spread = np.maximum(work.stored(spread - work.stored(centre * centre)), 0.0)
    r = work.stored(1 / work.stored(np.sqrt(work.stored(spread + epsilon))))
    return Bounded(kernel.stored(d * r)), Bounded(kernel.stored(centre)), Bounded(kernel.stored(r))


OPERATORS: dict[str, Operator] = {
    "LayerNormalization": _layer_normalization,
}
