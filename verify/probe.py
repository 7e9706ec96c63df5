"""Copies of a graph that give more than it does, so that what a runtime has inside can be looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx

from onnx_attest.verify.oracle.program import AttentionSeen, domain_of
from onnx_attest.verify.oracle.types import Types

_WEIGHTS_OUTPUT, _WEIGHTS_MODE = 3, 3
"""Attention gives the softmax's result as its fourth output, if asked for mode 3."""
_FOREIGN = frozenset(
    number
    for name, number in onnx.TensorProto.DataType.items()
    if name.startswith(("BFLOAT", "FLOAT4", "FLOAT8", "INT2", "INT4", "UINT2", "UINT4"))
)
"""Element types that NumPy does not have."""


@dataclass(frozen=True, eq=False)
class Copy:
    """A copy of a model that gives more: two messages of protobuf one behind the other are one, and join their lists.

    Attributes:
        model: what comes first.
        more: the bytes behind its own.
        is_file: the model's own bytes are those of the artifact's file: who has the file needs only the others.
    """

    model: onnx.ModelProto
    more: bytes
    is_file: bool

    def whole(self) -> bytes:
        """Return all of it."""
        return bytes(self.model.SerializeToString() + self.more)


class NoWeightsError(Exception):
    """An operator does not give its weights, whatever the graph asks it for."""


def with_weights(
    model: onnx.ModelProto, attentions: Sequence[AttentionSeen], *, as_in_file: bool
) -> tuple[Copy, tuple[str, ...]]:
    """Return a copy of the model with one more output an attention, and the names of these outputs.

    The file under test stays as it is; an extra output can keep an optimiser from fusing, which is why the outputs
    that are judged never come from this copy.

    Raises:
        NoWeightsError: an attention is an operator that gives none.
    """
    probed = model
    if not all(seen.weights for seen in attentions):  # an operator has to be asked for them
        probed = onnx.ModelProto()
        probed.CopyFrom(model)
    names = tuple(_weights_name(probed.graph, seen, index) for index, seen in enumerate(attentions))
    return _giving(probed, names, is_file=as_in_file and probed is model), names


def with_outputs(model: onnx.ModelProto, names: Iterable[str], *, as_in_file: bool) -> Copy:
    """Return a copy of the model that also gives these floating values from inside it.

    Args:
        model: of the artifact.
        names: of the values.
        as_in_file: see `Signature`.
    """
    return _giving(model, names, is_file=as_in_file)


def with_every_output(model: onnx.ModelProto) -> bytes:
    """Return a copy of the model that gives what each node of its graph gives, but what NumPy has no type for.

    ONNX Runtime refuses to give those, or gives a float8 as the bytes it is stored in.
    """
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    present = {value.name for value in (*probed.graph.output, *probed.graph.input)}
    types = Types(model)
    for name in dict.fromkeys(name for node in probed.graph.node for name in node.output if name):
        if name not in present and types.of(name) not in _FOREIGN:
            probed.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return bytes(probed.SerializeToString())


def _giving(model: onnx.ModelProto, names: Iterable[str], *, is_file: bool) -> Copy:
    element = _floating_type(model)
    present = {output.name for output in model.graph.output}
    more = onnx.ModelProto()
    for name in names:
        if name not in present:
            more.graph.output.append(onnx.helper.make_tensor_value_info(name, element, None))
    return Copy(model, bytes(more.SerializeToString()), is_file)


def _weights_name(graph: onnx.GraphProto, seen: AttentionSeen, index: int) -> str:
    if seen.weights:
        return seen.weights
    node = next(
        (
            node
            for node in graph.node
            if node.op_type == "Attention"
            and not domain_of(node.domain)
            and node.output[0] == seen.output_name
        ),
        None,
    )
    if node is None:
        raise NoWeightsError(f"{seen.node} is an operator that cannot be asked for its weights")
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
