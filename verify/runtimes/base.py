"""What every runtime is to the verifier.

Requirements that an adapter satisfies:
* importing its module imports no third-party runtime; that happens inside functions;
* `availability` says "present but broken" in the runtime's own words, and does not raise;
* `open` raises `UnavailableError` if the session would run elsewhere than asked: a fallback is never silent;
* `run` takes and returns NumPy arrays by name, and lets the runtime's exceptions through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onnx_attest.export.artifact import Artifact

Tensors = dict[str, NDArray[Any]]


class UnavailableError(Exception):
    """The runtime cannot run this here: the reason, from the runtime itself. The cell is skipped."""


@dataclass(frozen=True)
class Availability:
    """Whether a runtime works on this machine."""

    usable: bool
    version: str = "unknown"
    reason: str = ""


@dataclass(frozen=True)
class Placement:
    """Where a session was asked to run and where it runs; nodes by provider where the runtime tells."""

    requested: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    nodes_by_provider: dict[str, int] = field(default_factory=dict)

    def elsewhere(self) -> str:
        """Return how many nodes run on another provider than asked, "" if none is known to."""
        others = {name: count for name, count in self.nodes_by_provider.items() if name not in self.requested}
        listed = ", ".join(f"{count} on {name}" for name, count in others.items())
        return f"of {sum(self.nodes_by_provider.values())} nodes, {listed}" if listed else ""


class Session(Protocol):
    """An artifact made ready on a runtime."""

    placement: Placement

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        """Return the outputs by name."""
        ...


class Runtime(Protocol):
    """Something that executes an artifact."""

    @property
    def name(self) -> str:
        """As in reports and after `--runtime`."""
        ...

    def arithmetic(self, dtype: str) -> str:
        """Return the profile that it is declared to compute a graph of this dtype in."""
        ...

    def availability(self) -> Availability:
        """Say whether it works here, without raising."""
        ...

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Session:
        """Return a session for the artifact, or for `model` (a probed copy of it) instead of its file.

        Raises:
            UnavailableError: it would not run where it was asked to.
        """
        ...


def as_arrays(names: list[str], values: Any) -> Tensors:
    """Return outputs by name as NumPy arrays."""
    return {name: np.asarray(value) for name, value in zip(names, values, strict=True)}
