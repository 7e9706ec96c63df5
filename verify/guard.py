"""The command line in a process that is watched, where it reads files that somebody else wrote.

Checking a graph, inferring its shapes and evaluating it is the work of native libraries, and of loops as long as the file
says: a file may crash them, keep them busy for years or fill the memory. Runtimes have processes of their own, see
`workers/`; what reads and judges is in this one. So the process that is started does nothing but start another one by a
fork, before anything is loaded, and say in one line what became of it where that is no exit code.

Linux tells what it takes: how much memory a process holds, who sent a signal, and that a child does not outlive its
parent. Elsewhere the command runs in the process itself.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
import time
from typing import NoReturn

from onnx_attest.verify.workers.limits import end_in_words, held_in_words, usual_limits
from onnx_attest.verify.workers.orphan import end_with
from onnx_attest.verify.workers.resident import is_told, resident_bytes

READING = frozenset({
    "bench", "check", "compare", "conformance", "convert", "deploy", "evidence", "merge", "power", "replay", "report", "verify",
})  # fmt: skip
"""Commands that read what others wrote. What `run` and `export` read beside code, settings and records, has a largest size."""
STEPS = 10.0
"""How many times longer a step of a verification may take than a runtime's answer: the oracle is slower than any runtime."""
_FAILED = 2
_LOOK_S = 0.05
_SUSPENDED_S = 1.0
"""A look that comes later than this was not late: the machine, or the whole job, slept."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else ()
_SI_KERNEL = 0x80
"""Of a signal that a terminal sent, to all its processes."""
_ENDS_QUIETLY = (*_SIGNALS, signal.SIGPIPE) if hasattr(signal, "SIGPIPE") else ()


class _Board:
    """What the child tells its parent: memory that both have."""

    _NUMBERS = struct.Struct(
        "=Qddd"
    )  # changes, seconds for this step, seconds for a request, bytes of memory
    _TEXT, _SIZE = 64, 4096

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._SIZE)
        limits = usual_limits()
        self.limit(limits.time_s, limits.memory_bytes)
        self.write(" ".join(sys.argv[1:3]), 1.0)

    def limit(self, time_s: float, memory_bytes: int | None) -> None:
        changes, seconds, _, _ = self._numbers()
        self._NUMBERS.pack_into(self._memory, 0, changes, seconds, time_s, float(memory_bytes or 0))

    def write(self, doing: str, times: float) -> None:
        changes, _, time_s, memory = self._numbers()
        text = " ".join(doing.split()).encode(errors="replace")[: self._SIZE - self._TEXT - 4]
        self._memory[self._TEXT - 4 : self._TEXT] = len(text).to_bytes(4, "little")
        self._memory[self._TEXT : self._TEXT + len(text)] = text
        self._NUMBERS.pack_into(self._memory, 0, changes + 1, times * time_s, time_s, memory)

    def _numbers(self) -> tuple[int, float, float, float]:
        found: tuple[int, float, float, float] = self._NUMBERS.unpack_from(self._memory, 0)
        return found

    @property
    def changes(self) -> int:
        return self._numbers()[0]

    @property
    def seconds(self) -> float:
        """How long the step may take."""
        return self._numbers()[1]

    @property
    def memory_bytes(self) -> float:
        """How much may be held, 0 for as much as there is."""
        return self._numbers()[3]

    @property
    def doing(self) -> str:
        length = int.from_bytes(self._memory[self._TEXT - 4 : self._TEXT], "little")
        return self._memory[self._TEXT : self._TEXT + length].decode(errors="replace")


_board: _Board | None = None


def doing(what: str, *, times: float = 1.0) -> None:
    """Say what comes next, which the parent names if it is the last that is heard; nothing where there is no parent.

    Args:
        what: "reading model.onnx" for example.
        times: how many times the limit of one request it may take.
    """
    if _board is not None:
        _board.write(what, times)


def limit(time_s: float | None, memory_bytes: int | None) -> None:
    """Say how long a step may take and how much may be held; None leaves what is usual."""
    if _board is not None:
        usual = usual_limits(time_s, memory_bytes)
        _board.limit(usual.time_s, usual.memory_bytes)


def main() -> None:
    """Run a command: in a watched process of its own if it reads what others wrote, else in this one."""
    if _is_watched():
        _start()  # only the child comes back
    from onnx_attest.verify.cli import main as run

    run()


def _is_watched() -> bool:
    named = next((one for one in sys.argv[1:] if not one.startswith("-")), "")
    asks_only = {"-h", "--help"} & set(sys.argv[1:])
    able = hasattr(os, "fork") and hasattr(signal, "sigtimedwait") and is_told()
    return named in READING and not asks_only and able


def _start() -> None:
    """Return in a child of this process; in this process watch it, and exit as it does."""
    global _board
    heeded = {*_SIGNALS, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heeded)
    board, parent = _Board(), os.getpid()
    try:
        child = os.fork()
    except OSError:  # no process is to be had: then it is not watched
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    if child:
        _watch(child, board, heeded)
    _board = board
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    end_with(parent, at_once=True)
    if os.getppid() != parent:  # it ended in between
        os._exit(_FAILED)


def _watch(child: int, board: _Board, heeded: set[signal.Signals]) -> NoReturn:
    """Wait for a process, hand signals on to it, and end it where it oversteps a limit."""
    changes, silent_s, looked = board.changes, 0.0, time.monotonic()
    why = ""
    while True:
        received = signal.sigtimedwait(heeded, _LOOK_S)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _exit_as(os.waitstatus_to_exitcode(status), why, board)
        if received is not None and received.si_signo != signal.SIGCHLD and received.si_code != _SI_KERNEL:
            os.kill(child, received.si_signo)
        now = time.monotonic()
        silent_s += min(now - looked, _SUSPENDED_S)
        looked = now
        if board.changes != changes:
            changes, silent_s = board.changes, 0.0
        why = why or _overstepped(child, board, silent_s)
        if why:
            os.kill(child, signal.SIGKILL)


def _overstepped(child: int, board: _Board, silent_s: float) -> str:
    """Return what a process took that it may not, "" if nothing."""
    held, most = resident_bytes(child), board.memory_bytes
    if most and held > most:
        return held_in_words(held, most)
    if silent_s > board.seconds:
        return f"it took longer than {board.seconds:g} s, so its process was killed"
    return ""


def _exit_as(code: int, why: str, board: _Board) -> NoReturn:
    if code >= 0 and not why:
        os._exit(code)
    if not why and -code in _ENDS_QUIETLY:
        os._exit(128 - code)
    message = f"onnx-attest: error: {why or end_in_words(code)}, while {board.doing}; docs/security.md says what that means\n"
    try:
        os.write(2, message.encode(errors="replace"))
    finally:
        os._exit(_FAILED)
