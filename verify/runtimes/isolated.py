"""A runtime in a process of its own: what it does to that process, it does not do to ours.

A crash, a hang, an end for lack of memory and a poisoned import become `ProcessDiedError`, and the next call has a new
process. What dies over a file while it opens it, or twice in a row, is not tried again with it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_attest.errors import UsageError
from onnx_attest.verify.runtimes.base import (
    Availability,
    ProcessDiedError,
    Runtime,
    Session,
    UnavailableError,
)
from onnx_attest.verify.runtimes.broken import BrokenRuntime
from onnx_attest.verify.runtimes.isolated_session import IsolatedSession
from onnx_attest.verify.workers.host import Request, RuntimeProcess, pickled
from onnx_attest.verify.workers.limits import Limits, usual_limits

if TYPE_CHECKING:
    from onnx_attest.export.artifact import Artifact
    from onnx_attest.verify.probe import Copy

_NUMBERS = itertools.count(1)
_REWRITES = ("rewritten", "as_written", "without")


@dataclass(frozen=True)
class Isolated:
    """A runtime whose sessions are in another process; variants of it share that one.

    Attributes:
        runtime: what runs there.
        process: which it runs in.
    """

    runtime: Runtime
    process: RuntimeProcess = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """As in reports and after `--runtime`."""
        return self.runtime.name

    @property
    def reference(self) -> str:
        """What `registry.select` takes to give the runtime again, where that is not its name."""
        return str(getattr(self.runtime, "reference", ""))

    def arithmetic(self, dtype: str) -> str:
        """Return the profile that it is declared to compute a graph of this dtype in."""
        return self.runtime.arithmetic(dtype)

    def holds_scores(self, operator: str, *, hidden: bool) -> bool:
        """Whether it holds all scores of a fused attention at once, as far as it says."""
        holds = getattr(self.runtime, "holds_scores", None)
        return holds is not None and bool(holds(operator, hidden=hidden))

    def start(self) -> None:
        """Start the process and let it import the runtime, without waiting for it."""
        request = self._availability_asked()
        if request.key not in self.process.remembered:
            self.process.expect(request)

    def prepare(self, artifact: Artifact, threads: int | None) -> None:
        """Let it open the artifact, without waiting for it: `open` with the same arguments will."""
        if not self._stays_here(artifact) and self._died_at_import() is None:
            self.process.expect(self._open_asked(artifact, threads))

    def availability(self) -> Availability:
        """Say whether it works there; a process that dies of the question is a reason like another."""
        request = self._availability_asked()
        if request.key not in self.process.remembered:
            try:
                answer: Any = Availability(**self.process.ask(request))
            except Exception as error:  # noqa: BLE001 - a poisoned import may raise anything, and this may not
                answer = error
            self.process.remembered[request.key] = answer
        answer = self.process.remembered[request.key]
        if isinstance(answer, Exception):
            return Availability(False, reason=f"{type(answer).__name__}: {answer}")
        assert isinstance(answer, Availability)
        return answer

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Session:
        """Return a session for the artifact, or for `model` instead of its file.

        A live module that no other process can build again is opened in this one.

        Raises:
            UnavailableError: it would not run where it was asked to.
            ProcessDiedError: its process died of it.
            RaisedError: whatever else it raised there.
        """
        if self._stays_here(artifact):
            return self.runtime.open(artifact, model=model, threads=threads)
        if model is None:
            return IsolatedSession(self.process, self._asked(artifact, threads))
        return self._open_kept(artifact, model, threads, behind=False)

    def open_behind(self, artifact: Artifact, more: bytes, threads: int | None) -> Session:
        """Return a session for an artifact's file with more bytes behind its own, which are all that is sent.

        Raises:
            UnavailableError, ProcessDiedError, RaisedError: see `open`.
        """
        return self._open_kept(artifact, more, threads, behind=True)

    def _open_kept(self, artifact: Artifact, data: bytes, threads: int | None, *, behind: bool) -> Session:
        request = self._asked(artifact, threads)
        copy = self.process.keep(data)
        arguments = {**request.arguments, "model": str(copy), "behind": behind}
        return IsolatedSession(self.process, replace(request, key="", arguments=arguments), copy)

    def _asked(self, artifact: Artifact, threads: int | None) -> Request:
        """Return the request to open an artifact.

        Raises:
            ProcessDiedError: its process died of the import.
        """
        if (death := self._died_at_import()) is not None:
            raise ProcessDiedError(str(death))
        return self._open_asked(artifact, threads)

    def _died_at_import(self) -> ProcessDiedError | None:
        answer = self.process.remembered.get(self._availability_asked().key)
        return answer if isinstance(answer, ProcessDiedError) else None

    def _stays_here(self, artifact: Artifact) -> bool:
        live = getattr(self.runtime, "runs_module", False) and artifact.module is not None
        return live and not artifact.reference

    def _availability_asked(self) -> Request:
        text = pickled(self.runtime)
        return Request("availability", "it imported the runtime", {"runtime": text}, f"availability {text}")

    def _open_asked(self, artifact: Artifact, threads: int | None) -> Request:
        """Return the request to open an artifact's own file."""
        text = pickled(self.runtime)
        arguments = {
            "session": next(_NUMBERS),
            "runtime": text,
            "artifact": described(artifact),
            "model": "",
            "behind": False,
            "threads": threads,
        }
        key = f"open {artifact.path} {artifact.sha256} {threads} {text}"
        return Request("open", "it opened the file", arguments, key)


