"""The process of a runtime as its parent sees it: ask and be answered, or learn how it died."""

from __future__ import annotations

import atexit
import base64
import contextlib
import importlib
import itertools
import json
import os
import pickle
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_attest.errors import UsageError
from onnx_attest.verify.runtimes.base import FallbackError, ProcessDiedError, UnavailableError
from onnx_attest.verify.workers import bootstrap
from onnx_attest.verify.workers.arrays import SharedFile, decode, encode
from onnx_attest.verify.workers.child import Child
from onnx_attest.verify.workers.limits import Limits

_MODULE = "onnx_attest.verify.workers.runtime"
_MAPPED = ("onnx_attest", "onnx_attest.models", "onnx_attest.export", "onnx_attest.verify")
_OWN = ("PYTHONPATH", "PYTHONHOME", "__PYVENV_LAUNCHER__")
"""What the environment says to our interpreter, and no other is to hear."""


class RaisedError(Exception):
    """What a runtime raised in its process; the class of an instance has the name of the original's."""


@dataclass(frozen=True)
class Request:
    """What a process is asked.

    Attributes:
        kind: of `workers.runtime.Server`'s.
        doing: what the process is about, if it dies of it: "it ...".
        arguments: as `arrays.encode` takes them.
        key: the same for the same question, if it may be asked before its answer is wanted.
    """

    kind: str
    doing: str
    arguments: Mapping[str, Any]
    key: str = ""


