"""Tasks in processes of their own: a crash, a hang and nonsense each become a verdict, and the others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from users_module import DOUBLE

from onnx_attest.errors import UnwritableError
from onnx_attest.verify import pool
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.job import Job, run_job
from onnx_attest.verify.pool import run_tasks
from onnx_attest.verify.records import AnyRecord, ArtifactRecord, CellRecord, ClaimRecord, FindingRecord
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.task import Task
from onnx_attest.verify.workers import resident
from onnx_attest.verify.workers.limits import MIB, Limits

CRASH = "if not torch.compiler.is_exporting() and len(x) == 4: os.kill(os.getpid(), signal.SIGSEGV)"
ANSWER = 'print(\'{"type":"done"}\', flush=True)\n'


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., Task]:
    """Return a task over a user's module; `in_eager` is a line of its forward."""

    def make(in_eager: str = "pass", name: str = "user.py") -> Task:
        (tmp_path / name).write_text(DOUBLE.format(in_eager=in_eager))
        (tmp_path / "files").mkdir(exist_ok=True)
        return Task(
            reference=f"{tmp_path / name}:factory", dtype="float32", variants=(), folder=str(tmp_path / "files"),
            runtimes=("torch", "onnx-reference"), known=(),
        )  # fmt: skip

    return make


def fake(program: str) -> tuple[str, ...]:
    """Return a worker that runs this for each line it is asked."""
    lines = "".join(f"    {line}\n" for line in program.splitlines())
    return sys.executable, "-c", f"import os, pathlib, sys, time, json\nfor line in sys.stdin:\n{lines}"


def done(*arguments: Any, **options: Any) -> list[list[AnyRecord]]:
    """Return the records of each task, in the order of the tasks, each done once."""
    found = sorted(run_tasks(*arguments, **options), key=lambda one: one[0])
    assert [number for number, _ in found] == list(range(len(found)))
    return [records for _, records in found]


def cells(records: list[AnyRecord]) -> dict[str, set[str]]:
    """Return the verdicts of each runtime."""
    seen: dict[str, set[str]] = {}
    for record in records:
        if isinstance(record, CellRecord):
            seen.setdefault(record.runtime, set()).add(record.verdict)
    return seen


def test_a_runtime_that_crashes_is_errored_and_the_others_and_the_next_task_go_on(task):
    tasks = [task(CRASH, "crash.py"), task()]
    crashed, sound = done(tasks, processes=1)
    # The exporter check runs the module too, in float64, and dies of it first.
    assert cells(crashed) == {"exporter": {"errored"}, "torch": {"errored"}, "onnx-reference": {"passed"}}
    found = {
        record.runtime: record
        for record in crashed
        if isinstance(record, FindingRecord) and record.code == "OA309"
    }
    assert set(found) == {"exporter", "torch"}
    assert "ended by SIGSEGV" in found["torch"].message
    assert "at single[batch=4]" in found["torch"].message
    assert set(cells(sound)) == {"exporter", "torch", "onnx-reference"}
    assert set.union(*cells(sound).values()) == {"passed"}


@pytest.mark.skipif(not resident.is_told(), reason="needs /proc, which tells what a process holds")
def test_a_process_that_takes_too_much_memory_is_an_errored_export(task):
    greedy = fake("held = bytearray(b'x') * 2**28\ntime.sleep(60)")
    (records,) = done([task()], limits=Limits(memory_bytes=100 * MIB), worker=greedy)
    (reason,) = (record.reason for record in records if isinstance(record, ArtifactRecord))
    assert "MiB of memory, the limit is 100 MiB, so it was killed" in reason


def test_a_crash_in_the_export_is_an_errored_export(task):
    (records,) = done([task("os.kill(os.getpid(), signal.SIGSEGV)")])
    (artifact,) = (record for record in records if isinstance(record, ArtifactRecord))
    assert (artifact.verdict, artifact.findings) == ("errored", ("OA105",))
    assert artifact.reason.startswith("the export: its process was ended by SIGSEGV")


