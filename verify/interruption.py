"""Ctrl-C and SIGTERM: both end a run at the next line of Python, and what it has is kept."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType


class Terminated(BaseException):
    """SIGTERM, as an exception. Like Ctrl-C's it is no `Exception`: nothing that goes on after an error holds it up."""


INTERRUPTIONS = (KeyboardInterrupt, Terminated)


def heed_sigterm() -> None:
    """Let SIGTERM raise `Terminated` in the main thread, unless somebody else heeds or ignores it."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def leave_sigterm_to_the_parent() -> None:
    """Do nothing at SIGTERM, in a worker: who ends a job may tell all its processes at once, and the run ends its workers.

    A worker that ended first would be taken for one that crashed.
    """
    # Not SIG_IGN, which what a worker starts would inherit.
    signal.signal(signal.SIGTERM, lambda number, frame: None)


def name_of(interruption: BaseException) -> str:
    """Return what a run was interrupted by, in words."""
    return "SIGTERM" if isinstance(interruption, Terminated) else "Ctrl-C"


def code_of(interruption: BaseException) -> int:
    """Return the exit code, as a shell gives it: 128 and the number of the signal."""
    return 128 + (signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT)


_ONCE_S = 1.0
_told_at = -_ONCE_S


def _terminate(number: int, frame: FrameType | None) -> None:
    """Raise once for what is said twice at once: `timeout` tells its child and then its whole group."""
    global _told_at
    now = time.monotonic()
    if now - _told_at >= _ONCE_S:
        _told_at = now
        raise Terminated
