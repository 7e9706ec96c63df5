"""What a file takes and gives, and whether that is what was asked of the exporter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from google.protobuf.message import DecodeError

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact, Got
from onnx_attest.export.messages import garbled
from onnx_attest.export.observe import dtypes_of, observe
from onnx_attest.models.contract import DTYPES, Contract, TensorSpec, guess_input
from onnx_attest.verify import guard
from onnx_attest.verify.finder.calls import refuse_endless
from onnx_attest.verify.oracle.bounded import is_floating
from onnx_attest.verify.oracle.weights import LARGE, beside, refuse_beyond_the_end
from onnx_attest.verify.usage import Uses

_MOST_AXES = 64
"""Of an array, in NumPy since 2.0."""


@dataclass(frozen=True, eq=False)
class Signature:
    """An ONNX file as read: the graph, what it takes and gives, and the contract it is tested under.

    Attributes:
        folder: where tensors are that lie beside the file, if they are too large to be held, see `weights.LARGE`.
        as_in_file: the model holds what the file's own bytes say, and no tensor from beside it.
        contract: the manifest's, if it is about this file's inputs; else one guessed from names, dtypes and axes.
    """

    model: onnx.ModelProto
    got: Got
    contract: Contract
    dtypes: dict[str, np.dtype[Any]]
    folder: Path
    as_in_file: bool

    def in_multiples_of(self, granularity: int) -> Signature:
        """Return the same with every size but those of batches in multiples of a number."""
        contract = self.contract
        traced = {
            axis: size if contract.is_batch(axis) else size * granularity
            for axis, size in contract.traced.items()
        }
        return replace(
            self, contract=msgspec.structs.replace(contract, traced=traced, granularity=granularity)
        )

    @property
    def floating(self) -> np.dtype[Any]:
        """The floating dtype of the graph: that of its first floating input or output."""
        kinds = [dtype for dtype in self.dtypes.values() if is_floating(dtype)]
        return kinds[0] if kinds else np.dtype(np.float32)


def read_signature(artifact: Artifact) -> Signature:
    """Return the signature of an artifact's file.

    Raises:
        UsageError: the file is not ONNX, is truncated, breaks the rules of ONNX, or takes what cannot be fed.
    """
    guard.doing(f"reading {artifact.path.name}")
    model, as_in_file = _load(artifact.path)
    got = observe(model)
    for name in (*got.inputs, *got.outputs):
        if (count := len(got.axes[name])) > _MOST_AXES:
            raise UsageError(
                f"{artifact.path}: {name} has {count} axes; only arrays of up to {_MOST_AXES} can be fed"
            )
    dtypes = dtypes_of((*model.graph.input, *model.graph.output))
    kinds = {name: _kind(name, dtypes.get(name)) for name in (*got.inputs, *got.outputs)}
    return Signature(
        model, got, _contract(artifact, model, got, kinds), dtypes, artifact.path.parent, as_in_file
    )


def _contract(artifact: Artifact, model: onnx.ModelProto, got: Got, kinds: dict[str, str]) -> Contract:
    """Return the manifest's contract, or a guess.

    A manifest of another file (OA801), or of a file that lost an input or an axis (OA104), does not say what to feed.
    """
    manifest = artifact.manifest
    if manifest is None or not _fits(manifest.contract, got, kinds):
        if manifest is not None and manifest.sha256 == artifact.sha256:
            _refuse_other_dtypes(artifact.path, manifest.contract, kinds)
        return _guess_contract(artifact.path, model, got, kinds)
    return _completed(_of_file(manifest.contract, got, kinds), model)


def _of_file(contract: Contract, got: Got, kinds: dict[str, str]) -> Contract:
    """Return a contract with the outputs that the file has: that it lost one is said elsewhere (OA104)."""
    known = {spec.name: spec for spec in contract.outputs}
    fitting = [name in known and len(known[name].axes) == len(got.axes[name]) for name in got.outputs]
    outputs = tuple(
        known[name] if fits else _guessed_output(name, got, kinds)
        for name, fits in zip(got.outputs, fitting, strict=True)
    )
    return msgspec.structs.replace(contract, outputs=outputs)


def _completed(contract: Contract, model: onnx.ModelProto) -> Contract:
    """Return a contract with what the graph shows of integers that it says nothing of: see `TensorSpec.below`."""
    open_ = {
        spec.name
        for spec in contract.inputs
        if spec.below is None and spec.role == "data" and spec.dtype not in ("float", "bool")
    }
    if not open_:
        return contract
    uses = Uses(model)
    inputs = tuple(
        guess_input(spec.name, spec.axes, spec.dtype, **vars(uses.of(spec.name)))
        if spec.name in open_
        else spec
        for spec in contract.inputs
    )
    return msgspec.structs.replace(contract, inputs=inputs)


def _refuse_other_dtypes(path: Path, contract: Contract, kinds: dict[str, str]) -> None:
    for spec in contract.inputs:
        if _family(spec.dtype) != kinds.get(spec.name, _family(spec.dtype)):
            raise UsageError(
                f"the contract says that {spec.name} is {spec.dtype}, {path} takes {kinds[spec.name]}; "
                "give the module that the file was exported from, or export it again"
            )


def _fits(contract: Contract, got: Got, kinds: dict[str, str]) -> bool:
    """Whether inputs made for the contract can be fed to the file: its names, dtypes and numbers of axes."""
    specs = {spec.name: (_family(spec.dtype), len(spec.axes)) for spec in contract.inputs}
    return specs == {name: (kinds[name], len(got.axes[name])) for name in got.inputs}


def _family(dtype: str) -> str:
    return "float" if "float" in dtype else dtype


def _load(path: Path) -> tuple[onnx.ModelProto, bool]:
    """Return the model, with what lies beside it unless that is too much, and whether nothing was added to it."""
    hint = f"{path} is not a complete ONNX file"
    try:
        # By default onnx goes by the file's name: .json and .onnxtxt would be read as text.
        model = onnx.load(path, format="protobuf", load_external_data=False)
        # Whoever writes functions out, the checker of older versions too, trusts that they end.
        refuse_endless(model)
        as_in_file = not 0 < beside(model) <= LARGE
        if not as_in_file:
            onnx.load_external_data_for_model(model, str(path.parent))
        # By path: external data is checked too, and 2 GB is no limit. It takes no name that is not UTF-8.
        onnx.checker.check_model(str(path) if _is_text(path) else model)
        if as_in_file:
            refuse_beyond_the_end(model, path.parent)
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
    if (name := garbled(model)) is not None:
        raise UsageError(f"{hint}: the name {name!r} is not text; was it damaged? Export it again")
    return model, as_in_file


def _is_text(path: Path) -> bool:
    try:
        return bool(str(path).encode())
    except UnicodeEncodeError:
        return False


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].removesuffix(".")


def _guessed_output(name: str, got: Got, kinds: dict[str, str]) -> TensorSpec:
    return TensorSpec(name, _named(name, got), kinds[name], "output")


def _guess_contract(path: Path, model: onnx.ModelProto, got: Got, kinds: dict[str, str]) -> Contract:
    """Return a contract for a file that comes with none: every unnamed axis is its own symbolic one.

    Raises:
        UsageError: a value is both input and output, or an output twice: nothing could be told apart by name.
    """
    names = [*got.inputs, *got.outputs]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UsageError(
            f"{path}: {twice[0]} is listed twice among the inputs and outputs; give each a name of its own"
        )
    uses = Uses(model)
    inputs = tuple(
        guess_input(name, _named_input(name, got, kinds), kinds[name], **vars(uses.of(name)))
        for name in got.inputs
    )
    outputs = tuple(_guessed_output(name, got, kinds) for name in got.outputs)
    symbolic = dict.fromkeys(
        axis for spec in (*inputs, *outputs) for axis in spec.axes if isinstance(axis, str)
    )
    fixed = {axis for spec in inputs for axis in spec.axes if isinstance(axis, int)}
    sizes = _distinct_sizes(list(symbolic), fixed)
    return Contract(inputs, outputs, sizes, batch=_batch_axes(inputs), guessed=True)


def _batch_axes(inputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Return the axes that are first wherever they are, before two others or before the tokens of integers."""
    places: dict[str, set[int]] = {}
    for spec in inputs:
        for index, axis in enumerate(spec.axes):
            if isinstance(axis, str):
                places.setdefault(axis, set()).add(index)
    first = {
        spec.axes[0]
        for spec in inputs
        if len(spec.axes) > 2 or (len(spec.axes) == 2 and spec.dtype != "float")
    }
    return tuple(axis for axis, seen in places.items() if axis in first and seen == {0})


