"""Copies of a graph that give more than it does, so that what a runtime has inside can be looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx

from onnx_attest.verify.oracle.program import AttentionSeen

_WEIGHTS_OUTPUT, _WEIGHTS_MODE = 3, 3
"""Attention gives the softmax's result as its fourth output, if asked for mode 3."""


def with_weights(
    model: onnx.ModelProto, attentions: Sequence[AttentionSeen]
) -> tuple[bytes, tuple[str, ...]]:
    """Return a copy of the model with one more output an attention, and the names of these outputs.

    The file under test stays as it is; an extra output can keep an optimiser from fusing, which is why the outputs
    that are judged never come from this copy.
    """
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    names = tuple(_weights_name(probed.graph, seen, index) for index, seen in enumerate(attentions))
    return _giving(probed, names), names


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> bytes:
    """Return a copy of the model that also gives these floating values from inside it."""
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    return _giving(probed, names)


def with_every_output(model: onnx.ModelProto) -> bytes:
    """Return a copy of the model that gives what each node of its graph gives, whatever its type."""
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    present = {value.name for value in (*probed.graph.output, *probed.graph.input)}
    for name in dict.fromkeys(name for node in probed.graph.node for name in node.output if name):
        if name not in present:
            probed.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return bytes(probed.SerializeToString())


def _giving(probed: onnx.ModelProto, names: Iterable[str]) -> bytes:
    element = _floating_type(probed)
    present = {output.name for output in probed.graph.output}
    for name in names:
        if name not in present:
            probed.graph.output.append(onnx.helper.make_tensor_value_info(name, element, None))
    return bytes(probed.SerializeToString())


def _weights_name(graph: onnx.GraphProto, seen: AttentionSeen, index: int) -> str:
    if seen.weights:
        return seen.weights
    node = next(
        node for node in graph.node if node.op_type == "Attention" and node.output[0] == seen.output_name
    )
    while len(node.output) <= _WEIGHTS_OUTPUT:
        node.output.append("")
    if not node.output[_WEIGHTS_OUTPUT]:
        node.output[_WEIGHTS_OUTPUT] = f"attention_weights_{index}"
        kept = [attribute for attribute in node.attribute if attribute.name != "qk_matmul_output_mode"]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute("qk_matmul_output_mode", _WEIGHTS_MODE)])
    return str(node.output[_WEIGHTS_OUTPUT])


def _floating_type(model: onnx.ModelProto) -> int:
    kinds = [value.type.tensor_type.elem_type for value in (*model.graph.output, *model.graph.input)]
    floating = (
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
    )
    return int(next((kind for kind in kinds if kind in floating), onnx.TensorProto.FLOAT))
