"""torch.compile: the module as Inductor compiles it; a call that fell back to eager mode is refused, not timed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import OF_DTYPE
from onnx_attest.verify.runtimes.base import Availability, Placement, Session, Tensors, UnavailableError
from onnx_attest.verify.runtimes.torch_eager import TorchRuntime, TorchSession, module_of

if TYPE_CHECKING:
    from onnx_attest.export.artifact import Artifact

# Dynamo compiles anew for sizes of 0 and 1, for strides and for other instances of one class; beyond its limit of 8 it
# runs the module in eager mode and only logs that.
_RECOMPILATIONS = 256


@dataclass(frozen=True)
class TorchCompileRuntime:
    """`torch.compile(module, dynamic=True)` with Inductor, on the CPU. The first call at a kind of size compiles."""

    name: str = "torch-compile"
    runs_module: ClassVar[bool] = True

    def arithmetic(self, dtype: str) -> str:
        """Return the declared profile."""
        return OF_DTYPE[dtype]

    def availability(self) -> Availability:
        """Say whether torch can be imported and Inductor finds a C++ compiler."""
        found = TorchRuntime().availability()
        if not found.usable:
            return found
        compiler = _compiler()
        if shutil.which(compiler):
            return found
        return Availability(
            False, found.version, f"Inductor needs a C++ compiler; there is no {compiler}", "g++, or CXX set"
        )

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Session:
        """Return a session over the artifact's compiled module.

        Raises:
            UnavailableError: no torch or compiler, no module known, or a copy of the file was to be run.
        """
        self.availability().demand()
        if model is not None:
            raise UnavailableError(f"{self.name} runs the module, not a copy of the file")
        import torch
        import torch._dynamo.config

        if threads is not None:
            torch.set_num_threads(threads)
        # For good: to set and restore them around each call takes a hundred times as long as a small call.
        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, _RECOMPILATIONS)
        config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 4 * _RECOMPILATIONS)
        return CompiledSession(module_of(artifact), artifact)


class CompiledSession(TorchSession):
    """A compiled module called as `forward(*inputs)` in the contract's order.

    Attributes:
        graphs: how many were compiled.
        calls: how many calls of compiled graphs there were.
    """

    def __init__(self, module: Any, artifact: Artifact) -> None:
        import torch

        self.graphs = self.calls = 0
        compiled = torch.compile(module, dynamic=True, backend=self._compile)
        super().__init__(compiled, artifact)
        self.placement = Placement(("inductor",), ("inductor",))

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        """Return the outputs by name.

        Raises:
            UnavailableError: no compiled graph was called: torch ran the module in eager mode.
        """
        before = self.calls
        outputs = super().run(inputs)
        if self.calls == before:
            raise UnavailableError(
                "torch.compile called no compiled graph: torch ran the module in eager mode"
            )
        return outputs

    def _compile(self, graph: Any, examples: list[Any]) -> Callable[..., Any]:
        """Compile a graph as Inductor does, and count its calls: torch itself does not say whether it used it."""
        import torch._inductor.config
        from torch._inductor.compile_fx import compile_fx

        self.graphs += 1
        # One thread compiles in this process: a pool of compiling processes would outlive the run.
        with torch._inductor.config.patch(compile_threads=1):
            return partial(self._called, compile_fx(graph, examples))

    def _called(self, compiled: Callable[..., Any], *arguments: Any) -> Any:
        self.calls += 1
        return compiled(*arguments)


def _compiler() -> str:
    """Return the C++ compiler that Inductor would call."""
    default = {"win32": "cl", "darwin": "clang++"}.get(sys.platform, "g++")
    return os.environ.get("CXX", default)
