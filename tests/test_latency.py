"""Latency: what is recorded, and that a runtime that misbehaves costs one job and leaves nothing behind."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact, Asked, Got, Manifest, digest, read_artifact, write_artifact
from onnx_attest.models.contract import Contract, TensorSpec
from onnx_attest.verify.latency import LatencyBudget, LatencyJob, measure, summarise
from onnx_attest.verify.report import render
from onnx_attest.verify.runtimes.base import Placement, Tensors
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.workers import latency as latency_worker

DOUBLE = """
<ir_version: 8, opset_import: ["": 18]>
double (float[n, 4] x) => (float[n, 4] y) { y = Add(x, x) }
"""
BUDGET = LatencyBudget(warm_up_calls=2, minimum_samples=5, maximum_samples=8, seconds=0.01)

# Each test program writes its process id to the file that it gets as its first argument.
PID = "import os, sys; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n')\n"
REAL = "from onnx_attest.verify.workers import latency; latency.main()\n"
FIRST_ONLY = "if len(open(sys.argv[1]).readlines()) == 1:\n    sys.stdin.readline()\n    "


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    return tmp_path / "pids"


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    path = tmp_path / "double.onnx"
    path.write_bytes(onnx.parser.parse_model(DOUBLE).SerializeToString())
    return read_artifact(path)


def job(artifact: Artifact, n: int = 2) -> LatencyJob:
    return LatencyJob(artifact, {"n": n}, {"x": np.ones((n, 4), np.float32)})


def program(source: str, pids: Path) -> tuple[str, ...]:
    return (sys.executable, "-c", PID + source, str(pids))


def assert_all_ended(pids: Path, count: int) -> None:
    processes = [int(line) for line in pids.read_text().split()]
    assert len(processes) == count
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def with_manifest(tmp_path: Path, reference: str | None = None, module: object = None) -> Artifact:
    model = onnx.parser.parse_model(DOUBLE).SerializeToString()
    inputs, outputs = TensorSpec("x", ("n", 4)), TensorSpec("y", ("n", 4), role="output")
    manifest = Manifest(
        model="twice",
        variant="decomposed",
        dtype="float32",
        arithmetic="fp32",
        sha256=digest(model),
        contract=Contract((inputs,), (outputs,), {"n": 3}),
        asked=Asked(17, "decomposed", ("x",), ("y",), {"x": ("n", 4)}),
        got=Got(18, ("x",), ("y",), {"x": ("n", 4)}, {"Add": 1}),
        module=reference,
        parameters_sha256=hashlib.sha256().hexdigest(),  # of no parameters
    )
    return write_artifact(model, manifest, tmp_path / "twice.onnx", module)


def test_one_child_measures_all_jobs_in_order_and_is_gone(artifact: Artifact, pids: Path) -> None:
    loaded = "open(sys.argv[1] + '.loaded', 'w').write(str('torch' in sys.modules))\n"
    jobs = [job(artifact, n) for n in (3, 1, 2)]

    records = list(
        measure("ort-cpu", jobs, threads=1, budget=BUDGET, worker=program(REAL + loaded, pids)),
    )

    assert [record.axes for record in records] == [{"n": 3}, {"n": 1}, {"n": 2}]
    for record in records:
        assert (record.verdict, record.reason) == ("passed", "")
        assert BUDGET.minimum_samples <= len(record.latency_s) <= BUDGET.maximum_samples
        assert all(seconds > 0 for seconds in record.latency_s)
        assert record.first_call_s is not None
        assert record.first_call_s > 0
        assert record.session_s is not None
        assert record.session_s > 0
        assert record.warm_up_calls == BUDGET.warm_up_calls
        assert record.provider_used == ("CPUExecutionProvider",)
        assert record.runtime_version == select(("ort-cpu",))[0].availability().version
        assert (record.threads, record.artifact_sha256) == (1, artifact.sha256)
    assert_all_ended(pids, 1)
    assert Path(f"{pids}.loaded").read_text() == "False", "torch was imported to measure ort-cpu"


def test_default_worker_and_what_the_manifest_says(tmp_path: Path) -> None:
    (record,) = measure("ort-cpu", [job(with_manifest(tmp_path))], threads=1, budget=BUDGET)
    assert (record.verdict, record.reason) == ("passed", "")
    assert (record.model, record.variant, record.opset, record.dtype) == (
        "twice",
        "decomposed",
        18,
        "float32",
    )


def test_without_a_manifest_the_unknown_is_said_to_be_unknown(artifact: Artifact, pids: Path) -> None:
    (record,) = measure("ort-cpu", [job(artifact)], threads=1, worker=program("", pids))
    assert (record.model, record.variant, record.opset, record.dtype) == (
        "double",
        "unknown",
        None,
        "unknown",
    )


def test_worker_imports_no_runtime() -> None:
    code = (
        "import onnx_attest.verify.workers.latency, sys; print({'torch', 'onnxruntime'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_child_gets_the_number_of_threads(artifact: Artifact, pids: Path) -> None:
    (record,) = measure(
        "ort-cpu", [job(artifact)], threads=3, worker=program("sys.exit(os.environ['OMP_NUM_THREADS'])", pids)
    )
    assert record.reason.endswith("the last line on its stderr: 3")
    assert record.threads == 3


def test_no_two_sessions_are_open_at_a_time(artifact: Artifact, pids: Path) -> None:
    watch = """
