"""Latency of artifacts on runtimes, measured side by side: one process a runtime, blocks of calls in random order.

The thread pools of torch and ONNX Runtime disturb each other inside one process (DESIGN.md section 7), so each runtime
has a process of its own, which imports nothing else. One after the other, a runtime that was timed while a neighbour
was busy would seem slow: so all that compute the same are timed in turns, a few milliseconds each, in a new random
order each round, and compared within rounds. A process is faster or slower by a few per cent for as long as it lives,
for where its code and its memory happen to lie; so there are several sittings, each with processes of its own. The
reference takes part twice, in two processes: what it differs from itself is the floor below which no difference says
anything. Raw samples are recorded; see `samples.py`.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.flops import Work, count
from onnx_attest.verify.latency.budget import LatencyBudget
from onnx_attest.verify.latency.participant import Host, Kinds, Participant, opening_of, write_inputs
from onnx_attest.verify.latency.unstable import unstable
from onnx_attest.verify.records import FindingRecord, LatencyRecord, MachineRecord
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.samples import REFERENCE, Rounds, median_of, ratios, rounds_of
from onnx_attest.verify.workers import product
from onnx_attest.verify.workers.child import Child
from onnx_attest.verify.workers.latency import Answer, Open
from onnx_attest.verify.workers.streams import one_line

_WORKER = (sys.executable, "-m", "onnx_attest.verify.workers.latency")
_DEFAULT_BUDGET = LatencyBudget()
_PAUSE_S = 0.002
"""After each block: threads of a pool wait for more work in a loop, for a millisecond or so, and would slow the next."""
_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

AnyTimed = LatencyRecord | MachineRecord | FindingRecord


@dataclass(frozen=True, eq=False)
class LatencyJob:
    """One artifact at one shape.

    Attributes:
        axes: size of every symbolic axis, for the record.
        inputs: what the session is called with.
        group: jobs of the same one are timed against each other; each has a different artifact.
    """

    artifact: Artifact
    axes: dict[str, int]
    inputs: Tensors
    group: str = ""


def measure(
    runtimes: Sequence[str],
    jobs: Sequence[LatencyJob],
    *,
    threads: int,
    budget: LatencyBudget = _DEFAULT_BUDGET,
    time_limit_s: float = 60.0,
    on_step: Callable[[str], None] = lambda step: None,
    seed: int = 0,
    worker: Sequence[str] = _WORKER,
) -> Iterator[AnyTimed]:
    """Return an iterator over the records, group after group: the machine's, one a runtime and job, the twin's, findings.

    All is measured when the first record is asked for: a sitting is about all groups.

    What breaks a process (it crashes, answers nonsense, or not within `time_limit_s`) is errored, and what else was
    open in that process is opened again in a fresh one. No process outlives the iterator.

    Args:
        runtimes: as `select` takes them.
        jobs: what to measure, those of a group in a row.
        threads: of each runtime; also OMP_NUM_THREADS of its process.
        budget: how often each is timed.
        time_limit_s: for each step: to open and warm up, or a block.
        on_step: told what is going on.
        seed: of the order in each round.
        worker: command of a process; another one only in tests.

    Raises:
        UsageError: an unknown runtime, or no threads; raised at once, not at the first record.
    """
    chosen = {reference: select((reference,))[0] for reference in runtimes}
    names = {reference: runtime.name for reference, runtime in chosen.items()}
    runs_module = {name: bool(getattr(runtime, "runs_module", False)) for name, runtime in chosen.items()}
    if threads < 1:
        raise UsageError(f"latency needs at least one thread, got {threads}")
    return _records(
        _Settings(names, runs_module, threads, budget, time_limit_s, on_step, seed, tuple(worker)), jobs
    )


@dataclass(frozen=True)
class _Settings:
    names: Mapping[str, str]
    runs_module: Mapping[str, bool]
    threads: int
    budget: LatencyBudget
    time_limit_s: float
    on_step: Callable[[str], None]
    seed: int
    worker: tuple[str, ...]


def _records(settings: _Settings, jobs: Sequence[LatencyJob]) -> Iterator[AnyTimed]:
    in_rows: list[list[LatencyJob]] = []
    for job in jobs:
        if not in_rows or not job.group or in_rows[-1][0].group != job.group:
            in_rows.append([])
        in_rows[-1].append(job)
    with TemporaryDirectory(prefix="onnx-attest-latency-") as name:
        draw = random.Random(settings.seed)  # noqa: S311 - an order, no secret
        groups = [_Group(number, row, settings, draw, Path(name)) for number, row in enumerate(in_rows)]
        for sitting in range(settings.budget.most_sittings):
            left = [group for group in groups if group.needs(sitting)]
            if not left:
                break
            with ExitStack() as stack:
                hosts = _Hosts(settings, Path(name), stack)
                for group in left:
                    group.sit(hosts, sitting)
                hosts.hang_up()
        for group in groups:
            yield from group.records()


@dataclass(frozen=True)
class _Entry:
    """One artifact on one runtime."""

    job: LatencyJob
    runtime: str
    one: Participant


class _Hosts:
    """The processes of a sitting: one a runtime, a second one of the reference, one for the machine; started when first asked."""

    def __init__(self, settings: _Settings, folder: Path, stack: ExitStack) -> None:
        self._settings, self._folder, self._stack = settings, folder, stack
        self._hosts: dict[tuple[str, bool], Host] = {}

    def of(self, runtime: str, *, twin: bool = False) -> Host:
        """Return the process of a runtime, "" for the machine's."""
        key = runtime, twin
        if key not in self._hosts:
            settings = self._settings
            # Only the machine's own product is computed by NumPy's BLAS; elsewhere its threads would be idle ones.
            blas = dict.fromkeys(_BLAS_THREADS, str(settings.threads))
            threads, environment = (settings.threads, None) if runtime else (None, {**os.environ, **blas})
            stderr = self._folder / f"stderr-{len(self._hosts)}.txt"
            child = self._stack.enter_context(
                Child(settings.worker, threads, stderr, environment=environment)
            )
            self._hosts[key] = Host(child, settings.time_limit_s)
        return self._hosts[key]

    def hang_up(self) -> None:
        """Tell all at once that they may end, which takes some of them a second."""
        for host in self._hosts.values():
            host.hang_up()


