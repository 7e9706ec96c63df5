"""How much memory a process holds, with all those that it started: what Linux counts as resident."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_PARENT, _RESIDENT = 1, 1  # places in what follows the name in `stat`, and in `statm`


def is_told() -> bool:
    """Whether this system tells how much memory another process holds."""
    return (_PROC / "self" / "statm").exists()


def resident_bytes(pid: int) -> int:
    """Return what one process holds, 0 if there is no such process."""
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[_RESIDENT]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):  # ValueError: a process that is just going
        return 0


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and those that they started."""
    try:
        return _by_threads(pid)
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN, or the process is gone
        return _by_parents(pid)


def machine_bytes() -> int | None:
    """Return the memory that processes here may hold, of the machine or of the control group; None if unknown."""
    found = [_read_limit(path) for path in _LIMITS]
    if hasattr(os, "sysconf"):
        found.append(os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES)
    return min((size for size in found if size), default=None)


_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def _read_limit(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # ValueError: "max"
        return None


def _by_threads(pid: int) -> list[int]:
    found: list[int] = []
    for task in (_PROC / str(pid) / "task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found.append(child)
            try:
                found += _by_threads(child)
            except FileNotFoundError:  # it has gone in the meantime
                continue
    return found


def _by_parents(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            # The name is in parentheses, and may hold some.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[_PARENT]), []).append(int(folder.name))
    found, reached = list[int](), [pid]
    while reached:
        following = children.get(reached.pop(), [])
        found += following
        reached += following
    return found


def reset_peaks(pid: int) -> bool:
    """Make a process, and those that it started, count their largest size from now on; return whether that was done."""
    done = [_reset_peak(one) for one in (pid, *descendants(pid))]
    return all(done)


def peak_bytes(pid: int) -> int | None:
    """Return the largest size of a process, and of those that it started, each since its own count began.

    It is an upper limit of what they held together. None where the system does not tell.
    """
    found = [high_water_bytes(one) for one in (pid, *descendants(pid))]
    return sum(size for size in found if size is not None) if found[0] is not None else None


def held_bytes(pid: int) -> int:
    """Return what a process and those that it started hold."""
    return sum(map(resident_bytes, (pid, *descendants(pid))))


def _reset_peak(pid: int) -> bool:
    try:
        # 5 resets the high-water mark and nothing else, see proc(5).
        (_PROC / str(pid) / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def high_water_bytes(pid: int) -> int | None:
    """Return the most that one process held since its count began, without those that it started; None where unknown."""
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
