"""Tasks side by side, each in a process of its own: a crash or a hang is a verdict, and the run goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Lock

import msgspec

from onnx_attest.errors import UnwritableError
from onnx_attest.verify.engine import Step
from onnx_attest.verify.records import AnyRecord, read_records
from onnx_attest.verify.task import EXPORT, Task, after_death
from onnx_attest.verify.workers.child import Child
from onnx_attest.verify.workers.limits import Limits, usual_limits
from onnx_attest.verify.workers.verification import Answer, Done, Request, Taken

_WORKER = (sys.executable, "-m", "onnx_attest.verify.workers.verification")
_MOST_PROCESSES = 8
_THREADS = 1
"""Of each task that does not say: the catalogue's cases are so small that a second thread takes more than it gives."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(
    tasks: Sequence[Task],
    *,
    processes: int | None = None,
    on_step: Callable[[str], None] = lambda step: None,
    limits: Limits | None = None,
    worker: Sequence[str] = _WORKER,
) -> Generator[tuple[int, list[AnyRecord]], None, None]:
    """Yield the number of each task with its records, as soon as it is done: the engine of this machine, see `task.Engine`.

    A runtime whose process dies, or takes more than it may, is errored for that artifact, with what is known of the end;
    the task is then begun again without it. The longest tasks are begun first. How many run at a time changes no record:
    each task has the same number of threads, and what takes more than its share of the memory is done once more, alone.

    Args:
        tasks: what to do.
        processes: how many at a time; by default one a core, as far as there is memory for them.
        on_step: told what is going on.
        limits: of each step, and of a process; without one of memory, the processes share what `usual_limits` says.
        worker: command of a process; another one only in tests.

    Raises:
        UnwritableError: a task could not write its files.
    """
    limits = limits or Limits()
    whole = usual_limits(limits.time_s, limits.memory_bytes)
    ready = [with_threads(task) for task in tasks]
    threads = max((task.threads or _THREADS for task in ready), default=_THREADS)
    count = max(1, min(processes or _fitting(threads, whole.memory_bytes), len(tasks)))
    shared = _shared(whole, 1 if limits.memory_bytes is not None else count)
    with TemporaryDirectory(prefix="onnx-attest-tasks-") as name, ExitStack() as stack:
        folder, progress = Path(name), _Progress(len(tasks), on_step)

        def start(index: int, limits: Limits) -> Child:
            stderr = folder / f"stderr-{index}.txt"
            return stack.enter_context(Child(worker, threads, stderr, memory_bytes=limits.memory_bytes))

        children = [start(index, shared) for index in range(count)]
        idle: SimpleQueue[int] = SimpleQueue()
        for index in range(count):
            idle.put(index)

        def attempts(number: int, process: int, child: Child) -> _Attempts:
            told = progress.of(number)
            return _Attempts(child, folder / f"records-{number}.jsonl", process, told, limits.time_s)

        def work(number: int) -> list[AnyRecord] | None:
            """Return the records; None if the process was ended for taking more than its share of the memory."""
            index = idle.get()
            try:
                return attempts(number, index, children[index]).run(ready[number], alone=shared == whole)
            finally:
                progress.done(number)
                idle.put(index)

        pool = stack.enter_context(ThreadPoolExecutor(count))
        begun = sorted(range(len(tasks)), key=lambda number: -tasks[number].cost)
        futures = {pool.submit(work, number): number for number in begun}
        large: list[int] = []
        try:
            for future in as_completed(list(futures)):
                number, records = futures.pop(future), future.result()
                if records is None:
                    large.append(number)
                else:
                    yield number, records
            for child in children if large else ():
                child.stop(at_once=False)
            for number in sorted(large):
                children.append(start(len(children), whole))
                records = attempts(number, len(children) - 1, children[-1]).run(ready[number], alone=True)
                children[-1].stop(at_once=False)
                assert records is not None  # alone, it has all the memory there is
                yield number, records
        except BaseException:
            for future in futures:
                future.cancel()
            for child in children:
                child.kill()
            raise


def with_threads(task: Task) -> Task:
    """Return a task that says how many threads each runtime has; as many wherever it is done."""
    return msgspec.structs.replace(task, threads=task.threads or _THREADS)


