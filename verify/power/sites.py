"""Where the attentions of a graph are that faults are put into: those of the finder whose nodes can be changed."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from onnx_attest.verify.finder.find import find
from onnx_attest.verify.finder.found import Attention, Mask, Softmax
from onnx_attest.verify.finder.graph import attribute as given
from onnx_attest.verify.finder.graph import qualified
from onnx_attest.verify.power.workbench import Edge, Workbench

_MOVES = ("Reshape", "Transpose", "Identity", "Cast", "Unsqueeze", "Squeeze")
"""They hand numbers on."""
_BEFORE = (*_MOVES, "Add", "Where", "Mul", "Div", "Tanh")
_AFTER = ("Where", "Cast", "Identity", "Dropout", "Reshape")
_NAIVE, _SHIFTED = "Exp/ReduceSum/Div", "ReduceMax/Sub/Exp/ReduceSum/Div"


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
        scales: constants of the file that the logits are multiplied with.
        scale: the product of all factors, None if one is not a number of the file.
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
    scale: float | None
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
    return [site for site in _looked_at(bench) if not isinstance(site, str)]


def untouched(bench: Workbench) -> list[str]:
    """Return the attentions that are there and are not taken apart, each with the reason."""
    return [site for site in _looked_at(bench) if isinstance(site, str)]


def _looked_at(bench: Workbench) -> list[Site | str]:
    found: list[Site | str] = []
    for attention in find(bench.model).attentions:
        if (reason := _why_not(bench, attention)) is not None:
            found.append(f"{attention.node} is {reason}")
        elif attention.is_operator:
            found.append(Operator(attention.node, attention.output))
        else:
            found.append(_chain(bench, attention))
    return found


def _why_not(bench: Workbench, attention: Attention) -> str | None:
    """Return what an attention is that faults are not written for, None if they are."""
    if bench.producer(attention.output) is None:
        return "in a function, or in the body of another node"
    if attention.is_operator:
        return None if attention.form == "Attention" else attention.form
    if qualified(attention.product) != "MatMul" or qualified(attention.second) != "MatMul":
        return attention.form
    if attention.keys_at != 1 or attention.second.input[0] != _read(attention):
        return f"{attention.form} with the keys first"
    if (reason := _other_softmax(attention.softmax)) is not None:
        return reason
    others = [
        node.op_type
        for node, known in (
            *((one, _BEFORE) for one in attention.before),
            *((one, _AFTER) for one in attention.after),
        )
        if qualified(node) not in known
    ]
    if others:
        return f"{attention.form} with {others[0]} between the products"
    multiplied = [mask for mask in attention.masks if mask.form == "Mul"]
    return f"{attention.form} with logits that {multiplied[0].node} multiplies" if multiplied else None


def _read(attention: Attention) -> str:
    """Return the weights as the second product reads them."""
    return str(attention.after[-1].output[0] if attention.after else attention.softmax.weights)


def _other_softmax(softmax: Softmax) -> str | None:
    """Return what a softmax is that is not written in another way, None if it is an ordinary one over the last axis."""
    if softmax.form not in ("Softmax", _NAIVE, _SHIFTED):
        return f"an attention with a softmax by {softmax.form}"
    if softmax.late or softmax.added or softmax.floor or not _is_plain(softmax):
        return "an attention whose softmax is written with a guard or a mask of its own"
    return None if softmax.axis == -1 else "an attention whose softmax is not over the last axis"


def _is_plain(softmax: Softmax) -> bool:
    """Whether nothing stands between the steps: a rewriting would lose it."""
    steps = [node.op_type for node in softmax.nodes]
    if softmax.form == _SHIFTED:
        top = softmax.scope.maker(softmax.nodes[0].input[1])
        return steps == ["Sub", "Exp", "ReduceSum", "Div"] and top is not None and top.op_type == "ReduceMax"
    return softmax.form != _NAIVE or steps == ["Exp", "ReduceSum", "Div"]


def _chain(bench: Workbench, attention: Attention) -> Chain:
    softmax, masks = attention.softmax, attention.masks[::-1]  # from the softmax upwards
    scales = [
        ScaleNode(Edge(one.output, one.index), one.factor, one.divides)
        for one in attention.scales
        if one.output and bench.read(Edge(one.output, one.index)) in bench.constants
    ]
    return Chain(
        name=attention.node,
        product=attention.product.output[0],
        logits=bench.read(Edge(masks[-1].output, masks[-1].index)) if masks else softmax.logits,
        masked=masks[0].output if masks else softmax.logits,
        scores=softmax.logits,
        probabilities=softmax.weights,
        naive=softmax.form == _NAIVE,
        output=attention.output,
        scales=tuple(scales),
        scale=attention.scale,
        masks=tuple(map(_mask_node, masks)),
    )


def _mask_node(mask: Mask) -> MaskNode:
    if mask.form != "Where":
        return MaskNode(Edge(mask.output, 1 - mask.index))
    return MaskNode(Edge(mask.output, 3 - mask.index), mask.value, hides_true=mask.index == 2)


def is_standard(node: onnx.NodeProto) -> bool:
    """Whether a node's operator is one of ONNX's own."""
    return node.domain in ("", "ai.onnx")


def attribute(node: onnx.NodeProto, name: str, default: int | float) -> int | float:
    """Return an attribute that is a number, or its default."""
    value = given(node, name)
    return default if value is None else value
