"""Latency of artifacts on one runtime, measured in a process of its own.

The thread pools of torch and ONNX Runtime disturb each other inside one process (DESIGN.md section 7), so a
runtime is measured in a child that imports nothing else, and callers measure one runtime after another. Raw
samples are recorded; statistics are derived from them with `summarise`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.records import LatencyRecord
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.workers.child import Child
from onnx_attest.verify.workers.latency import Answer, LatencyBudget, Request
from onnx_attest.verify.workers.streams import one_line

__all__ = ["LatencyBudget", "LatencyJob", "LatencySummary", "measure", "summarise"]

_WORKER = (sys.executable, "-m", "onnx_attest.verify.workers.latency")
_DEFAULT_BUDGET = LatencyBudget()


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
        runtime_name: as `select` takes it.
        jobs: what to measure.
        threads: of the runtime; also OMP_NUM_THREADS of the child.
        budget: how often each job is timed.
        time_limit_s: for a whole job: the start of the child, the session, and all calls.
        worker: command of the child; another one only in tests.

    Raises:
        UsageError: an unknown runtime, or no threads; raised at once, not at the first record.
    """
    (runtime,) = select((runtime_name,))
    if threads < 1:
        raise UsageError(f"latency needs at least one thread, got {threads}")
    return _records(runtime_name, runtime.name, jobs, threads, budget, time_limit_s, worker)


def _records(
    reference: str,
    runtime_name: str,
    jobs: Sequence[LatencyJob],
    threads: int,
    budget: LatencyBudget,
    time_limit_s: float,
    worker: Sequence[str],
) -> Iterator[LatencyRecord]:
    with TemporaryDirectory(prefix="onnx-attest-latency-") as name:
        folder = Path(name)
        with Child(worker, threads, folder / "stderr.txt") as child:
            for number, job in enumerate(jobs):
                try:
                    request = _request(number, job, reference, threads, budget, folder / "inputs.npz")
                    answer = _ask(child, request, time_limit_s)
                except OSError as error:  # no room for the inputs, no process to be had
                    answer = Answer(job=number, reason=one_line(f"{type(error).__name__}: {error}"))
                yield _record(job, runtime_name, threads, answer)


def _ask(child: Child, request: Request, time_limit_s: float) -> Answer:
    """Return the child's answer, or an errored one with what is known of why there is none."""
    child.send(msgspec.json.encode(request))
    line = child.receive(time_limit_s)
    answer = None if line is None else _decode(line)
    if answer is not None and answer.job == request.job:
        return answer
    return Answer(job=request.job, reason=child.give_up(line, time_limit_s))


def _decode(line: bytes) -> Answer | None:
    try:
        return msgspec.json.decode(line, type=Answer)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None


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
