"""The main job: every built-in model exported in every variant, verified on every runtime, timed, and reported."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.export.api import OPSETS
from onnx_attest.export.artifact import Artifact, read_artifact
from onnx_attest.models.entry import Entry
from onnx_attest.verify.cases import plan_cases
from onnx_attest.verify.claims import CLAIMS
from onnx_attest.verify.claims.growth import not_measured, run_growth
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.environment import command_line, environment
from onnx_attest.verify.evidence import FOLDER, told
from onnx_attest.verify.finding_records import run_finding
from onnx_attest.verify.interruption import INTERRUPTIONS, name_of
from onnx_attest.verify.journal.basis import basis_of_plan, basis_of_reference, versions
from onnx_attest.verify.journal.lines import Header
from onnx_attest.verify.journal.merge import COSTS, LATENCY
from onnx_attest.verify.journal.shard import WHOLE, Shard
from onnx_attest.verify.journal.workplace import Workplace, workplace
from onnx_attest.verify.latency import LENGTHS, AnyTimed, grouped_jobs, measure, worth_timing
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.pool import cores, run_tasks
from onnx_attest.verify.records import AnyRecord, ArtifactRecord, ClaimRecord, TimeRecord
from onnx_attest.verify.report import write_reports
from onnx_attest.verify.runtimes.isolated import processes_of
from onnx_attest.verify.runtimes.registry import reference_of
from onnx_attest.verify.stopwatch import Stopwatch
from onnx_attest.verify.task import Engine, Task
from onnx_attest.verify.workers.limits import Limits

_LONGEST = 1e9
"""What the experiments cost beside any task: they take longer than all but one or two."""
CHAPTER = "sdpa"
"""The module that the chapter's statements are about."""


NOT_IN_SHARDS = "a run in shards times nothing, since they may be on different machines: time the files with onnx-attest bench"


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
        shard: the part of the tasks to do; it times nothing, which only one machine's word would be.
        resume: go on where an earlier run into the same folder was left; only of the same options, files and versions.
        on_note: told in a line what became of an earlier run.
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
    shard: Shard = WHOLE
    resume: bool = False
    on_note: Callable[[str], None] = field(default=lambda note: None)


def run_job(job: Job) -> list[AnyRecord]:
    """Run the job, write its reports and return its records.

    Each task that is finished is kept on disk before anything else is made of it. Interrupted (Ctrl-C, SIGTERM), the
    report is that of what is finished, and says so.

    Raises:
        UsageError: two models of one name, another run into this folder, or the folder cannot be written: said before
            anything is exported. An earlier run that is to be resumed was of another kind.
    """
    started = time.monotonic()
    names = [entry.name for entry in job.entries]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UsageError(f"two models are called {twice[0]}, and so would their files be; rename one")
    tasks = _tasks(job)
    mine = job.shard.part_of(_shares(tasks)) if tasks else ()
    with workplace(job.folder) as place:
        run = _Run(job, {name: tasks[name] for name in mine}, tuple(tasks), place)
        interruption = None
        try:
            run.work()
        except INTERRUPTIONS as error:
            if not run.done:  # there is nothing to be reported
                raise
            interruption = error
        records = run.records()
        records += told(records, job.evidence)
        if job.profile:
            records.append(TimeRecord(task="", seconds=run.watch.taken()))
        part = run.part(interruption)
        duration_s = time.monotonic() - started
        records += conclude(
            records, required=job.required, duration_s=duration_s, part=part, interruption=interruption
        )
        job.on_step("write the reports")
        journal = None if job.shard.is_whole else place.read_journal()
        write_reports(records, job.folder, place.artifacts, journal=journal)
        if interruption is None:
            place.done()
    return records


