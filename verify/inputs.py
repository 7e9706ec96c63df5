"""Inputs and sizes that the user gives, held against what the file takes before anything runs."""

from __future__ import annotations

import importlib.util
import re
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import LARGEST
from onnx_attest.export.reading import NO_FILE, bytes_of
from onnx_attest.verify import guard
from onnx_attest.verify.footprint import free_bytes
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.signature import Signature

_SHAPE = re.compile(r"(?P<name>.+):\[(?P<sizes>\s*[0-9]+\s*(,\s*[0-9]+\s*)*)?\]")

_FORMS = "give an .npz, a folder with input_0.pb such as test_data_set_0, or file.py:function"
_FUNCTION = re.compile(r"(?P<file>.+\.py):(?P<function>\w+)")


def inputs_of_function(path: Path, signature: Signature) -> Tensors | None:
    """Return what a Python function, `file.py:function`, gives as inputs; None if that is not what is named.

    Raises:
        UsageError: no such file or function, it raises, or what it gives are not the file's inputs.
    """
    match = _FUNCTION.fullmatch(str(path))
    if match is None:
        return None
    spec = importlib.util.spec_from_file_location("onnx_attest_inputs", match["file"])
    assert spec is not None  # a name that ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        tensors = getattr(module, match["function"])()
    except (Exception, SystemExit) as error:  # whatever the user's file raises, or calls
        raise UsageError(f"{path}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        raise UsageError(
            f"{path} gives {type(tensors).__name__}; return a dictionary of arrays by input name"
        )
    check_inputs(tensors, signature)
    return tensors


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return shapes by input name from texts such as `x:[2,128,512]`, Polygraphy's form.

    Raises:
        UsageError: a text of another form, or an input named twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        match = _SHAPE.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"--input-shapes {text!r} is not of the form name:[2,128,512]")
        if match["name"] in shapes:
            raise UsageError(f"--input-shapes gives {match['name']} twice; give each input once")
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
    """Return the inputs in an .npz, in ONNX's own layout, a folder with input_0.pb, ..., or from file.py:function.

    Raises:
        UsageError: no such file, another format, or names, dtypes and shapes that are not the file's.
    """
    if (made := inputs_of_function(path, signature)) is not None:
        return made
    guard.doing(f"reading {path.name}")
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; {_FORMS}") from error
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):  # a pipe would be waited for
        raise UsageError(f"cannot read {path}: {NO_FILE}; {_FORMS}")
    tensors = _load_folder(path, signature) if stat.S_ISDIR(mode) else _load_npz(path)
    check_inputs(tensors, signature)
    return tensors


def _load_npz(path: Path) -> Tensors:
    try:
        if not zipfile.is_zipfile(path):
            raise UsageError(
                f"{path} is not a complete .npz; save the inputs with numpy.savez(path, name=array, ...)"
            )
        _refuse_too_large(path)
        with np.load(path, allow_pickle=False) as archive:
            return {name: _member(path, archive, name) for name in _distinct(path, archive.files)}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}; {_FORMS}") from error
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        # What zipfile says of a list of members that it cannot read, of methods that it does not have, and of passwords.
        raise UsageError(f"{path} is not a complete .npz: {error}; save it again") from error


def _refuse_too_large(path: Path) -> None:
    """Refuse what would unpack to more than there is memory for: a thousandth of it may be enough on disk.

    Raises:
        UsageError: it says how much it is.
    """
    with zipfile.ZipFile(path) as packed:
        unpacked = sum(one.file_size for one in packed.infolist())
    free = free_bytes()
    if free is not None and unpacked > free:
        raise UsageError(
            f"{path} unpacks to {unpacked / 1e9:,.0f} GB, and {free / 1e9:,.0f} GB are free; give smaller inputs"
        )


def _distinct(path: Path, names: Sequence[str]) -> Sequence[str]:
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{path} holds {twice[0]} twice; give each input once")
    return names


def _member(path: Path, archive: Any, name: str) -> NDArray[Any]:
    try:
        array = archive[name]
    except MemoryError as error:
        raise UsageError(f"{name} in {path} is too large for this machine: {error}") from error
    except (OSError, zipfile.BadZipFile):
        raise
    except Exception as error:  # NumPy parses the header as Python, and raises what the parser does
        raise UsageError(f"{name} in {path} is not a plain array: {error}; save it again") from error
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{name} in {path} is not an array; save the inputs with numpy.savez")
    return array


def _load_folder(path: Path, signature: Signature) -> Tensors:
    files = sorted(path.glob("input_*.pb"), key=_position)
    if not files:
        raise UsageError(f"{path} holds no input_0.pb; {_FORMS}")
    tensors: Tensors = {}
    for index, file in enumerate(files):
        tensor, array = _read_tensor(file)
        # The layout lets the name be empty: then the position counts.
        names = signature.got.inputs
        name = tensor.name or (names[index] if index < len(names) else file.stem)
        if name in tensors:
            raise UsageError(f"{file} gives {name} a second time; give each input once")
        tensors[name] = array
    return tensors


def _read_tensor(file: Path) -> tuple[onnx.TensorProto, NDArray[Any]]:
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(bytes_of(file, LARGEST))
        if any(size < 0 for size in tensor.dims):
            raise ValueError(f"its sizes are {list(tensor.dims)}")
        if not isinstance(tensor.name, str):  # protobuf gives bytes where they are not UTF-8
            raise ValueError(f"its name {tensor.name!r} is not text")
        return tensor, onnx.numpy_helper.to_array(tensor, base_dir=str(file.parent))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}; {_FORMS}") from error
    except Exception as error:  # the decoder, the checker of external data and NumPy each raise their own
        raise UsageError(f"{file} is not an ONNX tensor: {type(error).__name__}: {error}") from error


def _position(file: Path) -> tuple[int, str]:
    number = file.stem.removeprefix("input_")
    return (int(number) if number.isdecimal() else 0, file.stem)


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
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{name} is {type(array).__name__}; give a NumPy array of {dtype}")
    if array.dtype != dtype:
        raise UsageError(f"{name} is {array.dtype}, the file takes {dtype}")
    if array.ndim != len(axes):
        raise UsageError(f"{name} has the shape {array.shape}, the file takes {len(axes)} axes")
    for axis, size in zip(axes, array.shape, strict=True):
        if isinstance(axis, int) and axis != size:
            raise UsageError(f"{name} has the shape {array.shape}, the file fixes {axis} where it has {size}")
        if isinstance(axis, str) and sizes.setdefault(axis, size) != size:
            raise UsageError(f"{name} has {size} where another input has {sizes[axis]} for the axis {axis}")


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """Return session options by name from texts such as `intra_op_num_threads=1`.

    Raises:
        UsageError: a text without a name or an equals sign.
    """
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key.strip() or not equals:
            raise UsageError(f"--session-option {text!r} is not of the form key=value")
        options[key.strip()] = value.strip()
    return options
