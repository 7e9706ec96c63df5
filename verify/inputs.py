"""Inputs and sizes that the user gives, held against what the file takes before anything runs."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from onnx_attest.errors import UsageError
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.signature import Signature

_SHAPE = re.compile(r"(?P<name>.+):\[(?P<sizes>\s*\d+\s*(,\s*\d+\s*)*)?\]")


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return shapes by input name from texts such as `x:[2,128,512]`, Polygraphy's form.

    Raises:
        UsageError: a text of another form.
    """
    shapes = {}
    for text in texts:
        match = _SHAPE.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"--input-shapes {text!r} is not of the form name:[2,128,512]")
        sizes = match["sizes"]
        shapes[match["name"]] = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    return shapes


def axes_of_shapes(shapes: dict[str, tuple[int, ...]], signature: Signature) -> dict[str, int]:
    """Return the size of every symbolic axis; those that no shape names keep their traced size.

    Raises:
        UsageError: an unknown input, another rank, a size that the file fixes, two sizes for one axis.
    """
    contract = signature.contract
    axes: dict[str, int] = {}
    specs = {spec.name: spec for spec in contract.inputs}
    for name, shape in shapes.items():
        if name not in specs:
            raise UsageError(f"--input-shapes names {name!r}; the file's inputs are {', '.join(specs)}")
        wanted = specs[name].axes
        if len(shape) != len(wanted):
            raise UsageError(
                f"--input-shapes gives {name} {len(shape)} axes, it has {len(wanted)}: {_text(wanted)}"
            )
        for axis, size in zip(wanted, shape, strict=True):
            _set_axis(axes, name, axis, size)
    return {axis: axes.get(axis, contract.traced[axis]) for axis in contract.symbolic_axes()}


def _set_axis(axes: dict[str, int], name: str, axis: str | int, size: int) -> None:
    if isinstance(axis, int):
        if axis != size:
            raise UsageError(f"--input-shapes gives {name} the size {size} where the file fixes {axis}")
    elif axes.setdefault(axis, size) != size:
        raise UsageError(
            f"--input-shapes gives the axis {axis} two sizes, {axes[axis]} and {size} (in {name})"
        )


def _text(axes: Sequence[str | int]) -> str:
    return f"[{','.join(str(axis) for axis in axes)}]"


def load_inputs(path: Path, signature: Signature) -> Tensors:
    """Return the inputs in an .npz, or in ONNX's own layout, a folder with input_0.pb, input_1.pb, ...

    Raises:
        UsageError: no such file, another format, or names, dtypes and shapes that are not the file's.
    """
    tensors = _load_folder(path, signature) if path.is_dir() else _load_npz(path)
    check_inputs(tensors, signature)
    return tensors


def _load_npz(path: Path) -> Tensors:
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UsageError(
                    f"{path} holds one array without a name; save it with numpy.savez(name=array)"
                )
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(f"{path} is not an .npz of plain arrays: {error}") from error


def _load_folder(path: Path, signature: Signature) -> Tensors:
    files = sorted(path.glob("input_*.pb"), key=_position)
    if not files:
        raise UsageError(f"{path} holds no input_0.pb; give an .npz, or a folder such as test_data_set_0")
    tensors = {}
    for index, file in enumerate(files):
        tensor = onnx.TensorProto()
        try:
            tensor.ParseFromString(file.read_bytes())
            array = onnx.numpy_helper.to_array(tensor)
        except (DecodeError, OSError, ValueError, TypeError) as error:
            raise UsageError(f"{file} is not an ONNX tensor: {error}") from error
        # The layout lets the name be empty: then the position counts.
        names = signature.got.inputs
        tensors[tensor.name or (names[index] if index < len(names) else file.stem)] = array
    return tensors


def _position(file: Path) -> tuple[int, str]:
    number = file.stem.removeprefix("input_")
    return (int(number) if number.isdigit() else 0, file.stem)


def check_inputs(tensors: Tensors, signature: Signature) -> None:
    """Hold inputs against what the file takes.

    Raises:
        UsageError: a name too many or too few (the message lists the file's), another dtype, rank or size.
    """
    names = signature.got.inputs
    unknown = sorted(set(tensors) - set(names))
    missing = [name for name in names if name not in tensors]
    if unknown or missing:
        wrong = (
            f"no input is called {', '.join(unknown)}" if unknown else f"no value for {', '.join(missing)}"
        )
        raise UsageError(f"{wrong}; the file's inputs are {', '.join(names)}")
    sizes: dict[str, int] = {}
    for name in names:
        _check_input(name, tensors, signature, sizes)


def _check_input(name: str, tensors: Tensors, signature: Signature, sizes: dict[str, int]) -> None:
    array, axes, dtype = tensors[name], signature.got.axes[name], signature.dtypes[name]
    if array.dtype != dtype:
        raise UsageError(f"{name} is {array.dtype}, the file takes {dtype}")
    if array.ndim != len(axes):
        raise UsageError(f"{name} has the shape {array.shape}, the file takes {len(axes)} axes")
    for axis, size in zip(axes, array.shape, strict=True):
        if isinstance(axis, int) and axis != size:
            raise UsageError(f"{name} has the shape {array.shape}, the file fixes {axis} where it has {size}")
        if isinstance(axis, str) and sizes.setdefault(axis, size) != size:
            raise UsageError(f"{name} has {size} where another input has {sizes[axis]} for the axis {axis}")