@pytest.mark.parametrize(
    ("program", "time_s", "reason"),
    [
        ("time.sleep(60)", 1, "no answer within 1 s"),
        ("print('nonsense', flush=True)", 60, "not an answer: 'nonsense'"),
        ("sys.exit(7)", 60, "return code 7"),
    ],
)
def test_a_process_that_does_not_answer_is_an_errored_export(task, program, time_s, reason):
    (records,) = done([task()], limits=Limits(time_s=time_s), worker=fake(program))
    assert reason in next(record.reason for record in records if isinstance(record, ArtifactRecord))


def test_a_task_that_cannot_write_ends_the_run(task):
    refuses = fake('print(\'{"type":"done","refusal":"cannot write"}\', flush=True)')
    with pytest.raises(UnwritableError, match="cannot write"):
        list(run_tasks([task()], worker=refuses))


def test_records_come_as_soon_as_their_task_is_done(task):
    # The first task is slow: what the other one gave is kept before, should the run be killed meanwhile.
    answers = fake(
        "request = json.loads(line)\n"
        "time.sleep(1 if 'first' in request['task']['reference'] else 0)\n"
        "record = {'kind': 'artifact', 'model': request['task']['reference'][-12:], 'variant': '', 'opset': 18,\n"
        "          'dtype': 'float32', 'verdict': 'passed'}\n"
        "pathlib.Path(request['records']).write_text(json.dumps(record) + '\\n')\n" + ANSWER
    )
    results = run_tasks([task(name=name) for name in ("1first.py", "other.py")], processes=2, worker=answers)
    assert [
        (number, records[0].model) for number, records in results if isinstance(records[0], ArtifactRecord)
    ] == [(1, "r.py:factory"), (0, "t.py:factory")]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_each_task_has_the_same_threads_however_many_run_at_a_time(task, processes):
    """ONNX Runtime adds in another order with two threads: what a run says may not depend on --jobs."""
    asked = fake(
        "request = json.loads(line)\n"
        "assert request['task']['threads'] == int(os.environ['OMP_NUM_THREADS']) == 1\n"
        "pathlib.Path(request['records']).touch()\n" + ANSWER
    )
    assert done([task()] * 3, processes=processes, worker=asked) == [[], [], []]


def test_the_longest_tasks_are_begun_first(task, tmp_path):
    begun = tmp_path / "begun"
    answers = fake(
        "request = json.loads(line)\n"
        f"print(request['task']['cost'], file=open({str(begun)!r}, 'a'))\n"
        "pathlib.Path(request['records']).touch()\n" + ANSWER
    )
    tasks = [msgspec.structs.replace(task(), cost=cost) for cost in (1.0, 3.0, 2.0)]
    assert done(tasks, processes=1, worker=answers) == [[], [], []]
    assert begun.read_text().split() == ["3.0", "2.0", "1.0"]


@pytest.mark.skipif(not resident.is_told(), reason="needs /proc, which tells what a process holds")
def test_what_takes_more_than_its_share_of_the_memory_has_it_all_alone(task, tmp_path, monkeypatch):
    monkeypatch.setattr(resident, "machine_bytes", lambda: 400 * MIB)  # of which 320 may be taken
    tries = tmp_path / "tries"
    greedy = fake(
        "request = json.loads(line)\n"
        "large = 'large' in request['task']['reference']\n"
        f"large and print('a try', file=open({str(tries)!r}, 'a'))\n"
        "held = bytearray(b'x') * (200 * 2**20 if large else 1)\n"
        "time.sleep(0.5)\n"
        "record = {'kind': 'artifact', 'model': 'large' if large else 'small', 'variant': '', 'opset': 18,\n"
        "          'dtype': 'float32', 'verdict': 'passed'}\n"
        "pathlib.Path(request['records']).write_text(json.dumps(record) + '\\n')\n" + ANSWER
    )
    tasks = [task(name="large.py"), task(name="small.py"), task(name="other.py")]
    found = [records[0] for records in done(tasks, processes=2, worker=greedy)]
    assert [(one.model, one.verdict) for one in found] == [
        ("large", "passed"),
        ("small", "passed"),
        ("small", "passed"),
    ]
    assert tries.read_text().count("a try") == 2
    # A limit that somebody gave is each process's own, and there is no second try.
    (errored,) = done(tasks[:1], limits=Limits(memory_bytes=100 * MIB), worker=greedy)
    assert "the limit is 100 MiB" in errored[0].reason
    assert tries.read_text().count("a try") == 3


