"""What the mask of an attention is: causal or not, and at which end, found by evaluating it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from onnx_attest.verify.arithmetic import largest_of
from onnx_attest.verify.power.sites import Operator, Site, attribute
from onnx_attest.verify.power.workbench import Workbench

Bools = NDArray[np.bool_]
_SIZES = (2, 5, 7, 11, 13, 17, 19, 23)
"""Of the symbolic axes, in the order in which they come: all different."""


@dataclass(frozen=True)
class Alignment:
    """A mask that hides the future.

    Attributes:
        end: query i stands at position i (`top-left`), or the last query at the last key (`bottom-right`); `square`
            if there are always as many queries as keys.
        pure: it hides the future, and does nothing else.
    """

    end: Literal["top-left", "bottom-right", "square"]
    pure: bool


class _UnknownMaskError(Exception):
    """The mask cannot be evaluated: why."""


def lengths(bench: Workbench, site: Site) -> tuple[str, str]:
    """Return the numbers of queries and of keys, each a tensor of one number."""
    if not isinstance(site, Operator):
        # Not of the logits: what is put in their place reads these.
        return bench.axis_length(bench.read(site.query), -2), bench.axis_length(bench.read(site.key), -1)
    queries, keys = (bench.axis_length(bench.read(site.edge(index)), -2) for index in (0, 1))
    past = past_length(bench, site)
    return queries, bench.op("Add", keys, past) if past else keys


def past_length(bench: Workbench, site: Operator) -> str:
    """Return how many keys an operator's cache holds, "" without a cache."""
    past = bench.read(site.edge(4))
    return bench.axis_length(past, -2) if past else ""


def is_given(bench: Workbench, value: str) -> bool:
    """Whether a value depends on what the graph is fed, and not on its sizes only."""
    fed = {given.name for given in bench.graph.input} - set(bench.constants)
    wanted, seen = [value], set[str]()
    while wanted:
        name = wanted.pop()
        if name in fed:
            return True
        node = bench.producer(name)
        if node is None or node.op_type in ("Shape", "Size") or name in seen:
            continue
        seen.add(name)
        wanted += node.input
    return False


def masks_of(bench: Workbench, site: Site) -> list[str]:
    """Return what a site's masks are made of: conditions and biases."""
    if isinstance(site, Operator):
        return [name for name in (bench.read(site.edge(3)),) if name]
    return [mask.condition or bench.read(mask.edge) for mask in site.masks]


def alignment(bench: Workbench, site: Site) -> Alignment | str:
    """Return how a site's mask is aligned, or why it is not causal.

    What the file is fed says nothing about the rule by which it masks: all masks given are open, and then all closed
    (a mask may be of either sense).
    """
    for fill in (1, 0):
        try:
            hidden, biased = _hidden(bench, site, fill)
        except _UnknownMaskError as error:
            return str(error)
        if (found := _aligned(hidden, biased)) is not None:
            return found
    return (
        "the file masks nothing by position alone: whether a mask that it is given is causal, it does not say"
    )


def _aligned(hidden: Bools, biased: bool) -> Alignment | None:
    queries, keys = hidden.shape[-2:]
    rows, columns = np.arange(queries)[:, None], np.arange(keys)
    ends: dict[Literal["top-left", "bottom-right"], int] = {"top-left": 0, "bottom-right": keys - queries}
    for end, offset in ends.items():
        future, last = columns > rows + offset, columns == rows + offset
        if future.any() and hidden[..., future].all() and not hidden[..., last].any():
            pure = bool((hidden == future).all()) and not biased
            return Alignment("square" if queries == keys else end, pure)
    return None


def _hidden(original: Workbench, site: Site, fill: int) -> tuple[Bools, bool]:
    """Return which keys the masks hide, (..., queries, keys), and whether they add anything to the others."""
    bench = original.copy()
    names = masks_of(bench, site)
    wanted = [*lengths(bench, site), *names]
    if isinstance(site, Operator) and (past := past_length(bench, site)):
        wanted.append(past)
    values = dict(zip(wanted, _evaluate(bench, wanted, fill), strict=True))
    queries, keys = (int(values[name].item()) for name in wanted[:2])
    hidden = np.zeros((queries, keys), bool)
    if isinstance(site, Operator):
        node = bench.producer(site.output)
        assert node is not None
        offset = int(values[wanted[-1]].item()) if past else 0
        if attribute(node, "is_causal", 0):
            hidden = hidden | ~np.tril(np.ones((queries, keys), bool), offset)
        senses = [False] * len(names)
    else:
        senses = [mask.hides_true for mask in site.masks]
    biased = False
    for name, hides_true in zip(names, senses, strict=True):
        hides = _hides(values[name], hides_true)
        hidden = hidden | hides
        biased = biased or (values[name].dtype != np.dtype(bool) and bool(np.any(values[name][~hides])))
    return hidden, biased


def _hides(mask: NDArray[Any], hides_true: bool) -> Bools:
    if mask.dtype == np.dtype(bool):
        return np.asarray(mask == hides_true)
    return np.asarray(mask.astype(np.float64) < -largest_of(mask.dtype) / 2)


def _evaluate(bench: Workbench, wanted: list[str], fill: int) -> list[NDArray[Any]]:
    graph = bench.graph
    fed = {
        v.name: _fed(v, sizes, fill)
        for sizes in (_sizes(graph),)
        for v in graph.input
        if v.name not in bench.constants
    }
    del graph.output[:]
    graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in wanted
    )
    try:
        with np.errstate(all="ignore"):
            return ReferenceEvaluator(bench.finish()).run(None, fed)  # type: ignore[no-any-return]
    except Exception as error:  # the evaluator raises what its operators like
        raise _UnknownMaskError(f"the mask cannot be evaluated: {type(error).__name__}: {error}") from error


def _sizes(graph: onnx.GraphProto) -> dict[str, int]:
    names = dict.fromkeys(
        axis.dim_param or f"{value.name}_{index}"
        for value in graph.input
        for index, axis in enumerate(value.type.tensor_type.shape.dim)
        if not _is_fixed(axis)
    )
    return dict(zip(names, [*_SIZES, *range(29, 29 + len(names))], strict=False))


def _is_fixed(axis: Any) -> bool:
    """Whether an axis has a size; some exporters write -1 where they know none."""
    return bool(axis.HasField("dim_value") and axis.dim_value >= 0)


def _fed(value: onnx.ValueInfoProto, sizes: dict[str, int], fill: int) -> NDArray[Any]:
    kind = value.type.tensor_type
    shape = [
        axis.dim_value if _is_fixed(axis) else sizes[axis.dim_param or f"{value.name}_{index}"]
        for index, axis in enumerate(kind.shape.dim)
    ]
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return np.full(shape, fill if dtype.kind in "biu" else 0, dtype)
