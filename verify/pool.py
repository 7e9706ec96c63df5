"""Tasks side by side, each in a process of its own: a crash or a hang is a verdict, and the run goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

import msgspec

from onnx_attest.errors import UnwritableError
from onnx_attest.export.api import ExportFailure
from onnx_attest.verify.engine import Step
from onnx_attest.verify.records import AnyRecord, read_records
from onnx_attest.verify.task import EXPORT, Dead, Task, failed_export
from onnx_attest.verify.workers.child import Child, Limits, usual_limits
from onnx_attest.verify.workers.verification import Answer, Done, Request, Taken

_WORKER = (sys.executable, "-m", "onnx_attest.verify.workers.verification")
_MOST_PROCESSES = 8  # each holds torch and ONNX Runtime, about a gigabyte


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
) -> Iterator[list[AnyRecord]]:
    """Yield the records of each task, in the order of the tasks.

    A runtime whose process dies, or takes more than it may, is errored for that artifact, with what is known of the end;
    the task is then begun again without it.

    Args:
        tasks: what to do.
        processes: how many at a time; by default one a core. The cores are shared out among them.
        on_step: told what is going on.
        limits: of each step, and of a process.
        worker: command of a process; another one only in tests.

    Raises:
        UnwritableError: a task could not write its files.
    """
    count = max(1, min(processes or min(cores(), _MOST_PROCESSES), len(tasks)))
    threads = max(1, cores() // count)
    limits = limits or usual_limits()
    with TemporaryDirectory(prefix="onnx-attest-tasks-") as name, ExitStack() as stack:
        made = (
            Child(worker, threads, Path(name) / f"stderr-{index}.txt", memory_bytes=limits.memory_bytes)
            for index in range(count)
        )
        children = [stack.enter_context(child) for child in made]
        idle: SimpleQueue[Child] = SimpleQueue()
        for child in children:
            idle.put(child)

        def work(number: int, task: Task) -> list[AnyRecord]:
            child = idle.get()
            try:
                records = Path(name) / f"records-{number}.jsonl"
                return _Attempts(child, records, on_step, limits.time_s).run(task)
            finally:
                idle.put(child)

        pool = stack.enter_context(ThreadPoolExecutor(count))
        shared = [msgspec.structs.replace(task, threads=task.threads or threads) for task in tasks]
        futures = [pool.submit(work, number, task) for number, task in enumerate(shared)]
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            for child in children:
                child.kill()
            raise


class _Attempts:
    """One task on one child, begun again after each crash without the runtime that crashed."""

    def __init__(self, child: Child, records: Path, on_step: Callable[[str], None], silence_s: float) -> None:
        self._child, self._records = child, records
        self._on_step, self._silence_s = on_step, silence_s
        self._last = Step("", EXPORT)

    def run(self, task: Task) -> list[AnyRecord]:
        self._child.send(msgspec.json.encode(Request(task, str(self._records))))
        done = self._follow()
        if isinstance(done, Done):
            if done.refusal:
                raise UnwritableError(done.refusal)
            return read_records(self._records) if self._records.stat().st_size else []
        last = self._last
        tried = any((item.artifact, item.runtime) == (last.artifact, last.runtime) for item in task.dead)
        if last.runtime == EXPORT or tried:
            return failed_export(ExportFailure(task.model, "all", 0, task.dtype, f"{EXPORT}: {done}"))
        dead = Dead(last.artifact, last.runtime, f"{done}, at {last.doing}")
        return self.run(msgspec.structs.replace(task, dead=(*task.dead, dead)))

    def _follow(self) -> Done | str:
        """Return the end of the task, or in one line why there is none."""
        while True:
            line = self._child.receive(self._silence_s)
            answer = _decode(line)
            if isinstance(answer, Taken):
                self._last = answer.step
                self._on_step(str(answer.step))
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
