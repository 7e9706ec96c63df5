"""One runtime's process, and what is timed in it: opened, timed in blocks, and opened again if the process dies."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.workers.child import Child
from onnx_attest.verify.workers.latency import Answer, Close, Open, Request, Sample
from onnx_attest.verify.workers.streams import one_line

Kinds = tuple[tuple[str, ...], tuple[str, ...]]
"""Names and dtypes of inputs."""
_SHORT_S = 0.02
"""A call that takes longer fills the caches itself: none goes untimed before a block of such."""


class Host:
    """A process that times things: one runtime's, or the machine's own."""

    def __init__(self, child: Child, time_limit_s: float) -> None:
        self._child, self._time_limit_s = child, time_limit_s
        self._started = 0

    @property
    def generation(self) -> int:
        """The number of the process that answers next; what was opened in an earlier one is gone."""
        return self._started if self._child.runs else self._started + 1

    def hang_up(self) -> None:
        """Tell it that it may end."""
        self._child.hang_up()

    def ask(self, request: Request) -> Answer:
        """Return the answer, or an errored one with what is known of why there is none."""
        self._started = self.generation
        try:
            self._child.send(msgspec.json.encode(request))
        except OSError as error:  # no process to be had
            return Answer(number=request.number, reason=one_line(f"{type(error).__name__}: {error}"))
        line = self._child.receive(self._time_limit_s)
        answer = None if line is None else _decode(line)
        if answer is not None and answer.number == request.number:
            return answer
        return Answer(number=request.number, reason=self._child.give_up(line, self._time_limit_s))


def _decode(line: bytes) -> Answer | None:
    try:
        return msgspec.json.decode(line, type=Answer)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None


@dataclass(frozen=True)
class Block:
    """The calls of one block."""

    round: int
    sitting: int
    latency_s: tuple[float, ...]


@dataclass
class Participant:
    """What is timed in a host under a number.

    Attributes:
        runtime: as it was asked for, "" for the machine itself.
        opening: how it is opened.
        opened: what came of that for the first time; later ones are no first ones.
        blocks: what was timed so far.
        reason: why it is timed no more, "" while it is.
    """

    runtime: str
    opening: Open
    opened: Answer | None = None
    blocks: list[Block] = field(default_factory=list)
    reason: str = ""
    calls: int = 1
    call_s: float = 0.0
    busy_s: float = 0.0
    others_s: float | None = 0.0
    preempted: int = 0
    _host: Host | None = None
    _generation: int = 0

    @property
    def takes_part(self) -> bool:
        """Whether it can be timed."""
        return self.opened is not None and self.opened.verdict == "passed" and not self.reason

    def open(self, host: Host) -> None:
        """Open it in a host, for the first time or again, and warm it up."""
        self._host = host
        # Memory is that of the first time.
        answer = host.ask(msgspec.structs.replace(self.opening, memory=self.opened is None))
        self._generation = host.generation
        if self.opened is None:
            self.opened = answer
        elif answer.verdict != "passed":
            self.reason = f"when it was opened again: {answer.reason}"
        if answer.verdict == "passed":
            self.call_s = median(answer.warm_up_s[-5:])

    def time(self, round_: int, sitting: int) -> None:
        """Time one block."""
        assert self._host is not None  # it was opened
        if self._generation != self._host.generation:  # the process died of another one
            self.open(self._host)
            if not self.takes_part:
                return
        settle = self.call_s < _SHORT_S
        answer = self._host.ask(Sample(number=self.opening.number, calls=self.calls, settle=settle))
        if answer.verdict != "passed":
            self.reason = answer.reason
            return
        self.blocks.append(Block(round_, sitting, answer.latency_s))
        self.busy_s += answer.busy_s
        self.preempted += answer.preempted
        unknown = self.others_s is None or answer.others_s is None
        self.others_s = None if unknown else (self.others_s or 0.0) + (answer.others_s or 0.0)

    def close(self) -> None:
        """Let go of it."""
        if self._host is not None and self.takes_part and self._generation == self._host.generation:
            self._host.ask(Close(number=self.opening.number))

    def timings(self) -> dict[str, object]:
        """Return the fields of a `TimedRecord` that come from what was timed."""
        return {
            "latency_s": tuple(second for block in self.blocks for second in block.latency_s),
            "block_sizes": tuple(len(block.latency_s) for block in self.blocks),
            "block_rounds": tuple(block.round for block in self.blocks),
            "block_sittings": tuple(block.sitting for block in self.blocks),
            "busy_s": self.busy_s if self.blocks else None,
            "others_s": self.others_s if self.blocks else None,
            "preempted": self.preempted,
            "affinity": self.opened.affinity if self.opened is not None else (),
        }


def write_inputs(inputs: Tensors, path: Path) -> Kinds:
    """Write inputs for `Open`, and return their names and dtypes.

    Raises:
        OSError: there is no room.
    """
    # Contiguous, or a runtime's own copy of them would be timed.
    arrays = [np.asarray(array, order="C") for array in inputs.values()]
    np.savez(path, *arrays)
    return tuple(inputs), tuple(array.dtype.name for array in arrays)


def opening_of(
    number: int,
    artifact: Artifact,
    runtime: str,
    threads: int,
    inputs: Path,
    kinds: Kinds,
    warm_up_s: float,
) -> Open:
    """Return how an artifact is opened."""
    names, dtypes = kinds
    return Open(
        number=number,
        runtime=runtime,
        threads=threads,
        artifact=str(artifact.path.resolve()),
        trusted=artifact.trusted,
        inputs=str(inputs),
        names=names,
        dtypes=dtypes,
        warm_up_s=warm_up_s,
    )
