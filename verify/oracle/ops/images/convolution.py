"""Convolutions, their transposes, and the sum of overlapping blocks.

The bound holds for every runtime that sums the products themselves, in any order, with or without FMA: direct
convolution, im2col with a matrix product, channel-blocked kernels such as MLAS'. It does not cover the algorithms that
sum other products, Winograd's and those by Fourier transforms: their errors grow with the transformed numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import (
    KAPPA,
    Array,
    Bounded,
    Floats,
    positive_product,
    rounded,
    sum_variance,
)
from onnx_attest.verify.oracle.ops.images.interpolation import TRIANGLE, Places, sampled
from onnx_attest.verify.oracle.ops.images.windows import Sizes, Windows, sizes_in, windows_of
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    integers,
    optional,
    required,
)
from onnx_attest.verify.oracle.ops.pointwise.activations import swish
from onnx_attest.verify.oracle.ops.pointwise.composed import in_steps, stored
from onnx_attest.verify.oracle.ops.pointwise.limits import clipped
from onnx_attest.verify.oracle.ops.pointwise.named_activations import named


@dataclass(frozen=True)
class Carrier:
    """How products of matrices are carried out, and how the sums of several are stored."""

    product: Callable[[Array, Array], Array]
    stored: Callable[[Array], Array] | None = None


EXACT, POSITIVE = Carrier(np.matmul), Carrier(positive_product)
Linear = Callable[[Array, Array, Carrier], Array]
"""What is linear in an input and in weights."""


def _conv(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x, w = required(inputs, 0), required(inputs, 1)
    return [convolved(node, x, w, _biases(inputs, 2, x.value.ndim), arithmetic)]


def _fused_conv(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """com.microsoft.FusedConv: a convolution, to which another tensor may be added, and an activation."""
    x, w, other = required(inputs, 0), required(inputs, 1), optional(inputs, 3)
    addends = [*_biases(inputs, 2, x.value.ndim), *([] if other is None else [other])]
    return [activated(node, convolved(node, x, w, addends, arithmetic), arithmetic)]


def activated(node: Node, y: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return y after the activation that ONNX Runtime's optimiser put into the operator before it, if there is one."""
    name, parameters = node.get("activation", ""), node.get("activation_params", ())
    if not name:
        return y
    if name not in _PARAMETERS or len(parameters) != _PARAMETERS[name]:
        raise UnsupportedOperatorError(
            f"{node.operator} with activation {name} and {len(parameters)} numbers"
        )
    if name == "Silu":
        return stored(swish(y, Bounded(np.ones(1)), in_steps(arithmetic)), arithmetic)
    numbers = [float(number) for number in parameters]
    if name == "Clip":
        low, high = (Bounded(np.array(number)) for number in numbers)
        return clipped(y, low, high)
    return named([name], numbers[:1], numbers[1:])[0](y, arithmetic)


_PARAMETERS = {"Relu": 0, "Tanh": 0, "Sigmoid": 0, "Silu": 0, "LeakyRelu": 1, "HardSigmoid": 2, "Clip": 2}


def _biases(inputs: Inputs, index: int, rank: int) -> list[Bounded]:
    bias = optional(inputs, index)
    return [] if bias is None else [by_channel(bias, rank)]


def by_channel(bias: Bounded, rank: int) -> Bounded:
    """Return one number for each channel so that it broadcasts against (batch, channels, ...)."""
    return bias.moved(lambda array: array.reshape(1, -1, *(1,) * (rank - 2)))


def convolved(
    node: Node, x: Bounded, w: Bounded, addends: Sequence[Bounded], arithmetic: Arithmetic
) -> Bounded:
    """Return the convolution of x (batch, channels, ...) with w (outputs, channels of a group, ...), plus the addends."""
    window = w.value.shape[2:]
    _refuse_other_kernel(node, window)
    groups = int(node.get("group", 1))
    if w.value.shape[1] * groups != x.value.shape[1] or w.value.shape[0] % groups:
        raise UnsupportedOperatorError(f"{node.operator} whose channels do not fit its weights")
    windows = windows_of(node, x.value.shape[2:], window)

    def linear(own: Array, weights: Array, carrier: Carrier) -> Array:
        return _correlated(own, weights, windows, groups, carrier)

    return _summed(linear, x, w, addends, w.value.shape[1] * windows.places, arithmetic)


