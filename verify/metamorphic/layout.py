"""Which axis of which input and output counts sequences, queries and keys: what the relations change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.export.observe import STANDARD_DOMAINS
from onnx_attest.models.contract import Contract, TensorSpec
from onnx_attest.verify.metamorphic.structure import Structure, structure_of
from onnx_attest.verify.oracle.graph import constants_of
from onnx_attest.verify.runtimes.base import Tensors

Form = Literal["bare", "self", "cross", "cached", "other"]
_HANDING_ON = frozenset({
    "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Expand", "Flatten", "Split", "Concat",
    "Tile", "Gather",
})  # fmt: skip
_MATRIX = ("MatMul", "Gemm", "Einsum", "Add", "Sub", "Mul", "Div")

_UNKNOWN = Structure()


@dataclass(frozen=True)
class Layout:
    """Where sequences, queries and keys are counted.

    Attributes:
        form: `bare`: queries, keys and values are inputs, and nothing is computed from them before the attention;
            `self`: tokens of one length attend to each other; `cross`: tokens of one length attend to others;
            `cached`: tokens attend to a cache and to each other; `other`: none of these.
        batch: name of the axis of sequences, "" without one.
        queries, keys: names of their axes, "" where the file fixes the number or there is none.
        tokens: inputs that are made of tokens, in `self`, `cross` and `cached` those whose rows the outputs have.
        memory: in `cross` the inputs that are attended to.
        cache: by input that holds the past, the output that holds past and present.
        structure: of a bare attention, what its graph says of the formula.
    """

    contract: Contract
    form: Form
    batch: str = ""
    queries: str = ""
    keys: str = ""
    tokens: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    cache: Mapping[str, str] | None = None
    structure: Structure = _UNKNOWN

    def specs(self, *roles: str) -> list[TensorSpec]:
        """Return the inputs of these roles."""
        return [spec for spec in self.contract.inputs if spec.role in roles]

    def gathered(self, inputs: Tensors, axis: str, index: NDArray[Any]) -> Tensors:
        """Return the inputs with these entries of a named axis, wherever it is."""
        changed = dict(inputs)
        for spec in self.contract.inputs:
            for place, name in enumerate(spec.axes):
                if name == axis:
                    changed[spec.name] = np.take(changed[spec.name], index, axis=place)
        return changed

    def places(self, axis: str) -> Iterator[tuple[str, int]]:
        """Yield each output that has a named axis, with the place of its first one."""
        for spec in self.contract.outputs:
            if axis in spec.axes:
                yield spec.name, spec.axes.index(axis)

    def rows(self) -> Iterator[tuple[str, int]]:
        """Yield each output that has a row for each query, with the axis of the rows."""
        if self.form == "bare":
            yield from ((spec.name, len(spec.axes) - 2) for spec in self.contract.outputs)
        elif self.queries:
            yield from (place for place in self.places(self.queries) if place[0] not in self._caches())

    def weights(self) -> set[str]:
        """Return the outputs whose last axis counts keys."""
        named = {spec.name for spec in self.contract.outputs if spec.role == "weights"}
        last = {spec.name for spec in self.contract.outputs if self.keys and spec.axes[-1:] == (self.keys,)}
        return named | last

    def _caches(self) -> set[str]:
        return set((self.cache or {}).values())


def layout_of(contract: Contract, model: onnx.ModelProto) -> Layout:
    """Return the layout of a file by its contract, or by one guessed from its names and axes."""
    batch = next((axis for axis in contract.symbolic_axes() if contract.is_batch(axis)), "")
    if any("+" in axis for spec in contract.inputs for axis in spec.axes if isinstance(axis, str)):
        return Layout(contract, "other", batch)  # sizes that are sums of others are not ours to change
    roles = [spec.role for spec in contract.inputs]
    if all(roles.count(role) == 1 for role in ("query", "key", "value")) and "tokens" not in roles:
        names = {spec.role: spec.name for spec in contract.inputs}
        bare = is_bare(model, [names[role] for role in ("query", "key", "value")])
        if not bare:
            return Layout(contract, "other", batch)
        by_role = {spec.role: spec.axes[-2] for spec in contract.inputs if len(spec.axes) > 1}
        queries, keys = (_named(by_role[role]) for role in ("query", "key"))
        structure = structure_of(model, names["query"], names["key"])
        return Layout(contract, "bare", batch, queries, keys, structure=structure)
    return _of_tokens(contract, batch)


def _named(axis: str | int) -> str:
    return axis if isinstance(axis, str) else ""


def _of_tokens(contract: Contract, batch: str) -> Layout:
    cache = _cache(contract)
    tokens: dict[str, list[str]] = {}
    for spec in contract.inputs:
        if spec.role == "mask" or spec.name in cache:
            continue
        lengths = [axis for axis in spec.axes if isinstance(axis, str) and not contract.is_batch(axis)]
        in_order = len(spec.axes) > 1 and spec.axes[:2] == (batch, *lengths)
        if not in_order:  # an image, something of another order, or nothing that has a length
            return Layout(contract, "other", batch)
        tokens.setdefault(lengths[0], []).append(spec.name)
    given = {axis for spec in contract.outputs for axis in spec.axes}
    rows = [length for length in tokens if length in given]
    if len(rows) != 1:
        return Layout(contract, "other", batch)
    others = [length for length in tokens if length != rows[0]]
    mine = tuple(tokens[rows[0]])
    if cache and not others:
        return Layout(contract, "cached", batch, rows[0], "", mine, cache=cache)
    if not others:
        return Layout(contract, "self", batch, rows[0], rows[0], mine)
    if len(others) > 1 or cache:
        return Layout(contract, "other", batch)
    return Layout(contract, "cross", batch, rows[0], others[0], mine, tuple(tokens[others[0]]))


def _cache(contract: Contract) -> dict[str, str]:
    """Return the outputs that are the inputs of a cache with more in it: by axes, or called past and present."""
    sums = [spec for spec in contract.outputs if any("+" in str(axis) for axis in spec.axes)]
    held = [spec for spec in contract.inputs if spec.role in ("key", "value")]
    if not sums or len(sums) != len(held):
        sums = [spec for spec in contract.outputs if "present" in spec.name.lower()]
        held = [spec for spec in contract.inputs if "past" in spec.name.lower()]
    if len(sums) != len(held):
        return {}
    return {past.name: present.name for past, present in zip(held, sums, strict=True)}


def is_bare(model: onnx.ModelProto, names: list[str]) -> bool:
    """Whether no input of these is combined with a constant of more than one number: it is not projected first."""
    constants = {name: array.size for name, array in constants_of(model).items() if array.dtype.kind != "i"}
    consumers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    reached, seen = list(names), set(names)
    while reached:
        for node in consumers.get(reached.pop(), []):
            if node.domain not in STANDARD_DOMAINS:
                continue
            sizes = [constants.get(name, 0) for name in node.input]
            if node.op_type in _MATRIX and max(sizes) > 1:
                return False
            scales = node.op_type in ("Mul", "Div") and max(sizes) == 1
            if node.op_type in _HANDING_ON or scales:
                fresh = [name for name in node.output if name and name not in seen]
                seen.update(fresh)
                reached += fresh
    return True
