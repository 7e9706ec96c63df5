"""What one call of a graph costs at least: multiplications and additions of its matrix products, and bytes moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import onnx
from google.protobuf.message import DecodeError

from onnx_attest.errors import UsageError
from onnx_attest.verify.footprint import inferred_graph, known_shapes
from onnx_attest.verify.oracle.graph import without_functions

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


@dataclass(frozen=True)
class Work:
    """Of one call.

    Attributes:
        flops: two for each multiplication and addition of a matrix product, a convolution or an attention's two
            products (a causal one in full: 4 n^2 d a head); elementwise operations and softmax are not counted, as is
            usual. None where the sizes of a product are not known.
        bytes_least: inputs, weights and outputs, each once: what any executor moves. None where a size is not known.
        bytes_by_node: what goes in and out of each node: what an executor moves that fuses nothing and keeps nothing in
            a cache. None where a size is not known.
        not_counted: operators that multiply matrices in a way that is not known here.
    """

    flops: int | None
    bytes_least: int | None
    bytes_by_node: int | None
    not_counted: tuple[str, ...] = ()


def count(path: Path, shapes: Shapes) -> Work:
    """Return the work of a file's graph with inputs of these shapes; functions and subgraphs of an If count as nothing.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        model = onnx.load(str(path), load_external_data=False)
        model = without_functions(model)
    except (OSError, DecodeError, ValueError) as error:
        raise UsageError(f"cannot read {path.name}: {' '.join(str(error).split())}") from error
    graph = inferred_graph(model, shapes)
    if graph is None:
        return Work(None, None, None)
    values = [*graph.input, *graph.value_info, *graph.output]
    known: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    known |= dict(known_shapes(values))
    sizes = {value.name: _itemsize(value.type.tensor_type.elem_type) for value in values}
    sizes |= {tensor.name: _itemsize(tensor.data_type) for tensor in graph.initializer}
    return Work(
        flops=_sum(_flops(node, known) for node in graph.node),
        bytes_least=_sum(_bytes(name, known, sizes) for name in _outside(model, shapes)),
        bytes_by_node=_sum(
            _bytes(name, known, sizes)
            for node in graph.node
            if node.op_type != "Constant"
            for name in (*node.input, *node.output)
            if name
        ),
        not_counted=tuple(sorted({node.op_type for node in graph.node if node.op_type in _NOT_COUNTED})),
    )


def _outside(model: onnx.ModelProto, shapes: Shapes) -> Iterator[str]:
    used = {name for node in model.graph.node for name in node.input}
    yield from (name for name in shapes if name in used)
    yield from (
        tensor.name for tensor in model.graph.initializer if tensor.name in used and tensor.name not in shapes
    )
    yield from (value.name for value in model.graph.output)


def _sum(parts: Iterator[int | None]) -> int | None:
    found = list(parts)
    return None if None in found else sum(part for part in found if part is not None)


def _bytes(name: str, shapes: Shapes, sizes: Mapping[str, int]) -> int | None:
    return math.prod(shapes[name]) * sizes[name] if name in shapes and sizes.get(name) else None


def _itemsize(element: int) -> int:
    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(element).itemsize)
    except KeyError:  # no tensor
        return 0


def _flops(node: onnx.NodeProto, shapes: Shapes) -> int | None:
    """Return the operations of a node, 0 for one that multiplies no matrices, None where a size is not known."""
    counted = _COUNTED.get(node.op_type)
    if counted is None:
        return 0
    inputs = [shapes.get(name) if name else () for name in node.input]
    outputs = [shapes.get(name) if name else () for name in node.output]
    try:
        return counted(node, inputs, outputs)
    except (TypeError, IndexError, ValueError):  # a shape that is not known, or not as the operator has it
        return None


def _matmul(_node: onnx.NodeProto, inputs: Sequence[Shape | None], _outputs: Sequence[Shape | None]) -> int:
    left, right = _known(inputs[0]), _known(inputs[1])
    batch = _broadcast(left[:-2], right[:-2])
    rows = left[-2] if len(left) > 1 else 1
    columns = right[-1] if len(right) > 1 else 1
    return 2 * batch * rows * columns * left[-1]


