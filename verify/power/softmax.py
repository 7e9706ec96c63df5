"""Faults of the softmax, and the softmax in steps that is right."""

from __future__ import annotations

from collections.abc import Callable

from onnx_attest.verify.power.fault import Fault, Inapplicable, Offer, in_chain
from onnx_attest.verify.power.sites import Chain
from onnx_attest.verify.power.workbench import Workbench

EPSILON = 1e-6


def faults(naive: bool) -> Offer:
    """Yield the faults of a softmax; `naive` says that it subtracts no maximum as it is."""
    yield in_chain("softmax-axis", "softmax over the queries", _of(_over_queries))
    if naive:
        yield Inapplicable("softmax-no-max", "the file subtracts no maximum as it is")
    else:
        yield in_chain("softmax-no-max", "softmax without the maximum subtracted", _of(_without_maximum))
    yield in_chain("softmax-epsilon", f"denominator + {EPSILON:g}", _of(_with_epsilon), size=EPSILON)
    yield in_chain("softmax-plus-one", "exp / (1 + sum)", _of(_plus_one))


def in_steps() -> Fault:
    """Return the rewriting that is right: the maximum subtracted, exponentials, their sum, the quotient."""
    return in_chain("none", "softmax in steps", _of(_in_steps))


def as_operator() -> Fault:
    """Return the rewriting that is right: the softmax as the operator of that name."""
    return in_chain("none", "softmax as one operator", _of(lambda bench, x: bench.op("Softmax", x, axis=-1)))


def _of(softmax: Callable[[Workbench, str], str]) -> Callable[[Workbench, Chain], None]:
    """Return the change that puts this function of the scores in the softmax' place."""

    def change(bench: Workbench, chain: Chain) -> None:
        bench.replace(chain.probabilities, lambda _: softmax(bench, chain.scores))

    return change


def _exponentials(bench: Workbench, scores: str) -> str:
    return bench.op("Exp", bench.op("Sub", scores, bench.reduce("ReduceMax", scores)))


def _over_queries(bench: Workbench, scores: str) -> str:
    return bench.op("Softmax", scores, axis=-2)


def _in_steps(bench: Workbench, scores: str) -> str:
    exponentials = _exponentials(bench, scores)
    return bench.op("Div", exponentials, bench.reduce("ReduceSum", exponentials))


def _without_maximum(bench: Workbench, scores: str) -> str:
    exponentials = bench.op("Exp", scores)
    return bench.op("Div", exponentials, bench.reduce("ReduceSum", exponentials))


def _with_epsilon(bench: Workbench, scores: str) -> str:
    exponentials = _exponentials(bench, scores)
    total = bench.reduce("ReduceSum", exponentials)
    epsilon = bench.constant(EPSILON, bench.dtype(scores))
    return bench.op("Div", exponentials, bench.op("Add", total, epsilon))


def _plus_one(bench: Workbench, scores: str) -> str:
    """Return exp(x) / (1 + sum exp(x)), from max(x, 0) so that a row without any key gives 0."""
    zero = bench.constant(0.0, bench.dtype(scores))
    top = bench.op("Max", bench.reduce("ReduceMax", scores), zero)
    exponentials = bench.op("Exp", bench.op("Sub", scores, top))
    one = bench.op("Exp", bench.op("Neg", top))
    return bench.op("Div", exponentials, bench.op("Add", bench.reduce("ReduceSum", exponentials), one))
