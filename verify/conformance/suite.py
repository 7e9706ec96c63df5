"""ONNX's own cases of the operators that attention models are made of, as an operator and expanded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from onnx_attest.verify.conformance.case import OPERATORS, Case, Form, node_of
from onnx_attest.verify.conformance.features import features_of
from onnx_attest.verify.gates import Tolerance
from onnx_attest.verify.node_cases import NodeCase, as_array, cases_of_modules

_MODULES = (
    "attention", "flexattention", "gelu", "layernormalization", "linear_attention", "logsoftmax", "rmsnormalization",
    "rotaryembedding", "softmax", "tensorscatter",
)  # fmt: skip
"""ONNX's modules that define the cases of OPERATORS."""
_EXPANDED = "_expanded"


def suite(operators: Sequence[str] = tuple(OPERATORS)) -> list[Case]:
    """Return ONNX's cases of these operators, in ONNX's order.

    An expanded case belongs to the operator whose function body it is: the one in the graph of the case of the same
    name without `_expanded` and what follows.
    """
    found = cases_of_modules(_MODULES)
    made = [_case(node, operator, found) for node in found.values() if (operator := _operator(node, found))]
    return [case for case in made if case.operator in operators]


def _operator(case: NodeCase, cases: Mapping[str, NodeCase]) -> str:
    """Return what a case is about, "" if it is none of OPERATORS."""
    base = cases.get(_base_name(case), case)
    return next((name for name in OPERATORS if node_of(base.model, name) is not None), "")


def _base_name(case: NodeCase) -> str:
    return case.name.partition(_EXPANDED)[0]


def _case(node: NodeCase, operator: str, cases: Mapping[str, NodeCase]) -> Case:
    (given, expected), *further = node.data
    if further:
        raise ValueError(f"ONNX's case {node.name} has {len(node.data)} data sets, one is read")
    base = cases.get(_base_name(node), node)
    form: Form = "operator" if base is node else "expanded"
    inputs = {v.name: as_array(a) for v, a in zip(node.model.graph.input, given, strict=True)}
    return Case(
        node.name,
        "onnx",
        operator,
        form,
        features_of(base.model, operator, inputs),
        node.model,
        ((form, node.model), *_others(node, base, cases)),
        inputs,
        {v.name: as_array(a) for v, a in zip(node.model.graph.output, expected, strict=True)},
        Tolerance(node.atol, node.rtol),
    )


def _others(
    node: NodeCase, base: NodeCase, cases: Mapping[str, NodeCase]
) -> tuple[tuple[Form, onnx.ModelProto], ...]:
    """Return the operator of an expanded case; of the operator its body, in its own opset rather than in a later one."""
    if base is not node:
        return (("operator", base.model),)
    bodies = [case for name, case in cases.items() if name.startswith(node.name + _EXPANDED)]
    return tuple(("expanded", case.model) for case in sorted(bodies, key=lambda case: len(case.name))[:1])
