"""The processes that onnxruntime runs in outside Python: Node, and a page in a headless Chromium."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from queue import Empty, Queue
from typing import Protocol

from onnx_attest.verify.runtimes.js_frames import LENGTHS

_GRACE_S = 5


class HostError(Exception):
    """The process died, hung or could not be started: what is known of why. It is begun anew with the next session."""


class Host(Protocol):
    """A process that answers frames."""

    def ask(self, frame: bytes, time_limit_s: float) -> bytes:
        """Return the answer to a frame.

        Raises:
            HostError: there is none; the process is gone then.
        """
        ...

    def close(self) -> None:
        """End the process."""
        ...


class NodeHost:
    """Node with frames on its pipes; it ends when this process does, since its input ends then."""

    def __init__(self, node: str, script: Path, *arguments: str) -> None:
        # A file, because a pipe that nobody empties would stop a talkative child.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(  # noqa: S603 - the Node that the user has, and our own script
            [node, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )

    def ask(self, frame: bytes, time_limit_s: float) -> bytes:
        """Return the answer to a frame.

        Raises:
            HostError: it died, or did not answer in time and was killed.
        """
        answers: Queue[bytes] = Queue()
        # A thread, because Windows cannot wait for a pipe with a time limit.
        threading.Thread(target=self._exchange, args=(frame, answers), daemon=True).start()
        try:
            answer = answers.get(timeout=time_limit_s)
        except Empty:
            self._process.kill()
            self.close()
            raise HostError(f"no answer within {time_limit_s:g} s, so its process was killed") from None
        if not answer:
            reason = self._words()
            self.close()
            raise HostError(reason)
        return answer

    def _exchange(self, frame: bytes, answers: Queue[bytes]) -> None:
        """Put the answer to a frame into the queue, or nothing in the way of bytes if the process ended."""
        process = self._process
        assert process.stdin is not None  # both are pipes
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # the process is gone: its words say why
            process.stdin.write(frame)
            process.stdin.flush()
            lengths = process.stdout.read(LENGTHS.size)
            if len(lengths) == LENGTHS.size:
                rest = sum(LENGTHS.unpack(lengths))
                body = process.stdout.read(rest)
                if len(body) == rest:
                    answers.put(lengths + body)
                    return
        answers.put(b"")

    def _words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr.read().decode(errors="replace").splitlines()]
        said = next((line for line in lines if "Error" in line), next(filter(None, reversed(lines)), ""))
        code = self._process.returncode
        return f"Node ended with return code {code}" + (f": {said}" if said else "")

    def close(self) -> None:
        """End the process: it does so itself at the end of its input, or is killed."""
        process = self._process
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._stderr.close()


def descendants_die_with_us(command: list[str]) -> list[str]:
    """Return a command that runs another one in this new process group, and ends the group at the end of its input.

    A browser driver that is killed leaves its browser behind; so the group goes as a whole, when we close the pipe or
    are killed ourselves. To be started with `start_new_session=True`. The shell lets go of the command's output, which
    ends with the command then.
    """
    return ["sh", "-c", '"$@" & exec >/dev/null 2>&1; read -r nothing; kill -9 0', "sh", *command]


def is_posix() -> bool:
    """Whether there is a shell and process groups."""
    return os.name == "posix"