def _refuse_other_kernel(node: Node, kernel: Sizes) -> None:
    if sizes_in(node, "kernel_shape", kernel) != kernel:
        raise UnsupportedOperatorError(f"{node.operator} with weights of another shape than kernel_shape")


def _summed(
    linear: Linear, x: Bounded, w: Bounded, addends: Sequence[Bounded], products: int, arithmetic: Arithmetic
) -> Bounded:
    """Return `linear` of x and w plus the addends: each number is a sum of so many products and the addends.

    n terms, in any order: gamma_n (|x|*|w| + |b|), for an accumulator may start with a bias. The shares of x that are
    inherited and rounded go through |w| together: E_x + r (|x| + E_x).
    """
    kernel = arithmetic.kernel
    with np.errstate(invalid="ignore", over="ignore"):
        if kernel is not None:
            carried = linear(x.value, w.value, Carrier(kernel.matmul, kernel.stored))
            for addend in addends:
                carried = kernel.stored(carried + addend.value)
            return Bounded(carried)
        product = linear(x.value, w.value, EXACT)
        value = np.asarray(sum((addend.value for addend in addends), product))
        terms = products + len(addends)
        accumulated = gamma(terms, arithmetic.u_acc)
        relative = accumulated + 2 * arithmetic.u_in * (1 + arithmetic.u_in)
        size = np.abs(x.value) + x.errors()
        error = linear(x.errors() + relative * size, np.abs(w.value), POSITIVE)
        if w.error is not None:
            error = error + (1 + relative) * linear(size, w.error, POSITIVE)
        for addend in addends:
            error = error + addend.errors() + accumulated * (np.abs(addend.value) + addend.errors())
        error = error + terms * arithmetic.omega  # each product may be flushed
        variance = _variance(linear, x, w, addends, value, terms, arithmetic)
        return rounded(value, error, arithmetic, 1.0 + len(addends), variance=variance)


def _variance(
    linear: Linear,
    x: Bounded,
    w: Bounded,
    addends: Sequence[Bounded],
    value: Floats,
    terms: int,
    arithmetic: Arithmetic,
) -> Floats | float:
    """Return the variance of such a sum; what squares of x have in common goes through w^2 at once."""
    if not arithmetic.deviations:
        return 0.0
    w2 = w.value**2
    summing = KAPPA * arithmetic.u_acc**2 * (terms + 1) / 6
    share = summing + 2 * KAPPA * arithmetic.u_in**2
    variance = linear(share * x.value**2 + x.variances(), w2, POSITIVE)
    if w.variance is not None:
        variance = variance + linear(x.value**2, w.variance, POSITIVE)
    for addend in addends:
        variance = variance + addend.variances() + summing * addend.value**2
    return variance + sum_variance(value, np.zeros(()), terms, arithmetic)


_CHUNK = 1 << 21
"""How many numbers of columns are laid out at a time: 16 MiB."""


def _correlated(x: Array, w: Array, windows: Windows, groups: int, carrier: Carrier) -> Array:
    """Return the sums of w x over channels and places; a channel's places are laid out as columns, some rows at a time."""
    batch, channels = x.shape[:2]
    outputs, counts = w.shape[0] // groups, windows.counts
    padded = windows.padded(x, 0.0)
    if groups == channels and carrier.stored is None:
        return _each_channel(padded, w, windows)
    matrix = w.reshape(groups, outputs, -1)
    result = np.zeros((batch, groups, outputs, *counts))
    wide = channels * windows.places * int(np.prod(counts[1:], dtype=np.int64))
    for images, rows in _parts(batch, counts[0], wide):
        columns = _columns(windows, padded[images], rows)
        height = columns.shape[3]
        flat = columns.reshape(columns.shape[0], groups, matrix.shape[2], -1)
        part = carrier.product(matrix, flat)
        result[images, :, :, rows] = part.reshape(*part.shape[:3], height, *counts[1:])
    return result.reshape(batch, groups * outputs, *counts)


