"""What a process of our own tells its libraries before it starts: to keep memory, and not to spin."""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST = 2**26
"""Bytes of an array that is kept; larger ones are few, and would leave holes of their size."""
_KEPT = 2**31 - 1


ONE_THREAD_IN_BLAS = {"OPENBLAS_NUM_THREADS": "1"}
"""For the environment of a process, before it imports NumPy: the oracle shares its work out itself, see blocks.py."""


def one_thread_in_blas() -> None:
    """Give NumPy's BLAS one thread, if NumPy is still to be imported and nobody says otherwise."""
    if "numpy" not in sys.modules:
        for name, value in ONE_THREAD_IN_BLAS.items():
            os.environ.setdefault(name, value)


def keep_pages() -> None:
    """Make glibc serve large arrays from memory that it keeps; elsewhere nothing changes.

    An evaluation of a graph in float64 makes and drops hundreds of arrays of megabytes. Each would be mapped, filled
    with zeros page by page, and unmapped again: two thirds of the time. Only for processes of our own, the command line
    and its workers: a library does not change its caller's allocator.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGEST)
        library.mallopt(_TRIM_THRESHOLD, _KEPT)
    except (OSError, AttributeError):  # another C library
        return
