"""The process that a runtime runs in, see `host.py`: a request a line on stdin, an answer a line on stdout.

Requirements:
* needs NumPy, the standard library and the runtime alone: it may be started under another interpreter, see `bootstrap.py`;
* nothing that a library prints reaches the parent;
* every request is answered, unless the process itself dies;
* it does not outlive its parent.
"""

from __future__ import annotations

import base64
import json
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from onnx_attest.errors import UsageError
from onnx_attest.verify.interruption import leave_sigterm_to_the_parent
from onnx_attest.verify.pages import keep_pages
from onnx_attest.verify.runtimes.base import FallbackError, UnavailableError
from onnx_attest.verify.workers.arrays import SharedFile, decode, encode
from onnx_attest.verify.workers.orphan import end_with
from onnx_attest.verify.workers.streams import one_line, private_streams

_KINDS = {FallbackError: "fallback", UnavailableError: "unavailable", UsageError: "usage"}


@dataclass(frozen=True)
class Received:
    """An artifact as the parent describes it: what adapters ask of one, without what they do not."""

    path: Path
    sha256: str
    name: str
    trusted: bool
    written_manifest: str | None
    reference: str

    @cached_property
    def manifest(self) -> Any:
        """The manifest, read when an adapter asks for it: only the `torch` runtime does.

        Raises:
            UnavailableError: this interpreter lacks what it takes to read it.
        """
        if self.written_manifest is None:
            return None
        try:
            import msgspec

            from onnx_attest.export.artifact import Manifest
        except ImportError as error:
            raise UnavailableError(
                f"{error}: to run the module, the runtime's interpreter needs it"
            ) from error
        return msgspec.json.decode(self.written_manifest, type=Manifest)

    @cached_property
    def module(self) -> Any:
        """The module that the parent holds the file against, built again; None if it names none."""
        if not self.reference:
            return None
        from onnx_attest.export.lower import prepared
        from onnx_attest.models.entry import build_module, resolve

        entry = resolve(self.reference)
        return prepared(build_module(entry), entry.contract, name=entry.name)


class Server:
    """The sessions of this process, and what is done with them."""

    def __init__(self, file: SharedFile) -> None:
        """Take the file that values come and go in."""
        self._file = file
        self._runtimes: dict[str, Any] = {}
        self._sessions: dict[int, Any] = {}
        self._kinds: Mapping[str, Callable[..., Any]] = {
            "availability": self.availability,
            "open": self.open,
            "call": self.call,
            "rewritten": self.rewritten,
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request: a value, or what was raised."""
        for number in request["closed"]:
            self._sessions.pop(number, None)
        try:
            value = self._kinds[request["kind"]](**decode(request["arguments"], self._file))
            return {"number": request["number"], "value": encode(value, self._file)}
        except Exception as error:  # noqa: BLE001 - a runtime may raise anything; it is the answer then
            kind = _KINDS.get(type(error), "raised")
            raised = {"kind": kind, "name": type(error).__name__, "message": one_line(str(error))}
            return {"number": request["number"], "raised": raised}

    def availability(self, runtime: str) -> dict[str, Any]:
        """Return what the runtime says of itself."""
        found = self._runtime(runtime).availability()
        # A plain string: torch's version is of a class of its own.
        return {**vars(found), "version": str(found.version)}

    def open(
        self,
        session: int,
        runtime: str,
        artifact: Mapping[str, Any],
        model: str,
        behind: bool,
        threads: int | None,
    ) -> dict[str, Any]:
        """Open a session under a number; return its placement, and what it can be asked.

        The file `model` is opened instead of the artifact's, or with its bytes behind that one's.
        """
        self._sessions.pop(session, None)
        parts = [artifact["path"], model] if behind else [model]
        copy = b"".join(Path(part).read_bytes() for part in parts) if model else None
        opened = self._runtime(runtime).open(_received(artifact), model=copy, threads=threads)
        self._sessions[session] = opened
        return {
            "session": session,
            "placement": vars(opened.placement),
            "methods": [
                name
                for name in dir(opened)
                if not name.startswith("_") and callable(getattr(opened, name, None))
            ],
        }

    def call(self, session: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """Return what a method of a session gives."""
        return getattr(self._sessions[session], method)(*arguments)

    def rewritten(self, runtime: str, artifact: Mapping[str, Any], folder: str, threads: int | None) -> str:
        """Write the graph that the runtime makes of the file, and return where."""
        path = self._runtime(runtime).rewritten(_received(artifact), Path(folder), threads=threads)
        return str(path)

    def _runtime(self, pickled: str) -> Any:
        if pickled not in self._runtimes:
            try:
                # What our own parent pickled: it started us, and could do anything without.
                self._runtimes[pickled] = pickle.loads(base64.b64decode(pickled))  # noqa: S301
            except ImportError as error:
                raise UnavailableError(
                    f"its adapter cannot be imported under {Path(sys.executable).name}: {error}"
                ) from error
        return self._runtimes[pickled]


def _received(artifact: Mapping[str, Any]) -> Received:
    return Received(**{**artifact, "path": Path(artifact["path"])})


def main() -> None:
    """Answer requests until there are no more."""
    settings = json.loads(sys.argv[1])
    end_with(settings["parent"], at_once=settings["at_once"])
    leave_sigterm_to_the_parent()
    if settings["path"] is not None:  # as the parent finds its modules, a user's and a test's among them
        sys.path[:] = settings["path"]
    keep_pages()
    requests, answers = private_streams()
    server = Server(SharedFile.of(settings["file"]))
    for line in requests:
        answers.write(json.dumps(server.answer(json.loads(line))).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