import weakref
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime
plain, alive = OrtRuntime.open, weakref.WeakSet()
def watched(*args, **kwargs):
    assert not alive, 'a session is still open'
    session = plain(*args, **kwargs)
    alive.add(session)
    return session
OrtRuntime.open = watched
"""
    records = measure(
        "ort-cpu", [job(artifact)] * 3, threads=1, budget=BUDGET, worker=program(watch + REAL, pids)
    )
    assert [(record.verdict, record.reason) for record in records] == [("passed", "")] * 3


def test_what_a_library_prints_or_reads_does_not_break_the_protocol(artifact: Artifact, pids: Path) -> None:
    noise = """
from onnx_attest.verify.runtimes.onnxruntime import OrtSession
plain = OrtSession.run
def noisy(self, inputs):
    print('printed', flush=True)
    os.write(1, b'{"job": 0, "verdict": "failed"}\\n')
    assert os.read(0, 1) == b'', 'a request was read away'
    return plain(self, inputs)
OrtSession.run = noisy
"""
    records = measure(
        "ort-cpu", [job(artifact)] * 2, threads=1, budget=BUDGET, worker=program(noise + REAL, pids)
    )
    assert [(record.verdict, record.reason) for record in records] == [("passed", "")] * 2


def test_k13_a_slow_first_call_at_each_shape_is_in_no_average(artifact: Artifact, pids: Path) -> None:
    """microsoft/onnxruntime#17443: where lengths alternate, the first call at a new one took 1524 ms, the others 94 ms."""
    slow_first = """
import time
from onnx_attest.verify.runtimes.onnxruntime import OrtSession
run, seen = OrtSession.run, set()
def first_is_slow(self, inputs):
    key = (id(self), *(array.shape for array in inputs.values()))
    time.sleep(0 if key in seen else 0.25)
    seen.add(key)
    return run(self, inputs)
OrtSession.run = first_is_slow
"""
    lengths = (3, 5, 4)
    worker = program(slow_first + REAL, pids)
    jobs = [job(artifact, n) for n in lengths]
    records = list(measure("ort-cpu", jobs, threads=1, budget=BUDGET, worker=worker))

    for record in records:
        assert record.first_call_s is not None
        assert record.first_call_s >= 0.25
        assert summarise(record.latency_s).median_s < 0.125
    view = render(records)["latency.md"]
    heading, _, *rows = [line for line in view.splitlines() if line.startswith("|")]
    columns = [cell.strip() for cell in heading.strip("|").split("|")]
    shown = [
        dict(zip(columns, (cell.strip() for cell in row.strip("|").split("|")), strict=True)) for row in rows
    ]
    assert [line["axes"] for line in shown] == [f"n={n}" for n in lengths]
    for line in shown:
        assert line["first call"].endswith(" ms")
        assert float(line["first call"].split()[0]) >= 250
        assert line["median"].endswith((" us", " ms"))
        assert line["median"] != line["first call"]


def test_inputs_arrive_as_they_were_given(artifact: Artifact, pids: Path) -> None:
    # `file` is a parameter of numpy.savez, .npz forgets bfloat16, and ascontiguousarray would make a scalar a row.
    given: Tensors = {
        "file": np.arange(6, dtype=np.int64).reshape(2, 3).T,
        "a/b": np.ones((), ml_dtypes.bfloat16),
        "half": np.zeros((0, 2), np.float16),
    }
    spy = """
from onnx_attest.verify.runtimes.onnxruntime import OrtSession
def spy(self, inputs):
    raise ValueError([(n, a.dtype.name, a.shape, a.flags.c_contiguous, a.tolist()) for n, a in inputs.items()])
OrtSession.run = spy
"""
    (record,) = measure(
        "ort-cpu", [LatencyJob(artifact, {}, given)], threads=1, worker=program(spy + REAL, pids)
    )
    assert record.verdict == "errored"
    assert record.reason == (
        "ValueError: [('file', 'int64', (3, 2), True, [[0, 3], [1, 4], [2, 5]]), "
        "('a/b', 'bfloat16', (), True, 1.0), ('half', 'float16', (0, 2), True, [])]"
    )


