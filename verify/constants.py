"""A file beside its double twin: which constant is which, whether each is the other, rounded, and what else differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
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
        other: the name of the twin's.
        mended: whether the twin's are not what the export in float64 wrote, see `_as_meant`.
    """

    name: str
    user: str
    stored: NDArray[Any]
    meant: NDArray[Any]
    held: bool = False
    folded: bool = False
    other: str = ""
    mended: bool = False

    @property
    def unusable(self) -> bool:
        """Whether the twin has no number where the file has one: its own constant overflowed on the way."""
        if self.stored.shape != self.meant.shape:
            return False
        return bool((np.isnan(self.meant) & np.isfinite(self.stored)).any())

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
                meant, mended = _as_meant(ours.arrays[mine], theirs.arrays[other])
                held = bool(np.isin(meant.astype(np.float64), parameters).all())
                # An array that the module does not hold was computed, whatever its name.
                computed = other in folded or (meant.size > 1 and not held)
                pairs[mine] = Pair(mine, user, ours.arrays[mine], meant, held, computed, other, mended)
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
            yield from self._other_constants()
            return
        mine, other = Counter(self._file.operators()), Counter(self._twin.operators())
        more = ", ".join(f"{count} {name}" for name, count in sorted((mine - other).items()))
        less = ", ".join(f"{count} {name}" for name, count in sorted((other - mine).items()))
        first = next(
            (a for a, b in zip(self._file.nodes, self._twin.nodes, strict=False) if a.op_type != b.op_type),
            None,
        )
        at = f"; the first that is another is {first.name} ({first.op_type})" if first is not None else ""
        where = "" if first is None else first.name
        yield "written", f"more: {more or 'nothing'}; less: {less or 'nothing'}{at}", where

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

    def _other_constants(self) -> Iterator[tuple[str, str, str]]:
        """Yield where a constant is used in the place of another one, a weight that was taken for its neighbour say."""
        first: dict[str, str] = {}
        for mine, other, user in self._same_places():
            ours, theirs = self._file.arrays.get(mine), self._twin.arrays.get(other)
            if ours is None or theirs is None or first.setdefault(mine, other) == other:
                continue
            if text := Pair(mine, user, ours, _as_meant(ours, theirs)[0], folded=True).difference:
                yield "attribute", f"{text}; there {user} takes {other}", user

    def _same_places(self) -> Iterator[tuple[str, str, str]]:
        for mine, other in zip(self._file.nodes, self._twin.nodes, strict=True):
            for name, counterpart in zip(mine.input, other.input, strict=False):
                yield self._file.origin(name), self._twin.origin(counterpart), mine.name

    def _same_names(self) -> Iterator[tuple[str, str, str]]:
        for name in self._file.arrays:
            if name in self._twin.arrays:
                yield name, name, self._file.user(name)


def _as_meant(stored: NDArray[Any], written: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """Return the twin's constant as the module has it, and whether the export in float64 wrote something else.

    A module hides keys with the lowest number of its dtype. The exporter passes Python's floats through float32, which
    has no such number as float64's: the twin gets -inf, the file the lowest number of its own.
    """
    if stored.shape != written.shape or stored.dtype == np.float64 or written.dtype != np.float64:
        return written, False
    lost = np.isinf(written) & (stored.astype(np.float64) == np.sign(written) * largest_of(stored.dtype))
    return np.where(lost, np.sign(written) * np.finfo(np.float64).max, written), bool(lost.any())


def mended(twin: onnx.ModelProto, pairs: Sequence[Pair]) -> onnx.ModelProto:
    """Return the twin's graph with the constants that the module has, see `_as_meant`; a copy if there are such."""
    new = {pair.other: pair.meant for pair in pairs if pair.mended}
    if not new:
        return twin
    copy = onnx.ModelProto()
    copy.CopyFrom(twin)
    for tensor in copy.graph.initializer:
        if tensor.name in new:
            tensor.CopyFrom(onnx.numpy_helper.from_array(new[tensor.name], tensor.name))
    for node in copy.graph.node:
        if node.op_type == "Constant" and node.output[0] in new:
            value = next(attribute for attribute in node.attribute if attribute.name == "value")
            value.t.CopyFrom(onnx.numpy_helper.from_array(new[node.output[0]]))
    return copy


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