class TaskProcess:
    """A process that does tasks one after another, for an engine that finds a place for it; it lasts as long as its owner."""

    def __init__(
        self, limits: Limits | None = None, worker: Sequence[str] = _WORKER, threads: int = _THREADS
    ) -> None:
        """Say what it may take, and how many threads its numerical libraries have."""
        self._limits = usual_limits(*((limits.time_s, limits.memory_bytes) if limits else ()))
        self._folder = TemporaryDirectory(prefix="onnx-attest-tasks-")
        self._number = 0
        folder = Path(self._folder.name)
        self._child = Child(worker, threads, folder / "stderr.txt", memory_bytes=self._limits.memory_bytes)

    def run(self, task: Task, on_step: Callable[[Step], None] = lambda step: None) -> list[AnyRecord]:
        """Return the records of a task; what crashes, hangs or takes too much memory is errored.

        Raises:
            UnwritableError: it could not write its files.
        """
        self._number += 1
        path = Path(self._folder.name) / f"records-{self._number}.jsonl"
        attempts = _Attempts(self._child, path, 0, on_step, self._limits.time_s)
        records = attempts.run(with_threads(task), alone=True)
        assert records is not None  # alone, it has all the memory there is
        path.unlink(missing_ok=True)
        return records

    def close(self) -> None:
        """End it."""
        self._child.stop(at_once=True)
        self._folder.cleanup()


NEEDED_BYTES = 3 * 2**29
"""A process holds torch, its exporter and the runtimes: about a gigabyte; half of one more for what it computes."""


def _fitting(threads: int, memory_bytes: int | None) -> int:
    """Return how many processes there are cores and memory for."""
    by_memory = _MOST_PROCESSES if memory_bytes is None else memory_bytes // NEEDED_BYTES
    return min(cores() // threads, by_memory, _MOST_PROCESSES)


def _shared(whole: Limits, processes: int) -> Limits:
    """Return the limits of each of several processes that have the memory of one together."""
    return (
        whole if whole.memory_bytes is None else replace(whole, memory_bytes=whole.memory_bytes // processes)
    )


class _Progress:
    """What is going on in all tasks, in one line for each step."""

    def __init__(self, tasks: int, on_step: Callable[[str], None]) -> None:
        self._tasks, self._on_step = tasks, on_step
        self._now: dict[int, str] = {}
        self._finished: set[int] = set()
        self._lock = Lock()

    def of(self, number: int) -> Callable[[Step], None]:
        """Return the function that is told the steps of a task."""

        def told(step: Step) -> None:
            with self._lock:
                self._now[number] = str(step) if self._tasks == 1 else step.artifact
                names = " | ".join(self._now[one] for one in sorted(self._now)[:_NAMED])
                more = f" and {len(self._now) - _NAMED} more" if len(self._now) > _NAMED else ""
                counted = f"{len(self._finished)} of {self._tasks} done; " if self._tasks > 1 else ""
                self._on_step(f"{counted}{names}{more}")

        return told

    def done(self, number: int) -> None:
        """Count a task as done."""
        with self._lock:
            self._now.pop(number, None)
            self._finished.add(number)


_NAMED = 3
"""Tasks that are named of those that are going on: a line has room for so many."""


class _Attempts:
    """One task on one child, begun again after each crash without the runtime that crashed."""

    def __init__(
        self, child: Child, records: Path, process: int, on_step: Callable[[Step], None], silence_s: float
    ) -> None:
        self._child, self._records, self._process = child, records, process
        self._on_step, self._silence_s = on_step, silence_s
        self._last = Step("", EXPORT)

    def run(self, task: Task, *, alone: bool) -> list[AnyRecord] | None:
        """Return the records; None if it took too much memory and may have more when it is alone."""
        self._child.send(msgspec.json.encode(Request(task, str(self._records), self._process)))
        done = self._follow()
        if isinstance(done, Done):
            if done.refusal:
                raise UnwritableError(done.refusal)
            return read_records(self._records) if self._records.stat().st_size else []
        if self._child.overstepped and not alone:
            return None
        following = after_death(task, self._last, done)
        return self.run(following, alone=alone) if isinstance(following, Task) else following

    def _follow(self) -> Done | str:
        """Return the end of the task, or in one line why there is none."""
        while True:
            line = self._child.receive(self._silence_s)
            answer = _decode(line)
            if isinstance(answer, Taken):
                self._last = answer.step
                self._on_step(answer.step)
            elif isinstance(answer, Done):
                return answer
            else:
                return self._child.give_up(line, self._silence_s)


def _decode(line: bytes | None) -> Answer | None:
    if line is None or not line.endswith(b"\n"):
        return None
    try:
        return msgspec.json.decode(line, type=Answer)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
