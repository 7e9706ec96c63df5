"""The process that a runtime is timed in, see `verify.latency`: one JSON request a line on stdin, one JSON answer a line on stdout.

Requirements:
* a runtime's package is imported only when a request names that runtime;
* nothing that a library prints reaches the parent as an answer;
* every request is answered, unless the process itself dies;
* between requests it does nothing, so that others can be timed then.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify.interruption import leave_sigterm_to_the_parent
from onnx_attest.verify.records import Verdict
from onnx_attest.verify.runtimes.base import Clocked, DeviceCall, OnDevice, Session, Tensors, UnavailableError
from onnx_attest.verify.runtimes.isolated import to_be_timed
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.workers import product, resident
from onnx_attest.verify.workers.streams import one_line, private_streams

_NANOSECONDS = 1e9
_Result = TypeVar("_Result")
_WINDOW, _SETTLED, _PATIENCE = 5, 0.05, 4
"""Of the warm-up, see there."""


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Make something ready to be timed, under a number.

    Attributes:
        runtime: as `select` takes it; "" for the machine's own product of matrices.
        artifact: path of the ONNX file; its manifest, if it has one, lies beside it.
        trusted: the asking process wrote the manifest, or was told to run the module it names.
        inputs: path of an .npz with the inputs as arr_0, arr_1, ... in the order of `names`: a tensor may have
            a name that is no keyword of `numpy.savez`.
        dtypes: in the same order; .npz forgets those of ml_dtypes.
        warm_up_s: no further call to warm up is begun after this time.
        memory: measure what it holds, for which it is opened twice.
    """

    number: int
    runtime: str
    threads: int
    artifact: str = ""
    trusted: bool = False
    inputs: str = ""
    names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    warm_up_s: float
    memory: bool = True


class Sample(msgspec.Struct, frozen=True, kw_only=True, tag="sample"):
    """Time a block of calls; `settle`: after one that fills the caches and is not timed."""

    number: int
    calls: int
    settle: bool = True


class Close(msgspec.Struct, frozen=True, kw_only=True, tag="close"):
    """Let go of it."""

    number: int


Request = Open | Sample | Close


class Answer(msgspec.Struct, kw_only=True):
    """What came of a request. Filled step by step, so that what was known before an error is kept.

    Attributes:
        copies_s: of the inputs to a device and of the outputs back; None where there is no device.
        resident_bytes: that the process held before it opened the session.
        opened_bytes: and with it.
        peak_bytes: the most that it held from then to the end of the warm-up.
        warm: whether the calls to warm up came to take the same time.
        busy_s: processor time that this process took for the block.
        others_s: processor time that all other programs took meanwhile, and a host that took it away; None if unknown.
        preempted: how often another program was put in this one's place.
    """

    number: int
    verdict: Verdict = "errored"
    reason: str = ""
    runtime_version: str = "unknown"
    provider_used: tuple[str, ...] = ()
    affinity: tuple[int, ...] = ()
    session_s: float | None = None
    first_call_s: float | None = None
    copies_s: float | None = None
    resident_bytes: int | None = None
    opened_bytes: int | None = None
    peak_bytes: int | None = None
    warm_up_s: tuple[float, ...] = ()
    warm: bool | None = None
    latency_s: tuple[float, ...] = ()
    busy_s: float = 0.0
    others_s: float | None = None
    preempted: int = 0


def main() -> None:
    """Answer the requests on stdin until there are no more."""
    leave_sigterm_to_the_parent()
    requests, answers = private_streams()
    decoder = msgspec.json.Decoder(Request)
    timed = Timed()
    for line in requests:
        answers.write(msgspec.json.encode(timed.answer_to(decoder.decode(line))) + b"\n")
        answers.flush()


@dataclass(frozen=True)
class Ready:
    """Something that can be called again and again.

    Attributes:
        elsewhere: the seconds of so many calls, where another process makes them and has a clock of its own.
    """

    call: Callable[[], object]
    elsewhere: Callable[[int], tuple[float, ...]] | None = None

    def calls_s(self, calls: int) -> tuple[float, ...]:
        """Call it so many times, and return the seconds of each call."""
        if self.elsewhere is not None:
            return self.elsewhere(calls)
        return tuple(self._call_s() for _ in range(calls))

    def _call_s(self) -> float:
        start = perf_counter_ns()
        outputs = self.call()
        end = perf_counter_ns()
        # Freed before the next call, as a server would, but not on this call's clock.
        del outputs
        return (end - start) / _NANOSECONDS