class _Group:
    """Artifacts that are timed against each other at one shape, in all sittings."""

    def __init__(
        self,
        number: int,
        jobs: Sequence[LatencyJob],
        settings: _Settings,
        draw: random.Random,
        folder: Path,
    ) -> None:
        self._number, self._jobs, self._settings, self._draw = number, jobs, settings, draw
        self._folder = folder / f"group-{number}"
        self._rounds = self._numbers = 0
        warm_up_s = settings.budget.warm_up_s
        opening = Open(number=0, runtime="", threads=settings.threads, warm_up_s=warm_up_s)
        self._machine = Participant("", opening)
        self._entries: list[_Entry] = []
        self._written: dict[int, tuple[Path, Kinds]] = {}
        self._twin: _Entry | None = None

    def needs(self, sitting: int) -> bool:
        """Whether to take part in this sitting, the first of which is 0."""
        budget = self._settings.budget
        if sitting == 0:
            return True
        if self._twin is None:  # nothing can be timed
            return False
        return sitting < budget.sittings or not self._is_settled()

    def sit(self, hosts: _Hosts, sitting: int) -> None:
        """Open everything anew, and time it."""
        axes = ", ".join(f"{axis}={size}" for axis, size in self._jobs[0].axes.items())
        turn = f" ({sitting + 1})" if sitting else ""
        self._settings.on_step(f"time {self._jobs[0].artifact.name} at {axes or 'its size'}{turn}")
        if not self._entries:
            self._folder.mkdir()
            self._entries = [
                _Entry(job, runtime, self._participant(job, runtime)) for job, runtime in self._pairs()
            ]
        self._open_all(hosts)
        if self._twin is None:
            return
        self._time(sitting)
        for one in self._everyone():
            one.close()

    def records(self) -> Iterator[AnyTimed]:
        """Yield what was measured."""
        yield self._machine_record(self._machine)
        work = {id(job): _counted(job) for job in self._jobs}
        told = [self._record(entry, work[id(entry.job)]) for entry in self._entries]
        if self._twin is not None:
            told.append(self._record(self._twin, work[id(self._twin.job)], twin=True))
        yield from told
        yield from unstable(told)

    def _everyone(self) -> list[Participant]:
        entries = [*self._entries, *([self._twin] if self._twin is not None else [])]
        return [one for one in (self._machine, *(entry.one for entry in entries)) if one.takes_part]

    def _pairs(self) -> Iterator[tuple[LatencyJob, str]]:
        """Yield each artifact with each runtime; one that runs the module, whatever the file, is timed once a module."""
        seen: set[tuple[str, str]] = set()
        for job in self._jobs:
            for runtime, once in self._settings.runs_module.items():
                key = runtime, job.artifact.name
                if not (once and key in seen):
                    seen.add(key)
                    yield job, runtime

    def _participant(self, job: LatencyJob, runtime: str) -> Participant:
        self._numbers += 1
        number = self._numbers
        warm_up_s = self._settings.budget.warm_up_s
        try:
            path, kinds = self._inputs_of(job)
        except OSError as error:  # no room for the inputs
            lost = Answer(number=number, reason=one_line(f"{type(error).__name__}: {error}"))
            return Participant(runtime, Open(number=number, runtime=runtime, threads=1, warm_up_s=0), lost)
        threads = self._settings.threads
        return Participant(
            runtime, opening_of(number, job.artifact, runtime, threads, path, kinds, warm_up_s)
        )

    def _inputs_of(self, job: LatencyJob) -> tuple[Path, Kinds]:
        """Return the file of a job's inputs, which all its participants read, and their names and dtypes.

        Raises:
            OSError: there is no room.
        """
        place = self._jobs.index(job)
        if place not in self._written:
            path = self._folder / f"inputs-{place}.npz"
            self._written[place] = path, write_inputs(job.inputs, path)
        return self._written[place]

    def _open_all(self, hosts: _Hosts) -> None:
        """Open everyone in random order; for the first time, in a fixed one: which can be the twin is not known before."""
        openings = [
            (self._machine, "", False),
            *((entry.one, entry.runtime, False) for entry in self._entries),
        ]
        if self._twin is not None:
            openings.append((self._twin.one, self._twin.runtime, True))
            self._draw.shuffle(openings)
        for one, runtime, twin in openings:
            self._open(one, hosts.of(runtime, twin=twin))
        if self._twin is None and (new := self._new_twin()) is not None:
            self._twin = new
            self._open(new.one, hosts.of(new.runtime, twin=True))

    def _open(self, one: Participant, host: Host) -> None:
        if one.opened is None or one.takes_part:
            one.open(host)
            time.sleep(_PAUSE_S)

    def _new_twin(self) -> _Entry | None:
        """Return the reference once more, for another process: torch if it takes part, else the first that does."""
        able = [entry for entry in self._entries if entry.one.takes_part]
        first = min(able, key=lambda entry: self._settings.names[entry.runtime] != REFERENCE, default=None)
        if first is None:
            return None
        self._reference = first.one
        return _Entry(first.job, first.runtime, self._participant(first.job, first.runtime))

    def _time(self, sitting: int) -> None:
        budget, taking = self._settings.budget, self._everyone()
        if not taking:
            return
        for one in taking:
            one.calls = budget.calls_for(one.call_s)
        longest = max(one.calls * one.call_s for one in taking)
        for _ in range(budget.rounds_for(longest)):
            order = [one for one in taking if one.takes_part]
            self._draw.shuffle(order)
            for one in order:
                one.time(self._rounds, sitting)
                time.sleep(_PAUSE_S)
            self._rounds += 1

    def _is_settled(self) -> bool:
        """Whether the interval of each ratio to the reference is narrow enough."""
        base = _rounds(self._reference)
        others = [one for one in self._everyone() if one is not self._reference and one.runtime]
        found = [median_of(ratios(_rounds(one), base)) for one in others]
        return all(
            interval is None or interval.spread <= self._settings.budget.resolution for interval in found
        )

    def _machine_record(self, machine: Participant) -> MachineRecord:
        opened = machine.opened
        assert opened is not None  # it was opened first
        timings: dict[str, Any] = machine.timings()
        return MachineRecord(
            group=self._number,
            library=opened.runtime_version,
            flops=product.FLOPS,
            threads=self._settings.threads,
            reason=machine.reason or opened.reason,
            **timings,
        )

    def _record(self, entry: _Entry, work: Work | None, *, twin: bool = False) -> LatencyRecord:
        job, one = entry.job, entry.one
        manifest, opened = job.artifact.manifest, one.opened
        assert opened is not None  # everyone was opened
        timings: dict[str, Any] = one.timings()
        told = msgspec.structs.asdict(opened)
        opening: dict[str, Any] = {name: told[name] for name in _OF_OPENING}
        return LatencyRecord(
            group=self._number,
            model=job.artifact.name,
            variant=manifest.variant if manifest else "unknown",
            opset=manifest.got.opset if manifest else None,
            dtype=manifest.dtype if manifest else "unknown",
            artifact_sha256=job.artifact.sha256,
            runtime=self._settings.names[entry.runtime],
            axes=job.axes,
            threads=self._settings.threads,
            twin=twin,
            verdict="errored" if one.reason else opened.verdict,
            reason=one.reason or opened.reason,
            **opening,
            **timings,
            **(vars(work) if work is not None else {}),
        )


_OF_OPENING = (
    "runtime_version", "provider_used", "session_s", "first_call_s", "copies_s", "resident_bytes", "opened_bytes", "peak_bytes",
    "warm_up_s", "warm",
)  # fmt: skip


def _rounds(one: Participant) -> Rounds:
    timings: dict[str, Any] = one.timings()
    return rounds_of(
        timings["latency_s"], timings["block_sizes"], timings["block_rounds"], timings["block_sittings"]
    )


def _counted(job: LatencyJob) -> Work | None:
    """Return the work of one call; None where the file cannot be read, which its timings say."""
    try:
        return count(job.artifact.path, {name: array.shape for name, array in job.inputs.items()})
    except UsageError:
        return None
