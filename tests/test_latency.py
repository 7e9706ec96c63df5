"""Latency: what is recorded, and that a runtime that misbehaves costs one job and leaves nothing behind."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import onnx.parser
import pytest
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact, Asked, Got, Manifest, digest, read_artifact, write_artifact
from onnx_attest.models.contract import Contract, TensorSpec
from onnx_attest.verify.latency import LatencyBudget, LatencyJob, measure, worth_timing
from onnx_attest.verify.records import CellRecord, FindingRecord, LatencyRecord, MachineRecord
from onnx_attest.verify.report import render
from onnx_attest.verify.runtimes.base import Placement, Tensors
from onnx_attest.verify.runtimes.onnxruntime import OrtBound
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.samples import measured, median_of, paired, quantiles
from onnx_attest.verify.workers import latency as latency_worker
from onnx_attest.verify.workers import resident

DOUBLE = """
<ir_version: 8, opset_import: ["": 18]>
double (float[n, 4] x) => (float[n, 4] y) { y = Add(x, x) }
"""
BUDGET = LatencyBudget(sittings=2, most_sittings=2, rounds=3, block_s=0.0002, seconds=0.0005, warm_up_s=0.001)

ONE_SITTING = LatencyBudget(1, 1, rounds=1, block_s=0.0002, seconds=0, warm_up_s=0.001)

# Each test program writes its process id to the file that it gets as its first argument.
PID = "import os, sys; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n')\n"
REAL = "from onnx_attest.verify.workers import latency; latency.main()\n"
ANSWERS = """
from onnx_attest.verify.workers import latency
from pathlib import Path
plain, flag = latency.Timed.answer_to, Path(sys.argv[1] + '.flag')
def once():
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
def answer_to(self, request):
    opens, first = isinstance(request, latency.Open) and request.runtime, request.number == 1
    {}
    return plain(self, request)