def test_no_more_processes_than_there_is_memory_for(monkeypatch):
    monkeypatch.setattr(pool, "cores", lambda: 8)
    assert pool._fitting(1, None) == 8
    assert pool._fitting(2, None) == 4
    assert pool._fitting(1, 4 * 2**30) == 2


def test_progress_says_how_many_are_done_and_what_is_going_on(task):
    steps = fake(
        "request = json.loads(line)\n"
        "step = {'artifact': request['task']['reference'][-12:-11], 'runtime': 'ort-cpu', 'doing': 'a case'}\n"
        "print(json.dumps({'type': 'step', 'step': step}), flush=True)\n"
        "pathlib.Path(request['records']).touch()\n" + ANSWER
    )
    told: list[str] = []
    list(run_tasks([task(name="a.py"), task(name="b.py")], processes=1, worker=steps, on_step=told.append))
    assert told == ["0 of 2 done; a", "1 of 2 done; b"]
    told.clear()
    list(run_tasks([task(name="a.py")], worker=steps, on_step=told.append))
    assert told == ["a ort-cpu a case"]


STARTED = "pathlib.Path({pid!r}).write_text(str(os.getpid())), __import__('time').sleep(60)"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGINT, signal.SIGTERM))],
)
def test_no_worker_outlives_a_run_that_is_ended(task, tmp_path, number):
    pid, reports = tmp_path / "pid", tmp_path / "report"
    reference = task(STARTED.format(pid=str(pid)).replace("pathlib", "__import__('pathlib')")).reference
    command = (sys.executable, "-m", "onnx_attest", "run", "--model", reference, "-o", str(reports))
    run = subprocess.Popen((*command, "--runtime", "onnx-reference"), stderr=subprocess.PIPE, text=True)
    assert within(60, lambda: pid.exists() and pid.read_text()), run.communicate()
    run.send_signal(number)
    _, said = run.communicate(timeout=60)
    assert within(30, lambda: not alive(int(pid.read_text())))
    if number != signal.SIGKILL:
        assert (run.returncode, said) == (
            128 + number,
            "onnx-attest: error: interrupted; what is written is whole, and no report is\n",
        )
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".report")]
    assert not reports.exists()


def within(seconds: float, condition: Callable[[], object]) -> bool:
    """Return whether something comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    """Return whether there is such a process, one that was waited for apart."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_no_process_outlives_the_tasks(task, tmp_path):
    pids = tmp_path / "pids"
    answers = fake(
        f"pathlib.Path({str(pids)!r}).exists() or pathlib.Path({str(pids)!r}).write_text(str(os.getpid()))\npathlib.Path(json.loads(line)['records']).touch()\n"
        + ANSWER
    )
    records = run_tasks([task()] * 2, processes=1, worker=answers)
    next(records)
    pid = int(pids.read_text())
    records.close()
    assert not Path(f"/proc/{pid}").exists() or sys.platform != "linux"


@pytest.mark.slow
def test_the_experiments_of_a_run_are_a_task_like_any_other(tmp_path):
    """What asks for them passes through JSON, which has no infinity."""
    job = Job([], Plan(runtimes=select(("onnx-reference",))), tmp_path / "report", claims=True, latency=False)
    records = run_job(job)
    found = [record for record in records if isinstance(record, ClaimRecord)]
    assert {record.claim for record in found} >= {1, 2, 4, 9, 10, 11}
    assert not [record for record in records if isinstance(record, ArtifactRecord)], "its export failed"
