"""Windows that slide over the spatial axes: what convolutions and pooling share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_attest.verify.oracle.bounded import Array
from onnx_attest.verify.oracle.ops.operator import Node, NoRoomError, UnsupportedOperatorError

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """Windows over an input; each tuple has one number for each spatial axis.

    Attributes:
        sizes: of the input.
        kernel: places in a window.
        strides: from one window to the next.
        dilations: from one place in a window to the next.
        fronts: padding before the first place of the input.
        backs: padding that is declared behind the last; windows may reach beyond it where their number is rounded up.
        counts: how many windows there are.
    """

    sizes: Sizes
    kernel: Sizes
    strides: Sizes
    dilations: Sizes
    fronts: Sizes
    backs: Sizes
    counts: Sizes

    @property
    def places(self) -> int:
        """The number of places in a window."""
        return int(np.prod(self.kernel, dtype=np.int64))

    def padded(self, array: Array, fill: Any) -> Array:
        """Return the input with `fill` around it, as far as the windows reach."""
        reach = [
            (count - 1) * stride + dilated
            for count, stride, dilated in zip(self.counts, self.strides, _dilated(self), strict=True)
        ]
        behind = [
            max(0, end - front - size)
            for end, front, size in zip(reach, self.fronts, self.sizes, strict=True)
        ]
        if not any((*self.fronts, *behind)):
            return array
        others = [(0, 0)] * (array.ndim - len(self.sizes))
        ends = [*others, *zip(self.fronts, behind, strict=True)]
        return np.pad(array, ends, constant_values=fill)

    def taps(self, padded: Array, rows: slice = slice(None)) -> Iterator[Array]:
        """Yield, for each place in a window, what all windows have there: one view of the padded input each.

        Args:
            padded: the spatial axes come last.
            rows: the windows along the first spatial axis that are wanted.
        """
        ranges = [range(count) for count in self.counts]
        ranges[0] = ranges[0][rows]
        for offset in itertools.product(*map(range, self.kernel)):
            places = [
                _strided(place * dilation, own, stride)
                for place, dilation, own, stride in zip(
                    offset, self.dilations, ranges, self.strides, strict=True
                )
            ]
            chosen: tuple[Any, ...] = (..., *places)
            yield padded[chosen]


def _strided(offset: int, windows: range, stride: int) -> slice:
    if not windows:
        return slice(0, 0)
    return slice(offset + windows[0] * stride, offset + windows[-1] * stride + 1, stride)


def _dilated(windows: Windows) -> Sizes:
    return tuple(
        (size - 1) * dilation + 1 for size, dilation in zip(windows.kernel, windows.dilations, strict=True)
    )


def sizes_in(node: Node, attribute: str, default: Sequence[int]) -> Sizes:
    """Return an attribute with one number for each spatial axis, or for both ends of each."""
    return tuple(int(number) for number in node.get(attribute) or default)


def windows_of(
    node: Node, sizes: Sizes, kernel: Sizes, *, ceil: bool = False, dilated: bool = True
) -> Windows:
    """Return the windows of a convolution or a pooling node.

    Args:
        node: with strides, pads, auto_pad and dilations.
        sizes: of the input's spatial axes.
        kernel: places in a window.
        ceil: whether the number of windows is rounded up.
        dilated: whether the operator has dilations.
    """
    ones = (1,) * len(sizes)
    strides = sizes_in(node, "strides", ones)
    dilations = sizes_in(node, "dilations", ones) if dilated else ones
    automatic, pads = node.get("auto_pad", "NOTSET"), sizes_in(node, "pads", (0, 0) * len(sizes))
    if automatic != "NOTSET" and any(pads):
        raise UnsupportedOperatorError(f"{node.operator} with both auto_pad and pads")
    if min((*pads, 0)) < 0:
        raise UnsupportedOperatorError(f"{node.operator} with negative pads")
    axes = [
        _axis(automatic, size, (window - 1) * dilation + 1, stride, pads[axis :: len(sizes)], ceil=ceil)
        for axis, (size, window, dilation, stride) in enumerate(
            zip(sizes, kernel, dilations, strides, strict=True)
        )
    ]
    fronts, backs, counts = (tuple(own) for own in zip(*axes, strict=True))
    if min(counts) < 0 or (min(counts) == 0 and min(sizes) > 0):
        given, wanted = (" x ".join(str(size) for size in own) for own in (sizes, kernel))
        raise NoRoomError(f"{node.operator} has no room for windows of {wanted} in {given}")
    return Windows(sizes, kernel, strides, dilations, fronts, backs, counts)


def _axis(
    automatic: str, size: int, window: int, stride: int, pads: Sequence[int], *, ceil: bool
) -> tuple[int, int, int]:
    """Return the padding before and behind, and the number of windows.

    Opset 11's text rounds the number for auto_pad down where opset 19's does not; 19 says what was meant.
    """
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        count = -(-size // stride)
        total = max(0, (count - 1) * stride + window - size)
        smaller, larger = total // 2, total - total // 2
        return (smaller, larger, count) if automatic == "SAME_UPPER" else (larger, smaller, count)
    if automatic == "VALID":
        return 0, 0, (size - window) // stride + 1
    if automatic != "NOTSET":
        raise UnsupportedOperatorError(f"auto_pad {automatic}")
    front, back = pads
    spare = size + front + back - window
    if not ceil:
        return front, back, spare // stride + 1
    count = -(-spare // stride) + 1
    if (count - 1) * stride >= size + front:  # a window that would start in the padding behind is none
        count -= 1
    return front, back, count
