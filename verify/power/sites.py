"""Where the attentions of a graph are: as one operator, or as products with a softmax between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from onnx_attest.verify.power.workbench import Edge, Workbench

_MOVES = ("Reshape", "Transpose", "Identity", "Cast", "Unsqueeze", "Squeeze")
"""They hand numbers on: a scale may stand before them."""
CONTRIB_ATTENTIONS = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention",
                      "PackedMultiHeadAttention", "PackedAttention")  # fmt: skip
"""Of com.microsoft."""


@dataclass(frozen=True)
class ScaleNode:
    """A Mul or Div by a constant number.

    Attributes:
        edge: where the constant is read.
        factor: what the node multiplies with.
    """

    edge: Edge
    factor: float
    divides: bool


@dataclass(frozen=True)
class MaskNode:
    """A node that hides keys: Add of a bias, or Where between the logits and a number.

    Attributes:
        edge: where the bias, or the number, is read.
        condition: what Where chooses by; "" for Add.
        hides_true: Where takes the number where the condition is true.
    """

    edge: Edge
    condition: str = ""
    hides_true: bool = False


@dataclass(frozen=True)
class Operator:
    """One attention as an operator of ONNX: what it reads is at the edges 0 to 6 of its node."""

    name: str
    output: str

    def edge(self, index: int) -> Edge:
        """Return where an input is read: query, key, value, mask, past key, past value."""
        return Edge(self.output, index)


@dataclass(frozen=True)
class Chain:
    """One attention as several nodes.

    Attributes:
        name: of the node that multiplies the weights with the values.
        product: the product of queries and keys, by its output.
        logits: scaled, capped and without mask.
        masked: after the last node that hides keys; the same as `logits` if none does.
        scores: what the softmax reads: `masked`, or a cast or another shape of it.
        probabilities: what the softmax gives.
        naive: the softmax is Exp, ReduceSum and Div.
        output: of the second product, which reads weights and values.
        scales: all constants that the logits are multiplied with.
    """

    name: str
    product: str
    logits: str
    masked: str
    scores: str
    probabilities: str
    naive: bool
    output: str
    scales: tuple[ScaleNode, ...]
    masks: tuple[MaskNode, ...]

    @property
    def query(self) -> Edge:
        """Where the first product reads the queries (..., queries, d)."""
        return Edge(self.product, 0)

    @property
    def key(self) -> Edge:
        """Where the first product reads the keys, transposed (..., d, keys)."""
        return Edge(self.product, 1)

    @property
    def weights(self) -> Edge:
        """Where the second product reads the weights (..., queries, keys)."""
        return Edge(self.output, 0)

    @property
    def value(self) -> Edge:
        """Where the second product reads the values (..., keys, d_v)."""
        return Edge(self.output, 1)


Site = Operator | Chain


def find_sites(bench: Workbench) -> list[Site]:
    """Return the attentions of a graph in its order."""
    found: list[Site] = []
    for node in bench.graph.node:
        if is_standard(node) and node.op_type == "Attention":
            found.append(Operator(node.name or node.output[0], node.output[0]))
        elif (softmax := _softmax(bench, node)) and (chain := _chain(bench, node, *softmax)):
            found.append(chain)
    return found


def untouched(model: onnx.ModelProto) -> list[str]:
    """Return the attentions that are there and are not taken apart, each with its operator."""
    return [
        f"{node.name or node.output[0]} is {node.domain}.{node.op_type}"
        for node in model.graph.node
        if node.domain == "com.microsoft" and node.op_type in CONTRIB_ATTENTIONS
    ]


def is_standard(node: onnx.NodeProto) -> bool:
    """Whether a node's operator is one of ONNX's own."""
    return node.domain in ("", "ai.onnx")


def _softmax(bench: Workbench, node: onnx.NodeProto) -> tuple[str, bool] | None:
    """Return what a softmax over the last axis reads and whether it is written out; None if the node ends none."""
    if not is_standard(node):
        return None
    if node.op_type == "Softmax":
        axis, shape = attribute(node, "axis", -1), bench.shape(node.input[0])
        return (node.input[0], False) if axis == -1 or (shape and axis == len(shape) - 1) else None
    if node.op_type != "Div":
        return None
    exponential, total = (bench.producer(name) for name in node.input)
    if exponential is None or total is None or (exponential.op_type, total.op_type) != ("Exp", "ReduceSum"):
        return None
    if total.input[0] != node.input[0]:
        return None
    shift = bench.producer(exponential.input[0])
    if shift is not None and shift.op_type == "Sub" and _is_maximum(bench, shift):
        return shift.input[0], False
    return exponential.input[0], True


def _is_maximum(bench: Workbench, shift: onnx.NodeProto) -> bool:
    top = bench.producer(shift.input[1])
    return top is not None and top.op_type == "ReduceMax" and top.input[0] == shift.input[0]


def attribute(node: onnx.NodeProto, name: str, default: int | float) -> int | float:
    """Return an attribute that is a number, or its default."""
    for given in node.attribute:
        if given.name == name:
            return onnx.helper.get_attribute_value(given)  # type: ignore[no-any-return]
    return default


@dataclass
class _Path:
    """What was met between the softmax and the product, from the softmax upwards."""

    scales: list[ScaleNode]
    masks: list[tuple[MaskNode, str, str]]  # with what it reads of the logits, and what it gives
    product: str = ""


def _chain(bench: Workbench, node: onnx.NodeProto, scores: str, naive: bool) -> Chain | None:
    path, second = _up(bench, scores), _down(bench, node.output[0])
    if path is None or second is None:
        return None
    product = bench.producer(path.product)
    assert product is not None
    scales = (*path.scales, *_before(bench, Edge(path.product, 0)), *_before(bench, Edge(path.product, 1)))
    return Chain(
        name=second.name or second.output[0],
        product=path.product,
        logits=path.masks[-1][1] if path.masks else scores,
        masked=path.masks[0][2] if path.masks else scores,
        scores=scores,
        probabilities=node.output[0],
        naive=naive,
        output=second.output[0],
        scales=scales,
        masks=tuple(mask for mask, _, _ in path.masks),
    )


def _up(bench: Workbench, value: str) -> _Path | None:
    """Return the way from the softmax up to the product of queries and keys, None if there is no such way."""
    node = bench.producer(value)
    if node is None or not is_standard(node):
        return None
    if node.op_type == "MatMul":
        if any(name in bench.constants for name in node.input):
            return None  # a linear map: a softmax over classes
        return _Path([], [], value)
    for index, name in enumerate(node.input):
        if (index, node.op_type) == (0, "Where") or name in bench.constants:
            continue
        path = _up(bench, name) if node.op_type in ("Add", "Where", "Mul", "Div", "Tanh", *_MOVES) else None
        if path is not None and _note(bench, path, node, index):
            return path
    return None


def _note(bench: Workbench, path: _Path, node: onnx.NodeProto, index: int) -> bool:
    """Write a node on the way down; False if it is not one of an attention's."""
    if node.op_type in ("Mul", "Div"):
        scale = _scale(bench, node, index)
        capped = _is_cap(bench, node, index)
        if scale is None:
            return False
        path.scales += [] if capped else [scale]
    elif node.op_type in ("Add", "Where"):
        other = 3 - index if node.op_type == "Where" else 1 - index
        where = node.op_type == "Where"
        mask = MaskNode(Edge(node.output[0], other), node.input[0] if where else "", where and other == 1)
        path.masks.insert(0, (mask, node.input[index], node.output[0]))
    return True


