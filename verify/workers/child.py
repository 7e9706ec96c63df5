"""A worker process as its parent sees it: send a line, wait for a line, and explain why there is none."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType

from onnx_attest.verify.workers.streams import one_line

# How long a child may take to end by itself, once its work is over or its pipe is closed.
_GRACE_S = 5.0
# An answer with the most samples is a few kilobytes; more than this comes from something else.
_LONGEST_ANSWER_BYTES = 1 << 24
_STDERR_TAIL_BYTES = 4096


class Child:
    """A worker process: started when it is first asked, ended when it breaks, then started again."""

    def __init__(self, command: Sequence[str], threads: int, stderr: Path) -> None:
        self._command = list(command)
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._stderr = stderr
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._ended = False

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
            reason = _describe_end(self._end(_GRACE_S))
            reason += f" in the middle of an answer: {_excerpt(line)}" if line else " without an answer"
        complaint = _last_line(self._stderr)
        return one_line(f"{reason}; the last line on its stderr: {complaint}" if complaint else reason)

    def kill(self) -> None:
        """End the child now and for good, from another thread than the one that waits for it."""
        self._ended = True
        if (process := self._process) is not None:
            process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        # A file, because a pipe that nobody empties would stop a talkative child.
        with self._stderr.open("wb") as stderr:
            return subprocess.Popen(  # noqa: S603 - our own interpreter and module
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self._environment,
            )

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
            process.kill()
            process.wait()
            code = None
        if self._reader is not None:
            self._reader.join(_GRACE_S)
            if (
                not self._reader.is_alive()
            ):  # else a process that the child started holds the pipe: closing would wait
                process.stdout.close()
        return code


def _describe_end(code: int | None) -> str:
    if code is None:
        return "its process closed its output and had to be killed,"
    if code >= 0:
        return f"its process ended with return code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"signal {-code}"
    # The system says nothing when it kills a process for its memory.
    return f"its process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _excerpt(line: bytes) -> str:
    return repr(line[:80].decode(errors="replace").strip())


def _last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _STDERR_TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
