"""What a process may take, and in words how one ended; of little, since the command line begins with it."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from onnx_attest.verify.workers import resident

MIB = 2**20
SILENCE_S = 300.0
"""A request that takes longer is taken for a hang; the longest of the catalogue, an export, takes a few seconds."""
_SHARE = 0.8
"""Of the machine's memory, from which on a process is ended: beyond it the system ends one, and not always that one."""


@dataclass(frozen=True)
class Limits:
    """What a process may take.

    Attributes:
        time_s: for each request.
        memory_bytes: that it may hold with all processes that it starts, as resident size; None for as much as it wants.
    """

    time_s: float = SILENCE_S
    memory_bytes: int | None = None


def usual_limits(time_s: float | None = None, memory_bytes: int | None = None) -> Limits:
    """Return limits with the usual one where none is given: of memory, most of what the machine has, if that is known."""
    if memory_bytes is None and resident.is_told() and (size := resident.machine_bytes()) is not None:
        memory_bytes = int(_SHARE * size)
    return Limits(SILENCE_S if time_s is None else time_s, memory_bytes)


def held_in_words(held: float, most: float) -> str:
    """Return what was wrong with a process that held more bytes than it may."""
    return f"its process held {held / MIB:,.0f} MiB of memory, the limit is {most / MIB:,.0f} MiB, so it was killed"


def end_in_words(code: int | None) -> str:
    """Return what ended a process, given its return code, None if it was killed."""
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