def _named(name: str, got: Got) -> tuple[str | int, ...]:
    return tuple(f"{name}_{index}" if axis is None else axis for index, axis in enumerate(got.axes[name]))


def _named_input(name: str, got: Got, kinds: dict[str, str]) -> tuple[str | int, ...]:
    """Return the axes of an input. What has no name has the same size in all integer inputs of as many axes.

    Those are the ids, masks and positions of the same tokens, and nothing else would run.
    """
    axes = got.axes[name]
    if kinds[name] == "float" or len(axes) < 2:
        return _named(name, got)
    return tuple(f"tokens_{index}" if axis is None else axis for index, axis in enumerate(axes))


def _kind(name: str, dtype: np.dtype[Any] | None) -> str:
    kind = "no tensor" if dtype is None else dtype.name
    if dtype is not None and is_floating(dtype):
        return "float"
    if kind not in DTYPES:
        what = {"no tensor": kind, "object": "a tensor of text"}.get(kind, f"a tensor of {kind}")
        raise UsageError(f"{name} is {what}; only tensors of numbers and booleans can be fed and compared")
    return kind


def _distinct_sizes(axes: list[str], taken: set[int]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    candidate = 2
    for axis in axes:
        while candidate in taken or candidate in sizes.values():
            candidate += 1
        sizes[axis] = candidate
        candidate += 5
    return sizes
