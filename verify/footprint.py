"""How much memory a verification takes at given sizes, so that a slip of the keyboard does not take the machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx

from onnx_attest.errors import UsageError
from onnx_attest.verify.environment import memory_bytes
from onnx_attest.verify.finder.messages import with_shapes
from onnx_attest.verify.oracle.ops.attention import STREAMED_FROM, WEIGHTS

BYTES_PER_ELEMENT = 200
"""Of the largest tensor, at the peak. Measured 176 to 180 on `mha` at lengths 1000 and 1500: float64 values, bounds and
temporaries of the oracle and the softmax measures, beside the runtime's own tensors."""

_SHAPE_LIKE = 64
"""Constants of up to so many elements may be shapes, which the inference has to see."""


_COUNTED = 2**60
"""Elements; NumPy counts an array's bytes in 63 bits, of up to 8 an element."""


def refuse_beyond_memory(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse inputs whose verification would not fit into the memory that is free.

    Raises:
        UsageError: it says how much is needed and how much there is.
    """
    free = free_bytes()
    name, largest = _largest(model, shapes)
    needed = BYTES_PER_ELEMENT * largest
    if free is not None and needed > free:
        sizes = ", ".join(f"{name}:[{','.join(map(str, shape))}]" for name, shape in shapes.items())
        alone = f" ({name} alone has {largest:,} elements)" if name and name not in shapes else ""
        raise UsageError(
            f"verifying {sizes} takes about {needed / 1e9:,.0f} GB{alone}, and {free / 1e9:,.0f} GB are free; "
            "give smaller sizes"
        )
    for name, shape in shapes.items():
        # An array with an axis of 0 holds nothing, and NumPy refuses one whose other axes are more than it can count.
        if math.prod(size for size in shape if size) >= _COUNTED:
            raise UsageError(
                f"{name}:[{','.join(map(str, shape))}] is more than an array can have; give smaller sizes"
            )


def scores_held(
    runtime: object, model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], element_bytes: int
) -> tuple[str, int]:
    """Return the attention whose scores, queries x keys, a runtime would hold all at once, and their bytes; "" and 0 if none.

    A runtime that has the method `holds_scores` says so of an operator, and whether anything but its keys hides keys.
    """
    holds = getattr(runtime, "holds_scores", None)
    if holds is None:
        return "", 0
    inferred = {**shapes, **inferred_shapes(model, shapes)}
    held = [
        (node.name or node.op_type, element_bytes * _scores(node, inferred))
        for node in model.graph.node
        if node.op_type in _FUSED and holds(_operator(node), hidden=_hides(node))
    ]
    return max(held, key=lambda one: one[1], default=("", 0))


_FUSED = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
_HIDING = ("is_causal", "unidirectional", "left_window_size", "right_window_size")


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _hides(node: onnx.NodeProto) -> bool:
    """Whether a mask, a bias, a past or a window goes into an attention."""
    windows = any(attribute.name in _HIDING and attribute.i > 0 for attribute in node.attribute)
    return windows or any(node.input[3:])


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
    return _largest(model, shapes)[1]


def _largest(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, int]:
    """Return the name of the largest tensor in the graph, "" inside an operator, and its elements."""
    given = max(((name, math.prod(shape)) for name, shape in shapes.items()), key=_size, default=("", 0))
    if given[1] > 2**40:  # beyond any machine, and the sizes may be beyond what a file can say
        return given
    inferred = {
        **shapes,
        **inferred_shapes(model, shapes),
    }  # inputs too: an Attention may take them as they are
    inside = (("", _scores_of_oracle(node, inferred)) for node in model.graph.node if node.op_type in _FUSED)
    return max(
        (*((name, math.prod(shape)) for name, shape in inferred.items()), *inside), key=_size, default=("", 0)
    )


def _size(named: tuple[str, int]) -> int:
    return named[1]


def inferred_graph(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.GraphProto | None:
    """Return the graph with the types that shape inference finds for these sizes of inputs; its weights are inputs too.

    None for sizes that do not fit the graph: the runtimes say so, in their own words.
    """
    try:
        graph: onnx.GraphProto = with_shapes(_skeleton(model, shapes)).graph
    except Exception:  # noqa: BLE001 - its exception's class is the extension's own
        return None
    return graph


def inferred_shapes(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes inside the graph and of its outputs, as far as they can be inferred."""
    graph = inferred_graph(model, shapes)
    return {} if graph is None else dict(known_shapes([*graph.value_info, *graph.output]))


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


def _scores_of_oracle(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return how many scores inside an attention the oracle holds: many are streamed, unless they are an output."""
    scores, asked = _scores(node, shapes), len(node.output) > WEIGHTS and node.output[WEIGHTS]
    return scores if asked else min(scores, STREAMED_FROM)


def _scores(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the size of the scores inside an attention, (batch, heads, queries, keys), 0 if it is not known."""
    q, k = (shapes.get(name, ()) for name in [*node.input, "", ""][:2])
    if len(q) not in (3, 4) or len(k) != len(
        q
    ):  # another operator of that name, or one that no runtime takes
        return 0
    counts = {attribute.name: attribute.i for attribute in node.attribute}
    heads = q[1] if len(q) == 4 else counts.get("q_num_heads") or counts.get("num_heads") or 1
    return q[0] * heads * q[-2] * k[-2]