latency.Timed.answer_to = answer_to
"""


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    return tmp_path / "pids"


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    path = tmp_path / "double.onnx"
    path.write_bytes(onnx.parser.parse_model(DOUBLE).SerializeToString())
    return read_artifact(path)


def job(artifact: Artifact, n: int = 2, group: str = "") -> LatencyJob:
    return LatencyJob(artifact, {"n": n}, {"x": np.ones((n, 4), np.float32)}, group)


def program(source: str, pids: Path) -> tuple[str, ...]:
    return (sys.executable, "-c", PID + source, str(pids))


def misbehaving(line: str, pids: Path) -> tuple[str, ...]:
    """Return a worker that does a line of its own before it answers."""
    return program(ANSWERS.replace("{}", line) + REAL, pids)


def timed(
    jobs: Sequence[LatencyJob], runtimes: Sequence[str] = ("ort-cpu",), **options: Any
) -> list[LatencyRecord]:
    """Return the latency records that are results."""
    options = {"threads": 1, "budget": BUDGET} | options
    records = measure(runtimes, jobs, **options)
    return [one for one in records if isinstance(one, LatencyRecord) and not one.twin]


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


def test_what_is_recorded(artifact: Artifact, pids: Path) -> None:
    jobs = [job(artifact, n) for n in (3, 1, 2)]
    records = list(measure(("ort-cpu",), jobs, threads=1, budget=BUDGET, worker=program(REAL, pids)))

    results = [one for one in records if isinstance(one, LatencyRecord) and not one.twin]
    assert [record.axes for record in results] == [{"n": 3}, {"n": 1}, {"n": 2}]
    assert [record.group for record in results] == [0, 1, 2]
    twins = [one for one in records if isinstance(one, LatencyRecord) and one.twin]
    assert [(twin.runtime, twin.axes, twin.verdict) for twin in twins] == [
        ("ort-cpu", record.axes, "passed") for record in results
    ]
    for record in (*results, *twins):
        assert (record.verdict, record.reason) == ("passed", "")
        assert all(seconds > 0 for seconds in record.latency_s)
        assert record.first_call_s is not None
        assert record.first_call_s > 0
        assert record.session_s is not None
        assert record.session_s > 0
        assert record.copies_s is None
        assert record.warm is not None
        assert len(record.warm_up_s) >= 1
        assert record.provider_used == ("CPUExecutionProvider",)
        assert record.runtime_version == select(("ort-cpu",))[0].availability().version
        assert (record.threads, record.artifact_sha256) == (1, artifact.sha256)
        assert set(record.affinity) <= set(range(os.cpu_count() or 1))
        assert (record.flops, record.bytes_by_node) == (0, 3 * 4 * 4 * record.axes["n"])
        assert record.bytes_least == 2 * 4 * 4 * record.axes["n"]
    machines = [one for one in records if isinstance(one, MachineRecord)]
    assert [machine.group for machine in machines] == [0, 1, 2]
    assert all(machine.library.startswith("NumPy ") and machine.latency_s for machine in machines)
    assert_all_ended(pids, 3 * BUDGET.sittings)  # the machine's, the runtime's and its twin's


def test_blocks_say_their_round_and_sitting(artifact: Artifact) -> None:
    records = [
        one
        for one in measure(("ort-cpu", "ort-cpu-noopt"), [job(artifact)], threads=1, budget=BUDGET)
        if not isinstance(one, FindingRecord)
    ]
    assert len(records) == 4
    for record in records:
        assert sum(record.block_sizes) == len(record.latency_s)
        assert record.block_rounds == tuple(range(len(record.block_sizes))), "one block each round"
        assert record.block_sittings == tuple(sorted(record.block_sittings))
        assert set(record.block_sittings) == {0, 1}
        assert len(record.block_sizes) >= BUDGET.sittings * BUDGET.rounds
    assert len({len(record.block_sizes) for record in records}) == 1
    assert len({len(record.block_rounds) for record in records}) == 1


def test_the_order_in_a_round_is_random_and_each_is_alone(artifact: Artifact, pids: Path) -> None:
    log = "open(sys.argv[1] + '.log', 'a').write(f'{os.getpid()} {isinstance(request, latency.Sample)}\\n')"
    budget = LatencyBudget(sittings=1, most_sittings=1, rounds=12, block_s=0.0002, seconds=0, warm_up_s=0.001)
    timed([job(artifact)], budget=budget, worker=misbehaving(log, pids))

    lines = [line.split() for line in Path(f"{pids}.log").read_text().splitlines()]
    sampled = [process for process, is_sample in lines if is_sample == "True"]
    rounds = [tuple(sampled[start : start + 3]) for start in range(0, len(sampled), 3)]
    assert len(rounds) == 12
    assert all(len(set(one)) == 3 for one in rounds), "everyone once a round"
    assert len(set(rounds)) > 1
    draw = random.Random(0)
    expected, names = [], sampled[:3]
    for _ in rounds:
        order = [0, 1, 2]
        draw.shuffle(order)
        expected.append(tuple(order))
    place = dict(zip(names, expected[0], strict=True))
    assert [tuple(place[process] for process in one) for one in rounds] == expected, "by the seed"


def test_variants_of_a_group_are_timed_in_the_same_rounds(artifact: Artifact, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(onnx.parser.parse_model(DOUBLE.replace("Add(x, x)", "Sum(x, x)")).SerializeToString())
    jobs = [job(artifact, group="g"), job(read_artifact(other), group="g")]
    first, second = timed(jobs)
    assert first.artifact_sha256 != second.artifact_sha256
    assert first.group == second.group == 0
    assert first.block_rounds == second.block_rounds


def test_each_sitting_has_processes_of_its_own(artifact: Artifact, pids: Path) -> None:
    log = "opens and open(sys.argv[1] + '.log', 'a').write(f'{os.getpid()} ')"
    timed([job(artifact)] * 2, worker=misbehaving(log, pids))
    processes = Path(f"{pids}.log").read_text().split()
    assert len(processes) == 2 * 2 * BUDGET.sittings, "two groups, the runtime and its twin"
    assert len(set(processes)) == 2 * BUDGET.sittings
    assert_all_ended(pids, 3 * BUDGET.sittings)


@pytest.mark.slow
def test_sittings_are_added_while_an_interval_is_wide(artifact: Artifact) -> None:
    wide = LatencyBudget(2, 4, 3, 0.0002, 0.0005, 0.001, resolution=0)
    settled = LatencyBudget(2, 4, 3, 0.0002, 0.0005, 0.001, resolution=1e9)
    assert [max(one.block_sittings) + 1 for one in timed([job(artifact)], budget=wide)] == [4]
    assert [max(one.block_sittings) + 1 for one in timed([job(artifact)], budget=settled)] == [2]


def test_default_worker_and_what_the_manifest_says(tmp_path: Path) -> None:
    (record,) = timed([job(with_manifest(tmp_path))])
    assert (record.verdict, record.reason) == ("passed", "")
    assert (record.model, record.variant, record.opset, record.dtype) == (
        "twice",
        "decomposed",
        18,
        "float32",
    )


def test_without_a_manifest_the_unknown_is_said_to_be_unknown(artifact: Artifact, pids: Path) -> None:
    (record,) = timed([job(artifact)], worker=program("", pids))
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


def test_the_process_of_a_runtime_loads_no_other(artifact: Artifact, pids: Path) -> None:
    loaded = "open(sys.argv[1] + '.loaded', 'a').write(f\"{'torch' in sys.modules}\\n\")\n"
    timed([job(artifact)], worker=program(REAL + loaded, pids))
    assert set(Path(f"{pids}.loaded").read_text().split()) == {"False"}


def test_processes_get_the_number_of_threads(artifact: Artifact, pids: Path) -> None:
    (record,) = timed(
        [job(artifact)], threads=3, worker=program("sys.exit(os.environ['OMP_NUM_THREADS'])", pids)
    )
    assert record.reason.endswith("the last line on its stderr: 3")
    assert record.threads == 3


def test_only_the_machines_own_product_has_more_threads_in_blas(artifact: Artifact, pids: Path) -> None:
    log = "open(sys.argv[1] + '.log', 'a').write(os.environ['OPENBLAS_NUM_THREADS'] + ('r' if opens else 'm') + ' ')"
    timed(
        [job(artifact)], threads=2, worker=misbehaving("isinstance(request, latency.Open) and " + log, pids)
    )
    assert set(Path(f"{pids}.log").read_text().split()) == {"2m", "1r"}


def test_what_a_library_prints_or_reads_does_not_break_the_protocol(artifact: Artifact, pids: Path) -> None:
    noise = """