def _gemm(node: onnx.NodeProto, inputs: Sequence[Shape | None], _outputs: Sequence[Shape | None]) -> int:
    left, right = _known(inputs[0]), _known(inputs[1])
    rows, inner = reversed(left) if _attribute(node, "transA", 0) else left
    return 2 * rows * inner * (right[0] if _attribute(node, "transB", 0) else right[1])


def _einsum(node: onnx.NodeProto, inputs: Sequence[Shape | None], _outputs: Sequence[Shape | None]) -> int:
    """Count one multiplication and addition for each combination of all indices, of two operands at most."""
    equation = next(attribute.s.decode() for attribute in node.attribute if attribute.name == "equation")
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if "..." in equation or len(terms) > 2:
        raise ValueError("an ellipsis, or more than one order of products")
    sizes = {
        letter: size
        for term, shape in zip(terms, inputs, strict=True)
        for letter, size in zip(term, _known(shape), strict=True)
    }
    return 2 * math.prod(sizes.values()) if len(terms) == 2 else 0


def _convolution(
    node: onnx.NodeProto, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]
) -> int:
    kernel = _known(inputs[1])  # (outputs, inputs / groups, ...)
    return 2 * math.prod(_known(outputs[0])) * math.prod(kernel[1:])


def _attention(node: onnx.NodeProto, inputs: Sequence[Shape | None], _outputs: Sequence[Shape | None]) -> int:
    """Count Q K^T and P V of ONNX's Attention and com.microsoft's MultiHeadAttention: 2 n_q n_k (d_k + d_v) a head."""
    if node.domain == "com.microsoft" and node.op_type == "Attention":  # it projects its input itself
        raise ValueError("other inputs")
    query, key, value = (_known(shape) for shape in inputs[:3])
    if not key or not value:  # packed
        raise ValueError("packed inputs")
    past = _known(inputs[4]) if node.domain == "" and len(inputs) > 4 and inputs[4] else ()
    keys = key[-2] + (past[-2] if past else 0)
    if len(query) == 4:
        return 2 * query[0] * query[1] * query[2] * keys * (query[3] + value[3])
    heads = _attribute(node, "q_num_heads", 0) or _attribute(node, "num_heads", 1)
    groups = _attribute(node, "kv_num_heads", heads)
    if len(key) == 4:  # com.microsoft: keys of a cache, by head
        groups = key[1]
    value_size = value[-1] // groups if len(value) == 3 else value[-1]
    return 2 * query[0] * query[1] * keys * (query[-1] + heads * value_size)


def _broadcast(left: Shape, right: Shape) -> int:
    longer, shorter = sorted((left, right), key=len, reverse=True)
    padded = (1,) * (len(longer) - len(shorter)) + shorter
    return math.prod(max(one, other) for one, other in zip(longer, padded, strict=True))


def _known(shape: Shape | None) -> Shape:
    if shape is None:
        raise ValueError("a shape is not known")
    return shape


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


_Counter = Callable[[onnx.NodeProto, Sequence[Shape | None], Sequence[Shape | None]], int]
_COUNTED: Mapping[str, _Counter] = MappingProxyType(
    {
        "MatMul": _matmul,
        "MatMulInteger": _matmul,
        "QLinearMatMul": lambda node, inputs, outputs: _matmul(node, [inputs[0], inputs[3]], outputs),
        "FusedMatMul": _matmul,
        "Gemm": _gemm,
        "Einsum": _einsum,
        "Conv": _convolution,
        "Attention": _attention,
        "MultiHeadAttention": _attention,
    }
)
_NOT_COUNTED = frozenset(
    {"ConvTranspose", "ConvInteger", "QLinearConv", "LSTM", "GRU", "RNN", "GroupQueryAttention", "MatMulNBits",
     "DecoderMaskedMultiHeadAttention", "If", "Loop", "Scan"}
)  # fmt: skip
