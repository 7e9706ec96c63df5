"""What the finder finds."""

from __future__ import annotations

import math
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
        late: the division stands behind the product with the values: `weights` is the exponentials.
        base: of the exponentials.
        largest, least: what the logits are kept between by the graph itself, where no key is hidden.
        added: to the sum S that the exponentials are divided by, inf if it is not a number of the file: then the
            weights sum to S / (S + added).
        floor: what S is at least taken for.
        guarded: neither the maximum of a row without any key is -inf, nor its sum 0: its weights are 0.
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
    late: bool = False
    base: float = math.e
    largest: float = math.inf
    least: float = -math.inf
    added: float = 0.0
    floor: float = 0.0
    guarded: bool = False


@dataclass(frozen=True)
class Scale:
    """A constant factor of the logits, and the node that applies it.

    Attributes:
        where: q, k or logits.
        output: of the node; "" of an operator's own scale.
        index: of the node's input that holds the number.
        divides: by the number, which is one over the factor.
    """

    node: str
    factor: float
    where: str
    output: str = ""
    index: int = 0
    divides: bool = False


@dataclass(frozen=True)
class Mask:
    """What hides keys.

    Attributes:
        node: that applies it.
        form: `Add`, `Where`, or the operator that reads it.
        value: name of what it reads: of Add the bias, of Where the condition.
        hiding: the number that hidden logits become, or that is added to them; None if it is not a constant.
        before_softcap: it is applied to logits that are then capped.
        output: of the node.
        index: of the node's input that holds the logits.
    """

    node: str
    form: str
    value: str
    hiding: float | None
    before_softcap: bool = False
    output: str = ""
    index: int = 0


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
        product, second: the nodes that multiply queries with keys, and weights with values; None of an operator.
        keys_at: which factor of the first product (0 or 1) is the keys.
        summed: axis of the weights that the second product sums, counted from the end; None if it is not known.
        rotated: queries or keys are put together of their parts on the way, as a rotary embedding does.
        before, after: the nodes from the first product to the softmax, and from there to the second.
        terms: lengths of the rows of further products that are added to the logits, 0 where one is not known.
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
    second: Any = field(default=None, repr=False)
    keys_at: int = 1
    summed: int | None = None
    rotated: bool = False
    before: tuple[Any, ...] = field(default=(), repr=False)
    after: tuple[Any, ...] = field(default=(), repr=False)
    terms: tuple[int, ...] = ()

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
