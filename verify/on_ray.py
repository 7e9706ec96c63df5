"""Tasks on a Ray cluster: an engine that Ray gives places, retries and transport, and nothing home-made.

A task of the main job is a task of Ray. It asks for as many processors as its runtimes have threads, for the memory that a
process of the pool needs, and for a GPU if it has a CUDA runtime and the cluster has one. Where it is placed, a process of
its own does it (`pool.TaskProcess`), which is kept for the next one there: a crash, a hang or an end for lack of memory is
a verdict there, as it is here. Its artifacts are made and verified in one place, with one oracle for all runtimes of a
case; they and the records travel once, through the object store. Few more tasks than there are processors are under way
at a time, and what arrived is handed over and forgotten: what the driver holds does not grow with the number of tasks.

A node that dies is Ray's to notice: it does the task again elsewhere, and one that never comes to its end is errored.
"""

from __future__ import annotations

import atexit
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from onnx_attest.errors import UnwritableError, UsageError
from onnx_attest.export.api import ExportFailure
from onnx_attest.verify.journal.basis import code_digest
from onnx_attest.verify.pool import NEEDED_BYTES, TaskProcess, with_threads
from onnx_attest.verify.records import AnyRecord
from onnx_attest.verify.task import Task, failed_export
from onnx_attest.verify.workers.limits import Limits
from onnx_attest.verify.workers.streams import one_line

NAME = "ray"
_RETRIES = 3
"""Of a task whose node died."""
_AHEAD = 2
"""Tasks under way for each processor: while one is done, the next is already where it will be."""
_RECORDS = msgspec.json.Decoder(list[AnyRecord])


class Done(msgspec.Struct, frozen=True):
    """What comes back of a task.

    Attributes:
        records: as JSON.
        files: the exported files by their names.
        refusal: why its node cannot do it, "" if it can.
    """

    records: bytes = b"[]"
    files: dict[str, bytes] = {}
    refusal: str = ""


def run_on_ray(
    tasks: Sequence[Task],
    *,
    address: str = "",
    limits: Limits | None = None,
    on_step: Callable[[str], None] = lambda step: None,
    worker: Sequence[str] = (),
) -> Generator[tuple[int, list[AnyRecord]], None, None]:
    """Yield the number of each task with its records, as soon as it is done: an engine, see `task.Engine`.

    Args:
        tasks: what to do; their folders are this machine's.
        address: of a cluster, `ray://HOST:PORT`; "" for the one that RAY_ADDRESS names, else a new one of this machine.
        limits: of each step and process.
        on_step: told how many are done.
        worker: command of a process; another one only in tests.

    Raises:
        UsageError: there is no Ray, no such cluster, or a node has another onnx-attest.
        UnwritableError: the exported files cannot be written here.
    """
    ray = _ray()
    begun = not ray.is_initialized()
    if begun:
        _connect(ray, address)
    under_way: dict[Future[Done], tuple[int, Any]] = {}
    try:
        waiting = deque(sorted(range(len(tasks)), key=lambda number: -tasks[number].cost))
        options, most = _options(ray), _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        code, remote = code_digest(), ray.remote(do_task)
        done = 0
        while waiting or under_way:
            while waiting and len(under_way) < most:
                number = waiting.popleft()
                task = with_threads(tasks[number])
                asked = remote.options(**options(task))
                reference = asked.remote(msgspec.json.encode(task), code, limits, tuple(worker))
                under_way[reference.future()] = number, reference
                del reference
            on_step(f"{done} of {len(tasks)} done; {len(under_way)} under way on Ray")
            # Not ray.wait: an exception that a signal raises inside it becomes another one, but for Ctrl-C's.
            ready = next(iter(wait(under_way, return_when=FIRST_COMPLETED).done))
            number = under_way.pop(ready)[0]
            records = _taken(ray, ready, tasks[number])
            del ready  # the last that holds the answer
            done += 1
            yield number, records
    finally:
        for _, reference in under_way.values():
            ray.cancel(reference, force=True)
        if begun:
            ray.shutdown()


def _ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"--engine ray needs Ray: {error}; install onnx-attest[ray]") from error
    return ray  # type: ignore[no-any-return]


def _connect(ray: ModuleType, address: str) -> None:
    given: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**given, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise UsageError(f"cannot use the Ray cluster {address or 'of this machine'}: {error}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGTERM, before
            )  # Ray's own would end this process before it reports what it has


def _options(ray: ModuleType) -> Callable[[Task], dict[str, Any]]:
    """Return what gives the resources that a task asks for, of those that this cluster has."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    enough = all(node.get("memory", 0) >= NEEDED_BYTES for node in nodes)
    gpus = any(node.get("GPU", 0) >= 1 for node in nodes)
    most = max(node.get("CPU", 0) for node in nodes)

    def options(task: Task) -> dict[str, Any]:
        return {
            "num_cpus": min(task.threads or 1, most),  # more would be waited for, for ever
            "num_gpus": 1 if gpus and any("cuda" in name for name in task.runtimes) else 0,
            "memory": NEEDED_BYTES if enough else 0,
            "max_retries": _RETRIES,
            "scheduling_strategy": "SPREAD",
            "name": f"{task.model} {task.dtype}",
        }

    return options


def _taken(ray: ModuleType, ready: Future[Done], task: Task) -> list[AnyRecord]:
    """Return the records of a task that is over; its files are in its folder then.

    Raises:
        UsageError: no node can do it.
        UnwritableError: the files cannot be written.
    """
    try:
        done = ready.result()
    except ray.exceptions.RayError as error:  # retried, and lost again; or what Ray itself ended
        reason = f"the export: on Ray, {type(error).__name__}: {one_line(str(error))[:_LONGEST]}"
        return failed_export(ExportFailure(task.model, "all", 0, task.dtype, reason))
    if done.refusal:
        raise UsageError(done.refusal)
    folder = Path(task.folder)
    try:
        for name, data in done.files.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise UnwritableError(f"cannot write {folder}: {error.strerror or error}") from error
    return _RECORDS.decode(done.records)


_LONGEST = 500
"""Characters of what Ray says, which may be a page."""


# --- on a node --------------------------------------------------------------------------------------------------

_kept: dict[tuple[Any, ...], TaskProcess] = {}


def do_task(task: bytes, code: str, limits: Limits | None, worker: tuple[str, ...]) -> Done:
    """Return what came of a task, done in a process of its own on this node, which is kept for the next one."""
    if (mine := code_digest()) != code:
        return Done(
            refusal=f"a node of the cluster has another onnx-attest ({mine}, here {code}): install the same everywhere"
        )
    decoded = msgspec.json.decode(task, type=Task)
    key = (limits, worker, decoded.threads)
    if key not in _kept:
        threads = decoded.threads or 1
        _kept[key] = TaskProcess(limits, worker, threads) if worker else TaskProcess(limits, threads=threads)
        atexit.register(_kept[key].close)
    with tempfile.TemporaryDirectory(prefix="onnx-attest-task-") as name:
        folder = Path(name)
        records = _kept[key].run(msgspec.structs.replace(decoded, folder=name))
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
    return Done(msgspec.json.encode(records), files)
