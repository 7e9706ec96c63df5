"""Peak memory of single calls on one runtime, measured in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.workers.child import Child
from onnx_attest.verify.workers.peak import Answer, Request
from onnx_attest.verify.workers.streams import one_line

_WORKER = (sys.executable, "-m", "onnx_attest.verify.workers.peak")
_GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": str(2**17), "MALLOC_TRIM_THRESHOLD_": str(2**17)}
"""glibc gives back what is freed (its default for a start, which it raises by itself): kept memory of an earlier call
would be used again, and not be seen."""


@dataclass(frozen=True)
class PeakJob:
    """One call: an export of this package at the sizes of its symbolic axes."""

    artifact: Artifact
    axes: dict[str, int]


def measure_peaks(
    reference: str,
    jobs: Sequence[PeakJob],
    *,
    threads: int,
    seed: int = 0,
    time_limit_s: float = 60.0,
    worker: Sequence[str] = _WORKER,
) -> Iterator[Answer]:
    """Yield what each call held at once, beyond its session and its inputs, in the order of the jobs.

    All of them run in one child. One that breaks it is errored, and the rest get a fresh one.

    Args:
        reference: of the runtime, as `select` takes it.
        jobs: what to measure.
        threads: of the runtime; each has buffers of its own.
        seed: of the inputs.
        time_limit_s: for each job.
        worker: command of the child; another one only in tests.
    """
    with TemporaryDirectory(prefix="onnx-attest-peak-") as folder:
        environment = {**os.environ, **_GIVEN_BACK}
        with Child(worker, threads, Path(folder) / "stderr.txt", environment=environment) as child:
            for number, job in enumerate(jobs):
                request = Request(
                    job=number,
                    runtime=reference,
                    threads=threads,
                    artifact=str(job.artifact.path.resolve()),
                    trusted=job.artifact.trusted,
                    axes=job.axes,
                    seed=seed,
                )
                try:
                    yield _ask(child, request, time_limit_s)
                except OSError as error:  # no process to be had
                    yield Answer(job=number, reason=one_line(f"{type(error).__name__}: {error}"))


def _ask(child: Child, request: Request, time_limit_s: float) -> Answer:
    child.send(msgspec.json.encode(request))
    line = child.receive(time_limit_s)
    try:
        answer = None if line is None else msgspec.json.decode(line, type=Answer)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        answer = None
    if answer is not None and answer.job == request.job:
        return answer
    return Answer(job=request.job, reason=child.give_up(line, time_limit_s))
