"""docs/relations.md, generated: what each relation is, how exact it is, and who asks for it."""

from __future__ import annotations

from onnx_attest.verify.metamorphic.relation import ABOUT

_INTRO = """# Relations

A relation says what the outputs for changed inputs have to be, given the outputs before: twice V gives twice the output, the future replaced changes nothing. A runtime is held against itself, on one small case: no exact value and no other party is needed.

`onnx-attest verify FILE` looks at them all on every runtime, beside its other gates. `onnx-attest verify FILE --relations-only` switches the reference off: nothing is compared with an exact value or with another party, and the relations that the file's contract promises give the verdict. Where the contract promises none, that is exit code 3, and what was found to hold is told as facts.

Who says that a relation has to hold: the **contract** (roles, kinds of masks, batch axes, `causal`); beside the reference, for the others, the file's **graph in float64**. What nobody asks for is a fact, of which only a disagreement between runtimes is an error (OA503). A promise that the graph itself breaks in float64 is OA504.

How exact: *bitwise* ones are the same bits or broken (OA501). The others may differ by the sum of both runs' bounds (OA502): the bounds are those of the file's own graph for the declared arithmetic, with the error of inputs that had to be rounded, or that an earlier run gave. V = 1 and the range of V need no evaluation: their limit is the bound's closed form, 2 gamma(n + 2) + 2 u and the output's own roundings. Nothing is typed by hand. Where the oracle lacks an operator, or a bound is as large as the outputs, a relation that does not hold bit by bit is inconclusive, and says so.

| relation | statement | how exact | asked for by |
|---|---|---|---|
"""
_END = """
*Bare attention*: queries, keys and values are inputs, and no constant is multiplied with them or added to them first.

## Not bitwise, and why

* `queries-permuted`: where the softmax is written out, ONNX Runtime's ReduceSum over the last axis adds up a row in an order that depends on the row's place: the rows of (5, 9) in another order give other bits. Its Exp, and a Softmax node, do not depend on the place.
* `batch-singles`, `causal-prefix`, `padding-trimmed`: matrix products choose their blocks by the sizes.

## What no relation sees

A wrong scale, a softmax of another temperature, a bias that is left out, a wrong constant: the file is then another function with the same symmetries. A cast of the logits to fewer bits stays within a bound where the bound is wide. Those need the reference. `future-nan` is found out and not judged: 0 times NaN is NaN, and a kernel that multiplies with the mask's zeros does nothing that ONNX forbids.
"""


def markdown() -> str:
    """Return docs/relations.md."""
    rows = (
        f"| `{name}` | {about.statement} | {about.exactness} | {about.asked} |\n"
        for name, about in ABOUT.items()
    )
    return _INTRO + "".join(rows) + _END
