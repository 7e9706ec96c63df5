"""A worker that does not outlive its parent. Of the standard library alone, as what `workers/runtime.py` imports has to be."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1  # of Linux' prctl
_LOOK_S = 1.0


def end_with(parent: int, *, at_once: bool = False) -> None:
    """End this process when its parent ends, however that ends.

    Args:
        parent: its process.
        at_once: whether Linux may see to it. It does so when the *thread* ends that started us, so that has to be one
            which lives as long as the parent.
    """
    if at_once and sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(0)
