"""Tasks on a Ray cluster: what a node does, and what becomes of the tasks of one that dies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from users_module import DOUBLE

from onnx_attest.errors import UsageError
from onnx_attest.verify import on_ray
from onnx_attest.verify.journal.basis import code_digest
from onnx_attest.verify.on_ray import do_task, run_on_ray
from onnx_attest.verify.pool import run_tasks
from onnx_attest.verify.records import AnyRecord, ArtifactRecord, CellRecord
from onnx_attest.verify.task import Task

CELLS = 5
"""Of each task of the fake worker."""
WORKER = f"""
import json, os, pathlib, sys, time
for line in sys.stdin:
    request = json.loads(line)
    task = request["task"]
    sleep, _, deed = task["reference"].partition(" ")
    time.sleep(float(sleep))
    if deed == "kill the node's process":
        os.kill(os.getppid(), 9)
        time.sleep(60)
    (pathlib.Path(task["folder"]) / "model.onnx").write_text(task["dtype"])
    cell = {{"kind": "cell", "model": task["dtype"], "variant": "decomposed", "opset": 18, "dtype": "float32",
            "artifact_sha256": "0", "runtime": "ort-cpu", "runtime_version": "1", "case": None, "verdict": "passed"}}
    pathlib.Path(request["records"]).write_text((json.dumps(cell) + "\\n") * {CELLS})
    print(json.dumps({{"type": "done"}}), flush=True)
"""
FAKE = (sys.executable, "-c", WORKER)


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., Task]:
    """Return a task of the fake worker, told apart by its dtype."""

    def make(name: str = "0", sleep_s: float = 0.0, deed: str = "") -> Task:
        folder = tmp_path / name
        folder.mkdir()
        return Task(
            reference=f"{sleep_s} {deed}",
            dtype=name,
            variants=(),
            folder=str(folder),
            runtimes=("ort-cpu",),
            known=(),
        )

    return make


@pytest.fixture
def no_process_stays() -> Iterator[None]:
    yield
    for process in on_ray._kept.values():
        process.close()
    on_ray._kept.clear()


def test_a_node_does_a_task_in_a_process_that_it_keeps(task, no_process_stays):
    for name in ("first", "second"):
        encoded = msgspec.json.encode(msgspec.structs.replace(task(name), folder="elsewhere"))
        done = do_task(encoded, code_digest(), None, FAKE)
        records = msgspec.json.decode(done.records, type=list[AnyRecord])
        assert [record.model for record in records if isinstance(record, CellRecord)] == [name] * CELLS
        assert (done.files, done.refusal) == ({"model.onnx": name.encode()}, "")
    assert len(on_ray._kept) == 1


def test_a_node_with_another_version_does_nothing(task, no_process_stays):
    done = do_task(msgspec.json.encode(task()), "another", None, FAKE)
    assert (done.records, done.files) == (b"[]", {})
    assert f"another onnx-attest ({code_digest()}, here another)" in done.refusal
    assert not on_ray._kept


def test_without_ray_the_extra_is_named(command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    asked = (
        "run",
        "--model",
        "sdpa",
        "--runtime",
        "onnx-reference",
        "-o",
        tmp_path / "report",
        "--no-latency",
    )
    command(*asked, "--engine", "ray").assert_refused("--engine ray needs Ray", "onnx-attest[ray]")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["dask", "ray:auto", "http://ray", ""])
def test_an_engine_that_there_is_not_is_refused(command, tmp_path, name):
    asked = ("run", "--model", "sdpa", "-o", tmp_path / "report", f"--engine={name}")
    command(*asked).assert_refused("unknown engine", "ray://HOST:PORT")


# --- on a cluster -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes on this machine; the tests may kill one and have it replaced."""
    ray = pytest.importorskip("ray")
    utilities = pytest.importorskip("ray.cluster_utils")
    nodes = utilities.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    nodes.add_node(num_cpus=1)
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def passed(records: list[AnyRecord]) -> int:
    return sum(isinstance(record, CellRecord) and record.verdict == "passed" for record in records)


