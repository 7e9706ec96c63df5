"""ONNX's own node cases: small models with inputs and the outputs that they define as right.

The float64 oracle proves itself on them, and runtimes are held against them.
"""

from __future__ import annotations

import importlib
import tomllib
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import PROFILES, Arithmetic
from onnx_attest.verify.oracle.bounded import Bounded, is_floating
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.oracle.types import element_type, graphs_in

Array = NDArray[Any]
COMPUTED_IN = {"float64": "fp64", "float32": "fp32", "float16": "fp16-steps", "bfloat16": "bf16-acc"}
"""How the expected outputs were made: in NumPy, every step in the case's own dtype."""
_FLOAT64 = 2.0**-45  # the oracle's own rounding, some hundred operations deep


@dataclass(frozen=True, eq=False)
class NodeCase:
    """One of ONNX's cases.

    Attributes:
        operators: of the graph and of the graphs inside it, each once.
        dtypes: names of ONNX's element types of all inputs and outputs.
        rtol, atol: the tolerance that ONNX gives the case: |actual - expected| <= atol + rtol |expected|.
    """

    name: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    operators: tuple[str, ...]
    dtypes: frozenset[str]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Outcome:
    """What the oracle makes of a case: `passed`, `failed` or `unsupported`, and why."""

    case: str
    status: str
    reason: str = ""
    ratio: float = 0.0


@cache
def node_cases() -> Mapping[str, NodeCase]:
    """Return all cases by name, without the prefix test_."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        collected = collect_testcases(None)  # a list of the module's, which grows with each call
    return {case.name.removeprefix("test_"): _read(case) for case in collected}


def cases_of_modules(modules: Sequence[str]) -> Mapping[str, NodeCase]:
    """Return the cases that some of ONNX's modules of node cases define, by name without the prefix test_.

    All modules together take ten times as long as those of the attention family.
    """
    from onnx.backend.test.case import node

    collected = getattr(node, "_NodeTestCases", None)
    if collected is None:  # no public function gives less than all
        return node_cases()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for module in modules:
            importlib.import_module(f"{node.__name__}.{module}")
    return {case.name.removeprefix("test_"): _read(case) for case in collected}


@cache
def covered() -> Mapping[str, str]:
    """Return the operators that the oracle is meant to cover, with the group of each."""
    groups = _contract()["covered"]
    return {operator: group for group, operators in groups.items() for operator in operators}


@cache
def _contract() -> dict[str, Any]:
    return tomllib.loads((files("onnx_attest.verify.oracle") / "covered.toml").read_text())


def exceptions() -> Mapping[str, str]:
    """Return the cases that are known not to pass, with what becomes of each and why."""
    known: dict[str, str] = _contract()["exceptions"]
    return known


def left_out(case: NodeCase) -> str:
    """Return why a case is none of those the oracle is meant to cover, "" if it is."""
    others = [operator for operator in case.operators if operator not in covered()]
    if others:
        return f"operator {others[0]}"
    for reason, dtypes in _contract()["left_out"].items():
        if case.dtypes & set(dtypes):
            return str(reason)
    if "training" in case.name or "training_mode" in _attributes(case.model.graph):
        return "training"
    return ""


def _attributes(graph: onnx.GraphProto) -> set[str]:
    return {a.name for node in graph.node for a in node.attribute if a.name == "training_mode" and a.i}


def _read(case: Any) -> NodeCase:
    nodes = [node for graph in graphs_in(case.model.graph) for node in graph.node]
    values = (*case.model.graph.input, *case.model.graph.output)
    targets = [a.i for node in nodes for a in node.attribute if a.name == "to"]
    kinds = {element_type(value.type) for value in values} | set(targets)
    return NodeCase(
        case.name.removeprefix("test_"),
        case.model,
        case.data_sets,
        tuple(dict.fromkeys(node.op_type for node in nodes)),
        frozenset(onnx.TensorProto.DataType.Name(kind) for kind in kinds),
        case.rtol,
        case.atol,
    )


def as_array(value: Any) -> Any:
    """Return an input or output as NumPy array; a list for a sequence, None for an absent optional."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return onnx.numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return onnx.numpy_helper.to_optional(value)
    if isinstance(value, (list, tuple)):
        return [as_array(item) for item in value]
    return None if value is None else np.asarray(value)


