"""A worker process as its parent sees it: send a line, wait for a line, and explain why there is none."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType

from onnx_attest.verify.pages import ONE_THREAD_IN_BLAS
from onnx_attest.verify.workers import resident
from onnx_attest.verify.workers.limits import end_in_words, held_in_words
from onnx_attest.verify.workers.streams import one_line

# How long a child may take to end by itself, once its work is over or its pipe is closed.
_GRACE_S = 5.0
# An answer with the most samples is a few kilobytes; more than this comes from something else.
_LONGEST_ANSWER_BYTES = 1 << 24
_STDERR_TAIL_BYTES = 4096


class Child:
    """A worker process: started when it is first asked, ended when it breaks, then started again.

    It leads a session of its own, so that it is ended with all processes that it started.
    """

    def __init__(
        self,
        command: Sequence[str],
        threads: int | None,
        stderr: Path,
        *,
        memory_bytes: int | None = None,
        inherited: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Say how it is started.

        Args:
            command: of the process.
            threads: of its numerical libraries; None for what the environment says.
            stderr: the file that its stderr goes to.
            memory_bytes: see `Limits`.
            inherited: descriptors that it gets under their numbers.
            environment: instead of this process's own.
        """
        self._command, self._inherited = list(command), tuple(inherited)
        self._environment = dict(os.environ if environment is None else environment)
        if threads is not None:
            self._environment |= {"OMP_NUM_THREADS": str(threads), **ONE_THREAD_IN_BLAS}
        self._stderr, self._memory_bytes = stderr, memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._watch: _Watch | None = None
        self._ended = False

    @property
    def runs(self) -> bool:
        """Whether there is a process, as far as is known."""
        return self._process is not None

    @property
    def overstepped(self) -> bool:
        """Whether the last process was ended for the memory that it held."""
        return self._watch is not None and self._watch.seen > self._watch.limit

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Its return code says nothing about jobs that have all been answered.
        self._end(_GRACE_S if error is None else 0)

    def send(self, request: bytes) -> None:
        """Write one line to the child, which is started if there is none.

        Raises:
            OSError: no process is to be had, or the child was killed.
        """
        if self._ended:
            raise ProcessLookupError(errno.ESRCH, "the worker was killed")
        process = self._process = self._process or self._start()
        assert process.stdin is not None  # it is a pipe
        with contextlib.suppress(
            OSError
        ):  # the child is gone: then there is no answer either, which says more
            process.stdin.write(request + b"\n")
            process.stdin.flush()

    def receive(self, time_limit_s: float) -> bytes | None:
        """Return the child's next line, cut short where its output ends; None if there is none in time."""
        assert self._process is not None  # something was sent
        assert self._process.stdout is not None  # it is a pipe
        readline, lines = self._process.stdout.readline, Queue[bytes]()
        # A thread, because Windows cannot wait for a pipe with a time limit.
        self._reader = threading.Thread(
            target=lambda: lines.put(readline(_LONGEST_ANSWER_BYTES)), daemon=True, name="answers of a worker"
        )
        self._reader.start()
        try:
            return lines.get(timeout=time_limit_s)
        except Empty:
            return None

    def give_up(self, line: bytes | None, time_limit_s: float) -> str:
        """End the child, and return in one line why `line`, what `receive` gave last, is no valid answer."""
        if line is None:
            self._end(0)
            reason = f"no answer within {time_limit_s:g} s, so its process was killed"
        elif line.endswith(b"\n"):
            self._end(0)
            reason = f"its process wrote something that is not an answer: {_excerpt(line)}"
        else:  # the end of its output: it is dying by itself, and its return code is worth waiting for
            reason = self._describe_end(self._end(_GRACE_S))
            reason += f" in the middle of an answer: {_excerpt(line)}" if line else " without an answer"
        complaint = _last_line(self._stderr)
        return one_line(f"{reason}; the last line on its stderr: {complaint}" if complaint else reason)

    def kill(self) -> None:
        """End the child now and for good, from another thread than the one that waits for it."""
        self._ended = True
        if (process := self._process) is not None:
            _kill(process)

    def hang_up(self) -> None:
        """Tell the child, by closing its input, that there is nothing more to do."""
        if (process := self._process) is not None and process.stdin is not None:
            with contextlib.suppress(OSError):  # an unsent request
                process.stdin.close()

    def stop(self, *, at_once: bool) -> None:
        """End the child, which may take a moment to tidy up or not; the next request starts another one."""
        self._end(0 if at_once else _GRACE_S)

    def _start(self) -> subprocess.Popen[bytes]:
        # A file, because a pipe that nobody empties would stop a talkative child.
        with self._stderr.open("wb") as stderr:
            process = subprocess.Popen(  # noqa: S603 - an interpreter of the user's choice and our own module
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self._environment,
                pass_fds=self._inherited,
                start_new_session=True,
            )
        if self._memory_bytes is not None:
            self._watch = _Watch(process, self._memory_bytes)
            self._watch.start()
        return process

    def _end(self, grace_s: float) -> int | None:
        """Let the child end within a time, else kill it; return its return code, None if it was killed."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None  # both are pipes
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # an unsent request
            process.stdin.close()
        try:
            code = process.wait(grace_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
            code = None
        _kill(process)  # what it started and left behind
        if self._watch is not None:
            self._watch.over.set()
        if self._reader is not None:
            self._reader.join(_GRACE_S)
            if (
                not self._reader.is_alive()
            ):  # else a process that the child started holds the pipe: closing would wait
                process.stdout.close()
        return code

    def _describe_end(self, code: int | None) -> str:
        if self._watch is not None and self.overstepped:
            return held_in_words(self._watch.seen, self._watch.limit)
        return end_in_words(code)


class _Watch(threading.Thread):
    """Ends a process, with all those that it started, when together they hold more memory than they may."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int) -> None:
        super().__init__(daemon=True, name="memory of a worker")
        self.limit, self.seen, self.over = limit, 0, threading.Event()
        self._process = process

    def run(self) -> None:
        started: list[int] = []
        turn = 0
        while not self.over.wait(_LOOK_S):
            if turn % _TURNS == 0:  # the list costs more than the sizes
                started = resident.descendants(self._process.pid)
            turn += 1
            size = sum(map(resident.resident_bytes, (self._process.pid, *started)))
            if size > self.limit:
                self.seen = size
                _kill(self._process)
                return


_LOOK_S = 0.05  # filling memory takes a second for a few gigabytes
_TURNS = 10


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process with all those that it started and that are in its session."""
    if not hasattr(os, "killpg"):
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says so of a group of zombies
        os.killpg(process.pid, signal.SIGKILL)


def _excerpt(line: bytes) -> str:
    return repr(line[:80].decode(errors="replace").strip())


def _last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _STDERR_TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
