"""ONNX's Attention operator written as several nodes, as onnx 1.23 defines it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from onnx_attest.verify.power.sites import Chain, MaskNode, Operator, Site, attribute
from onnx_attest.verify.power.workbench import Edge, Workbench

_ATTRIBUTES = {
    "is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision",
}  # fmt: skip
_NONPAD, _WEIGHTS_OUTPUT, _WEIGHTS_MODE = 6, 3, 3


class UnopenableError(Exception):
    """The operator has a form that is not written as nodes here: which."""


@dataclass(frozen=True)
class Heads:
    """Numbers of an attention operator that its file has to say: they are written into the nodes."""

    queries: int
    keys: int
    size: int
    three_axes: bool


def open_site(bench: Workbench, site: Site) -> Chain:
    """Return a site as several nodes; an operator is replaced by them.

    Raises:
        UnopenableError: a form of the operator that is not written here.
    """
    return site if isinstance(site, Chain) else _open(bench, site)


def heads_of(bench: Workbench, site: Operator) -> Heads:
    """Return the heads of an operator and their size.

    Raises:
        UnopenableError: the file leaves them open.
    """
    node = bench.producer(site.output)
    assert node is not None
    q, k = (bench.shape(bench.read(site.edge(index))) for index in (0, 1))
    heads = int(attribute(node, "q_num_heads", 0))
    if heads:
        width = q[-1] if q else None
        if not isinstance(width, int):
            raise UnopenableError("the file does not say how wide the queries are")
        return Heads(heads, int(attribute(node, "kv_num_heads", heads)), width // heads, three_axes=True)
    known = [q[1], k[1], q[-1]] if q and k and len(q) == len(k) == 4 else []
    match [axis for axis in known if isinstance(axis, int)]:
        case [queries, keys, size]:
            return Heads(queries, keys, size, three_axes=False)
    raise UnopenableError("the file does not say how many heads there are, and of which size")


def scale_of(bench: Workbench, site: Operator) -> float:
    """Return the scale of an operator: what it is given, else 1/sqrt(d)."""
    node = bench.producer(site.output)
    assert node is not None
    return float(attribute(node, "scale", 0.0)) or 1 / math.sqrt(heads_of(bench, site).size)


def _open(bench: Workbench, site: Operator) -> Chain:
    node = onnx.NodeProto()
    node.CopyFrom(bench.producer(site.output))
    heads = heads_of(bench, site)
    refuse_mask(bench, site)
    _refuse(node)
    read = [bench.read(site.edge(index)) for index in range(6)]
    q, k, v = read[:3]
    if heads.three_axes:
        q, k, v = (_split(bench, x, h) for x, h in ((q, heads.queries), (k, heads.keys), (v, heads.keys)))
    past = read[4]
    bench.remove(site.output)
    if past:
        k, v = bench.op("Concat", past, k, axis=2), bench.op("Concat", read[5], v, axis=2)
    for name, present in zip(node.output[1:3], (k, v), strict=False):
        if name:
            bench.node("Identity", (present,), (name,))
    chain = _chain(bench, node, (q, k, v), heads)
    if len(node.output) > _WEIGHTS_OUTPUT and node.output[_WEIGHTS_OUTPUT]:
        bench.node("Identity", (bench.read(chain.weights),), (node.output[_WEIGHTS_OUTPUT],))
    return chain


def _refuse(node: onnx.NodeProto) -> None:
    gives_products = len(node.output) > _WEIGHTS_OUTPUT and node.output[_WEIGHTS_OUTPUT]
    if gives_products and attribute(node, "qk_matmul_output_mode", 0) != _WEIGHTS_MODE:
        raise UnopenableError("an Attention that gives its products is not taken apart")


def refuse_mask(bench: Workbench, site: Operator) -> None:
    """Refuse an operator that hides keys in a way that is not written here.

    Raises:
        UnopenableError: which.
    """
    node = bench.producer(site.output)
    assert node is not None
    if len(node.input) > _NONPAD and node.input[_NONPAD]:
        raise UnopenableError("an Attention with nonpad_kv_seqlen is not taken apart")
    if unknown := sorted({given.name for given in node.attribute} - _ATTRIBUTES):
        raise UnopenableError(f"an Attention with {unknown[0]} is not taken apart")
    mask, keys = (bench.shape(bench.read(site.edge(index))) for index in (3, 1))
    past = bench.shape(bench.read(site.edge(4)))
    counts = [(shape or (None,))[axis] for shape, axis in ((mask, -1), (keys, -2 if keys else -1))]
    held = (past or (0, 0))[-2]
    match (*counts, held):
        case (int(masked), int(new), int(old)) if masked not in (1, new + old):
            raise UnopenableError("an Attention whose mask is shorter than its keys is not taken apart")


def _split(bench: Workbench, value: str, heads: int) -> str:
    """Return (batch, heads, length, size) from (batch, length, heads * size)."""
    four = bench.op("Reshape", value, bench.constant([0, 0, heads, -1]))
    return bench.op("Transpose", four, perm=[0, 2, 1, 3])


def _repeated(bench: Workbench, value: str, heads: Heads) -> str:
    """Return keys or values with as many heads as the queries have."""
    if heads.keys == heads.queries:
        return value
    groups = heads.queries // heads.keys
    five = bench.op("Unsqueeze", value, bench.constant([2]))
    wide = bench.op("Expand", five, bench.constant([1, 1, groups, 1, 1]))
    length = bench.axis_length(value, -2)
    shape = bench.sizes(0, heads.queries, length, bench.axis_length(value, -1))
    return bench.op("Reshape", wide, shape)


def _chain(bench: Workbench, node: onnx.NodeProto, operands: tuple[str, str, str], heads: Heads) -> Chain:
    like = node.input[0]
    dtype = bench.dtype(like)
    q, k, v = operands
    past = len(node.input) > 4 and node.input[4]
    offset = bench.axis_length(node.input[4], -2) if past else ""
    q = bench.note(
        bench.op("Identity", q, name="power_queries"), like, (None, heads.queries, None, heads.size)
    )
    k, v = (_repeated(bench, x, heads) for x in (k, v))
    v = bench.note(bench.op("Identity", v, name="power_values"), like, (None, heads.queries, None, None))
    keys = bench.op("Transpose", k, perm=[0, 1, 3, 2], name="power_keys")
    keys = bench.note(keys, like, (None, heads.queries, heads.size, None))
    product = bench.op("MatMul", q, keys, name="power_product")
    logits = _scaled(bench, node, product, heads, dtype)
    if cap := attribute(node, "softcap", 0.0):
        constant = bench.constant(cap, dtype)
        logits = bench.op("Mul", bench.op("Tanh", bench.op("Div", logits, constant)), constant)
    bench.note(logits, like, (None, heads.queries, None, None))
    masked, masks = _masked(bench, node, logits, offset, dtype)
    bench.note(masked, like, (None, heads.queries, None, None))
    probabilities = bench.op("Softmax", masked, axis=-1, name="power_weights")
    weights = probabilities
    if masks:  # a row without any key is 0
        weights = bench.op("Where", bench.op("IsNaN", weights), bench.constant(0.0, dtype), weights)
    output = node.output[0] if not heads.three_axes else bench.fresh("power_output")
    bench.note(output, like, (None, heads.queries, None, None))
    bench.node("MatMul", (weights, v), (output,))
    if heads.three_axes:
        moved = bench.op("Transpose", output, perm=[0, 2, 1, 3])
        bench.node("Reshape", (moved, bench.constant([0, 0, -1])), (node.output[0],))
    name = node.name or node.output[0]
    return Chain(
        name,
        product,
        logits,
        masked,
        masked,
        probabilities,
        naive=False,
        output=output,
        scales=(),
        scale=None,
        masks=masks,
    )


def _scaled(bench: Workbench, node: onnx.NodeProto, product: str, heads: Heads, dtype: np.dtype[Any]) -> str:
    """Return the logits: times the number that is given, else divided by sqrt(d), which no constant holds exactly."""
    if given := attribute(node, "scale", 0.0):
        return bench.op("Mul", product, bench.constant(given, dtype), name="power_scaled")
    root = bench.op("Sqrt", bench.constant(heads.size, dtype))
    return bench.op("Div", product, root, name="power_scaled")


def _masked(
    bench: Workbench, node: onnx.NodeProto, logits: str, offset: str, dtype: np.dtype[Any]
) -> tuple[str, tuple[MaskNode, ...]]:
    """Return the masked logits and the nodes that mask, the last one first."""
    masks: list[MaskNode] = []
    mask = node.input[3] if len(node.input) > 3 else ""
    value = logits
    if mask and bench.is_boolean(mask):
        value = bench.op("Where", mask, value, bench.constant(-np.inf, dtype), name="power_masked")
        masks.insert(0, MaskNode(Edge(value, 2), mask))
    elif mask:
        value = bench.op("Add", value, mask, name="power_masked")
        masks.insert(0, MaskNode(Edge(value, 1)))
    if attribute(node, "is_causal", 0):
        allowed = bench.op(
            "Not", future(bench, bench.axis_length(logits, -2), bench.axis_length(logits, -1), offset)
        )
        value = bench.op("Where", allowed, value, bench.constant(-np.inf, dtype), name="power_causal")
        masks.insert(0, MaskNode(Edge(value, 2), allowed))
    return value, tuple(masks)


def positions(bench: Workbench, length: str, axis: int) -> str:
    """Return 0, 1, ... up to a length, (length, 1) or (1, length): the new axis is `axis`."""
    bounds = [
        bench.constant(0),
        bench.op("Squeeze", length),
        bench.constant(1),
    ]
    return bench.op("Unsqueeze", bench.op("Range", *bounds), bench.constant([axis]))


def future(bench: Workbench, queries: str, keys: str, offset: str = "") -> str:
    """Return which keys lie after query i, which stands at position offset + i: (queries, keys)."""
    rows, columns = positions(bench, queries, 1), positions(bench, keys, 0)
    return bench.op("Greater", columns, bench.op("Add", rows, offset) if offset else rows)