def judge_case(case: NodeCase) -> Outcome:
    """Return whether the oracle agrees with the outputs of a case, each within its own bound."""
    worst = 0.0
    for inputs, outputs in case.data:
        given = [as_array(value) for value in inputs]
        names = [value.name for value in case.model.graph.input]
        fed = dict(zip(names, given, strict=True))
        try:
            oracle = GraphOracle(case.model)
            evaluation = oracle.evaluate(fed, arithmetic_of(case.dtypes))
            found = {**evaluation.outputs, **evaluation.others}
        except UnsupportedOperatorError as error:
            return Outcome(case.name, "unsupported", str(error))
        for output, expected in zip(case.model.graph.output, outputs, strict=True):
            reason, ratio = compare(found[output.name], as_array(expected))
            if reason:
                return Outcome(case.name, "failed", f"{output.name}: {reason}", ratio)
            worst = max(worst, ratio)
    return Outcome(case.name, "passed", ratio=worst)


def coarsest_dtype(kinds: Collection[str]) -> str:
    """Return the NumPy name of the coarsest floating type among names of ONNX's element types, float32 without any."""
    names = {"BFLOAT16": "bfloat16", "FLOAT16": "float16", "FLOAT": "float32", "DOUBLE": "float64"}
    return next((name for kind, name in names.items() if kind in kinds), "float32")


def arithmetic_of(kinds: Collection[str]) -> Arithmetic:
    """Return the arithmetic that the expected outputs of a case with these element types were made in."""
    return PROFILES[COMPUTED_IN[coarsest_dtype(kinds)]]


def compare(found: Any, expected: Any) -> tuple[str, float]:
    """Return what is wrong, "" if nothing, and the largest share of a bound that is used up."""
    if isinstance(expected, list):
        items = getattr(found, "items", None)
        if items is None or len(items) != len(expected):
            return "not a sequence of this length", 0.0
        both = [compare(one, other) for one, other in zip(items, expected, strict=True)]
        return next((reason for reason, _ in both if reason), ""), max(
            (ratio for _, ratio in both), default=0.0
        )
    if not isinstance(found, Bounded):
        return (
            ("", 0.0)
            if expected is None and found is None
            else (f"not a tensor but {type(found).__name__}", 0.0)
        )
    if found.value.shape != expected.shape:
        return f"shape {found.value.shape}, expected {expected.shape}", 0.0
    if expected.dtype == np.bool_ or (expected.dtype.kind not in "iuf" and not is_floating(expected.dtype)):
        return ("" if np.array_equal(found.value, expected) else "differs", 0.0)
    return _compare_numbers(found, expected)


def _compare_numbers(found: Bounded, expected: Array) -> tuple[str, float]:
    if found.is_float != is_floating(expected.dtype):
        return f"of the kind {found.value.dtype}, expected {expected.dtype}", 0.0
    if not found.is_float and found.value.dtype != expected.dtype:
        return f"dtype {found.value.dtype}, expected {expected.dtype}", 0.0
    if found.error is None and not found.is_float:
        return ("" if np.array_equal(found.value, expected) else "differs", 0.0)
    value, number = found.value.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(value)
    if not np.array_equal(value[~finite], number[~finite], equal_nan=True):
        return "other NaN or infinities", 0.0
    stored: Any = 0.0
    if found.is_float:
        kind = ml_dtypes.finfo(expected.dtype)
        stored = float(kind.eps) / 2 * np.abs(number[finite]) + float(kind.smallest_subnormal)
    allowance = (
        np.broadcast_to(found.errors(), value.shape)[finite] + stored + _FLOAT64 * np.abs(value[finite])
    )
    difference = np.abs(number[finite] - value[finite])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float(np.where(difference > 0, difference / allowance, 0.0).max(initial=0.0))
    if np.any(~(difference <= allowance)):
        return f"{ratio:.3g} times the bound away", ratio
    return "", ratio
