"""What a file takes and gives, and whether that is what was asked of the exporter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact, Got
from onnx_attest.export.observe import dtypes_of, observe
from onnx_attest.models.contract import Contract, TensorSpec, guess_input


@dataclass(frozen=True, eq=False)
class Signature:
    """An ONNX file as read: the graph, what it takes and gives, and the contract it is tested under.

    Attributes:
        contract: the manifest's, else one guessed from names, dtypes and axes.
    """

    model: onnx.ModelProto
    got: Got
    contract: Contract
    dtypes: dict[str, np.dtype[Any]]

    @property
    def floating(self) -> np.dtype[Any]:
        """The floating dtype of the graph: that of its first floating input or output."""
        kinds = [dtype for dtype in self.dtypes.values() if np.issubdtype(dtype, np.floating)]
        return kinds[0] if kinds else np.dtype(np.float32)


def read_signature(artifact: Artifact) -> Signature:
    """Return the signature of an artifact's file.

    Raises:
        UsageError: the file is not ONNX, is truncated, or breaks the rules of ONNX.
    """
    model = _load(artifact.path)
    got = observe(model)
    dtypes = dtypes_of((*model.graph.input, *model.graph.output))
    contract = artifact.manifest.contract if artifact.manifest else _guess_contract(got, dtypes)
    return Signature(model, got, contract, dtypes)


def _load(path: Path) -> onnx.ModelProto:
    hint = f"{path} is not a complete ONNX file"
    try:
        model = onnx.load(path)
        onnx.checker.check_model(str(path))  # by path: external data is checked too, and 2 GB is no limit
    except (DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{hint}: {error}; was it truncated, or is it another format?") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        ValueError,
        RuntimeError,
    ) as error:
        raise UsageError(f"{hint}: {_first_line(error)}; export it again") from error
    if not model.graph.output:
        raise UsageError(f"{hint}: its graph has no output; was it truncated, or is it another format?")
    return model


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _guess_contract(got: Got, dtypes: dict[str, np.dtype[Any]]) -> Contract:
    """Return a contract for a file that comes with none: every unnamed axis is its own symbolic one."""
    inputs = tuple(guess_input(name, _named(name, got), _kind(dtypes.get(name))) for name in got.inputs)
    outputs = tuple(
        TensorSpec(name, _named(name, got), _kind(dtypes.get(name)), "output") for name in got.outputs
    )
    symbolic = dict.fromkeys(
        axis for spec in (*inputs, *outputs) for axis in spec.axes if isinstance(axis, str)
    )
    fixed = {axis for spec in inputs for axis in spec.axes if isinstance(axis, int)}
    return Contract(inputs, outputs, _distinct_sizes(list(symbolic), fixed))


def _named(name: str, got: Got) -> tuple[str | int, ...]:
    return tuple(f"{name}_{index}" if axis is None else axis for index, axis in enumerate(got.axes[name]))


def _kind(dtype: np.dtype[Any] | None) -> str:
    if dtype is None:
        raise UsageError(
            "an input or output of the file is not a tensor; only tensors can be fed and compared"
        )
    return "float" if np.issubdtype(dtype, np.floating) else dtype.name


def _distinct_sizes(axes: list[str], taken: set[int]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    candidate = 2
    for axis in axes:
        while candidate in taken or candidate in sizes.values():
            candidate += 1
        sizes[axis] = candidate
        candidate += 5
    return sizes
