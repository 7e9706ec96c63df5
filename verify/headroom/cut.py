"""A softmax as a graph of its own: its nodes, with their attributes, dtypes and opsets, fed with any logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.verify.finder.found import Softmax
from onnx_attest.verify.finder.graph import NAMES, Scope, attribute, qualified
from onnx_attest.verify.headroom.inside import HEAD, last_query, standing_alone
from onnx_attest.verify.oracle.program import constants_in
from onnx_attest.verify.oracle.weights import is_beside
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.static.softmaxes import is_bounded

Floats = NDArray[np.float64]
_LOGITS, _WEIGHTS = "logits", "weights"


class UncutError(Exception):
    """A softmax cannot stand alone, and why."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A softmax that stands alone.

    Attributes:
        model: serialised; the same for two softmaxes that differ in names only.
        dtype: of the logits.
        largest: the largest logit that it can be given.
        feed: inputs by name, of logits (rows, keys).
        weights: (rows, keys) of the outputs, None where they cannot be seen.
        softmax: that was cut out.
        logarithm: the outputs are logarithms of the weights.
        sums: of the weights of each row, (rows,).
    """

    model: bytes
    dtype: np.dtype[Any]
    largest: float
    feed: Callable[[Floats], Tensors]
    sums: Callable[[Tensors], Floats]
    weights: Callable[[Tensors], NDArray[Any]] | None
    softmax: Softmax
    logarithm: bool = False

    def expected(self, logits: Floats) -> Floats:
        """Return what the weights of rows of logits (rows, keys) sum to: one, but for what is added to their sum."""
        added, floor = self.softmax.added, self.softmax.floor
        if not added and not floor:
            return np.ones(len(logits))
        exponents = logits * math.log(self.softmax.base)
        with np.errstate(all="ignore"):
            shift = exponents.max(-1, keepdims=True) if self.softmax.shifted else 0.0
            total = np.exp(exponents - shift).sum(-1)
            return np.where(np.isinf(total), 1.0, np.asarray(total / np.maximum(total + added, floor)))


def cut_out(model: onnx.ModelProto, softmax: Softmax, rank: int) -> Cut:
    """Return a softmax of a model's own graph as a model of its own.

    Args:
        model: that has it.
        softmax: as the finder found it.
        rank: of its logits; inside an operator, of no account.

    Raises:
        UncutError: it cannot stand alone.
    """
    if reason := _is_other(softmax):
        raise UncutError(reason)
    if softmax.kind not in NAMES:
        raise UncutError("the dtype that it computes in is not known, or not a floating one")
    if not softmax.logits:
        return _attention(model, softmax)
    return _nodes(model, softmax, rank, axis_of(softmax, rank))


def _is_other(softmax: Softmax) -> str:
    """Return why a softmax alone would say nothing of where its file breaks, "" if it would."""
    if softmax.late:
        return "its sum divides the product with the values: there are no weights that sum to one"
    if not softmax.shifted and is_bounded(softmax):
        return f"the graph keeps its logits between {softmax.least:g} and {softmax.largest:g}, where nothing breaks"
    return ""


def axis_of(softmax: Softmax, rank: int) -> int:
    """Return the axis that a softmax over logits of this rank sums along, from 0 on; the first, if it is a block of them.

    Raises:
        UncutError: it is not known, or there are several.
    """
    if softmax.block is not None:
        return softmax.block
    if softmax.axis is None:
        raise UncutError("it sums along several axes, or along one that is computed")
    return softmax.axis % rank


def rows_of(softmax: Softmax, logits: Floats) -> Floats:
    """Return logits of any shape as (rows, keys), as the softmax takes them."""
    axis = axis_of(softmax, logits.ndim)
    if softmax.block is not None:
        return logits.reshape(math.prod(logits.shape[:axis]), -1)
    moved = np.moveaxis(logits, axis, -1)
    return moved.reshape(-1, moved.shape[-1])


def _constants(model: onnx.ModelProto, names: set[str]) -> dict[str, NDArray[Any]]:
    """Return those of a few values that are constants of the file itself."""
    graph = onnx.GraphProto()
    graph.initializer.extend(
        one for one in model.graph.initializer if one.name in names and not is_beside(one)
    )
    graph.node.extend(one for one in model.graph.node if one.op_type == "Constant" and one.output[0] in names)
    return constants_in(graph)


def _nodes(model: onnx.ModelProto, softmax: Softmax, rank: int, axis: int) -> Cut:
    kind = softmax.scope.kind(softmax.logits) or softmax.kind
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    nodes, constants = _standing_alone(model, softmax)
    if math.isinf(softmax.added) or math.isinf(softmax.floor):
        raise UncutError("what is added to its sum is computed: nothing says what its weights sum to")
    graph = onnx.helper.make_graph(
        nodes,
        "softmax",
        [onnx.helper.make_tensor_value_info(_LOGITS, kind, [f"d{index}" for index in range(rank)])],
        [onnx.helper.make_empty_tensor_value_info(_WEIGHTS)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    is_log = softmax.form.endswith(("LogSoftmax", "/Sub"))
    across = next((index for index in range(rank) if index != axis), None)
    if softmax.block is not None:
        across = 0 if axis else None

    def feed(logits: Floats) -> Tensors:
        shape = [1] * rank
        shape[axis] = logits.shape[1]
        if across is None:
            return {_LOGITS: _stored(logits[:1].reshape(shape), dtype)}
        shape[across] = logits.shape[0]
        ordered = logits if across < axis else logits.T
        return {_LOGITS: _stored(ordered.reshape(shape), dtype)}

    def weights(outputs: Tensors) -> NDArray[Any]:
        given = outputs[_WEIGHTS]
        if is_log:
            with np.errstate(all="ignore"):
                given = np.exp(given.astype(np.float64)).astype(given.dtype)
        flat = np.moveaxis(given, axis, -1)
        return flat.reshape(-1, flat.shape[-1])  # the axes of a block beyond its first have a length of 1

    return Cut(
        _serialised(model, graph), dtype, _largest(dtype), feed, lambda outputs: _sums(weights(outputs)), weights,
        softmax, is_log,
    )  # fmt: skip


def _stored(logits: Floats, dtype: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # what hides a key may be the lowest number already
        return logits.astype(dtype)


def _sums(weights: NDArray[Any]) -> Floats:
    return np.asarray(weights.astype(np.float64).sum(-1))


def _largest(dtype: np.dtype[Any]) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).max)


def _standing_alone(
    model: onnx.ModelProto, softmax: Softmax
) -> tuple[list[onnx.NodeProto], dict[str, NDArray[Any]]]:
    """Return the nodes under names of their own, and the constants that they need.

    Raises:
        UncutError: they need what is computed elsewhere in the graph.
    """
    nodes = _between(softmax)
    made = [name for node in nodes for name in node.output if name]
    outside = [
        name for node in nodes for name in node.input if name and name != softmax.logits and name not in made
    ]
    held = _constants(model, set(outside))
    if lacking := [name for name in outside if name not in held]:
        raise UncutError(f"it needs {lacking[0]}, which is computed elsewhere")
    names = {"": "", softmax.logits: _LOGITS}
    names |= {name: f"v{index}" for index, name in enumerate(dict.fromkeys([*outside, *made]))}
    names[softmax.weights] = _WEIGHTS
    return [_renamed(node, names) for node in nodes], {names[name]: held[name] for name in outside}


def _between(softmax: Softmax) -> list[onnx.NodeProto]:
    """Return the nodes that the weights need, from the logits on, in the order of the graph."""
    scope: Scope = softmax.scope
    used: set[int] = set()
    wanted = [scope.makers[softmax.weights]]
    while wanted:
        node = wanted.pop()
        if id(node) not in used:
            used.add(id(node))
            wanted += [
                scope.makers[name] for name in node.input if name != softmax.logits and name in scope.makers
            ]
    return [node for node in scope.nodes if id(node) in used]


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    copy = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    copy.attribute.extend(node.attribute)
    copy.input.extend(names[name] for name in node.input)
    copy.output.extend(names[name] for name in node.output)
    return copy


def _serialised(model: onnx.ModelProto, graph: onnx.GraphProto) -> bytes:
    made = onnx.helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    return bytes(made.SerializeToString(deterministic=True))


def _attention(model: onnx.ModelProto, softmax: Softmax) -> Cut:
    """Return an attention operator with V = 1, whose output is the sum of the weights."""
    (node,) = softmax.nodes
    kind = softmax.kind
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    alone = standing_alone(node, dtype)
    if alone is None:
        raise UncutError(f"a {qualified(node)} hides its logits, and is not cut out")
    scale = attribute(node, "scale") or HEAD**-0.5
    infos = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(given.dtype) if given.dtype != dtype else kind, given.axes
        )
        for name, given in alone.inputs.items()
    ]  # fmt: skip
    held = [onnx.numpy_helper.from_array(array, name) for name, array in alone.constants.items()]
    alone.node.output[:] = [_WEIGHTS, *[f"other{index}" for index in range(alone.more_outputs)]]
    outputs = [onnx.helper.make_empty_tensor_value_info(_WEIGHTS)]
    graph = onnx.helper.make_graph([alone.node], "attention", infos, outputs, held)
    largest = _largest(dtype) * min(1.0, scale) / 2  # q.k is formed before the scale, and rounded

    def feed(logits: Floats) -> Tensors:
        tops = np.abs(logits).max(-1)
        length = np.sqrt(np.where(tops > 0, tops, 1.0) / scale)
        return alone.feed(length, logits / (length * scale)[:, None])

    return Cut(
        _serialised(model, graph), dtype, largest, feed,
        lambda outputs: last_query(outputs[_WEIGHTS]), None, softmax,
    )  # fmt: skip