def _each_channel(padded: Array, w: Array, windows: Windows) -> Array:
    """Return the same where each channel has its own filters: a sum over places is faster than matrices of one column."""
    batch, channels = padded.shape[:2]
    filters = w.reshape(channels, w.shape[0] // channels, -1, *(1,) * len(windows.counts))
    result = np.zeros((batch, *filters.shape[:2], *windows.counts))
    for place, tap in enumerate(windows.taps(padded)):
        result += filters[:, :, place] * tap[:, :, None]
    return result.reshape(batch, -1, *windows.counts)


def _columns(windows: Windows, padded: Array, rows: slice) -> Array:
    """Return (batch, channels, places, rows, ...)."""
    if windows.places == 1:
        return next(windows.taps(padded, rows))[:, :, None]
    return np.stack(list(windows.taps(padded, rows)), 2)


def _parts(batch: int, rows: int, wide: int) -> Iterator[tuple[slice, slice]]:
    """Yield parts of the batch and of the rows so that each has no more than _CHUNK numbers, or one row."""
    high = max(1, min(rows, _CHUNK // max(wide, 1)))
    images = max(1, _CHUNK // max(wide * high, 1)) if high == rows else 1
    for image, row in itertools.product(range(0, batch, images), range(0, rows, high)):
        yield slice(image, image + images), slice(row, row + high)


def _conv_transpose(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    x, w = required(inputs, 0), required(inputs, 1)
    window, groups = w.value.shape[2:], int(node.get("group", 1))
    _refuse_other_kernel(node, window)
    windows = _transposed_windows(node, x.value.shape[2:], window)

    def linear(own: Array, weights: Array, carrier: Carrier) -> Array:
        return _spread(own, weights, windows, groups, carrier)

    hits = _hits(windows)
    terms = w.value.shape[0] // groups * hits
    return [_summed(linear, x, w, _biases(inputs, 2, x.value.ndim), terms, arithmetic)]


def _hits(windows: Windows) -> int:
    """Return how many places of windows fall on one number of the output at most."""
    most = [
        int(np.bincount(np.arange(size) * dilation % stride).max())
        for size, dilation, stride in zip(windows.kernel, windows.dilations, windows.strides, strict=True)
    ]
    return int(np.prod(most, dtype=np.int64))


def _transposed_windows(node: Node, sizes: Sizes, kernel: Sizes) -> Windows:
    """Return the windows over the output, one for each number of the input."""
    rank = len(sizes)
    ones = (1,) * rank
    strides, dilations = sizes_in(node, "strides", ones), sizes_in(node, "dilations", ones)
    added = sizes_in(node, "output_padding", (0,) * rank)
    pads, automatic = sizes_in(node, "pads", (0, 0) * rank), node.get("auto_pad", "NOTSET")
    natural = [
        stride * (size - 1) + more + (window - 1) * dilation + 1
        for size, stride, window, dilation, more in zip(sizes, strides, kernel, dilations, added, strict=True)
    ]
    if min((*pads, 0)) < 0:
        raise UnsupportedOperatorError("ConvTranspose with negative pads")
    asked = node.get("output_shape")
    if asked:
        outputs = tuple(int(size) for size in asked[-rank:])
    elif automatic in ("SAME_UPPER", "SAME_LOWER"):
        outputs = tuple(size * stride for size, stride in zip(sizes, strides, strict=True))
    elif automatic in ("NOTSET", "VALID"):
        outputs = tuple(size - pads[i] - pads[i + rank] for i, size in enumerate(natural))
        fronts, backs = pads[:rank], pads[rank:]
        return Windows(outputs, kernel, strides, dilations, fronts, backs, sizes)
    else:
        raise UnsupportedOperatorError(f"auto_pad {automatic}")
    totals = [longer - size for longer, size in zip(natural, outputs, strict=True)]
    ends = [_split(total, node, upper=automatic == "SAME_UPPER") for total in totals]
    fronts, backs = (tuple(own) for own in zip(*ends, strict=True))
    return Windows(outputs, kernel, strides, dilations, fronts, backs, sizes)


_SINCE_UPPER = 11
"""Before opset 11 the text splits odd padding the other way round than since, which runtimes follow everywhere."""


def _split(total: int, node: Node, *, upper: bool) -> tuple[int, int]:
    if total % 2 and node.opset < _SINCE_UPPER and total > 0:
        raise UnsupportedOperatorError("ConvTranspose before opset 11 with an odd number of pads to split")
    if total < 0 and (upper or total < -1):
        raise UnsupportedOperatorError("ConvTranspose with a larger output_shape than its windows reach")
    front = total // 2 if upper else total - total // 2
    return front, total - front


def _spread(x: Array, w: Array, windows: Windows, groups: int, carrier: Carrier) -> Array:
    """Return the sums of w x, each number of the input spread over its window."""
    batch, channels = x.shape[:2]
    flat = x.reshape(batch, groups, channels // groups, -1)
    matrix = w.reshape(groups, channels // groups, w.shape[1], -1).swapaxes(1, 2)
    parts = (
        carrier.product(np.ascontiguousarray(matrix[..., place]), flat).reshape(batch, -1, *windows.counts)
        for place in range(windows.places)
    )
    return _overlapped(parts, (batch, groups * w.shape[1]), windows, carrier)


def _overlapped(
    parts: Iterator[Array], leading: tuple[int, ...], windows: Windows, carrier: Carrier
) -> Array:
    """Return the sum of windows that overlap, of which `parts` are the places."""
    reach = [
        max(front + size, (count - 1) * stride + (window - 1) * dilation + 1)
        for front, size, count, stride, window, dilation in zip(
            windows.fronts, windows.sizes, windows.counts, windows.strides, windows.kernel, windows.dilations,
            strict=True,
        )
    ]  # fmt: skip
    result = np.zeros((*leading, *reach))
    for target, part in zip(windows.taps(result), parts, strict=True):
        target += part
        if carrier.stored is not None:
            target[...] = carrier.stored(target)
    inside = (slice(front, front + size) for front, size in zip(windows.fronts, windows.sizes, strict=True))
    chosen: tuple[Any, ...] = (..., *inside)
    return np.asarray(result[chosen])


def _col2im(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """Col2Im: blocks, one behind the other on the last axis, are added where they overlap."""
    x, sizes, block = required(inputs, 0), tuple(integers(inputs, 1)), tuple(integers(inputs, 2))
    windows = windows_of(node, sizes, block)
    batch, places = x.value.shape[0], windows.places
    blocks = x.moved(lambda array: array.reshape(batch, -1, places, *windows.counts))

    def linear(own: Array, weights: Array, carrier: Carrier) -> Array:
        parts = (own[:, :, place] for place in range(places))
        return _overlapped(parts, own.shape[:2], windows, carrier)

    if not x.is_float:
        return [Bounded(linear(blocks.value, blocks.value, EXACT).astype(x.value.dtype))]
    one = Bounded(np.ones(()))
    return [_summed(linear, blocks, one, (), _hits(windows), arithmetic)]


def _deform_conv(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    """DeformConv: a convolution with what is found beside each place of a window, between the numbers there are."""
    x, w, offset, mask = required(inputs, 0), required(inputs, 1), required(inputs, 2), optional(inputs, 4)
    kernel, groups, shared = w.value.shape[2:], int(node.get("group", 1)), int(node.get("offset_group", 1))
    _refuse_other_kernel(node, kernel)
    batch, channels, *sizes = x.value.shape
    windows = windows_of(node, tuple(sizes), kernel)
    count = int(np.prod(windows.counts, dtype=np.int64))
    images = x.moved(lambda array: array.reshape(batch * shared, channels // shared, *sizes))
    found = sampled(images, _deformed(offset, windows, batch * shared), TRIANGLE, arithmetic)
    if mask is not None:
        factors = mask.moved(lambda array: array.reshape(batch * shared, 1, -1))
        found = bounded.multiply(found, factors, arithmetic)
    columns = found.moved(lambda array: array.reshape(batch, groups, -1, count))
    matrix = w.moved(lambda array: array.reshape(groups, w.value.shape[0] // groups, -1))
    product = bounded.matmul(matrix, columns, arithmetic)
    result = product.moved(lambda array: array.reshape(batch, -1, *windows.counts))
    for bias in _biases(inputs, 3, x.value.ndim):
        result = bounded.add(result, bias, arithmetic)
    return [result]


def _deformed(offset: Bounded, windows: Windows, images: int) -> list[Places]:
    """Return where each window takes its numbers from: (images, places in a window times windows) on each axis."""
    rank = len(windows.sizes)
    shape = (images, windows.places, rank, *windows.counts)
    grids = np.meshgrid(*map(np.arange, windows.kernel), indexing="ij")
    counts = np.meshgrid(*map(np.arange, windows.counts), indexing="ij")
    places = []
    for axis in range(rank):
        own = offset.moved(lambda array, axis=axis: array.reshape(shape)[:, :, axis])  # type: ignore[misc]
        within = grids[axis].reshape(-1, *(1,) * rank) * windows.dilations[axis]
        start = counts[axis] * windows.strides[axis] - windows.fronts[axis]
        moved = Places.of(own) + Places.exactly(within + start)
        places.append(moved.reshaped(images, -1))
    return places


OPERATORS: dict[str, Operator] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DeformConv": _deform_conv,
    "Col2Im": _col2im,
    "com.microsoft.FusedConv": _fused_conv,
}