def _is_cap(bench: Workbench, node: onnx.NodeProto, index: int) -> bool:
    """Whether a Mul or Div belongs to cap tanh(s / cap)."""
    before = bench.producer(node.input[index])
    after = bench.consumers(node.output[0])
    return (before is not None and before.op_type == "Tanh") or any(n.op_type == "Tanh" for n in after)


def _scale(bench: Workbench, node: onnx.NodeProto, index: int) -> ScaleNode | None:
    constant = bench.constants.get(node.input[1 - index])
    if constant is None or constant.size != 1 or (node.op_type == "Div" and index == 1):
        return None
    number = float(np.asarray(constant, np.float64).reshape(-1)[0])
    divides = node.op_type == "Div"
    factor = 1 / number if divides and number else number
    return ScaleNode(Edge(node.output[0], 1 - index), factor, divides)


def _before(bench: Workbench, edge: Edge) -> Iterator[ScaleNode]:
    """Yield the constants that queries, or keys, are multiplied with before their product."""
    node = bench.producer(bench.read(edge))
    while node is not None and is_standard(node):
        if node.op_type in ("Mul", "Div"):
            indices = [index for index, name in enumerate(node.input) if name not in bench.constants]
            scale = _scale(bench, node, indices[0]) if len(indices) == 1 else None
            if scale is None:
                return
            yield scale
            node = bench.producer(node.input[indices[0]])
        elif node.op_type in _MOVES:
            node = bench.producer(node.input[0])
        else:
            return


def _down(bench: Workbench, value: str) -> onnx.NodeProto | None:
    """Return the product that reads the weights, past a guard against NaN."""
    for node in bench.consumers(value):
        if node.op_type == "MatMul" and node.input[0] == value:
            return node
        through = node.op_type in ("Where", "Cast", "Identity", "Dropout", "Reshape")
        if through and is_standard(node):
            found = _down(bench, node.output[0])
            if found is not None:
                return found
    return None
