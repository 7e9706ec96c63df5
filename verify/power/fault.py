"""What a fault is: its class, its size, and the change that puts it into a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from onnx_attest.verify.power.sites import Chain, Site
from onnx_attest.verify.power.workbench import Workbench

FP32_RESOLUTION = 2.0**-24
"""Half a unit in the last place of 1: a relative error of this size is what storing a number in float32 costs."""

CLASSES: dict[str, str] = {
    "scale": "the logits multiplied by 1 + size",
    "scale-1/d": "1/d in place of 1/sqrt(d)",
    "scale-d+1": "1/sqrt(d + 1) in place of 1/sqrt(d)",
    "scale-none": "no scale",
    "scale-twice": "the scale applied twice",
    "causal-future": "each query sees one key of the future",
    "causal-misses-last": "each query misses the last key it may see",
    "causal-missing": "no causal mask",
    "causal-inverted": "each query sees the future, and nothing else",
    "causal-alignment": "the causal mask aligned at the other end where queries and keys differ in number",
    "mask-fill": "a finite number, the size, in place of -inf",
    "mask-ignored": "no mask",
    "softmax-axis": "softmax over the queries",
    "softmax-no-max": "softmax without the maximum subtracted",
    "softmax-epsilon": "the size added to the denominator",
    "softmax-plus-one": "exp / (1 + sum)",
    "key-dropped": "one key hidden",
    "key-duplicated": "one key counted twice",
    "key-stale": "one key and its value replaced by the ones before",
    "key-reshaped": "the keys reshaped, not transposed",
    "value-rolled": "the values rolled by one along the keys",
    "heads-rolled": "the heads of the output rolled by one",
    "heads-interleaved": "the heads merged without transposing back",
    "weights-fp16": "the weights cast through float16",
    "weights-bf16": "the weights cast through bfloat16",
    "logits-fp16": "the logits cast through float16",
    "logits-bf16": "the logits cast through bfloat16",
    "products-tf32": "the operands of both products rounded to 11 significant bits",
    "accumulate-fp16": "the sums of both products kept in float16 between 8 blocks, in float32 within one",
    "int8-scale": "keys and values in int8, multiplied back with a scale that is off by the size",
    "bias-dropped": "a projection without its bias",
    "traced-length": "keys beyond the traced length ignored",
}
"""Every class of fault and what it does; "none", which is not one of them, is a correct rewriting."""


@dataclass(frozen=True)
class Fault:
    """A fault that can be put into one attention.

    Attributes:
        kind: one of CLASSES, or "none".
        apply: changes a workbench at the site; returns the size that came out where a constant had to be rounded.
        opens: it goes between the nodes of an attention: an operator is taken apart first.
    """

    kind: str
    size: float | None
    label: str
    apply: Callable[[Workbench, Site], float | None]
    opens: bool = False
    above_fp32: bool = True


@dataclass(frozen=True)
class Inapplicable:
    """A class that this attention cannot have, and why."""

    kind: str
    reason: str


Offer = Iterator[Fault | Inapplicable]


def in_chain(
    kind: str, label: str, change: Callable[[Workbench, Chain], None], *, size: float | None = None
) -> Fault:
    """Return a fault that goes between the nodes."""

    def apply(bench: Workbench, site: Site) -> None:
        assert isinstance(site, Chain)
        change(bench, site)

    return Fault(kind, size, label, apply, opens=True)