from onnx_attest.verify.runtimes.onnxruntime import OrtSession
plain = OrtSession.run
def noisy(self, inputs):
    print('printed', flush=True)
    os.write(1, b'{"number": 0, "verdict": "failed"}\\n')
    assert os.read(0, 1) == b'', 'a request was read away'
    return plain(self, inputs)
OrtSession.run = noisy
"""
    records = timed([job(artifact)] * 2, worker=program(noise + REAL, pids))
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
    records = timed([job(artifact, n) for n in lengths], worker=worker)

    for record in records:
        assert record.first_call_s is not None
        assert record.first_call_s >= 0.25
        assert quantiles(record.latency_s).median_s < 0.125
    view = render(records)["latency.md"].partition("## By export, runtime and shape")[2].partition("## ")[0]
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
    (record,) = timed([LatencyJob(artifact, {}, given)], worker=program(spy + REAL, pids))
    assert record.verdict == "errored"
    assert record.reason == (
        "ValueError: [('file', 'int64', (3, 2), True, [[0, 3], [1, 4], [2, 5]]), "
        "('a/b', 'bfloat16', (), True, 1.0), ('half', 'float16', (0, 2), True, [])]"
    )


def test_an_exception_of_the_runtime_errors_its_job_only(artifact: Artifact, pids: Path) -> None:
    wrong = LatencyJob(artifact, {"n": 1}, {"x": np.ones((1, 5), np.float32)})
    missing = job(Artifact(artifact.path.with_name("none.onnx"), "0" * 64))

    first, second, third = timed([wrong, missing, job(artifact)], worker=program(REAL, pids))

    assert first.verdict == "errored"
    assert first.reason.startswith("InvalidArgument: ")
    assert "\n" not in first.reason
    assert first.session_s is not None, "what is known before the error is kept"
    assert first.first_call_s is None
    assert first.latency_s == ()
    assert second.verdict == "errored"
    assert second.reason.startswith("UsageError: cannot read ")
    assert third.verdict == "passed"
    assert_all_ended(pids, 3 * BUDGET.sittings)


def test_a_refused_runtime_is_skipped_in_its_own_words(artifact: Artifact) -> None:
    availability = select(("ort-cuda",))[0].availability()
    if availability.usable:
        pytest.skip("CUDA works here, so nothing refuses")
    refused, passed = timed([job(artifact)], ("ort-cuda", "ort-cpu"))
    assert (refused.verdict, refused.reason) == ("skipped", availability.remark)
    assert (refused.session_s, refused.first_call_s, refused.latency_s) == (None, None, ())
    assert passed.verdict == "passed"


def test_an_unknown_runtime_and_no_threads_are_refused_at_once(artifact: Artifact) -> None:
    with pytest.raises(UsageError, match=r"unknown runtime abacus; there are torch, .*ort-cpu, "):
        measure(("abacus",), [job(artifact)], threads=1)
    with pytest.raises(UsageError, match="at least one thread, got 0"):
        measure(("ort-cpu",), [job(artifact)], threads=0)


@pytest.mark.slow
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

    skipped, passed = timed([job(here), job(known)], ("torch",))

    assert skipped.verdict == "skipped"
    assert skipped.reason.startswith("the manifest names no module")
    assert (passed.verdict, passed.reason) == ("passed", "")
    assert passed.provider_used == ("cpu",)
    assert passed.latency_s


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_runtime_of_modules_is_timed_once_a_module(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    one, again = with_manifest(tmp_path), with_manifest(tmp_path / "again")
    records = timed([job(one, group="g"), job(again, group="g")], ("torch", "ort-cpu"))
    assert [record.runtime for record in records] == ["torch", "ort-cpu", "ort-cpu"]


# Processes that misbehave. Number 1 is the first artifact on the runtime.


@pytest.mark.skipif(os.name != "posix", reason="signals have names on POSIX only")
def test_a_crash_is_errored_and_the_rest_gets_a_fresh_process(artifact: Artifact, pids: Path) -> None:
    crash = (
        "import resource\n    if opens and once(): resource.setrlimit(resource.RLIMIT_CORE, (0, 0)), "
        "os.write(2, b'first\\nkernel exploded\\n'), os.abort()"
    )
    first, second, third = timed([job(artifact)] * 3, worker=misbehaving(crash, pids))
    assert first.verdict == "errored"
    assert first.reason == (
        "its process was ended by SIGABRT without an answer; the last line on its stderr: kernel exploded"
    )
    assert (second.verdict, third.verdict) == ("passed", "passed")
    assert_all_ended(pids, 3 * BUDGET.sittings + 1)


def test_a_crash_in_a_block_costs_its_own_artifact_and_no_other(artifact: Artifact, tmp_path: Path) -> None:
    """Both are open in one process; the other is opened again in a fresh one, and goes on."""
    other = tmp_path / "other.onnx"
    other.write_bytes(onnx.parser.parse_model(DOUBLE.replace("Add(x, x)", "Sum(x, x)")).SerializeToString())
    jobs = [job(artifact, group="g"), job(read_artifact(other), group="g")]
    crash = "if isinstance(request, latency.Sample) and first and once(): os._exit(3)"
    died, lived = timed(jobs, worker=misbehaving(crash, tmp_path / "pids"))
    assert (died.verdict, died.reason) == (
        "errored",
        "its process ended with return code 3 without an answer",
    )
    assert (lived.verdict, lived.reason) == ("passed", "")
    assert len(lived.block_sizes) >= BUDGET.sittings * BUDGET.rounds
    assert_all_ended(tmp_path / "pids", 3 * BUDGET.sittings + 1)


def test_a_process_that_only_crashes_errors_every_job(artifact: Artifact, pids: Path) -> None:
    records = timed([job(artifact)] * 3, worker=program("sys.exit(7)", pids))
    assert {(record.verdict, record.reason) for record in records} == {
        ("errored", "its process ended with return code 7 without an answer")
    }
    assert_all_ended(pids, 6)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("b'Hello, world\\n'", "its process wrote something that is not an answer: 'Hello, world'"),
        ("b'[1]\\n'", "its process wrote something that is not an answer: '[1]'"),
        ("b'{\"number\": 99}\\n'", "its process wrote something that is not an answer: '{\"number\": 99}'"),
        ("b'\\xc8\\n'", "its process wrote something that is not an answer: '\ufffd'"),
        ("b'{\"numb'", "its process ended with return code 3 in the middle of an answer: '{\"numb'"),
    ],
)
def test_garbage_is_errored_and_the_rest_gets_a_fresh_process(
    artifact: Artifact, pids: Path, written: str, reason: str
) -> None:
    hidden = "answers = os.dup(1)\n"
    garbage = ANSWERS.replace("{}", f"if opens and once(): os.write(answers, {written}), os._exit(3)")
    first, second = timed([job(artifact)] * 2, worker=program(hidden + garbage + REAL, pids))
    assert (first.verdict, first.reason) == ("errored", reason)
    assert (second.verdict, second.reason) == ("passed", "")
    assert_all_ended(pids, 3 * BUDGET.sittings + 1)


def test_a_process_that_does_not_answer_is_killed(artifact: Artifact, pids: Path) -> None:
    hang = "import time; print('about to hang', file=sys.stderr, flush=True); time.sleep(600)"
    records = timed([job(artifact)], time_limit_s=1, worker=program(hang, pids))
    assert [record.verdict for record in records] == ["errored"]
    assert records[0].reason == (
        "no answer within 1 s, so its process was killed; the last line on its stderr: about to hang"
    )
    assert_all_ended(pids, 2)


def test_a_process_that_cannot_be_started_is_errored(artifact: Artifact, tmp_path: Path) -> None:
    (record,) = timed([job(artifact)], worker=[str(tmp_path / "none")])
    assert record.verdict == "errored"
    assert record.reason.startswith("FileNotFoundError: ")


def test_an_abandoned_iterator_leaves_no_process(artifact: Artifact, pids: Path) -> None:
    records = measure(("ort-cpu",), [job(artifact)] * 2, threads=1, budget=BUDGET, worker=program(REAL, pids))
    next(records)
    records.close()  # type: ignore[attr-defined]  # it is a generator
    assert_all_ended(pids, 3 * BUDGET.sittings)


def test_an_interrupted_measurement_leaves_no_process(artifact: Artifact, pids: Path) -> None:
    def interrupt(step: str) -> None:
        if step.endswith("(2)"):  # the first sitting's have ended, the second's machine is not yet asked
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        timed([job(artifact)] * 2, on_step=interrupt, worker=program(REAL, pids))
    assert_all_ended(pids, 3)


def test_no_jobs_need_no_process(pids: Path) -> None:
    assert list(measure(("ort-cpu",), [], threads=1, worker=program(REAL, pids))) == []
    assert not pids.exists()


def test_of_a_run_each_variant_is_timed_once_and_what_is_not_is_said(tmp_path: Path) -> None:
    given = with_manifest(tmp_path).manifest

    def exported(model: str, variant: str, opset: int, dtype: str = "float32") -> Artifact:
        path = tmp_path / f"{model}-{dtype}-{variant}-{opset}.onnx"
        manifest = msgspec.structs.replace(given, model=model, variant=variant, dtype=dtype)
        return Artifact(path, sha256=path.stem, manifest=manifest)

    artifacts = [
        exported("a", "fused", 23),
        exported("a", "fused", 24),
        exported("a", "plain", 18),
        exported("b", "plain", 18),
    ]
    artifacts += [exported("a", "plain", 18, "float16")]
    bad = CellRecord(
        model="b", variant="plain", opset=18, dtype="float32", artifact_sha256=artifacts[3].sha256, runtime="torch",
        runtime_version="1", case=None, verdict="failed", known="counter-example",
    )  # fmt: skip
    timed, told = worth_timing(artifacts, [bad])
    assert timed == [artifacts[0], artifacts[2]]
    assert {one.code for one in told} == {"OA704"}
    assert [one.message.split(":")[0] for one in told] == [
        "a-float32-fused-24.onnx",
        "b-float32-plain-18.onnx",
        "a-float16-plain-18.onnx",
    ]


# The worker


def ready(call: Callable[[], object]) -> latency_worker.Ready:
    return latency_worker.Ready(call)


def paced(seconds: Iterator[float]) -> latency_worker.Ready:
    """Return a call that takes so many seconds by its own clock, and none by ours."""
    return latency_worker.Ready(lambda: None, lambda calls: tuple(itertools.islice(seconds, calls)))


def test_warm_up_ends_when_calls_take_the_same_time() -> None:
    falling = iter([9.0, 5.0, 4.0, 3.0, 2.0, *([1.0] * 50)])
    taken, warm = latency_worker.warm_up(paced(falling), 60)
    assert warm
    # Windows of five: 4.0, then 1.0, then 1.0.
    assert taken == (9.0, 5.0, 4.0, 3.0, 2.0, *([1.0] * 10))


def test_a_warm_up_that_never_settles_says_so() -> None:
    rising = (1.1**index for index in range(10**6))
    taken, warm = latency_worker.warm_up(paced(rising), 0.002)
    assert not warm
    assert len(taken) >= 10


def test_a_long_call_is_warmed_up_for_four_times_the_time_at_most() -> None:
    taken, warm = latency_worker.warm_up(ready(lambda: time.sleep(0.02)), 0.01)
    assert not warm
    assert 2 <= len(taken) <= 3


def test_a_block_has_its_calls_and_what_the_machine_did() -> None:
    calls: list[None] = []
    answer = latency_worker.Answer(number=1)
    request = latency_worker.Sample(number=1, calls=4)
    latency_worker.take_block(ready(lambda: calls.append(None)), request, answer)
    assert (len(answer.latency_s), len(calls)) == (4, 5), "one to fill the caches"
    assert answer.busy_s >= 0
    request = latency_worker.Sample(number=1, calls=4, settle=False)
    latency_worker.take_block(ready(lambda: calls.append(None)), request, answer)
    assert len(calls) == 9


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system does not tell what others take")
def test_processor_time_of_others_is_seen() -> None:
    burn = [sys.executable, "-c", "import time\nwhile True: pass"]
    answer = latency_worker.Answer(number=1)
    with subprocess.Popen(burn) as other:
        time.sleep(0.2)
        request = latency_worker.Sample(number=1, calls=1)
        latency_worker.take_block(ready(lambda: time.sleep(0.5)), request, answer)
        other.kill()
    assert answer.others_s is not None
    assert answer.others_s > 0.1
    assert answer.busy_s < 0.1


class FakeSession:
    """A session that calls a function instead of a runtime."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.placement = Placement()
        self._call = call

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        self._call()
        return dict(inputs)


