"""Normalisation over the last axes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle import bounded
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
    n = int(np.prod([x.value.shape[axis] for axis in axes], dtype=np.int64))
    u, slack = max(arithmetic.u, arithmetic.u_s), gamma(n + 3, arithmetic.u_acc)
    error = np.broadcast_to(x.errors(), x.value.shape)

    if arithmetic.kernel is not None:
        return _carried_out(x.value, axes, epsilon.value, arithmetic.kernel)

    def mean(values: Floats) -> Floats:
        return np.asarray(values.mean(axes, keepdims=True))

    centre = mean(x.value)
    # Sum, mean, squares and variance are kept in the format of the operator's own steps: one rounding each.
    steps = 3 * arithmetic.u
    centre_error = mean(error) + slack * mean(np.abs(x.value)) + steps * np.abs(centre)
    d = x.value - centre
    d_error = error + centre_error + u * (np.abs(d) + error + centre_error)
    spread = mean(d * d) + epsilon.value
    spread_error = (
        mean(2 * np.abs(d) * d_error + d_error**2)
        + slack * (mean(x.value**2) + centre**2)
        + (u + steps) * spread
        + epsilon.errors()
    )
    remaining = np.maximum(spread - spread_error, 0.0)
    with np.errstate(divide="ignore"):
        relative = 0.5 * spread_error / remaining + 4 * u
    r = 1 / np.sqrt(spread)
    inherited = r * (1 + relative) * d_error + np.abs(d) * r * relative
    variance: Floats | float = 0.0
    if arithmetic.deviations:
        # y = d r: through d, through its mean, and through r, whose own roundings are those of summing n squares.
        given, y = np.broadcast_to(x.variances(), x.value.shape), d * r
        of_sum = sum_variance(centre, mean(x.value**2) / n, n, arithmetic)
        of_squares = sum_variance(np.ones_like(r), mean(y**4) / n, n, arithmetic) / 4
        own = KAPPA * (u * y) ** 2 * 3
        through = given + mean(given) / n + y**2 * mean(y**2 * given) / n
        variance = r**2 * (through + of_sum) + y**2 * of_squares + own
    result = rounded(d * r, inherited, arithmetic, variance=variance)
    return result, Bounded(centre, centre_error), Bounded(r, r * relative)


def _carried_out(
    x: Floats, axes: tuple[int, ...], epsilon: Floats, kernel: Kernel
) -> tuple[Bounded, Bounded, Bounded]:
    """Return the same as a kernel computes it: mean, differences, mean of their squares."""
    work = replace(kernel, storing=kernel.working)
    n = float(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    centre = work.stored(work.total(x, axes, keepdims=True) / n)
    d = work.stored(x - centre)
    spread = work.stored(work.total(work.stored(d * d), axes, keepdims=True) / n)
    r = work.stored(1 / work.stored(np.sqrt(work.stored(spread + epsilon))))
    return Bounded(kernel.stored(d * r)), Bounded(kernel.stored(centre)), Bounded(kernel.stored(r))


OPERATORS: dict[str, Operator] = {
    "LayerNormalization": _layer_normalization,
}
