"""Tasks in processes of their own: a crash, a hang and nonsense each become a verdict, and the others go on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onnx_attest.errors import UnwritableError
from onnx_attest.verify.pool import run_tasks
from onnx_attest.verify.records import AnyRecord, ArtifactRecord, CellRecord, FindingRecord
from onnx_attest.verify.task import Task
from onnx_attest.verify.workers import resident
from onnx_attest.verify.workers.child import MIB, Limits

DOUBLE = """
import os, signal, torch
from onnx_attest.models import Contract, Entry, TensorSpec

class Double(torch.nn.Module):
    def forward(self, x):
        {in_eager}
        return x + x

contract = Contract(
    (TensorSpec("x", ("batch", 3)),), (TensorSpec("output", ("batch", 3), role="output"),), {{"batch": 2}}
)
factory = Entry("double", "x + x", contract, lambda: Double().eval(), ("decomposed",))
"""
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


def cells(records: list[AnyRecord]) -> dict[str, set[str]]:
    """Return the verdicts of each runtime."""
    seen: dict[str, set[str]] = {}
    for record in records:
        if isinstance(record, CellRecord):
            seen.setdefault(record.runtime, set()).add(record.verdict)
    return seen


def test_a_runtime_that_crashes_is_errored_and_the_others_and_the_next_task_go_on(task):
    tasks = [task(CRASH, "crash.py"), task()]
    crashed, sound = run_tasks(tasks, processes=1)
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
    (records,) = run_tasks([task()], limits=Limits(memory_bytes=100 * MIB), worker=greedy)
    (reason,) = (record.reason for record in records if isinstance(record, ArtifactRecord))
    assert "MiB of memory, the limit is 100 MiB, so it was killed" in reason


def test_a_crash_in_the_export_is_an_errored_export(task):
    (records,) = run_tasks([task("os.kill(os.getpid(), signal.SIGSEGV)")])
    (artifact,) = (record for record in records if isinstance(record, ArtifactRecord))
    assert (artifact.verdict, artifact.findings) == ("errored", ("OA105",))
    assert artifact.reason.startswith("the export: its process was ended by SIGSEGV")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("time.sleep(60)", "no answer within 1 s"),
        ("print('nonsense', flush=True)", "not an answer: 'nonsense'"),
        ("sys.exit(7)", "return code 7"),
    ],
)
def test_a_process_that_does_not_answer_is_an_errored_export(task, program, reason):
    (records,) = run_tasks([task()], limits=Limits(time_s=1), worker=fake(program))
    assert reason in next(record.reason for record in records if isinstance(record, ArtifactRecord))


def test_a_task_that_cannot_write_ends_the_run(task):
    refuses = fake('print(\'{"type":"done","refusal":"cannot write"}\', flush=True)')
    with pytest.raises(UnwritableError, match="cannot write"):
        list(run_tasks([task()], worker=refuses))


def test_records_come_in_the_order_of_the_tasks(task):
    # The first task is slow: its records are still the first.
    answers = fake(
        "request = json.loads(line)\n"
        "time.sleep(1 if 'first' in request['task']['reference'] else 0)\n"
        "record = {'kind': 'artifact', 'model': request['task']['reference'][-12:], 'variant': '', 'opset': 18,\n"
        "          'dtype': 'float32', 'verdict': 'passed'}\n"
        "pathlib.Path(request['records']).write_text(json.dumps(record) + '\\n')\n" + ANSWER
    )
    results = run_tasks([task(name=name) for name in ("1first.py", "other.py")], processes=2, worker=answers)
    assert [records[0].model for records in results if isinstance(records[0], ArtifactRecord)] == [
        "t.py:factory",
        "r.py:factory",
    ]


def test_the_cores_are_shared_out(task):
    asked = fake(
        "request = json.loads(line)\n"
        "assert request['task']['threads'] == int(os.environ['OMP_NUM_THREADS'])\n"
        "pathlib.Path(request['records']).touch()\n" + ANSWER
    )
    assert list(run_tasks([task()] * 3, processes=2, worker=asked)) == [[], [], []]


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