def opened(monkeypatch: pytest.MonkeyPatch, artifact: Artifact, folder: Path, session: object) -> Any:
    """Return a worker that opened a session as number 1, and its answer."""

    class FakeRuntime:
        def availability(self) -> object:
            return type("Known", (), {"version": "1"})()

        def open(self, artifact: Artifact, *, threads: int) -> object:
            return session

    monkeypatch.setattr(latency_worker, "select", lambda names: (FakeRuntime(),))
    np.savez(folder / "inputs.npz")
    worker = latency_worker.Timed()
    inputs = str(folder / "inputs.npz")
    request = latency_worker.Open(
        number=1, runtime="fake", threads=1, artifact=str(artifact.path), inputs=inputs, warm_up_s=0
    )
    return worker, worker.answer_to(request)


def test_the_garbage_collector_rests_while_calls_are_timed(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[bool] = []
    worker, answer = opened(
        monkeypatch, artifact, tmp_path, FakeSession(lambda: states.append(gc.isenabled()))
    )
    assert answer.verdict == "passed"
    answer = worker.answer_to(latency_worker.Sample(number=1, calls=3))
    assert (answer.verdict, len(answer.latency_s)) == ("passed", 3)
    assert states == [False] * 6, "first call, one to warm up, one to fill the caches, three samples"
    assert gc.isenabled()


def test_copies_to_a_device_are_apart_from_calls(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Held:
        copied_in_s = 2.0

        def run(self) -> None:
            pass

        def copied_out_s(self) -> float:
            return 3.0

    class DeviceSession(FakeSession):
        def on_device(self, inputs: Mapping[str, NDArray[Any]]) -> Held:
            return Held()

    session = DeviceSession(lambda: pytest.fail("called with arrays of the host"))
    worker, answer = opened(monkeypatch, artifact, tmp_path, session)
    assert (answer.verdict, answer.copies_s) == ("passed", 5.0)
    assert max(worker.answer_to(latency_worker.Sample(number=1, calls=3)).latency_s) < 1


def test_bound_outputs_of_onnx_runtime_are_those_of_a_run(artifact: Artifact) -> None:
    """On the CPU's own memory, since no device may be here: the same calls bind to a GPU's."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(artifact.path), providers=["CPUExecutionProvider"])
    given = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
    held = OrtBound(session, given, ["y"], "cpu")
    assert held.copied_in_s > 0
    held.run()
    held.run()
    assert held.copied_out_s() > 0
    np.testing.assert_array_equal(held.outputs()[0], 2 * given["x"])


@pytest.mark.slow
@pytest.mark.skipif(not resident.is_told(), reason="this system does not tell what a process holds")
def test_memory_of_calls_is_what_they_hold_at_once(tmp_path: Path) -> None:
    text = DOUBLE.replace("float[n, 4] x", "float[n] x").replace("float[n, 4] y", "float[n] y")
    path = tmp_path / "long.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    size = 4 * 2**21
    sizes = []
    for count in (2**21, 2**23):
        given = {"x": np.ones(count, np.float32)}
        (record,) = timed([LatencyJob(read_artifact(path), {"n": count}, given)], budget=ONE_SITTING)
        assert record.peak_bytes is not None
        assert record.opened_bytes is not None
        sizes.append(record.peak_bytes - record.opened_bytes)
    # The output, once or twice: one is made before the last is dropped.
    assert size / 2 < sizes[0] < 4 * size
    assert sizes[1] / sizes[0] == pytest.approx(4, rel=0.3)


# What a difference shows, on a real runtime


SLOWED = """
import time
from onnx_attest.verify.runtimes import onnxruntime as ort
unslowed = ort.OrtSession.run
def slowed(self, inputs):
    start = time.perf_counter()
    outputs = unslowed(self, inputs)
    stop = time.perf_counter() + {} * (time.perf_counter() - start)
    while time.perf_counter() < stop:
        pass
    return outputs
def answer_first(request):
    if isinstance(request, latency.Open) and request.runtime == 'ort-cpu-noopt':
        ort.OrtSession.run = slowed
"""


@pytest.mark.slow
def test_a_slowdown_of_one_runtime_is_shown_and_none_is_not(artifact: Artifact, pids: Path) -> None:
    """Half as slow again, so that any machine shows it; how small a slowdown is seen, and how often, `make bench-latency` says."""
    budget = LatencyBudget(sittings=3, most_sittings=3, rounds=8, block_s=0.003, seconds=0.1, warm_up_s=0.02)
    worker = program(SLOWED.format(0.5) + ANSWERS.replace("{}", "answer_first(request)") + REAL, pids)
    large = LatencyJob(artifact, {"n": 2**16}, {"x": np.ones((2**16, 4), np.float32)})
    right, slow = timed([large], ("ort-cpu", "ort-cpu-noopt"), budget=budget, worker=worker)
    found = median_of(paired(slow, right))
    assert found is not None
    assert found.low is not None
    assert 1.2 < found.low < found.estimate < 1.8


def test_a_budget_that_measures_nothing_is_refused() -> None:
    for sittings, most, rounds in ((0, 1, 1), (2, 1, 1), (1, 1, 0)):
        with pytest.raises(UsageError, match="latency budget needs"):
            LatencyBudget(sittings, most, rounds)


def test_blocks_and_rounds_fill_the_time() -> None:
    budget = LatencyBudget(sittings=4, most_sittings=4, rounds=3, block_s=0.01, seconds=2.0)
    assert (budget.calls_for(0.001), budget.calls_for(0.5), budget.calls_for(0.0)) == (10, 1, 1)
    assert (budget.rounds_for(0.01), budget.rounds_for(0.1), budget.rounds_for(5.0)) == (50, 5, 3)


def test_measured_blocks_have_medians(artifact: Artifact) -> None:
    (record,) = timed([job(artifact)])
    assert sum(map(len, measured(record))) == len(record.block_sizes)
