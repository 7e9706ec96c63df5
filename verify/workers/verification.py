"""The process that a task of the main job runs in, see `verify.pool`: a task a line on stdin, steps on stdout.

Requirements:
* each step is announced before it is taken, so that the last one says what a crash happened in;
* records go to a file, of which only a finished task is read;
* nothing that a library prints reaches the parent;
* it does not outlive its parent.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.verify.engine import Step
from onnx_attest.verify.interruption import leave_sigterm_to_the_parent
from onnx_attest.verify.pages import keep_pages
from onnx_attest.verify.records import TimeRecord, encode
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.seams import Seams
from onnx_attest.verify.stopwatch import Stopwatch
from onnx_attest.verify.task import Task, run_task
from onnx_attest.verify.work import START
from onnx_attest.verify.workers.orphan import end_with
from onnx_attest.verify.workers.streams import one_line, private_streams

_SELDOM = (50_000, 20, 100)
"""When Python looks for objects that hold each other. As often as usual it takes a tenth of a task; memory stays the same."""


class Request(msgspec.Struct, frozen=True):
    """A task, the file that its records go to, and the number of this process."""

    task: Task
    records: str
    process: int = 0


class Taken(msgspec.Struct, frozen=True, tag="step"):
    """What is going on now."""

    step: Step


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The end of a task; `refusal` is why the whole run cannot go on, "" if it can."""

    refusal: str = ""


Answer = Taken | Done


class Profiler:
    """Where the time of this process goes, once a task asks for it."""

    def __init__(self) -> None:
        """Count what there was before as the start of the process, which is all CPU time."""
        self._watch = Stopwatch()
        self._watch.add(START, START, time.process_time())
        self._seams = Seams(self._watch)
        self._known: set[str] = set()

    def begin(self, task: Task) -> None:
        """Forget the wait for a task, and be ready for its runtimes."""
        waited = self._watch.taken()
        for kind, seconds in waited.get(START, {}).items():
            self._watch.add(START, kind, seconds)
        new = [name for name in task.runtimes if name not in self._known]
        self._known.update(new)
        self._seams.of_runtimes(select(tuple(new)) if new else ())

    def record(self, request: Request) -> TimeRecord:
        """Return where the time went since the task was begun."""
        task = request.task
        return TimeRecord(
            task=f"{task.model} {task.dtype}", process=request.process, seconds=self._watch.taken()
        )


def main() -> None:
    """Work off the tasks on stdin until there are no more, or nobody is left to ask."""
    end_with(os.getppid())
    leave_sigterm_to_the_parent()
    keep_pages()
    gc.set_threshold(*_SELDOM)
    requests, answers = private_streams()
    decoder = msgspec.json.Decoder(Request)
    profiler: Profiler | None = None

    def say(answer: Answer) -> None:
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()

    for line in requests:
        request = decoder.decode(line)
        try:
            if request.task.profile:
                profiler = profiler or Profiler()
                profiler.begin(request.task)
            with Path(request.records).open("wb") as file:
                for record in run_task(request.task, lambda step: say(Taken(step))):
                    file.write(encode([record]))
                # Torch and its exporter leave a million objects that stay: walking them again and again is a tenth of a task.
                gc.collect()
                gc.freeze()
                if request.task.profile and profiler is not None:
                    file.write(encode([profiler.record(request)]))
        except (UsageError, OSError) as error:
            say(Done(one_line(str(error))))
        else:
            say(Done())


if __name__ == "__main__":
    main()