class RuntimeProcess:
    """One process for one runtime: started when it is first asked, and again after it died or was closed.

    Attributes:
        generation: counts the processes; what was opened in an earlier one is gone.
        limits: of each request, and of the process.
        remembered: answers that hold for every later process too.
    """

    def __init__(self, limits: Limits, python: str = "") -> None:
        """Say what it may take, and the interpreter if it is not this one."""
        self.generation, self.limits = 0, limits
        self._python = python
        self._numbers = itertools.count(1)
        self._closed: deque[int] = deque()
        self._sent: deque[tuple[int, Request]] = deque()
        self._answers: dict[str, Any] = {}
        self.remembered: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._file: SharedFile | None = None
        self._child: Child | None = None
        _ALIVE.add(self)

    @property
    def interpreter(self) -> str:
        """The other interpreter, "" for this one."""
        return self._python

    @property
    def runs(self) -> bool:
        """Whether there is a process, as far as is known."""
        return self._child is not None and self._child.runs

    def expect(self, request: Request) -> None:
        """Send a request with a key now; `ask` will want its answer. It takes and gives no arrays."""
        with self._lock:
            if request.key not in self._answers and all(sent.key != request.key for _, sent in self._sent):
                self._send(request)

    def ask(self, request: Request) -> Any:
        """Return the answer to a request.

        Raises:
            ProcessDiedError: there is no answer: it crashed, hung, or took too much memory.
            UnavailableError: the runtime cannot run this here.
            RaisedError: whatever else the runtime raised.
        """
        with self._lock:
            self._collect()
            if not request.key or request.key not in self._answers:
                self._send(request)
                self._collect()
            answer = self._answers.pop(request.key)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def forget(self, session: int) -> None:
        """Let go of a session with the next request; may be called at any time, by a finalizer."""
        self._closed.append(session)

    def keep(self, data: bytes) -> Path:
        """Write a copy of a model where the process finds it, and return where.

        Raises:
            OSError: there is no room.
        """
        path = self._scratch() / f"model-{next(self._numbers)}.onnx"
        path.write_bytes(data)
        return path

    def hang_up(self) -> None:
        """Let the process end by itself, which `close` then waits for: it may have more to end."""
        if self._child is not None:
            self._child.hang_up()

    def close(self, *, at_once: bool = False) -> None:
        """End the process, if there is one, with all it left behind."""
        with self._lock:
            self._sent.clear()
            self._answers.clear()
            self._closed.clear()
            if self._child is not None:
                self._child.stop(at_once=at_once)
            if self._file is not None:
                self._file.close()
            if self._folder is not None:
                self._folder.cleanup()
            self._child, self._file, self._folder = None, None, None

    def _send(self, request: Request) -> None:
        try:
            child, file = self._started()
            number = next(self._numbers)
            message = {
                "number": number,
                "kind": request.kind,
                "arguments": encode(dict(request.arguments), file),
                "closed": [self._closed.popleft() for _ in range(len(self._closed))],
            }
            child.send(json.dumps(message).encode())
        except OSError as error:  # no process to be had, no room for the inputs
            text = f"its process could not be asked: {error.strerror or error}, before {request.doing}"
            self._answers[request.key] = ProcessDiedError(text)
        else:
            self._sent.append((number, request))

    def _collect(self) -> None:
        """Wait for the answers to all that was sent."""
        while self._sent:
            number, request = self._sent[0]
            answer = self._receive(number, request)
            if isinstance(answer, ProcessDiedError):  # nobody answers the others either
                self._answers |= {other.key: answer for _, other in self._sent}
                self._sent.clear()
            else:
                self._answers[request.key] = answer
                self._sent.popleft()

    def _receive(self, number: int, request: Request) -> Any:
        """Return the value that was answered, or the exception that tells why there is none."""
        assert self._child is not None  # something was sent
        assert self._file is not None
        line = self._child.receive(self.limits.time_s)
        try:
            answer = json.loads(line or b"")
            if answer["number"] == number:
                return (
                    _raised(answer["raised"]) if "raised" in answer else decode(answer["value"], self._file)
                )
        except Exception:  # noqa: BLE001, S110 - whatever was written, it is no answer, which the next lines say
            pass
        return ProcessDiedError(f"{self._child.give_up(line, self.limits.time_s)}, while {request.doing}")

    def _started(self) -> tuple[Child, SharedFile]:
        if self._child is None or self._file is None or not self._child.runs:
            if self._file is not None:
                self._file.close()  # a process that died may not have finished writing
            self._file = SharedFile.create()
            self._child = self._new_child(self._file)
            self.generation += 1
            self._closed.clear()
        return self._child, self._file

    def _new_child(self, file: SharedFile) -> Child:
        settings = {
            "file": file.token,
            "parent": os.getpid(),
            "at_once": threading.current_thread() is threading.main_thread(),
            "path": None if self._python else sys.path,
            "packages": {name: _folder_of(name) for name in _MAPPED} if self._python else {},
        }
        start = (self._python, bootstrap.__file__) if self._python else (sys.executable, "-m", _MODULE)
        dropped = _OWN if self._python else ()
        return Child(
            (*start, json.dumps(settings)),
            None,
            self._scratch() / "stderr.txt",
            memory_bytes=self.limits.memory_bytes,
            inherited=(file.token,) if isinstance(file.token, int) else (),
            environment={name: value for name, value in os.environ.items() if name not in dropped},
        )

    def _scratch(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="onnx-attest-runtime-")
        return Path(self._folder.name)


_ALIVE: weakref.WeakSet[RuntimeProcess] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for process in list(_ALIVE):
        with contextlib.suppress(OSError):  # a folder that somebody else removed
            process.close(at_once=True)


def pickled(runtime: object) -> str:
    """Return an adapter as text, for `RuntimeProcess`' requests.

    Raises:
        UsageError: it cannot be pickled, being defined inside a function for example.
    """
    try:
        return base64.b64encode(pickle.dumps(runtime, protocol=4)).decode()
    except Exception as error:
        raise UsageError(
            f"the runtime {getattr(runtime, 'name', runtime)!r} cannot be sent to a process of its own: {error}; "
            "define its class at the top of a module"
        ) from error


def _folder_of(package: str) -> str:
    return next(iter(importlib.import_module(package).__path__))


def _raised(raised: Mapping[str, str]) -> Exception:
    kind: type[Exception] = _KINDS.get(raised["kind"]) or type(raised["name"], (RaisedError,), {})
    return kind(raised["message"])


_KINDS: Mapping[str, type[Exception]] = {
    "fallback": FallbackError,
    "unavailable": UnavailableError,
    "usage": UsageError,
}
