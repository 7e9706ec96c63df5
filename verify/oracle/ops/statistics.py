"""Normalisation by statistics of the values themselves, or by statistics that are given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import FUNCTION_VARIANCE, KAPPA, Bounded, Floats, rounded
from onnx_attest.verify.oracle.ops.normalization import normalized
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    required,
)
from onnx_attest.verify.oracle.ops.pointwise.composed import stored

_SINCE_TRAINING_MODE = 14
"""From opset 14 on an attribute tells training; before, the number of outputs does, and before 7 `is_test`."""
_SINCE_TEST_BY_OUTPUTS = 7
_SINCE_STASH_AND_SCALE_PER_CHANNEL = 21
"""Before opset 21, GroupNormalization had one scale and one bias for a whole group, and no stash_type."""
_STASHED_WHOLE = (1, 11)
"""float and double, as stash_type numbers them: steps are not shorter than the arithmetic's own."""
_MVN_EPSILON = 1e-9


def stashed(node: Node, arithmetic: Arithmetic) -> Arithmetic:
    """Return the arithmetic of an operator's first stage, which stash_type keeps in float32 by default.

    Raises:
        UnsupportedOperatorError: it is a shorter format.
    """
    if node.get("stash_type", 1) not in _STASHED_WHOLE:
        raise UnsupportedOperatorError(f"{node.operator} with stash_type {node.get('stash_type')}")
    return inside(arithmetic)


def inside(arithmetic: Arithmetic) -> Arithmetic:
    """Return the same arithmetic for steps inside an operator, which are not stored in the format of the graph."""
    kernel = arithmetic.kernel
    return replace(
        arithmetic, u_s=0.0, kernel=None if kernel is None else replace(kernel, storing=kernel.working)
    )


