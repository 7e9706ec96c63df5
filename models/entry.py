"""An entry of the catalogue, and how a name on the command line becomes one."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from onnx_attest.errors import UsageError
from onnx_attest.models.contract import Contract

if TYPE_CHECKING:
    from torch import nn

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
PARAMETER_SEED = 20260101
"""Parameters are drawn from this seed, so that an artifact's module can be built again elsewhere."""


@dataclass(frozen=True)
class Entry:
    """A module that can be exported and verified, with its contract.

    Attributes:
        name: what reports call it; also the stem of its files: letters, digits and `._+-`.
        summary: one line, shown by `onnx-attest export --list`.
        contract: what it takes and gives.
        build: returns the module in evaluation mode. Called with torch's generator seeded.
        variants: the forms of the graph that the module can be exported to. `attention` needs a module that calls
            `torch.nn.functional.scaled_dot_product_attention`: one that writes its softmax out has no such form.
        dtypes: that `run` makes graphs of; all that it is asked for if none is named. A deep model in half precision has
            no bound that says anything.
        reference: how `resolve` found the entry, so that the torch runtime can find it again; set by `resolve`.
    """

    name: str
    summary: str
    contract: Contract
    build: Callable[[], Any]
    variants: tuple[str, ...] = ("decomposed", "attention")
    dtypes: tuple[str, ...] = ()
    reference: str = ""

    def is_verified_in(self, dtype: str) -> bool:
        """Whether `run` makes a graph of it in a dtype."""
        return not self.dtypes or dtype in self.dtypes

    def __post_init__(self) -> None:
        """Refuse an entry that could not be exported, where it is written.

        Raises:
            ValueError: the name is not fit for a file, or a field is of another kind.
        """
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(
                f"an entry's name is the stem of its files: letters, digits and ._+-; got {self.name!r}"
            )
        if not isinstance(self.contract, Contract):
            raise ValueError(f"{self.name}: contract must be a Contract, got {type(self.contract).__name__}")
        if not callable(self.build):
            raise ValueError(f"{self.name}: build must be a function that returns the module")


def build_module(entry: Entry) -> nn.Module:
    """Return the entry's module; the same parameters every time, whatever the state of torch's generator.

    Raises:
        UsageError: the factory raised, or returned something that is not a module; or there is no torch.
    """
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library of a broken installation
        raise UsageError(f"building {entry.name} needs torch: {error}; install onnx-attest[torch]") from error

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(PARAMETER_SEED)
        try:
            module = entry.build()
        except (Exception, SystemExit) as error:  # an exit in a user's code must not become our exit code
            raise UsageError(f"{entry.name}: building the module raised {_describe(error)}") from error
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"{entry.name}: build() returned {type(module).__name__}, not a torch.nn.Module")
    return module


def parameters_digest(module: nn.Module) -> str:
    """Return the sha256 of all parameters and buffers, names and dtypes included."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(_bytes_dtype()).numpy().tobytes())
    return digest.hexdigest()


def _bytes_dtype() -> Any:
    import torch

    return torch.uint8


def resolve(reference: str) -> Entry:
    """Return the entry behind a catalogue name, `path/to/file.py:factory` or `package.module:factory`.

    The factory is an `Entry`, or a function without arguments that returns one.

    Raises:
        UsageError: nothing of that name; the message lists what there is.
    """
    if ":" not in reference:
        return _from_catalogue(reference)
    made = _made(reference)
    if not isinstance(made, Entry):
        raise UsageError(
            f"{reference} gives {type(made).__name__}, not an onnx_attest.models.Entry, which says what the module takes; "
            "docs/your-model.md shows how to write one"
        )
    return replace(made, reference=reference)


def resolve_module(reference: str) -> Any:
    """Return the entry behind a reference, see `resolve`, or the module itself where that is what the factory gives.

    Raises:
        UsageError: nothing of that name, or something else.
    """
    made = _made(reference) if ":" in reference else None
    return made if callable(getattr(made, "forward", None)) else resolve(reference)


def _made(reference: str) -> Any:
    """Return what is behind the name of a factory: what it gives, or what has that name."""
    source, _, attribute = reference.rpartition(":")
    factory = getattr(_load(source, reference), attribute, None)
    if factory is None:
        raise UsageError(
            f"{source} has no {attribute!r}; name an Entry in it, or a function that returns one"
        )
    if isinstance(factory, Entry) or not callable(factory) or hasattr(type(factory), "forward"):
        return factory
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise UsageError(f"{reference} raised {_describe(error)}") from error


def _from_catalogue(name: str) -> Entry:
    from onnx_attest.models.catalogue import catalogue

    entries = catalogue()
    if name not in entries:
        raise UsageError(
            f"unknown model {name!r}; the catalogue has {', '.join(entries)}; or give path/to/file.py:factory"
        )
    return entries[name]


def _load(source: str, reference: str) -> ModuleType:
    is_file = source.endswith(".py")
    if is_file and not os.path.isfile(source):  # noqa: PTH113 - Path.is_file raises on a name that is too long
        raise UsageError(f"no file {source}; give path/to/file.py:factory")
    try:
        return _load_file(Path(source)) if is_file else importlib.import_module(source)
    except (Exception, SystemExit) as error:
        raise UsageError(f"importing {reference} raised {_describe(error)}") from error


def _load_file(path: Path) -> ModuleType:
    name = f"_onnx_attest_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None  # a .py suffix always has the source loader
    module = importlib.util.module_from_spec(spec)
    # As `python file.py` would: the file finds its neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    # Dataclasses look their module up by its name while the file runs.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