class Timed:
    """What this process was asked to time, by number."""

    def __init__(self) -> None:
        self._ready: dict[int, Ready] = {}

    def answer_to(self, request: Request) -> Answer:
        """Return the timings, or why there are none: `skipped` if the runtime refuses, `errored` if anything raises."""
        answer = Answer(number=request.number)
        try:
            if isinstance(request, Open):
                self._open(request, answer)
            elif isinstance(request, Sample):
                take_block(self._ready[request.number], request, answer)
            else:
                self._ready.pop(request.number, None)
            answer.verdict = "passed"
        except UnavailableError as refusal:
            answer.verdict, answer.reason = "skipped", one_line(str(refusal))
        except Exception as error:  # noqa: BLE001 - a runtime may raise anything; it is recorded, not hidden
            answer.reason = one_line(f"{type(error).__name__}: {error}")
        return answer

    def _open(self, request: Open, answer: Answer) -> None:
        self._ready.pop(request.number, None)
        answer.affinity = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
        if not request.runtime:
            ready = product.ready()
            answer.runtime_version = product.version()
            (answer.first_call_s,) = (timed := Ready(ready)).calls_s(1)
        else:
            timed = self._session(request, answer)
        with _no_garbage_collection():
            answer.warm_up_s, answer.warm = warm_up(timed, request.warm_up_s)
        if answer.resident_bytes is not None:
            answer.peak_bytes = resident.peak_bytes(os.getpid())
        self._ready[request.number] = timed

    def _session(self, request: Open, answer: Answer) -> Ready:
        runtime = to_be_timed(*select((request.runtime,)))
        # This imports the runtime's package, which is not part of what a session costs.
        # A plain string: torch's version is of a class of its own, which JSON has no word for.
        answer.runtime_version = str(runtime.availability().version)
        artifact = replace(read_artifact(Path(request.artifact)), trusted=request.trusted)
        inputs = _load_inputs(request)
        session, answer.session_s = _timed(lambda: runtime.open(artifact, threads=request.threads))
        answer.provider_used = session.placement.used
        answer.reason = session.placement.elsewhere()  # its time is in part another provider's
        held = _on_device(session, inputs)
        ready = _ready(session, inputs, held)
        with _no_garbage_collection():
            (answer.first_call_s,) = ready.calls_s(1)
        if held is not None:
            answer.copies_s = held.copied_in_s + held.copied_out_s()
        if not (request.memory and resident.is_told() and resident.reset_peaks(os.getpid())):
            return ready
        # What a library makes once for itself is there now; memory is that of a second session and its calls.
        del session, held, ready
        _give_back_memory()
        answer.resident_bytes = resident.held_bytes(os.getpid())
        session = runtime.open(artifact, threads=request.threads)
        ready = _ready(session, inputs, _on_device(session, inputs))
        answer.opened_bytes = resident.held_bytes(os.getpid())
        resident.reset_peaks(os.getpid())
        return ready


def _on_device(session: Session, inputs: Tensors) -> DeviceCall | None:
    return session.on_device(inputs) if isinstance(session, OnDevice) else None


def _ready(session: Session, inputs: Tensors, held: DeviceCall | None) -> Ready:
    if held is not None:
        return Ready(held.run)
    if isinstance(session, Clocked):
        return Ready(lambda: session.run(inputs), lambda calls: session.calls_s(inputs, calls))
    return Ready(lambda: session.run(inputs))


def warm_up(ready: Ready, seconds: float) -> tuple[tuple[float, ...], bool]:
    """Call until calls take the same time, or the time is up; return what each took, and whether it came to that.

    The same: the median of five calls and that of the five before differ by less than 5 %. Where ten calls take longer
    than the time, up to four times as much is spent on them.
    """
    start, taken = perf_counter_ns(), list[float]()
    while True:
        # Calls that another process makes are asked for a few at a time.
        few = bool(taken) and _WINDOW * taken[-1] < seconds
        taken += ready.calls_s(_WINDOW - len(taken) % _WINDOW if few else 1)
        if len(taken) >= 2 * _WINDOW and len(taken) % _WINDOW == 0:
            last, before = median(taken[-_WINDOW:]), median(taken[-2 * _WINDOW : -_WINDOW])
            if abs(last - before) <= _SETTLED * before:
                return tuple(taken), True
        spent = (perf_counter_ns() - start) / _NANOSECONDS
        if spent >= (seconds if len(taken) >= 2 * _WINDOW else _PATIENCE * seconds):
            return tuple(taken), False


def take_block(ready: Ready, request: Sample, answer: Answer) -> None:
    """Time a block of calls, and note what else the machine did meanwhile."""
    with _no_garbage_collection():
        if request.settle:
            ready.calls_s(1)
        before = _Machine.now()
        answer.latency_s = ready.calls_s(request.calls)
        after = _Machine.now()
    answer.busy_s = after.own_s - before.own_s
    answer.preempted = after.preempted - before.preempted
    if before.all_s is not None and after.all_s is not None:
        answer.others_s = max(0.0, after.all_s - before.all_s - answer.busy_s)


@dataclass(frozen=True)
class _Machine:
    """Counters of this process and of the machine, since they began."""

    own_s: float
    all_s: float | None
    preempted: int

    @classmethod
    def now(cls) -> _Machine:
        try:
            import resource
        except ImportError:  # Windows
            return cls(sum(os.times()[:2]), None, 0)
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_utime + used.ru_stime, _all_busy_s(), used.ru_nivcsw)


def _all_busy_s() -> float | None:
    """Return processor time that was not idle, stolen time with it; None where the system does not tell."""
    try:
        with Path("/proc/stat").open() as file:
            user, nice, system, _idle, _wait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / float(os.sysconf("SC_CLK_TCK"))


def _timed(call: Callable[[], _Result]) -> tuple[_Result, float]:
    start = perf_counter_ns()
    result = call()
    return result, (perf_counter_ns() - start) / _NANOSECONDS


def _give_back_memory() -> None:
    """Let go of what was freed, else it would be used again and not be seen in the memory of what comes next."""
    gc.collect()
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _load_inputs(request: Open) -> Tensors:
    with np.load(request.inputs) as file:
        arrays = [file[f"arr_{index}"] for index in range(len(request.names))]
    typed = [_with_dtype(array, dtype) for array, dtype in zip(arrays, request.dtypes, strict=True)]
    return dict(zip(request.names, typed, strict=True))


def _with_dtype(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.dtype.name == name:
        return array
    # Makes numpy know bfloat16 and its kin by name. Late, because this import alone takes half a second.
    import ml_dtypes  # noqa: F401

    return array.view(np.dtype(name))


if __name__ == "__main__":
    main()