def squared(x: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return x^2; the square of a number that is surely zero is zero."""
    square = bounded.multiply(x, x, arithmetic)
    if arithmetic.kernel is not None:
        return square
    surely = (x.value == 0) & (np.asarray(x.errors()) == 0)
    variance = square.variance
    if variance is not None:  # a factor's error is the other's as well: 4 x^2 v, of which a product has half
        variance = variance + 2 * x.value**2 * x.variances()
    return Bounded(square.value, np.where(surely, 0.0, square.errors()), variance=variance)


def mean_square(x: Bounded, axes: tuple[int, ...], arithmetic: Arithmetic) -> Bounded:
    """Return the mean of x^2 over axes, which stay as axes of one."""
    n = int(np.prod([x.value.shape[axis] for axis in axes], dtype=np.int64))
    summed = bounded.total(squared(x, arithmetic), axes, keepdims=True, arithmetic=arithmetic)
    return bounded.divide(summed, Bounded(np.array(float(n))), arithmetic)


def root_mean_squared(
    x: Bounded, axes: tuple[int, ...], epsilon: Bounded, steps: Arithmetic
) -> tuple[Bounded, Bounded]:
    """Return x / sqrt(mean x^2 + epsilon) and 1 / sqrt(mean x^2 + epsilon), computed in `steps`."""
    rms = bounded.root(bounded.add(mean_square(x, axes, steps), epsilon, steps), steps)
    inverse = bounded.divide(Bounded(np.ones(1)), rms, steps)
    return bounded.multiply(x, inverse, steps), inverse


def by_channel(parameter: Bounded, rank: int) -> Bounded:
    """Return a parameter (channels, ...) so that it broadcasts against (batch, channels, ...) of this rank."""
    own = parameter.value.ndim
    if rank == 1:  # a single axis is the batch: there is one channel
        return parameter
    return parameter.moved(lambda array: array.reshape(1, *array.shape, *(1,) * (rank - 1 - own)))


def scaled(
    normal: Bounded,
    x: Bounded,
    mean: Bounded,
    r: Bounded,
    scale: Bounded,
    bias: Bounded,
    arithmetic: Arithmetic,
) -> Bounded:
    """Return normal * scale + bias, normal = (x - mean) r, whichever way it is computed.

    Runtimes fold what each channel has into one factor and one shift, x (scale r) + (bias - mean scale r): then it is
    x and the mean, not their difference, that are rounded, and once more the bias.
    """
    kernel = arithmetic.kernel
    if kernel is not None and kernel.block == 1:  # the pool holds this way too, see `pool`
        folded_scale = bounded.multiply(scale, r, arithmetic)
        shift = bounded.subtract(bias, bounded.multiply(mean, folded_scale, arithmetic), arithmetic)
        return bounded.add(bounded.multiply(x, folded_scale, arithmetic), shift, arithmetic)
    result = bounded.add(bounded.multiply(normal, scale, arithmetic), bias, arithmetic)
    if kernel is not None:
        return result
    u, factor = max(arithmetic.u, arithmetic.u_s), np.abs(scale.value) + scale.errors()
    with np.errstate(invalid="ignore", over="ignore"):
        factor = factor * (r.value + r.errors()) * (1 + 4 * u)
        terms = np.abs(x.value) + x.errors() + 2 * (np.abs(mean.value) + mean.errors())
        folded = u * (factor * terms + np.abs(bias.value) + bias.errors())
        squares = (scale.value * r.value) ** 2 * (x.value**2 + 2 * mean.value**2) + bias.value**2
    error = np.where(np.isfinite(result.value), result.errors() + folded, 0.0)
    variance = result.variance
    if variance is not None:
        own = np.broadcast_to(KAPPA * u**2 * squares, variance.shape)
        variance = variance + np.where(np.isfinite(own), own, 0.0)
    return Bounded(result.value, np.where(np.isnan(error), np.inf, error), variance=variance)


def _batch_normalization(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """BatchNormalization by given statistics, or, in training, by the batch's own: then it gives both, mixed, as well."""
    x = required(inputs, 0)
    scale, bias, mean, spread = (by_channel(required(inputs, index), x.value.ndim) for index in range(1, 5))
    epsilon, momentum = node.real("epsilon", 1e-5), node.real("momentum", 0.9)
    if _is_training(node):
        axes = tuple(axis for axis in range(x.value.ndim) if axis != 1)
        normal, own_mean, r = _normalized(x, axes, epsilon, arithmetic)
        result = scaled(normal, x, own_mean, r, scale, bias, arithmetic)
        pairs = ((mean, own_mean), (spread, _variance_of(r, epsilon, arithmetic)))
        return [result, *(_mixed(old, new, momentum, arithmetic) for old, new in pairs)]
    with np.errstate(invalid="ignore"):
        deviation = bounded.root(bounded.add(spread, epsilon, arithmetic), arithmetic)
        r = bounded.divide(Bounded(np.ones(1)), deviation, arithmetic)
    normal = bounded.multiply(bounded.subtract(x, mean, arithmetic), r, arithmetic)
    return [scaled(normal, x, mean, r, scale, bias, arithmetic)]


def _is_training(node: Node) -> bool:
    """Return whether a node normalises by the batch's own statistics, each opset as it says so.

    Raises:
        UnsupportedOperatorError: it does, before opset 14: what else it gives was less clear then.
    """
    # What is not spatial, the shapes of the parameters tell.
    for ignored in ("spatial", "consumed_inputs"):
        node.get(ignored)
    if node.opset >= _SINCE_TRAINING_MODE:
        return bool(node.get("training_mode", 0))
    by_outputs = node.opset >= _SINCE_TEST_BY_OUTPUTS
    if any(node.outputs[1:]) if by_outputs else not node.get("is_test", 0):
        raise UnsupportedOperatorError(f"BatchNormalization of opset {node.opset} in training")
    return False


def _variance_of(r: Bounded, epsilon: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the variance that r = 1 / sqrt(variance + epsilon) was made of.

    r holds half of the variance's relative error, so twice that of r covers it.
    """
    spread = 1 / r.value**2
    if arithmetic.kernel is not None:
        return Bounded(arithmetic.kernel.stored(spread - epsilon.value))
    error = 2 * spread * r.errors() / r.value + epsilon.errors()
    return Bounded(np.maximum(spread - epsilon.value, 0.0), error)


def _mixed(old: Bounded, new: Bounded, momentum: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return old momentum + new (1 - momentum), by channel."""
    rest = bounded.subtract(Bounded(np.ones(1)), momentum, arithmetic)
    kept, new = (bounded.multiply(*pair, arithmetic) for pair in ((old, momentum), (new, rest)))
    return bounded.add(kept, new, arithmetic).moved(lambda array: array.reshape(-1))


def _instance_normalization(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x = required(inputs, 0)
    node.get("consumed_inputs")  # of opset 1: it says what may be overwritten
    normal, mean, r = _normalized(x, tuple(range(2, x.value.ndim)), node.real("epsilon", 1e-5), arithmetic)
    scale, bias = (by_channel(required(inputs, index), x.value.ndim) for index in (1, 2))
    return [scaled(normal, x, mean, r, scale, bias, arithmetic)]


def _normalized(
    x: Bounded, axes: tuple[int, ...], epsilon: Bounded, arithmetic: Arithmetic
) -> tuple[Bounded, Bounded, Bounded]:
    # Of equal numbers, whose variance is below its own error, the bound is infinite.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return normalized(x, axes, epsilon, arithmetic)


def _normalized_in_nodes(
    x: Bounded, axes: tuple[int, ...], epsilon: Bounded, arithmetic: Arithmetic
) -> tuple[Bounded, Bounded, Bounded]:
    """Return the same where an operator is defined by others, mean x^2 - mean^2 too, and each step may be stored.

    x^2 and its mean are rounded, and of mean^2 the mean twice and the square: at most 3 u_s (mean x^2 + mean^2).
    """
    if arithmetic.kernel is not None or not arithmetic.u_s:
        return _normalized(x, axes, epsilon, arithmetic)
    largest = np.abs(x.value) + x.errors()
    squares = (largest**2).mean(axes, keepdims=True) + largest.mean(axes, keepdims=True) ** 2
    widened = Bounded(epsilon.value, np.asarray(epsilon.errors() + 3 * arithmetic.u_s * squares))
    return _normalized(x, axes, widened, replace(arithmetic, u=max(arithmetic.u, arithmetic.u_s)))


def _group_normalization(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    since = node.opset >= _SINCE_STASH_AND_SCALE_PER_CHANNEL
    if since:
        stashed(node, arithmetic)
    x, scale, bias = (required(inputs, index) for index in range(3))
    groups, epsilon = node.get("num_groups"), node.real("epsilon", 1e-5)
    return [grouped(x, scale, bias, groups, epsilon, arithmetic, per_channel=since, stashed_whole=since)]


def grouped(
    x: Bounded,
    scale: Bounded,
    bias: Bounded,
    groups: int,
    epsilon: Bounded,
    arithmetic: Arithmetic,
    *,
    per_channel: bool = True,
    stashed_whole: bool = True,
) -> Bounded:
    """Return x (batch, channels, ...) normalised over groups of channels, scaled by channel or else by group.

    Without `stashed_whole`, mean and variance may be stored in the format of the graph.
    """
    shape = x.value.shape
    batch, channels = shape[:2]
    split = (batch, groups, channels // groups, int(np.prod(shape[2:], dtype=np.int64)))
    parameter = (1, groups, channels // groups if per_channel else 1, 1)
    scale, bias = (part.moved(lambda array: array.reshape(parameter)) for part in (scale, bias))
    parts = x.moved(lambda array: array.reshape(split))
    statistics = _normalized if stashed_whole else _normalized_in_nodes
    normal, mean, r = statistics(parts, (2, 3), epsilon, arithmetic)
    result = scaled(normal, parts, mean, r, scale, bias, arithmetic)
    return result.moved(lambda array: array.reshape(shape))


def _rms_normalization(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x, scale = required(inputs, 0), required(inputs, 1)
    axes = tuple(range(node.get("axis", -1) % x.value.ndim, x.value.ndim))
    steps = stashed(node, arithmetic)
    normal, _ = root_mean_squared(x, axes, node.real("epsilon", 1e-5), steps)
    return [bounded.multiply(stored(normal, arithmetic), scale, arithmetic)]


def _lp_normalization(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """LpNormalization: x over its norm along an axis; 0 where the norm is."""
    x, p = required(inputs, 0), node.get("p", 2)
    axes = (node.get("axis", -1) % x.value.ndim,)
    if p == 1:
        sizes = Bounded(np.abs(x.value), x.error, variance=x.variance)
        norm = bounded.total(sizes, axes, keepdims=True, arithmetic=arithmetic)
    elif p == 2:
        squares = bounded.total(squared(x, arithmetic), axes, keepdims=True, arithmetic=arithmetic)
        norm = _root_or_zero(squares, arithmetic)
    else:
        raise UnsupportedOperatorError(f"LpNormalization with p={p}")
    zero = (norm.value == 0) & (np.asarray(norm.errors()) == 0)
    divisor = bounded.where(Bounded(zero), Bounded(np.ones(1)), norm)
    return [bounded.divide(x, divisor, arithmetic)]


def _root_or_zero(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the square root, 0 of what is surely zero."""
    zero = Bounded((a.value == 0) & (np.asarray(a.errors()) == 0))
    positive = bounded.where(zero, Bounded(np.ones(1)), a)
    return bounded.where(zero, Bounded(np.zeros(1)), bounded.root(positive, arithmetic))


def _mean_variance_normalization(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """MeanVarianceNormalization: (x - mean) / (deviation + 1e-9), as its function says; its text has no 1e-9.

    What a runtime without it gives is within the bound as well.
    """
    x = required(inputs, 0)
    axes = tuple(axis % x.value.ndim for axis in node.get("axes", (0, 2, 3)))
    small = np.array(_MVN_EPSILON**2)
    normal, _, r = _normalized_in_nodes(x, axes, Bounded(small, small), arithmetic)
    if arithmetic.kernel is not None:
        return [normal]
    # r is 1 / sqrt(s^2 + e^2), where the deviation s and e make 1 / (s + e).
    deviation = np.sqrt(np.maximum(1 / r.value**2 - small, 0.0))
    factor = 1 / (r.value * (deviation + _MVN_EPSILON))
    error = normal.errors() * factor + np.abs(normal.value) * _MVN_EPSILON * r.value
    variance = None if normal.variance is None else normal.variance * factor**2
    result = rounded(normal.value * factor, error, arithmetic, variance=0.0 if variance is None else variance)
    return [result]


def _local_response_normalization(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """LRN: x / (bias + alpha / size * sum of squares of the channels around)^beta."""
    x, size = required(inputs, 0), int(node.get("size"))
    factor = bounded.divide(node.real("alpha", 1e-4), Bounded(np.array([float(size)])), arithmetic)
    window = _window_sum(squared(x, arithmetic), size, arithmetic)
    base = bounded.add(node.real("bias", 1.0), bounded.multiply(window, factor, arithmetic), arithmetic)
    return [bounded.divide(x, _power(base, node.real("beta", 0.75), arithmetic), arithmetic)]


def _window_sum(squares: Bounded, size: int, arithmetic: Arithmetic) -> Bounded:
    """Return the sums over `size` channels around each, fewer at the ends.

    A runtime may keep a running sum, to which it adds a channel and from which it takes one: what each of these steps
    loses, up to twice u of the larger sum it starts from, stays in all sums behind.
    """
    channels, before = squares.value.shape[1], (size - 1) // 2
    rows = [slice(max(0, c - before), c - before + size) for c in range(channels)]
    parts = [squares.moved(lambda array, row=row: array[:, row]) for row in rows]  # type: ignore[misc]
    if not parts:
        return squares
    summed = bounded.concatenated(
        [bounded.total(part, (1,), keepdims=True, arithmetic=arithmetic) for part in parts], 1
    )
    if arithmetic.kernel is not None:
        return summed
    u = max(arithmetic.u_acc, arithmetic.u, arithmetic.u_s)
    running = np.cumsum(summed.value + summed.errors() + squares.value + squares.errors(), axis=1)
    return replace(summed, error=np.asarray(summed.errors() + 2 * u * running))


def _power(base: Bounded, exponent: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return base^exponent for a positive base: at worst e^(exponent ln base), each of the functions off by c_exp u.

    Raises:
        ArithmeticError: the base is not positive whatever its error.
    """
    lowest, power = base.value - base.errors(), exponent.value
    if np.any(lowest <= 0):
        raise ArithmeticError("takes the power of a number that is not positive within its rounding error")
    value, u, c = base.value**power, arithmetic.u, arithmetic.c_exp
    logarithm = np.abs(np.log(base.value))
    moved = (
        np.abs(power) * base.errors() / lowest + (exponent.errors() + (c + 1) * u * np.abs(power)) * logarithm
    )
    inherited = value * np.expm1(moved)
    variance: Floats | float = 0.0
    if arithmetic.deviations:
        variance = (power * value / base.value) ** 2 * base.variances() + FUNCTION_VARIANCE * (u * value) ** 2
    return rounded(value, inherited, arithmetic, c, variance=variance)


OPERATORS: dict[str, Operator] = {
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    "GroupNormalization": _group_normalization,
    "RMSNormalization": _rms_normalization,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "LRN": _local_response_normalization,
}
