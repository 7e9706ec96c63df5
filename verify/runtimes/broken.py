"""A registered runtime that cannot be loaded: it is listed with its error, and never hides the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx_attest.verify.arithmetic import OF_DTYPE
from onnx_attest.verify.runtimes.base import Availability, Session, UnavailableError

if TYPE_CHECKING:
    from onnx_attest.export.artifact import Artifact


@dataclass(frozen=True)
class BrokenRuntime:
    """The place of a runtime whose entry point raised, or gave something else.

    Attributes:
        reason: what went wrong, and in which distribution.
    """

    name: str
    reason: str

    def arithmetic(self, dtype: str) -> str:
        """Return what is declared where nothing else is known."""
        return OF_DTYPE[dtype]

    def availability(self) -> Availability:
        """Say what went wrong."""
        return Availability(
            False, reason=self.reason, install="repair or remove the package that registers it"
        )

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Session:
        """Refuse.

        Raises:
            UnavailableError: always.
        """
        raise UnavailableError(self.reason)