@pytest.mark.slow
def test_a_node_that_dies_loses_no_cell(task, cluster, tmp_path):
    tasks = [task(str(number), sleep_s=0.3) for number in range(60)]
    victim = cluster.add_node(num_cpus=2)
    found: dict[int, list[AnyRecord]] = {}
    for number, records in run_on_ray(tasks, worker=FAKE):
        assert number not in found, "done twice"
        found[number] = records
        if len(found) == 15:
            cluster.remove_node(victim, allow_graceful=False)
    assert sorted(found) == list(range(60))
    assert sum(map(passed, found.values())) == 60 * CELLS == 300
    for number in range(60):
        (cell, *_) = found[number]
        assert isinstance(cell, CellRecord)
        assert cell.model == (tmp_path / str(number) / "model.onnx").read_text() == str(number)


@pytest.mark.slow
def test_what_takes_its_node_along_each_time_is_errored_and_the_others_go_on(task, cluster):
    tasks = [task("0"), task("1", deed="kill the node's process"), task("2")]
    found = dict(run_on_ray(tasks, worker=FAKE))
    assert [passed(found[number]) for number in range(3)] == [CELLS, 0, CELLS]
    (artifact, *_) = found[1]
    assert isinstance(artifact, ArtifactRecord)
    assert (artifact.verdict, artifact.findings) == ("errored", ("OA105",))
    assert artifact.reason.startswith("the export: on Ray, ")


@pytest.mark.slow
def test_another_version_on_a_node_ends_the_run(task, cluster, monkeypatch):
    monkeypatch.setattr(on_ray, "code_digest", lambda: "another")
    with pytest.raises(UsageError, match="a node of the cluster has another onnx-attest"):
        list(run_on_ray([task()], worker=FAKE))


@pytest.mark.slow
def test_the_same_records_as_in_processes_of_this_machine(cluster, tmp_path):
    tasks = []
    for where in ("here", "there"):
        (tmp_path / where).mkdir()
        (tmp_path / "user.py").write_text(DOUBLE.format(in_eager="pass"))
        tasks += [
            Task(
                reference=f"{tmp_path / 'user.py'}:factory", dtype="float32", variants=(), folder=str(tmp_path / where),
                runtimes=("torch", "onnx-reference"), known=(),
            )
        ]  # fmt: skip
    ((_, here),) = run_tasks(tasks[:1])
    ((_, there),) = run_on_ray(tasks[1:])
    assert here == there
    assert passed(here) > 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "there").iterdir()
    }


@pytest.mark.slow
def test_a_run_on_ray_that_is_terminated_reports_what_it_has(task, tmp_path):
    """In a process of its own: an exception that a signal raises inside Ray's C code would become another one."""
    pytest.importorskip("ray")
    (tmp_path / "fake.py").write_text(WORKER)
    program = (
        "import os, signal, sys, threading\nimport msgspec\n"
        "from onnx_attest.verify.interruption import Terminated, heed_sigterm\n"
        "from onnx_attest.verify.on_ray import run_on_ray\nfrom onnx_attest.verify.task import Task\n"
        "heed_sigterm()\ntasks, count = msgspec.json.decode(sys.argv[1], type=list[Task]), 0\n"
        "try:\n    for _ in run_on_ray(tasks, worker=(sys.executable, sys.argv[2])):\n        count += 1\n"
        "        threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "except Terminated:\n    print('terminated after', count)\n"
    )
    tasks = msgspec.json.encode([task("0"), task("1", sleep_s=60)]).decode()
    command = [sys.executable, "-c", program, tasks, str(tmp_path / "fake.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "terminated after 1\n", done.stderr


@pytest.mark.slow
def test_a_run_on_ray_is_a_run(tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "user.py").write_text(DOUBLE.format(in_eager="pass"))
    asked = (
        "run",
        "--model",
        f"{tmp_path / 'user.py'}:factory",
        "--runtime",
        "onnx-reference",
        "--no-latency",
    )
    command = [
        sys.executable,
        "-m",
        "onnx_attest",
        *asked,
        "--engine",
        "ray",
        "--json",
        "-o",
        str(tmp_path / "report"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "passed"
    refused = subprocess.run(
        [*command[:-5], "--engine", "ray://127.0.0.1:9", "-o", str(tmp_path / "other")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].startswith(
        "onnx-attest: error: cannot use the Ray cluster ray://127.0.0.1:9"
    )