class _Run:
    """A run that is going on: the units that are finished are in the journal, and here.

    Attributes:
        done: the records of the tasks that are finished, by their names.
        watch: where the time goes.
    """

    def __init__(self, job: Job, tasks: Mapping[str, Task], units: tuple[str, ...], place: Workplace) -> None:
        self._job, self._tasks, self._units, self._place = job, tasks, units, place
        self._after: list[AnyRecord] = []
        self.done: dict[str, list[AnyRecord]] = {}
        self.watch = Stopwatch(time.monotonic)

    def work(self) -> None:
        """Do what is not done yet."""
        job = self._job
        with self.watch.stage("environment"), processes_of(job.plan.runtimes):
            now = environment(job.plan.runtimes, command_line(), job.plan.configuration)
            basis = _basis(job) | versions(job.plan.runtimes)
        header = Header(
            command="run",
            basis=basis,
            shard=str(job.shard),
            runtimes=tuple(runtime.name for runtime in job.plan.runtimes),
            units=self._units,
            required=job.required,
        )
        self._place.begin(header, resume=job.resume, on_note=job.on_note)
        self._place.runs_on(now)
        with self.watch.stage("tasks"):
            self._verify()
        if job.latency:
            with self.watch.stage("latency"):
                self._after += self._once(LATENCY, self._timings)
        if CLAIMS in self._tasks:
            with self.watch.stage("costs"):
                self._after += self._once(COSTS, self._costs)

    def records(self) -> list[AnyRecord]:
        """Return the records of what is done, in the order of the tasks."""
        return [*self._place.environments, *self._of_tasks(), *self._after]

    def part(self, interruption: BaseException | None) -> str:
        """Return in words what of the run there is, "" if that is all."""
        words = []
        if interruption is not None:
            words.append(
                f"interrupted by {name_of(interruption)} after {len(self.done)} of {len(self._tasks)} tasks"
            )
        if not self._job.shard.is_whole:
            words.append(
                f"shard {self._job.shard}: {len(self._tasks)} of the {len(self._units)} tasks of the run"
            )
        return "; ".join(words)

    def _of_tasks(self) -> list[AnyRecord]:
        return [record for name in self._tasks for record in self.done.get(name, ())]

    def _verify(self) -> None:
        journal = self._place.opened
        files = self._place.digests()
        for name in self._tasks:
            kept = journal.kept(name, list[AnyRecord])
            # A file that is gone is exported, and verified, anew.
            if kept is not None and files.issuperset(_digests(kept)):
                self.done[name] = kept
        left = [name for name in self._tasks if name not in self.done]
        folders = [self._place.scratch / str(number) for number in range(len(left))]
        for folder in folders:
            folder.mkdir()
        tasks = [
            msgspec.structs.replace(self._tasks[name], folder=str(folder))
            for name, folder in zip(left, folders, strict=True)
        ]
        with closing(_engine(self._job)(tasks)) as finished:
            for number, records in finished:
                if left[number] != CLAIMS:
                    self._place.take(folders[number])
                journal.keep(left[number], records)
                self.done[left[number]] = records

    def _once(self, name: str, make: Callable[[], Iterable[AnyRecord]]) -> list[AnyRecord]:
        kept: list[AnyRecord] = self._place.opened.once(name, lambda: list(make()), list[AnyRecord])
        return kept

    def _timings(self) -> Iterator[AnyTimed]:
        if not self._job.shard.is_whole:
            yield run_finding("OA704", NOT_IN_SHARDS)
            return
        records = self._of_tasks()
        yield from _time_all(self._job, records, _exported(records, self._place.artifacts))

    def _costs(self) -> Iterator[ClaimRecord]:
        folder = self._place.scratch / "costs"
        folder.mkdir()
        yield from _costs(self._job, folder)


def _engine(job: Job) -> Engine:
    return job.engine or partial(run_tasks, processes=job.processes, on_step=job.on_step, limits=job.limits)


def _digests(records: Sequence[AnyRecord]) -> set[str]:
    """Return the digests of the files that records are about."""
    return {record.sha256 for record in records if isinstance(record, ArtifactRecord) and record.sha256}


def _basis(job: Job) -> dict[str, str]:
    """Return what the job's results depend on, but for the runtimes' versions."""
    limits = job.limits or Limits()
    return basis_of_plan(job.plan) | {
        "models": ", ".join(
            basis_of_reference(entry.reference) if entry.reference else entry.name for entry in job.entries
        ),
        "variants": ", ".join(job.variants),
        "dtypes": ", ".join(job.dtypes),
        "claims": str(_tests_claims(job)),
        "latency": str(job.latency),
        "profile": str(job.profile),
        "time limit": f"{limits.time_s:g} s",
        "memory limit": "" if limits.memory_bytes is None else f"{limits.memory_bytes} bytes",
    }


def _tasks(job: Job) -> dict[str, Task]:
    """Return the tasks of the whole run by their names, in the order of the report."""
    tasks = {} if not _tests_claims(job) else {CLAIMS: _task(job, "", "float32", _LONGEST)}
    return tasks | {
        f"{entry.name} {dtype}": _task(job, entry.reference or entry.name, dtype, _cost(job, entry, dtype))
        for dtype, entry in itertools.product(job.dtypes, job.entries)
    }


def _shares(tasks: Mapping[str, Task]) -> dict[str, float]:
    """Return what each task counts for when a run is split; the experiments, as much as the largest of the others."""
    most = max((task.cost for name, task in tasks.items() if name != CLAIMS), default=1.0)
    return {name: min(task.cost, most) for name, task in tasks.items()}


def _tests_claims(job: Job) -> bool:
    return any(entry.name == CHAPTER for entry in job.entries) if job.claims is None else job.claims


def _costs(job: Job, folder: Path) -> Iterator[ClaimRecord]:
    """Yield what attention costs on each runtime, the one statement of the chapter that is about time."""
    if not _tests_claims(job):
        return
    if not job.latency or not job.shard.is_whole:
        yield from not_measured(job.plan)
        return
    job.on_step("fit what attention costs")
    yield from run_growth(job.plan, folder, threads(job.plan))


def _task(job: Job, reference: str, dtype: str, cost: float) -> Task:
    return Task(
        reference=reference,
        dtype=dtype,
        variants=job.variants,
        folder="",
        runtimes=tuple(reference_of(runtime) for runtime in job.plan.runtimes),
        known=job.plan.known,
        seed=job.plan.seed,
        threads=job.plan.threads,
        fail_fast=job.plan.fail_fast,
        cost=cost,
        profile=job.profile,
    )


def _cost(job: Job, entry: Entry, dtype: str) -> float:
    """Return what an entry is expected to cost beside others: its files, and the cases of each."""
    if not entry.is_verified_in(dtype):
        return 0.0
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
