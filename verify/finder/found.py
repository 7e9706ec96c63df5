"""What the finder finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from onnx_attest.verify.finder.graph import Scope


@dataclass(frozen=True, eq=False)
class Softmax:
    """One softmax over an axis.

    Attributes:
        node: name of the node that gives the weights.
        form: its operators, `Exp/ReduceSum/Div` for example, or the operator that it is inside of.
        nodes: from the logits to the weights.
        logits: name of the value that it reads; "" inside an operator.
        weights: name of the value that it gives; of an attention operator, its output.
        axis: counted from the end (-1 is the last); None if it is not known, or there are several.
        shifted: whether each row's maximum is subtracted before the exponential, by the graph or by definition.
        block: an operator below opset 13: all axes from this one on are one row.
        kind: element type that it computes in.
    """

    scope: Scope = field(repr=False)
    node: str
    form: str
    nodes: tuple[Any, ...] = field(repr=False)
    logits: str
    weights: str
    axis: int | None = -1
    shifted: bool = True
    block: int | None = None
    kind: int = 0


@dataclass(frozen=True)
class Scale:
    """A constant factor of the logits, and the node that applies it; `where` is q, k or logits."""

    node: str
    factor: float
    where: str


@dataclass(frozen=True)
class Mask:
    """What hides keys.

    Attributes:
        node: that applies it.
        form: `Add`, `Where`, or the operator that reads it.
        value: name of what it reads: of Add the bias, of Where the condition.
        hiding: the number that hidden logits become, or that is added to them; None if it is not a constant.
        before_softcap: it is applied to logits that are then capped.
    """

    node: str
    form: str
    value: str
    hiding: float | None
    before_softcap: bool = False


@dataclass(frozen=True, eq=False)
class Attention:
    """One attention: softmax(scale q k^T, capped and masked) v.

    Attributes:
        node: name of the node that gives the output: of the product with the values, or the operator.
        form: `MatMul/Softmax/MatMul` for example, or the operator.
        query, key, value: names of the values that it reads, before scales and moves.
        scale: product of all constant factors; None if one is computed from an input's sizes or numbers.
        head_size: length of the rows of q and k, None if it is not a number in the file.
        softcap: 0 if there is none.
        guard: what follows may replace rows without any key: `NaN` where it looks for NaN, `other` where it chooses by
            something else, "" where nothing does.
    """

    softmax: Softmax
    node: str
    form: str
    output: str
    query: str
    key: str
    value: str
    scale: float | None
    scales: tuple[Scale, ...] = ()
    masks: tuple[Mask, ...] = ()
    head_size: int | None = None
    softcap: float = 0.0
    causal: bool = False
    guard: str = ""
    product: Any = field(default=None, repr=False)

    @property
    def scope(self) -> Scope:
        """The graph that it is in."""
        return self.softmax.scope

    @property
    def is_operator(self) -> bool:
        """Whether it is one node."""
        return self.product is None


@dataclass(frozen=True, eq=False)
class Found:
    """All of a model, in the order of its graphs."""

    scopes: tuple[Scope, ...]
    softmaxes: tuple[Softmax, ...]
    attentions: tuple[Attention, ...]
