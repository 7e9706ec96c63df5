"""How much memory a verification takes at given sizes, so that a slip of the keyboard does not take the machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx

from onnx_attest.errors import UsageError
from onnx_attest.verify.environment import memory_bytes
from onnx_attest.verify.oracle.ops.attention import STREAMED_FROM

BYTES_PER_ELEMENT = 200
"""Of the largest tensor, at the peak. Measured 176 to 180 on `mha` at lengths 1000 and 1500: float64 values, bounds and
temporaries of the oracle and the softmax measures, beside the runtime's own tensors."""

_SHAPE_LIKE = 64
"""Constants of up to so many elements may be shapes, which the inference has to see."""


def refuse_beyond_memory(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse inputs whose verification would not fit into the memory that is free.

    Raises:
        UsageError: it says how much is needed and how much there is.
    """
    free = free_bytes()
    needed = BYTES_PER_ELEMENT * largest_tensor(model, shapes)
    if free is not None and needed > free:
        sizes = ", ".join(f"{name}:[{','.join(map(str, shape))}]" for name, shape in shapes.items())
        raise UsageError(
            f"verifying {sizes} takes about {needed / 1e9:,.0f} GB, and {free / 1e9:,.0f} GB are free; give smaller sizes"
        )


def free_bytes() -> int | None:
    """Return how much memory is free for use, the whole main memory where only that is known, else None."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return memory_bytes()
    available = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return memory_bytes() if available is None else 1024 * int(available)


def largest_tensor(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of elements of the largest tensor in the graph, as far as shapes can be inferred."""
    given = max((math.prod(shape) for shape in shapes.values()), default=0)
    if given > 2**40:  # beyond any machine, and the sizes may be beyond what a file can say
        return given
    graph = inferred_graph(model, shapes)
    found = {} if graph is None else dict(known_shapes([*graph.value_info, *graph.output]))
    inferred = {**shapes, **found}  # inputs too: an Attention may take them as they are
    inside = (_scores(node, inferred) for node in model.graph.node if node.op_type == "Attention")
    return max((*(math.prod(shape) for shape in inferred.values()), *inside), default=0)


def inferred_graph(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.GraphProto | None:
    """Return the graph with the types that shape inference finds for these sizes of inputs; its weights are inputs too.

    None for sizes that do not fit the graph: the runtimes say so, in their own words.
    """
    try:
        return onnx.shape_inference.infer_shapes(_skeleton(model, shapes), data_prop=True).graph
    except Exception:  # noqa: BLE001 - its exception's class is the extension's own
        return None


def _skeleton(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Return the graph with its inputs at these sizes and without its weights, of which the shapes are enough."""
    graph = onnx.GraphProto(name="skeleton", node=model.graph.node)
    for value in model.graph.input:
        element = value.type.tensor_type.elem_type
        if value.name in shapes:
            graph.input.append(onnx.helper.make_tensor_value_info(value.name, element, shapes[value.name]))
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _SHAPE_LIKE:
            graph.initializer.append(tensor)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for value in model.graph.output:
        element = value.type.tensor_type.elem_type
        graph.output.append(onnx.helper.make_tensor_value_info(value.name, element, None))
    return onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions, graph=graph
    )


def known_shapes(values: Iterable[onnx.ValueInfoProto]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of each value all of whose sizes are known."""
    for value in values:
        sizes = [
            axis.dim_value if axis.HasField("dim_value") else None
            for axis in value.type.tensor_type.shape.dim
        ]
        if value.type.tensor_type.HasField("shape") and None not in sizes:
            yield value.name, tuple(size for size in sizes if size is not None)


def _scores(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the size of the scores inside an Attention, (batch, heads, queries, keys), 0 if it is not known."""
    q, k = (shapes.get(name, ()) for name in [*node.input, "", ""][:2])
    if len(q) not in (3, 4) or len(k) != len(
        q
    ):  # another operator of that name, or one that no runtime takes
        return 0
    heads = next((attribute.i for attribute in node.attribute if attribute.name == "q_num_heads"), 1)
    scores = q[0] * (q[1] if len(q) == 4 else heads) * q[-2] * k[-2]
    # The oracle streams these; a runtime may still hold them, with a copy or two.
    return (
        scores
        if scores <= STREAMED_FROM
        else max(STREAMED_FROM, scores * _BYTES_STREAMED // BYTES_PER_ELEMENT)
    )


_BYTES_STREAMED = 12
