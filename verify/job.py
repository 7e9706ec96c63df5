"""The main job: every built-in model exported in every variant, verified on every runtime, timed, and reported."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from onnx_attest.errors import UsageError
from onnx_attest.export.api import OPSETS
from onnx_attest.export.artifact import Artifact, read_artifact
from onnx_attest.models.entry import Entry
from onnx_attest.verify.cases import plan_cases
from onnx_attest.verify.claims.growth import not_measured, run_growth
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.environment import command_line, environment
from onnx_attest.verify.evidence import FOLDER, told
from onnx_attest.verify.latency import LENGTHS, AnyTimed, grouped_jobs, measure, worth_timing
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.pool import cores, run_tasks
from onnx_attest.verify.records import AnyRecord, ArtifactRecord, ClaimRecord, TimeRecord
from onnx_attest.verify.report import write_reports
from onnx_attest.verify.report.folder import refuse_unwritable
from onnx_attest.verify.runtimes.isolated import processes_of
from onnx_attest.verify.runtimes.registry import reference_of
from onnx_attest.verify.stopwatch import Stopwatch
from onnx_attest.verify.task import Engine, Task
from onnx_attest.verify.workers.child import Limits

_LONGEST = 1e9
"""What the experiments cost beside any task: they take longer than all but one or two."""
CHAPTER = "sdpa"
"""The module that the chapter's statements are about."""


@dataclass(frozen=True, eq=False)
class Job:
    """What `onnx-attest run` is asked for.

    Attributes:
        entries: the models.
        variants: of each model; all that it has if none is named.
        dtypes: of the graphs; only float32 is timed.
        required: runtimes without which nothing is proven.
        folder: of the reports.
        claims: whether to test the chapter's statements; by default if its module is among the models.
        latency: whether to time what was verified.
        processes: how many models are verified at a time; by default one a core. Timing is one at a time, after them.
        limits: of each step of these processes; the usual ones by default.
        engine: what runs the tasks, instead of processes of this machine with these limits.
        profile: record where the time goes.
        on_step: told what is going on, for a progress bar.
        evidence: the folder of what other machines recorded.
    """

    entries: Sequence[Entry]
    plan: Plan
    folder: Path
    variants: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "float16")
    required: tuple[str, ...] = ()
    claims: bool | None = None
    latency: bool = True
    processes: int | None = None
    limits: Limits | None = None
    engine: Engine | None = None
    profile: bool = False
    on_step: Callable[[str], None] = field(default=lambda step: None)
    evidence: Path = FOLDER


def run_job(job: Job) -> list[AnyRecord]:
    """Run the job, write its reports and return its records.

    Raises:
        UsageError: two models of one name, or the folder cannot be written: said before anything is exported.
    """
    started, watch = time.monotonic(), Stopwatch(time.monotonic)
    names = [entry.name for entry in job.entries]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UsageError(f"two models are called {twice[0]}, and so would their files be; rename one")
    scratch = _scratch(job.folder)
    try:
        with watch.stage("environment"), processes_of(job.plan.runtimes):
            records: list[AnyRecord] = [
                environment(job.plan.runtimes, command_line(), job.plan.configuration)
            ]
        with watch.stage("tasks"), closing(_engine(job)(_tasks(job, scratch))) as verified:
            for some in verified:
                records += some
        if job.latency:
            with watch.stage("latency"):
                records += _time_all(job, records, _exported(records, scratch / "artifacts"))
        if _tests_claims(job):
            with watch.stage("costs"):
                records += _costs(job, scratch / "claims")
        records += told(records, job.evidence)
        if job.profile:
            records.append(TimeRecord(task="", seconds=watch.taken()))
        records += conclude(records, required=job.required, duration_s=time.monotonic() - started)
        job.on_step("write the reports")
        write_reports(records, job.folder, scratch / "artifacts")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return records


def _engine(job: Job) -> Engine:
    return job.engine or partial(run_tasks, processes=job.processes, on_step=job.on_step, limits=job.limits)


def _scratch(folder: Path) -> Path:
    """Return a folder beside the reports, for the exported files until the reports are whole."""
    refuse_unwritable(folder)
    scratch = Path(tempfile.mkdtemp(dir=folder.resolve().parent, prefix=f".{folder.name}-run."))
    (scratch / "artifacts").mkdir()
    return scratch


def _tasks(job: Job, scratch: Path) -> list[Task]:
    tasks = [
        _task(job, scratch / "artifacts", entry.reference or entry.name, dtype, _cost(job, entry))
        for dtype, entry in itertools.product(job.dtypes, job.entries)
    ]
    if _tests_claims(job):
        (scratch / "claims").mkdir()
        tasks.insert(0, _task(job, scratch / "claims", "", "float32", _LONGEST))
    return tasks


def _tests_claims(job: Job) -> bool:
    return any(entry.name == CHAPTER for entry in job.entries) if job.claims is None else job.claims


def _costs(job: Job, folder: Path) -> Iterator[ClaimRecord]:
    """Yield what attention costs on each runtime, the one statement of the chapter that is about time."""
    if not _tests_claims(job):
        return
    if not job.latency:
        yield from not_measured(job.plan)
        return
    job.on_step("fit what attention costs")
    yield from run_growth(job.plan, folder, threads(job.plan))


def _task(job: Job, folder: Path, reference: str, dtype: str, cost: float) -> Task:
    return Task(
        reference=reference,
        dtype=dtype,
        variants=job.variants,
        folder=str(folder),
        runtimes=tuple(reference_of(runtime) for runtime in job.plan.runtimes),
        known=job.plan.known,
        seed=job.plan.seed,
        threads=job.plan.threads,
        fail_fast=job.plan.fail_fast,
        cost=cost,
        profile=job.profile,
    )


def _cost(job: Job, entry: Entry) -> float:
    """Return what an entry is expected to cost beside others: its files, and the cases of each."""
    files = [opset for variant in job.variants or entry.variants for opset in OPSETS.get(variant, ())]
    return float(len(files) * len(plan_cases(entry.contract, seed=job.plan.seed)))


def _exported(records: Sequence[AnyRecord], folder: Path) -> list[Artifact]:
    """Return the artifacts behind the records, in their order; this very run wrote them."""
    read = [replace(read_artifact(path), trusted=True) for path in sorted(folder.glob("*.onnx"))]
    by_sha = {artifact.sha256: artifact for artifact in read}
    wanted = [record.sha256 for record in records if isinstance(record, ArtifactRecord) and record.sha256]
    return [by_sha[sha] for sha in wanted]


def _time_all(job: Job, records: Sequence[AnyRecord], artifacts: Sequence[Artifact]) -> Iterator[AnyTimed]:
    """Yield the timings: the variants of a model at one length against each other, and never two at a time."""
    timed, left_out = worth_timing(artifacts, records)
    yield from left_out
    jobs = grouped_jobs(timed, LENGTHS, job.plan.seed)
    names = [reference_of(runtime) for runtime in job.plan.runtimes]
    yield from measure(names, jobs, threads=threads(job.plan), on_step=job.on_step, seed=job.plan.seed)


def threads(plan: Plan) -> int:
    """Return how many threads each runtime is timed with: the plan's, or all cores of this process."""
    return plan.threads or cores()