def test_an_exception_of_the_runtime_errors_its_job_only(artifact: Artifact, pids: Path) -> None:
    wrong = LatencyJob(artifact, {"n": 1}, {"x": np.ones((1, 5), np.float32)})
    missing = job(Artifact(artifact.path.with_name("none.onnx"), "0" * 64))

    first, second, third = measure(
        "ort-cpu", [wrong, missing, job(artifact)], threads=1, budget=BUDGET, worker=program(REAL, pids)
    )

    assert first.verdict == "errored"
    assert first.reason.startswith("InvalidArgument: ")
    assert "\n" not in first.reason
    assert first.session_s is not None, "what is known before the error is kept"
    assert first.first_call_s is None
    assert first.latency_s == ()
    assert second.verdict == "errored"
    assert second.reason.startswith("UsageError: cannot read ")
    assert third.verdict == "passed"
    assert_all_ended(pids, 1)


def test_a_refused_runtime_is_skipped_in_its_own_words(artifact: Artifact) -> None:
    availability = select(("ort-cuda",))[0].availability()
    if availability.usable:
        pytest.skip("CUDA works here, so nothing refuses")
    (record,) = measure("ort-cuda", [job(artifact)], threads=1, budget=BUDGET)
    assert (record.verdict, record.reason) == ("skipped", availability.remark)
    assert (record.session_s, record.first_call_s, record.latency_s) == (None, None, ())


def test_an_unknown_runtime_and_no_threads_are_refused_at_once(artifact: Artifact) -> None:
    with pytest.raises(UsageError, match=r"unknown runtime abacus; there are torch, .*ort-cpu, "):
        measure("abacus", [job(artifact)], threads=1)
    with pytest.raises(UsageError, match="at least one thread, got 0"):
        measure("ort-cpu", [job(artifact)], threads=0)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_rebuilds_the_module_or_says_that_it_cannot(tmp_path: Path) -> None:
    source = tmp_path / "twice.py"
    source.write_text(
        "import torch\n"
        "from onnx_attest.models import Contract, Entry, TensorSpec\n"
        "class Twice(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x + x\n"
        "contract = Contract((TensorSpec('x', ('n', 4)),), (TensorSpec('y', ('n', 4)),), {'n': 3})\n"
        "def twice():\n"
        "    return Entry('twice', 'x + x', contract, Twice)\n"
    )
    (tmp_path / "only_here").mkdir()
    here = with_manifest(tmp_path / "only_here", module=object())
    known = with_manifest(tmp_path, reference=f"{source}:twice")

    skipped, passed = measure("torch", [job(here), job(known)], threads=1, budget=BUDGET)

    assert skipped.verdict == "skipped"
    assert skipped.reason.startswith("the manifest names no module")
    assert (passed.verdict, passed.reason) == ("passed", "")
    assert passed.provider_used == ("cpu",)
    assert len(passed.latency_s) >= BUDGET.minimum_samples


@pytest.mark.skipif(os.name != "posix", reason="signals have names on POSIX only")
def test_a_crash_is_errored_and_the_rest_gets_a_fresh_child(artifact: Artifact, pids: Path) -> None:
    crash = FIRST_ONLY + (
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0));"
        "os.write(2, b'first\\nkernel exploded\\n'); os.abort()\n"
    )
    first, second, third = measure(
        "ort-cpu", [job(artifact)] * 3, threads=1, budget=BUDGET, worker=program(crash + REAL, pids)
    )
    assert first.verdict == "errored"
    assert first.reason == (
        "its process was ended by SIGABRT without an answer; the last line on its stderr: kernel exploded"
    )
    assert (second.verdict, third.verdict) == ("passed", "passed")
    assert_all_ended(pids, 2)


def test_a_child_that_only_crashes_errors_every_job(artifact: Artifact, pids: Path) -> None:
    records = list(measure("ort-cpu", [job(artifact)] * 3, threads=1, worker=program("sys.exit(7)", pids)))
    assert {(record.verdict, record.reason) for record in records} == {
        ("errored", "its process ended with return code 7 without an answer")
    }
    assert_all_ended(pids, 3)


def test_garbage_is_errored_and_the_rest_gets_a_fresh_child(artifact: Artifact, pids: Path) -> None:
    garbage = """
started = len(open(sys.argv[1]).readlines())
if started <= 5:
    sys.stdin.readline()
    os.write(1, [b'Hello, world\\n', b'[1]\\n', b'{"job": 99}\\n', b'\\xc8\\n', b'{"jo'][started - 1])
    sys.exit(3)
"""
    records = list(
        measure(
            "ort-cpu", [job(artifact)] * 6, threads=1, budget=BUDGET, worker=program(garbage + REAL, pids)
        )
    )
    assert [record.reason for record in records] == [
        "its process wrote something that is not an answer: 'Hello, world'",
        "its process wrote something that is not an answer: '[1]'",
        "its process wrote something that is not an answer: '{\"job\": 99}'",
        "its process wrote something that is not an answer: '\ufffd'",
        "its process ended with return code 3 in the middle of an answer: '{\"jo'",
        "",
    ]
    assert [record.verdict for record in records] == ["errored"] * 5 + ["passed"]
    assert_all_ended(pids, 6)


