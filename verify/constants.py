"""The constants of a file beside those of its double twin: which is which, and whether each is the other, rounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import OF_DTYPE, PROFILES, largest_of
from onnx_attest.verify.oracle.bounded import is_floating

COMPUTED_ROUNDINGS = 4.0
"""The exporter computes a scale in the file's dtype, in a few steps: a square root of a rounded quotient, say."""


@dataclass(frozen=True, eq=False)
class Pair:
    """A floating constant of the file with the twin's; `user` is the node of the file that takes it."""

    name: str
    user: str
    stored: NDArray[Any]
    meant: NDArray[Any]

    def differs(self) -> str:
        """Return how the file's constant is not the twin's, rounded to the file's dtype; "" if it is."""
        if self.stored.shape != self.meant.shape:
            return f"{self.name} has the shape {self.stored.shape}, the module's has {self.meant.shape}"
        stored, meant = self.stored.astype(np.float64), self.meant.astype(np.float64)
        lowest = (stored == -largest_of(self.stored.dtype)) & (meant <= -largest_of(self.meant.dtype))
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = self.meant.astype(self.stored.dtype).astype(np.float64)
            error = np.abs(stored - meant)
        u = PROFILES[OF_DTYPE[self.stored.dtype.name]].u_out
        roundings = COMPUTED_ROUNDINGS if self.stored.size == 1 else 1.0
        slack = roundings * u * np.where(np.isfinite(meant), np.abs(meant), 0.0)
        same = (stored == rounded) | lowest | (np.isnan(stored) & np.isnan(meant)) | (error <= slack)
        if same.all():
            return ""
        index = tuple(int(i) for i in np.argwhere(~same)[0])
        at = f"{self.name}{list(index)}" if index else self.name
        text = f"{at}, which {self.user} takes, is {stored[index]:.9g}, the module has {meant[index]:.9g}"
        if meant[index] and np.isfinite(meant[index]) and np.isfinite(stored[index]):
            text += f": times 1 {stored[index] / meant[index] - 1:+.3g}"
        return text if same.size == 1 else f"{text} ({int((~same).sum())} such of {same.size})"


def pair_constants(file: onnx.ModelProto, twin: onnx.ModelProto) -> list[Pair]:
    """Return the floating constants that both graphs have, each once, in the file's order.

    They are paired by the place where they are used; where the graphs differ in more than casts, by their names.
    """
    ours, theirs = _Constants(file), _Constants(twin)
    operators = [[node.op_type for node in graph.nodes] for graph in (ours, theirs)]
    if operators[0] == operators[1]:
        places = _same_places(ours, theirs)
    else:
        shared = [name for name in ours.arrays if name in theirs.arrays]
        places = ((name, name, ours.user(name)) for name in shared)
    pairs: dict[str, Pair] = {}
    for mine, other, user in places:
        if mine in ours.arrays and other in theirs.arrays and mine not in pairs:
            pairs[mine] = Pair(mine, user, ours.arrays[mine], theirs.arrays[other])
    return list(pairs.values())


class _Constants:
    """The floating constants of a graph by name, and its nodes but for casts."""

    def __init__(self, model: onnx.ModelProto) -> None:
        arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self.arrays = {name: array for name, array in arrays.items() if is_floating(array.dtype)}
        self._cast = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Cast"}
        self.nodes = [node for node in model.graph.node if node.op_type != "Cast"]

    def origin(self, name: str) -> str:
        """Return what a value was before it was cast."""
        while name in self._cast:
            name = self._cast[name]
        return name

    def user(self, name: str) -> str:
        """Return the first node that takes a value."""
        return next((node.name for node in self.nodes if name in map(self.origin, node.input)), "no node")


def _same_places(ours: _Constants, theirs: _Constants) -> Iterator[tuple[str, str, str]]:
    for mine, other in zip(ours.nodes, theirs.nodes, strict=True):
        for name, counterpart in zip(mine.input, other.input, strict=False):
            yield ours.origin(name), theirs.origin(counterpart), mine.name
