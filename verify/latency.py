"""Latency of artifacts on one runtime, measured in a process of its own.

The thread pools of torch and ONNX Runtime disturb each other inside one process (DESIGN.md section 7), so a
runtime is measured in a child that imports nothing else, and callers measure one runtime after another. Raw
samples are recorded; statistics are derived from them with `summarise`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.latency_worker import Answer, LatencyBudget, Request, one_line
from onnx_attest.verify.records import LatencyRecord
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.runtimes.registry import select

__all__ = ["LatencyBudget", "LatencyJob", "LatencySummary", "measure", "summarise"]

_WORKER = (sys.executable, "-m", "onnx_attest.verify.latency_worker")
_DEFAULT_BUDGET = LatencyBudget()
# How long a child may take to end by itself, once its work is over or its pipe is closed.
_GRACE_S = 5.0
# An answer with the most samples is a few kilobytes; more than this comes from something else.
_LONGEST_ANSWER_BYTES = 1 << 24
_STDERR_TAIL_BYTES = 4096


@dataclass(frozen=True)
class LatencyJob:
    """One artifact at one shape.

    Attributes:
        axes: size of every symbolic axis, for the record.
        inputs: what the session is called with.
    """

    artifact: Artifact
    axes: dict[str, int]
    inputs: Tensors


@dataclass(frozen=True)
class LatencySummary:
    """Order statistics of raw samples, defined at `summarise`, and how many samples there were."""

    median_s: float
    p10_s: float
    p90_s: float
    samples: int


def summarise(samples: Sequence[float]) -> LatencySummary:
    """Return the median, the 10th and the 90th percentile of samples in seconds.

    The percentile p of n sorted samples x[0] <= ... <= x[n-1] lies at position h = (n - 1) p / 100 and is
    interpolated linearly: x[i] + (h - i) (x[i+1] - x[i]) with i = floor(h). That is definition 7 of Hyndman and
    Fan (1996), NumPy's `linear`; the median is p = 50. A single sample is its own percentile, all three times.

    Raises:
        ValueError: no samples; look at the record's verdict and reason instead.
    """
    if not samples:
        raise ValueError("no samples to summarise; the record's verdict and reason say why")
    p10, median, p90 = (float(value) for value in np.percentile(samples, (10, 50, 90), method="linear"))
    return LatencySummary(median_s=median, p10_s=p10, p90_s=p90, samples=len(samples))


def measure(
    runtime_name: str,
    jobs: Sequence[LatencyJob],
    *,
    threads: int,
    budget: LatencyBudget = _DEFAULT_BUDGET,
    time_limit_s: float = 60.0,
    worker: Sequence[str] = _WORKER,
) -> Iterator[LatencyRecord]:
    """Return an iterator over one record a job, in the order of the jobs; each is measured when it is asked for.

    All jobs run in one child process. A job that breaks the child (it crashes, answers nonsense, or not within
    `time_limit_s`) is errored, and the remaining ones get a fresh child. No child outlives the iterator.

    Args:
        runtime_name: as in the registry.
        jobs: what to measure.
        threads: of the runtime; also OMP_NUM_THREADS of the child.
        budget: how often each job is timed.
        time_limit_s: for a whole job: the start of the child, the session, and all calls.
        worker: command of the child; another one only in tests.

    Raises:
        UsageError: an unknown runtime, or no threads; raised at once, not at the first record.
    """
    select((runtime_name,))
    if threads < 1:
        raise UsageError(f"latency needs at least one thread, got {threads}")
    return _records(runtime_name, jobs, threads, budget, time_limit_s, worker)


def _records(
    runtime_name: str,
    jobs: Sequence[LatencyJob],
    threads: int,
    budget: LatencyBudget,
    time_limit_s: float,
    worker: Sequence[str],
) -> Iterator[LatencyRecord]:
    with TemporaryDirectory(prefix="onnx-attest-latency-") as name:
        folder = Path(name)
        with _Child(worker, threads, folder / "stderr.txt") as child:
            for number, job in enumerate(jobs):
                try:
                    request = _request(number, job, runtime_name, threads, budget, folder / "inputs.npz")
                    answer = child.ask(request, time_limit_s)
                except OSError as error:  # no room for the inputs, no process to be had
                    answer = Answer(job=number, reason=one_line(f"{type(error).__name__}: {error}"))
                yield _record(job, runtime_name, threads, answer)


def _request(
    number: int, job: LatencyJob, runtime_name: str, threads: int, budget: LatencyBudget, inputs: Path
) -> Request:
    """Return the request for a job; its inputs are written to `inputs`."""
    # Contiguous, or a runtime's own copy of them would be timed.
    arrays = [np.asarray(array, order="C") for array in job.inputs.values()]
    np.savez(inputs, *arrays)
    return Request(
        job=number,
        runtime=runtime_name,
        threads=threads,
        artifact=str(job.artifact.path.resolve()),
        trusted=job.artifact.trusted,
        inputs=str(inputs),
        names=tuple(job.inputs),
        dtypes=tuple(array.dtype.name for array in arrays),
        budget=budget,
    )


def _record(job: LatencyJob, runtime_name: str, threads: int, answer: Answer) -> LatencyRecord:
    manifest = job.artifact.manifest
    measured: dict[str, Any] = msgspec.structs.asdict(answer)
    del measured["job"]
    return LatencyRecord(
        model=job.artifact.name,
        variant=manifest.variant if manifest else "unknown",
        opset=manifest.got.opset if manifest else None,
        dtype=manifest.dtype if manifest else "unknown",
        artifact_sha256=job.artifact.sha256,
        runtime=runtime_name,
        axes=job.axes,
        threads=threads,
        **measured,
    )


class _Child:
    """A worker process: started when it is first asked, ended when it breaks, then started again."""

    def __init__(self, command: Sequence[str], threads: int, stderr: Path) -> None:
        self._command = list(command)
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._stderr = stderr
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> _Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Its return code says nothing about jobs that have all been answered.
        self._end(_GRACE_S if error is None else 0)

    def ask(self, request: Request, time_limit_s: float) -> Answer:
        """Return the child's answer, or an errored one with what is known of why there is none."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None  # it is a pipe
        with contextlib.suppress(
            OSError
        ):  # the child is gone: then there is no answer either, which says more
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
        line = self._read_line(process, time_limit_s)
        answer = None if line is None else _decode(line)
        if answer is not None and answer.job == request.job:
            return answer
        return Answer(job=request.job, reason=self._give_up(line, time_limit_s))

    def _start(self) -> subprocess.Popen[bytes]:
        # A file, because a pipe that nobody empties would stop a talkative child.
        with self._stderr.open("wb") as stderr:
            return subprocess.Popen(  # noqa: S603 - our own interpreter and module
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self._environment,
            )

    def _read_line(self, process: subprocess.Popen[bytes], time_limit_s: float) -> bytes | None:
        """Return the next line, cut short at the end of the file; None if there is none in time."""
        assert process.stdout is not None  # it is a pipe
        readline, lines = process.stdout.readline, Queue[bytes]()
        # A thread, because Windows cannot wait for a pipe with a time limit.
        self._reader = threading.Thread(
            target=lambda: lines.put(readline(_LONGEST_ANSWER_BYTES)), daemon=True, name="latency answers"
        )
        self._reader.start()
        try:
            return lines.get(timeout=time_limit_s)
        except Empty:
            return None

    def _give_up(self, line: bytes | None, time_limit_s: float) -> str:
        """End the child, and return in one line why it gave no valid answer."""
        if line is None:
            self._end(0)
            reason = f"no answer within {time_limit_s:g} s, so its process was killed"
        elif line.endswith(b"\n"):
            self._end(0)
            reason = f"its process wrote something that is not an answer: {_excerpt(line)}"
        else:  # the end of its output: it is dying by itself, and its return code is worth waiting for
            reason = _describe_end(self._end(_GRACE_S))
            reason += f" in the middle of an answer: {_excerpt(line)}" if line else " without an answer"
        complaint = _last_line(self._stderr)
        return one_line(f"{reason}; the last line on its stderr: {complaint}" if complaint else reason)

    def _end(self, grace_s: float) -> int | None:
        """Let the child end within a time, else kill it; return its return code, None if it was killed."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None  # both are pipes
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # an unsent request
            process.stdin.close()
        try:
            code = process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        if self._reader is not None:
            self._reader.join(_GRACE_S)
            if (
                not self._reader.is_alive()
            ):  # else a process that the child started holds the pipe: closing would wait
                process.stdout.close()
        return code


def _decode(line: bytes) -> Answer | None:
    try:
        return msgspec.json.decode(line, type=Answer)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None


def _describe_end(code: int | None) -> str:
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


def _excerpt(line: bytes) -> str:
    return repr(line[:80].decode(errors="replace").strip())


def _last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _STDERR_TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