def test_a_child_that_does_not_answer_is_killed(artifact: Artifact, pids: Path) -> None:
    hang = "import time; print('about to hang', file=sys.stderr, flush=True); time.sleep(600)"
    records = list(
        measure("ort-cpu", [job(artifact)] * 2, threads=1, time_limit_s=1, worker=program(hang, pids))
    )
    assert [record.verdict for record in records] == ["errored", "errored"]
    assert records[0].reason == (
        "no answer within 1 s, so its process was killed; the last line on its stderr: about to hang"
    )
    assert_all_ended(pids, 2)


def test_a_worker_that_cannot_be_started_is_errored(artifact: Artifact, tmp_path: Path) -> None:
    (record,) = measure("ort-cpu", [job(artifact)], threads=1, worker=[str(tmp_path / "none")])
    assert record.verdict == "errored"
    assert record.reason.startswith("FileNotFoundError: ")


def test_an_abandoned_iterator_leaves_no_child(artifact: Artifact, pids: Path) -> None:
    records = measure("ort-cpu", [job(artifact)] * 2, threads=1, budget=BUDGET, worker=program(REAL, pids))
    assert next(records).verdict == "passed"
    os.kill(int(pids.read_text()), 0)  # still there, for the second job
    records.close()  # type: ignore[attr-defined]  # it is a generator
    assert_all_ended(pids, 1)


def test_no_jobs_need_no_child(pids: Path) -> None:
    assert list(measure("ort-cpu", [], threads=1, worker=program(REAL, pids))) == []
    assert not pids.exists()


class FakeSession:
    """A session that calls a function instead of a runtime."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.placement = Placement()
        self._call = call

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        self._call()
        return dict(inputs)


def test_the_budget_bounds_the_number_of_samples() -> None:
    slow, quick = FakeSession(lambda: time.sleep(0.002)), FakeSession(lambda: None)
    no_time = LatencyBudget(minimum_samples=4, maximum_samples=50, seconds=0)
    much_time = LatencyBudget(minimum_samples=4, maximum_samples=50, seconds=60)
    assert len(latency_worker.take_samples(slow, {}, no_time)) == 4
    assert len(latency_worker.take_samples(quick, {}, much_time)) == 50


def test_the_garbage_collector_rests_while_calls_are_timed(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[bool] = []

    class FakeRuntime:
        def availability(self) -> object:
            return type("Known", (), {"version": "1"})()

        def open(self, artifact: Artifact, *, threads: int) -> FakeSession:
            return FakeSession(lambda: states.append(gc.isenabled()))

    monkeypatch.setattr(latency_worker, "select", lambda names: (FakeRuntime(),))
    np.savez(tmp_path / "inputs.npz")
    request = latency_worker.Request(
        job=0,
        runtime="fake",
        threads=1,
        artifact=str(artifact.path),
        inputs=str(tmp_path / "inputs.npz"),
        names=(),
        dtypes=(),
        budget=LatencyBudget(warm_up_calls=2, minimum_samples=3, maximum_samples=3),
    )

    answer = latency_worker.answer_to(request)

    assert (answer.verdict, len(answer.latency_s)) == ("passed", 3)
    assert states == [False] * 6, "first call, two warm-up calls, three samples"
    assert gc.isenabled()


@pytest.mark.parametrize(("warm_up", "low", "high"), [(-1, 1, 1), (0, 0, 1), (0, 3, 2)])
def test_a_budget_that_measures_nothing_is_refused(warm_up: int, low: int, high: int) -> None:
    with pytest.raises(UsageError, match="latency budget needs"):
        LatencyBudget(warm_up_calls=warm_up, minimum_samples=low, maximum_samples=high)


def test_percentiles_are_those_of_the_docstring() -> None:
    summary = summarise([4.0, 1.0, 2.0, 3.0, 10.0])  # positions 0.4, 2 and 3.6 of 1, 2, 3, 4, 10
    assert (summary.p10_s, summary.median_s, summary.p90_s) == pytest.approx((1.4, 3.0, 7.6))
    assert summary.samples == 5
    single = summarise([2.5])
    assert (single.p10_s, single.median_s, single.p90_s) == (2.5, 2.5, 2.5)


def test_no_samples_have_no_summary() -> None:
    with pytest.raises(ValueError, match="the record's verdict and reason say why"):
        summarise(())
