"""`onnx-attest bench`: latency and memory of files, side by side; whether they are right is not looked at."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.environment import command_line, environment
from onnx_attest.verify.inputs import axes_of_shapes
from onnx_attest.verify.latency.budget import LatencyBudget
from onnx_attest.verify.latency.jobs import LENGTHS, grouped_jobs, in_groups, job_at
from onnx_attest.verify.latency.measure import LatencyJob, measure
from onnx_attest.verify.records import AnyRecord, LatencyRecord, RunRecord
from onnx_attest.verify.runtimes.base import Runtime
from onnx_attest.verify.runtimes.isolated import processes_of
from onnx_attest.verify.runtimes.registry import reference_of
from onnx_attest.verify.signature import read_signature
from onnx_attest.verify.verdicts import exit_code, worst


@dataclass(frozen=True)
class Bench:
    """The records of the measurement, the run's own last."""

    records: tuple[AnyRecord, ...]

    @property
    def exit_code(self) -> int:
        """Of the command: 1 if something could not be timed, 3 if nothing was, or a required runtime was not."""
        return next(record.exit_code for record in self.records if isinstance(record, RunRecord))

    def as_object(self) -> dict[str, Any]:
        """Return what `--json` prints: the records."""
        return {
            "exit_code": self.exit_code,
            "records": [msgspec.to_builtins(record) for record in self.records],
        }


def run_bench(
    artifacts: Sequence[Artifact],
    runtimes: Sequence[Runtime],
    *,
    threads: int,
    budget: LatencyBudget,
    lengths: Sequence[int] = LENGTHS,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    required: Sequence[str] = (),
    seed: int = 0,
    on_step: Callable[[str], None] = lambda step: None,
    configuration: Mapping[str, str] | None = None,
) -> Bench:
    """Time the files against each other on the runtimes.

    Args:
        artifacts: the files; those of one model are compared with each other.
        runtimes: to time them on.
        threads: of each.
        budget: how long.
        lengths: of all axes that are no batch; left aside where shapes are given.
        shapes: of the inputs, by name, instead of lengths.
        required: runtimes without which nothing is proven.
        seed: of the inputs and of the order.
        on_step: told what is going on.
        configuration: the settings that are not the defaults, for the record.

    Raises:
        UsageError: a file that cannot be read, shapes that do not fit it, inputs that do not fit into memory.
    """
    started = time.monotonic()
    jobs = _jobs(artifacts, lengths, shapes, seed)
    with processes_of(runtimes):
        records: list[AnyRecord] = [environment(runtimes, command_line(), configuration)]
    names = [reference_of(runtime) for runtime in runtimes]
    records += measure(names, jobs, threads=threads, budget=budget, on_step=on_step, seed=seed)
    timed = [record for record in records if isinstance(record, LatencyRecord) and not record.twin]
    absent = {
        name: reason
        for name in required
        if (reason := next((one.reason for one in timed if one.runtime == name and not one.latency_s), None))
        is not None
    }
    verdict = worst(record.verdict for record in timed)
    run = RunRecord(
        verdict="inconclusive" if absent and verdict == "passed" else verdict,
        reason="; ".join(
            f"{name} was required and was not timed: {reason}" for name, reason in absent.items()
        )
        or ("" if verdict == "passed" else _reason(timed, verdict)),
        exit_code=exit_code(verdict, required_absent=bool(absent)),
        cells={},
        known=0,
        required=tuple(required),
        duration_s=time.monotonic() - started,
    )
    return Bench((*records, run))


def _jobs(
    artifacts: Sequence[Artifact],
    lengths: Sequence[int],
    shapes: Mapping[str, tuple[int, ...]] | None,
    seed: int,
) -> list[LatencyJob]:
    if shapes is None:
        return grouped_jobs(artifacts, lengths, seed)
    jobs = []
    for artifact in artifacts:
        signature = read_signature(artifact)
        jobs.append(job_at(artifact, signature, axes_of_shapes(dict(shapes), signature), seed))
    return in_groups(jobs)


def _reason(timed: Sequence[LatencyRecord], verdict: str) -> str:
    reasons = dict.fromkeys(f"{record.runtime}: {record.reason}" for record in timed if record.reason)
    return "; ".join(reasons) or ("nothing was timed" if verdict == "inconclusive" else "")
