"""What every runtime is to the verifier.

Requirements that an adapter satisfies:
* importing its module imports no third-party runtime; that happens inside functions;
* it is registered as an entry point of the group `onnx_attest.runtimes`, whose name is the runtime's: the object is a
  `Runtime`, or a function or class that returns one;
* it is plain data (a frozen dataclass of names and options), so that another process can make it again from its name;
* `availability` says "present but broken" in the runtime's own words, and does not raise;
* `open` raises `UnavailableError` if the session would run elsewhere than asked: a fallback is never silent;
* `run` takes and returns NumPy arrays by name, and lets the runtime's exceptions through;
* it can be pickled, and its module imports nothing but NumPy, the standard library and other such modules: it is
  opened in a process of its own, perhaps under another interpreter, see `isolated.py`;
* one that runs the artifact's module, and not its file, says so with `runs_module = True`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx_attest.export.artifact import Artifact

Tensors = dict[str, NDArray[Any]]


class UnavailableError(Exception):
    """The runtime cannot run this here: the reason, from the runtime itself. The cell is skipped."""


class FallbackError(UnavailableError):
    """The runtime made a session that runs elsewhere than asked, and did not say so itself."""


class ProcessDiedError(Exception):
    """The runtime took its process along: how it ended, as far as is known, and over what."""


@dataclass(frozen=True)
class Availability:
    """Whether a runtime works on this machine.

    Attributes:
        reason: why it does not, from the runtime itself where it says; "" if it works.
        install: what to do about that: a package, an extra, a command.
    """

    usable: bool
    version: str = "unknown"
    reason: str = ""
    install: str = ""

    @property
    def remark(self) -> str:
        """The reason with what to do about it, "" if it works."""
        return f"{self.reason} (needs {self.install})" if self.install else self.reason

    def demand(self) -> None:
        """Do nothing if it works.

        Raises:
            UnavailableError: it does not; the reason, and what to do about it.
        """
        if not self.usable:
            raise UnavailableError(self.remark)


@dataclass(frozen=True)
class Placement:
    """Where a session was asked to run and where it runs; nodes by provider where the runtime tells.

    Attributes:
        fallen: nodes that compute floating-point numbers on another provider than asked.
        details: what else the session says of how it runs, that its caller did not choose: the precision, threads.
        session_options: of ONNX Runtime's session, which its caller chose.
    """

    requested: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    nodes_by_provider: dict[str, int] = field(default_factory=dict)
    fallen: tuple[str, ...] = ()
    details: dict[str, str] = field(default_factory=dict)
    session_options: dict[str, str] = field(default_factory=dict)

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


@runtime_checkable
class Clocked(Protocol):
    """A session in another process, with a clock there: what a call takes is not the way to it and back."""

    def calls_s(self, inputs: Mapping[str, NDArray[Any]], calls: int) -> tuple[float, ...]:
        """Return the seconds that so many runs took, one right after the other."""
        ...


class DeviceCall(Protocol):
    """A call whose inputs are on a device already, and whose outputs stay there.

    Attributes:
        copied_in_s: seconds that the inputs took to get there.
    """

    copied_in_s: float

    def run(self) -> None:
        """Compute the outputs, and wait until they are there."""
        ...

    def copied_out_s(self) -> float:
        """Copy the outputs of the last run to the host, and return the seconds that it took."""
        ...


@runtime_checkable
class OnDevice(Protocol):
    """A session that may compute on a device with a memory of its own: copies are timed apart from calls."""

    def on_device(self, inputs: Mapping[str, NDArray[Any]]) -> DeviceCall | None:
        """Return a call with these inputs on the device, None if it computes in the host's memory."""
        ...


@runtime_checkable
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