class Rewriting(Isolated):
    """The same for a runtime that rewrites a graph before it runs it, see `inspection.Rewriting`."""

    def rewritten(self, artifact: Artifact, folder: Path, *, threads: int | None = None) -> Path:
        """Write the graph that it makes of the file into a folder, and return where.

        Raises:
            ProcessDiedError: its process died of it.
            RaisedError: whatever else it raised there.
        """
        arguments = {
            "runtime": pickled(self.runtime),
            "artifact": described(artifact),
            "folder": str(folder),
            "threads": threads,
        }
        return Path(self.process.ask(Request("rewritten", "it wrote its own graph of the file", arguments)))

    def as_written(self) -> Rewriting:
        """Return the same runtime, in the same process, without any rewriting."""
        return replace(self, runtime=self.runtime.as_written())  # type: ignore[attr-defined]

    def without(self, passes: Sequence[str]) -> Rewriting:
        """Return the same runtime, in the same process, without some of its rewritings."""
        return replace(self, runtime=self.runtime.without(passes))  # type: ignore[attr-defined]


def open_copy(runtime: Runtime, artifact: Artifact, copy: Copy, threads: int | None) -> Session:
    """Return a session of a runtime for a copy of an artifact's file that gives more than it.

    Raises:
        Exception: whatever the runtime raises when it opens the copy.
    """
    if isinstance(runtime, Isolated) and copy.is_file:
        return runtime.open_behind(artifact, copy.more, threads)
    return runtime.open(artifact, model=copy.whole(), threads=threads)


def described(artifact: Artifact) -> dict[str, Any]:
    """Return an artifact as plain data, for a process that may have no msgspec to read an Artifact."""
    import msgspec

    manifest = artifact.manifest
    return {
        "path": str(artifact.path.resolve()),
        "sha256": artifact.sha256,
        "name": artifact.name,
        "trusted": artifact.trusted,
        "written_manifest": None if manifest is None else msgspec.json.encode(manifest).decode(),
        "reference": artifact.reference,
    }


def isolate(
    runtimes: Iterable[Runtime], *, time_s: float | None = None, memory_bytes: int | None = None
) -> tuple[Runtime, ...]:
    """Return the runtimes, each in a process of its own, with these limits instead of its own."""
    return tuple(_isolate(runtime, time_s, memory_bytes) for runtime in runtimes)


def _isolate(runtime: Runtime, time_s: float | None, memory_bytes: int | None) -> Runtime:
    if isinstance(runtime, BrokenRuntime):  # it runs nothing
        return runtime
    if not isinstance(runtime, Isolated):
        return isolated(runtime, usual_limits(time_s, memory_bytes))
    own = runtime.process.limits
    limits = Limits(time_s or own.time_s, memory_bytes or own.memory_bytes)
    if limits == own:
        return runtime
    return isolated(runtime.runtime, limits, runtime.process.interpreter)


def isolated(runtime: Runtime, limits: Limits, python: str = "") -> Isolated:
    """Return one runtime in a process of its own; `python` is the interpreter, "" for this one."""
    kind = Rewriting if all(hasattr(runtime, name) for name in _REWRITES) else Isolated
    return kind(runtime, _process(runtime.name, limits, python))


_kept: dict[tuple[Any, ...], RuntimeProcess] | None = None


def _process(name: str, limits: Limits, python: str) -> RuntimeProcess:
    if _kept is None:
        return RuntimeProcess(limits, python)
    return _kept.setdefault((name, limits, python, *sys.path), RuntimeProcess(limits, python))


@contextmanager
def kept() -> Iterator[None]:
    """Keep the processes of runtimes for the next verification as long as this lasts, for many short ones in a row."""
    global _kept
    before, _kept = _kept, {}
    try:
        yield
    finally:
        started, _kept = _kept, before
        for process in started.values():
            process.hang_up()
        for process in started.values():
            process.close()


@contextmanager
def processes_of(runtimes: Iterable[Runtime]) -> Iterator[None]:
    """Start the processes of these runtimes, and end them when what is done with them is over."""
    alone = [runtime for runtime in runtimes if isinstance(runtime, Isolated)]
    done = False
    try:
        start(alone)
        yield
        done = True
    finally:
        staying = (_kept or {}).values() if done else ()
        ending = [runtime.process for runtime in alone if runtime.process not in staying]
        for process in ending if done else ():
            process.hang_up()
        for process in ending:
            process.close(at_once=not done)


def start(runtimes: Iterable[Runtime]) -> None:
    """Start the processes of these runtimes, those that have one, without waiting for them."""
    for runtime in runtimes:
        if isinstance(runtime, Isolated):
            runtime.start()


def prepare(runtimes: Iterable[Runtime], artifact: Artifact, threads: int | None) -> None:
    """Let the runtimes that have a process of their own open an artifact, without waiting for it."""
    for runtime in runtimes:
        if isinstance(runtime, Isolated):
            runtime.prepare(artifact, threads)


def in_this_process(runtime: Runtime) -> Runtime:
    """Return what runs in a process of its own as it runs in this one.

    Raises:
        UsageError: it is another interpreter's.
    """
    if not isinstance(runtime, Isolated):
        return runtime
    if runtime.process.interpreter:
        raise UsageError(
            f"{runtime.name} runs under another interpreter ({runtime.process.interpreter}), not in this process"
        )
    return runtime.runtime


def to_be_timed(runtime: Runtime) -> Runtime:
    """Return what can be timed: the runtime in this process.

    Raises:
        UnavailableError: it is another interpreter's.
    """
    try:
        return in_this_process(runtime)
    except UsageError as error:
        raise UnavailableError(f"it is not timed: {error}") from error
