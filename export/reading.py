"""Reading what somebody else wrote: a regular file, up to a size, and nothing that would be waited for."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

MIB = 2**20
NO_FILE = "it is a pipe or a device, and no file"
"""What the system has no number for."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Give a file to be read.

    Raises:
        OSError: it cannot be, or is a folder, a pipe or a device.
    """
    # Without O_NONBLOCK opening a pipe waits for somebody who writes; a file's kind is asked of what is open.
    flags = (
        os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    )
    with os.fdopen(os.open(path, flags), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, NO_FILE)
        yield file


def bytes_of(path: Path, most: int) -> bytes:
    """Return what a file holds.

    Args:
        path: of the file; links are followed, since the user's own often are some.
        most: bytes that are read; a longer file is refused before it is.

    Raises:
        OSError: see `opened`; or it is longer.
    """
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise _longer(most)
        data = file.read(most + 1)
    if len(data) > most:  # it grew, or is one of those of /proc, which say that they are empty
        raise _longer(most)
    return data


def _longer(most: int) -> OSError:
    return OSError(errno.EFBIG, f"it is longer than the {most // MIB} MiB that are read of such a file")
