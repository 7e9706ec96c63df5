"""Small models of one operator, with seeded inputs."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.helper
from numpy.typing import NDArray

from onnx_attest.verify.conformance.body import body_of
from onnx_attest.verify.conformance.case import OPERATORS, Case, Form
from onnx_attest.verify.conformance.features import features_of

Array = NDArray[Any]
Axes = Sequence[str | int]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
Given = tuple[Any, int] | None
"""The dtype of an output and how many axes it has, None if it is not asked for."""
PREFIX = "beyond_"
IR_VERSION = 10
"""Old enough for every runtime that knows opset 23."""


@dataclass(frozen=True)
class Made:
    """One input of a case: its name, its numbers, and its axes as the file declares them, None for its sizes."""

    name: str
    array: Array
    axes: Axes | None = None

    def declared(self) -> onnx.ValueInfoProto:
        """Return what the file says of it."""
        kind = onnx.helper.np_dtype_to_tensor_dtype(self.array.dtype)
        return onnx.helper.make_tensor_value_info(self.name, kind, self.axes or self.array.shape)


def normal(name: str, shape: Sequence[int], dtype: Any = np.float32, *, scale: float = 1.0) -> Array:
    """Return normal numbers that are the same in every run and others for every name."""
    numbers = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape) * scale
    return np.asarray(numbers.astype(dtype))


def case_of(
    name: str,
    operator: str,
    inputs: Sequence[Made | None],
    outputs: Mapping[str, Given],
    opset: int,
    attributes: Mapping[str, Any],
) -> Case:
    """Return the case of one node.

    Args:
        name: without its prefix.
        operator: of OPERATORS.
        inputs: in the operator's order, None for one that is left out.
        outputs: what each is by name, in the operator's order, None for one that is left out.
        opset: of ONNX's own operators.
        attributes: of the node.
    """
    given = [one for one in inputs if one is not None]
    present = {name: one for name, one in outputs.items() if one is not None}
    node = onnx.helper.make_node(
        operator, [one.name if one else "" for one in inputs], [name if name in present else "" for name in outputs], domain=OPERATORS[operator], **attributes,
    )  # fmt: skip
    declared = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [None] * rank
        )
        for name, (dtype, rank) in present.items()
    ]
    graph = onnx.helper.make_graph([node], name, [one.declared() for one in given], declared)
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
    arrays = {one.name: one.array for one in given}
    features, body = features_of(model, operator, arrays), body_of(model, operator)
    references: tuple[tuple[Form, onnx.ModelProto], ...] = (("operator", model),)
    if body is not None:
        references += (("expanded", body),)
    return Case(PREFIX + name, "beyond", operator, "operator", features, model, references, arrays)


def expanded(case: Case) -> Case | None:
    """Return a case of ours with the function body in the operator's place, None if there is none."""
    body = dict(case.references).get("expanded")
    if body is None:
        return None
    references: tuple[tuple[Form, onnx.ModelProto], ...] = (("expanded", body), ("operator", case.model))
    return replace(case, name=f"{case.name}_expanded", form="expanded", model=body, references=references)
