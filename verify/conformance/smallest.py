"""The smallest input that still shows what a runtime does with a case: fewer of everything, then simpler numbers.

Every trial is judged as the case was, by the oracle on the smaller input; what a runtime does counts as the same if
the outcome is, and, where it refuses, if it says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.verify.conformance.case import Arrays, Case, Form, node_of
from onnx_attest.verify.conformance.judging import Judged
from onnx_attest.verify.conformance.words import kind_of_words
from onnx_attest.verify.oracle.bounded import is_floating

Array = NDArray[Any]
Judge = Callable[[Case], Judged]
_TRIALS = 80
"""Enough for every axis of an attention to be halved until it is 1; a search that is cut short is still right."""


@dataclass(frozen=True)
class Place:
    """Where an axis lies in an input: which axis, and from which entry on, since cache and new tokens share one."""

    name: str
    axis: int
    start: int = 0


Group = tuple[Place, ...]
"""Places that have to be cut together."""


@dataclass(frozen=True, eq=False)
class Smallest:
    """The smallest case found, and what the runtime makes of it."""

    case: Case
    found: Judged


def smallest(case: Case, found: Judged, judge: Judge, begin: Case | None = None) -> Smallest:
    """Return the smallest case found that a runtime treats as it treats `case`, at worst that one.

    Args:
        case: the case.
        found: what came of it.
        judge: runs a case on the runtime and judges it.
        begin: a smaller one to begin with, if the runtime treats that one so too.
    """
    best, trials = Smallest(replace(case, expected=None, tolerance=None), found), 0
    if begin is not None and _is_same(one := judge(begin), found):
        return Smallest(begin, one)
    moves = True
    while moves:
        moves = False
        for candidate in _smaller(best.case):
            if trials == _TRIALS:
                return best
            trials += 1
            if _is_same(one := judge(candidate), found):
                best, moves = Smallest(candidate, one), True
                break
    return best


def _is_same(one: Judged, other: Judged) -> bool:
    if one.outcome != other.outcome:
        return False
    return one.outcome == "wrong" or kind_of_words(one.reason) == kind_of_words(other.reason)


def _smaller(case: Case) -> Iterator[Case]:
    """Yield smaller and simpler cases, the boldest first."""
    groups = groups_of(case)
    for size in (1, 2):
        yield from _cut(case, tuple((group, size) for group in groups))
    for group in groups:
        whole = _size(case.inputs, group)
        for size, last in product(dict.fromkeys((1, 2, whole // 2, whole - 1)), (False, True)):
            yield from _cut(case, ((group, size),), last=last)
    yield from _simpler(case)


def _cut(case: Case, cuts: tuple[tuple[Group, int], ...], *, last: bool = False) -> Iterator[Case]:
    """Yield the case with the first, or last, entries only of each group of places, if that makes it smaller."""
    inputs = dict(case.inputs)
    for group, size in cuts:
        whole = _size(case.inputs, group)
        if not 1 <= size < whole:
            continue
        # Groups come from the end of an axis on, so that an earlier cut in it does not move a later one.
        for place in group:
            inputs[place.name] = _shortened(inputs[place.name], place, whole, size, last)
    is_smaller = any(inputs[name].shape != array.shape for name, array in case.inputs.items())
    if is_smaller and _heads_fit(case, inputs):
        yield with_inputs(case, inputs)


def _shortened(array: Array, place: Place, whole: int, size: int, last: bool) -> Array:
    begin = place.start if last else place.start + size
    kept = [i for i in range(array.shape[place.axis]) if not begin <= i < begin + whole - size]
    return array.take(kept, place.axis)


def _heads_fit(case: Case, inputs: Arrays) -> bool:
    """Whether each head of K and V still serves whole heads of Q, as Attention demands."""
    node = _attention_of(case)
    if node is None or inputs[node.input[0]].ndim != 4:
        return True
    return bool(inputs[node.input[0]].shape[1] % inputs[node.input[1]].shape[1] == 0)


def _size(inputs: Arrays, group: Group) -> int:
    """Return how many entries the places of a group have: those of its first one, which is an axis of its own."""
    return int(inputs[group[0].name].shape[group[0].axis])


def groups_of(case: Case) -> tuple[Group, ...]:
    """Return the axes that may be cut, each with its places; those that come later in an axis first."""
    node = _attention_of(case)
    return _equal_sizes(case.inputs) if node is None else _axes_of_attention(node, case.inputs)


def _attention_of(case: Case) -> onnx.NodeProto | None:
    found = (node_of(model, "Attention") for _, model in case.references)
    return next((node for node in found if node is not None), None)


def _equal_sizes(inputs: Arrays) -> tuple[Group, ...]:
    """Return, for each size, all axes that have it: together they may be one, and each alone."""
    places = [Place(name, axis) for name, array in inputs.items() for axis in range(array.ndim)]
    sizes: dict[int, list[Place]] = {}
    for place in places:
        sizes.setdefault(inputs[place.name].shape[place.axis], []).append(place)
    together = [tuple(same) for same in sizes.values()]
    return tuple(dict.fromkeys((*together, *((place,) for place in places))))


def _axes_of_attention(node: onnx.NodeProto, inputs: Arrays) -> tuple[Group, ...]:
    """Return the axes of an Attention: keys, past, queries, batch, heads, sizes of a head."""
    q, k, v, mask, past_k, past_v, lengths = (*node.input, *[""] * 7)[:7]
    length = inputs[q].ndim - 2
    before = inputs[past_k].shape[2] if past_k else 0
    sizes = {"queries": inputs[q].shape[length], "batch": inputs[q].shape[0]}
    groups: dict[str, list[Place]] = {
        "keys": [Place(k, length), Place(v, length), *_of_mask(inputs, mask, 1, before + inputs[k].shape[length], before)],
        "past": [Place(past_k, 2), Place(past_v, 2), *_of_mask(inputs, mask, 1, before + inputs[k].shape[length])]
        if past_k
        else [],
        "queries": [Place(q, length), *_of_mask(inputs, mask, 2, sizes["queries"])],
        "batch": [Place(name, 0) for name in (q, k, v, past_k, past_v, lengths) if name],
    }  # fmt: skip
    groups["batch"] += _of_mask(inputs, mask, 4, sizes["batch"])
    if inputs[q].ndim == 4:
        groups["heads"] = [Place(q, 1), *_of_mask(inputs, mask, 3, inputs[q].shape[1])]
        groups["kv heads"] = [Place(name, 1) for name in (k, v, past_k, past_v) if name]
        groups["size"] = [Place(name, 3) for name in (q, k, past_k) if name]
        groups["size of V"] = [Place(name, 3) for name in (v, past_v) if name]
    cut = [tuple(places) for places in groups.values() if places]
    both = (*groups["heads"], *groups["kv heads"]) if inputs[q].ndim == 4 else ()
    if both and inputs[q].shape[1] == inputs[k].shape[1]:
        cut.append(both)
    return tuple(cut)


def _of_mask(inputs: Arrays, mask: str, from_the_end: int, size: int, start: int = 0) -> list[Place]:
    """Return the place of an axis in the mask, if the mask has one entry for each of it."""
    if not mask or inputs[mask].ndim < from_the_end:
        return []
    axis = inputs[mask].ndim - from_the_end
    return [Place(mask, axis, start)] if inputs[mask].shape[axis] == size else []


def _simpler(case: Case) -> Iterator[Case]:
    """Yield the case with one input of equal numbers, of one that is not 0, or of round ones; masks all true."""
    for name, array in case.inputs.items():
        for simple in _simple(array):
            same = np.array_equal(simple, array, equal_nan=array.dtype.kind == "f")
            if not same:
                yield with_inputs(case, {**case.inputs, name: simple})


def _simple(array: Array) -> Iterator[Array]:
    if not array.size:
        return
    if array.dtype == np.bool_:
        yield np.ones_like(array)
    if not is_floating(array.dtype) or not np.isfinite(array.astype(np.float64)).all():
        return
    is_simple = len(np.unique(array.astype(np.float64))) == 1 and float(array.flat[0]) in (0.0, 1.0)
    if is_simple:
        return
    yield np.zeros_like(array)
    yield np.ones_like(array)
    if float(np.abs(array.astype(np.float64)).max()) < 100:
        yield np.round(array.astype(np.float64), 1).astype(array.dtype)


def with_inputs(case: Case, inputs: Arrays) -> Case:
    """Return the case with other inputs; axes that the file fixes become theirs, open ones stay open."""
    references: list[tuple[Form, onnx.ModelProto]] = [
        (form, _resized(model, inputs)) for form, model in case.references
    ]
    return replace(case, inputs=inputs, model=references[0][1], references=tuple(references))


def _resized(model: onnx.ModelProto, inputs: Arrays) -> onnx.ModelProto:
    resized = onnx.ModelProto()
    resized.CopyFrom(model)
    del resized.graph.value_info[:]
    for value in resized.graph.input:
        for axis, size in zip(value.type.tensor_type.shape.dim, inputs[value.name].shape, strict=True):
            if axis.HasField("dim_value"):
                axis.dim_value = size
    for value in resized.graph.output:
        for axis in value.type.tensor_type.shape.dim:
            axis.Clear()
    return resized
