"""A file beside its double twin: which constant is which, whether each is the other, rounded, and what else differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import OF_DTYPE, PROFILES, largest_of
from onnx_attest.verify.oracle.bounded import is_floating
from onnx_attest.verify.oracle.graph import constants_of

COMPUTED_ROUNDINGS = 4.0
"""The exporter computes a scale in the file's dtype, in a few steps: a square root of a rounded quotient, say."""
FOLDED_ROUNDINGS = 2.0**10
"""It also computes what the module makes of its parameters alone, in the file's dtype; where that cancels, most digits go."""


@dataclass(frozen=True, eq=False)
class Pair:
    """A floating constant of the file with the twin's.

    Attributes:
        user: the node of the file that takes it.
        stored, meant: the file's, and the twin's.
        held: whether the module holds these numbers; then they are rounded once, and not computed.
        folded: whether the exporter computed them from an expression of the module.
    """

    name: str
    user: str
    stored: NDArray[Any]
    meant: NDArray[Any]
    held: bool = False
    folded: bool = False

    @property
    def unusable(self) -> bool:
        """Whether the twin has no number where the file has one: its own constant overflowed on the way.

        So does the lowest number of float64, which the exporter passes through float32: -inf there, a number in the file.
        """
        if self.stored.shape != self.meant.shape:
            return False
        stored, meant = self.stored.astype(np.float64), self.meant.astype(np.float64)
        lost = np.isnan(meant) | (np.isneginf(meant) & (stored == -largest_of(self.stored.dtype)))
        return bool((lost & np.isfinite(stored)).any())

    @cached_property
    def difference(self) -> str:
        """How the file's constant is not the twin's, rounded to the file's dtype; "" if it is."""
        if self.stored.shape != self.meant.shape:
            return f"{self.name} has the shape {self.stored.shape}, the module's has {self.meant.shape}"
        stored, meant = self.stored.astype(np.float64), self.meant.astype(np.float64)
        lowest = (stored == -largest_of(self.stored.dtype)) & (meant <= -largest_of(self.meant.dtype))
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = self.meant.astype(self.stored.dtype).astype(np.float64)
            error = np.abs(stored - meant)
        u = PROFILES[OF_DTYPE[self.stored.dtype.name]].u_out
        size = np.where(np.isfinite(meant), np.abs(meant), 0.0)
        slack = (1.0 if self.held else COMPUTED_ROUNDINGS) * u * size
        if self.folded and not self.held:
            slack = np.broadcast_to(FOLDED_ROUNDINGS * u * size.max(initial=0.0), size.shape)
        same = (stored == rounded) | lowest | (np.isnan(stored) & np.isnan(meant)) | (error <= slack)
        if same.all():
            return ""
        index = tuple(int(i) for i in np.argwhere(~same)[0])
        at = f"{self.name}{list(index)}" if index else self.name
        text = f"{at}, which {self.user} takes, is {stored[index]:.9g}, in the export in float64 {meant[index]:.9g}"
        if meant[index] and np.isfinite(meant[index]) and np.isfinite(stored[index]):
            text += f": times 1 {stored[index] / meant[index] - 1:+.3g}"
        return text if same.size == 1 else f"{text} ({int((~same).sum())} such of {same.size})"


