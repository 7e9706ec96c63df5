"""A small case as text: the model in ONNX's own form, the inputs as numbers."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import onnx
import onnx.printer
from numpy.typing import NDArray

from onnx_attest.verify.conformance.smallest import Smallest
from onnx_attest.verify.oracle.bounded import is_floating
from onnx_attest.verify.records import ConformanceRecord, SmallestRecord
from onnx_attest.verify.report.formats import one_line

_NODES = 8
_SHOWN = 16
"""More numbers than that are told by their range: they were not made simple, so it is not in single ones."""


def as_text(record: ConformanceRecord, best: Smallest) -> ConformanceRecord:
    """Return the record with the smallest input found."""
    found = SmallestRecord(
        model=nodes_of(best.case.model),
        inputs={name: shown(array) for name, array in best.case.inputs.items()},
        reason=best.found.reason,
        ratio=best.found.ratio,
    )
    return msgspec.structs.replace(record, smallest=found)


def nodes_of(model: onnx.ModelProto) -> str:
    """Return the nodes of a graph in ONNX's text form, a longer one by how many it has."""
    nodes = model.graph.node
    if len(nodes) > _NODES:
        return f"{len(nodes)} nodes"
    return "; ".join(one_line(onnx.printer.to_text(node)) for node in nodes)


def shown(array: NDArray[Any]) -> str:
    """Return dtype, shape and numbers of an array, `float32[1,2] = 1 0`, one number where all are the same."""
    head = f"{array.dtype.name}[{','.join(map(str, array.shape))}]"
    if not array.size:
        return f"{head} (empty)"
    numbers = array.astype(np.float64) if is_floating(array.dtype) else array
    flat = numbers.reshape(-1)
    if (flat == flat[0]).all():
        return f"{head} = {_number(flat[0])}"
    if array.size > _SHOWN:
        return f"{head}, {_number(flat.min())} to {_number(flat.max())}"
    return f"{head} = {' '.join(map(_number, flat))}"


def _number(value: Any) -> str:
    return str(bool(value)).lower() if isinstance(value, np.bool_) else f"{value:.7g}"
