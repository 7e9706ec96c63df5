"""The ONNX file, or a copy of it in memory, as an adapter sees it that must not rely on its runtime for names and types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx_attest.export.artifact import Artifact


_FLOATS = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16")


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model without the tensors that lie beside it.

    Attributes:
        proto: an onnx.ModelProto.
        folder: where its external tensors are.
    """

    proto: Any
    folder: Path

    @staticmethod
    def of(artifact: Artifact, model: bytes | None) -> ModelFile:
        """Return the artifact's file, or `model` in its place."""
        import onnx

        proto = (
            onnx.load(artifact.path, load_external_data=False, format="protobuf")
            if model is None
            else onnx.load_model_from_string(model)
        )
        return ModelFile(proto, artifact.path.parent)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return tuple(value.name for value in self.proto.graph.output)

    @cached_property
    def element_types(self) -> dict[str, int]:
        """The element type of each tensor among the inputs and outputs, as onnx.TensorProto numbers it."""
        given = {tensor.name for tensor in self.proto.graph.initializer}
        values = (*(one for one in self.proto.graph.input if one.name not in given), *self.proto.graph.output)
        return {value.name: value.type.tensor_type.elem_type for value in values}

    def nodes_without_floats(self) -> frozenset[tuple[str, str]]:
        """Return the nodes, (operator, name), all of whose outputs are known to be no floating-point tensors.

        Nodes of one operator that share a name (or have none) are in it only together.
        """
        import onnx

        inferred = onnx.shape_inference.infer_shapes(self.proto).graph
        values = (*inferred.value_info, *inferred.output)
        kinds = {value.name: value.type.tensor_type.elem_type for value in values}
        floats = {onnx.TensorProto.DataType.Value(name) for name in _FLOATS}
        seen: dict[tuple[str, str], bool] = {}
        for node in inferred.node:
            types = [kinds.get(name, 0) for name in node.output if name]
            short = all(kind and kind not in floats for kind in types)
            seen[node.op_type, node.name] = short and seen.get((node.op_type, node.name), True)
        return frozenset(key for key, short in seen.items() if short)

    @cached_property
    def beside(self) -> tuple[str, ...]:
        """The files beside it that hold tensors, by their names in the model."""
        from onnx.external_data_helper import ExternalDataInfo, uses_external_data

        tensors = self.proto.graph.initializer
        found = (ExternalDataInfo(tensor).location for tensor in tensors if uses_external_data(tensor))
        return tuple(dict.fromkeys(found))

    def whole(self) -> bytes:
        """Return the model with all its tensors inside.

        Raises:
            ValueError: that would be more than the 2 GiB of a protobuf.
        """
        import onnx

        if not self.beside:
            return bytes(self.proto.SerializeToString())
        copy = onnx.ModelProto()
        copy.CopyFrom(self.proto)
        onnx.load_external_data_for_model(copy, str(self.folder))
        return bytes(copy.SerializeToString())