class Beside:
    """A file's graph beside the module's export in float64."""

    def __init__(self, file: onnx.ModelProto, twin: onnx.ModelProto) -> None:
        self._file, self._twin = _Graph(file), _Graph(twin)
        self._alike = self._file.operators() == self._twin.operators()

    def pairs(self, parameters: NDArray[np.float64], folded: Collection[str] = ()) -> list[Pair]:
        """Return the floating constants that both graphs have, each once, in the file's order.

        They are paired by the place where they are used; where the graphs differ in more than casts, by their names.

        Args:
            parameters: the numbers that the module holds.
            folded: names of constants that the exporter computed from the module's own expressions.
        """
        ours, theirs = self._file, self._twin
        pairs: dict[str, Pair] = {}
        for mine, other, user in self._same_places() if self._alike else self._same_names():
            if mine in ours.arrays and other in theirs.arrays and mine not in pairs:
                meant = theirs.arrays[other]
                held = bool(np.isin(meant.astype(np.float64), parameters).all())
                # An array that the module does not hold was computed, whatever its name.
                computed = other in folded or (meant.size > 1 and not held)
                pairs[mine] = Pair(mine, user, ours.arrays[mine], meant, held, computed)
        return list(pairs.values())

    def differences(self, dtype: str, dtypes: Collection[str]) -> Iterator[tuple[str, str, str]]:
        """Yield how the file is written otherwise: (kind, text, node).

        `attribute` and `cast` are faults; `written` is a difference that the values have to be told by.

        Args:
            dtype: of the file.
            dtypes: that the module itself has tensors of, in float64.
        """
        yield from _short_casts("the file", self._file, dtype, dtypes)
        yield from _short_casts("the export in float64", self._twin, "float64", dtypes)
        if self._alike:
            yield from self._attributes()
            return
        mine, other = Counter(self._file.operators()), Counter(self._twin.operators())
        more = ", ".join(f"{count} {name}" for name, count in sorted((mine - other).items()))
        less = ", ".join(f"{count} {name}" for name, count in sorted((other - mine).items()))
        yield "written", f"more: {more or 'nothing'}; less: {less or 'nothing'}", ""

    def _attributes(self) -> Iterator[tuple[str, str, str]]:
        for a, b in zip(self._file.nodes, self._twin.nodes, strict=True):
            theirs = {attribute.name: attribute.f for attribute in b.attribute}
            for attribute in a.attribute:
                same = theirs.get(attribute.name)
                if attribute.type == onnx.AttributeProto.FLOAT and same != attribute.f:
                    yield (
                        "attribute",
                        f"{attribute.name} of {a.name} is {attribute.f:.9g}, not {same}",
                        a.name,
                    )

    def _same_places(self) -> Iterator[tuple[str, str, str]]:
        for mine, other in zip(self._file.nodes, self._twin.nodes, strict=True):
            for name, counterpart in zip(mine.input, other.input, strict=False):
                yield self._file.origin(name), self._twin.origin(counterpart), mine.name

    def _same_names(self) -> Iterator[tuple[str, str, str]]:
        for name in self._file.arrays:
            if name in self._twin.arrays:
                yield name, name, self._file.user(name)


_BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}


def _short_casts(
    whose: str, graph: _Graph, dtype: str, dtypes: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the casts to a format shorter than a graph's own that the module has no tensor of."""
    for node in graph.casts:
        to = next(attribute.i for attribute in node.attribute if attribute.name == "to")
        target = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(to)).name
        if _BITS.get(target, 64) < _BITS.get(dtype, 32) and target not in dtypes:
            yield (
                "cast",
                f"{whose} casts to {target} at {node.name or node.output[0]}, the module does not",
                node.name,
            )


class _Graph:
    """The floating constants of a graph by name, its casts, and its other nodes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        arrays = constants_of(model)
        self.arrays = {name: array for name, array in arrays.items() if is_floating(array.dtype)}
        self.casts = [node for node in model.graph.node if node.op_type == "Cast"]
        self._cast = {node.output[0]: node.input[0] for node in self.casts}
        self.nodes = [node for node in model.graph.node if node.op_type not in ("Cast", "Constant")]

    def operators(self) -> list[str]:
        """Return the operators in order."""
        return [node.op_type for node in self.nodes]

    def origin(self, name: str) -> str:
        """Return what a value was before it was cast."""
        while name in self._cast:
            name = self._cast[name]
        return name

    def user(self, name: str) -> str:
        """Return the first node that takes a value."""
        return next((node.name for node in self.nodes if name in map(self.origin, node.input)), "no node")
