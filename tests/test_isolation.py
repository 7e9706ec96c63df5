"""A runtime in a process of its own: whatever it does there is a verdict, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from misbehaving import Misbehaving

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact, read_artifact
from onnx_attest.models import resolve
from onnx_attest.verify.api import Report, verify, with_module
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.probe import with_outputs
from onnx_attest.verify.records import StabilityRecord
from onnx_attest.verify.runtimes.base import FallbackError, ProcessDiedError, UnavailableError
from onnx_attest.verify.runtimes.broken import BrokenRuntime
from onnx_attest.verify.runtimes.isolated import Isolated, Rewriting, isolate, kept, open_copy, processes_of
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.runtimes.torch_eager import Heard
from onnx_attest.verify.workers import resident
from onnx_attest.verify.workers.host import Request, RuntimeProcess
from onnx_attest.verify.workers.limits import MIB, Limits, usual_limits

DOUBLE = "double (float[n, 4] x) => (float[n, 4] y) { y = Add (x, x) }"
X = np.arange(8, dtype=np.float32).reshape(2, 4)
needs_proc = pytest.mark.skipif(
    not resident.is_told(), reason="needs /proc, which tells what a process holds"
)


@pytest.fixture
def double(onnx_file) -> Artifact:
    return read_artifact(onnx_file(DOUBLE))


@pytest.fixture
def alone():
    """Return a runtime in a process of its own, which ends with the test."""
    made: list[Isolated] = []

    def make(runtime, limits: Limits = usual_limits()) -> Isolated:  # noqa: B008 - a frozen record
        kind = Rewriting if hasattr(runtime, "rewritten") else Isolated
        made.append(kind(runtime, RuntimeProcess(limits)))
        return made[-1]

    yield make
    for runtime in made:
        runtime.process.close()


def verified(artifact: Artifact, runtime: Isolated) -> Report:
    """Return the report of the runtime beside one that is sound."""
    return verify(artifact, plan=Plan(runtimes=(runtime, OrtRuntime("ort-cpu"))))


def by_case(report: Report) -> dict[str, str]:
    """Return the verdicts of the cells of the misbehaving runtime by the name of their case."""
    assert {cell.verdict for cell in report.cells if cell.runtime == "ort-cpu"} == {"passed"}
    return {cell.case.name: cell.verdict for cell in report.cells if cell.runtime == "misbehaving"}


ROWS, CASE = 33, "off-32"
"""One case of many has so many rows."""


DEEDS = {
    "segfault": "its process was ended by SIGSEGV without an answer",
    "abort": "its process was ended by SIGABRT without an answer",
    "spin": "no answer within 5 s, so its process was killed",
    "write_garbage": "wrote something that is not an answer",
    "exit_with_0": "its process ended with return code 0 without an answer",
    "raise_exit": "its process ended with return code 0 without an answer",
    "leave_a_child_and_abort": "its process was ended by SIGABRT without an answer",
}


@pytest.mark.parametrize("deed", DEEDS)
def test_a_runtime_that_takes_its_process_along_costs_one_cell(double, alone, deed):
    before = resident.descendants(os.getpid())
    report = verified(double, alone(Misbehaving(deed, rows=(ROWS,)), Limits(time_s=5)))
    verdicts = by_case(report)
    assert verdicts.pop(CASE) == "errored"
    assert set(verdicts.values()) == {"passed"}
    assert len(verdicts) > 3
    (cell,) = (cell for cell in report.cells if cell.verdict == "errored")
    assert DEEDS[deed] in cell.reason
    assert cell.reason.endswith("while it ran")
    assert cell.findings == ("OA309",)
    assert set(resident.descendants(os.getpid())) <= set(before)


@needs_proc
@pytest.mark.parametrize("deed", ["allocate", "allocate_in_a_child"])
def test_a_runtime_that_takes_all_memory_is_ended_before_it_does(double, alone, deed):
    limit = Limits(memory_bytes=600 * MIB)
    report = verified(double, alone(Misbehaving(deed, rows=(ROWS,)), limit))
    verdicts = by_case(report)
    assert verdicts.pop(CASE) == "errored"
    assert set(verdicts.values()) == {"passed"}
    (reason,) = (cell.reason for cell in report.cells if cell.verdict == "errored")
    assert "MiB of memory, the limit is 600 MiB, so it was killed" in reason


def test_what_a_runtime_prints_is_no_answer(double, alone):
    assert set(by_case(verified(double, alone(Misbehaving("print_garbage")))).values()) == {"passed"}


@pytest.mark.parametrize("deed", ["segfault", "exit_with_0"])
def test_a_poisoned_import_is_errored(double, alone, deed):
    report = verified(double, alone(Misbehaving(deed, at="import")))
    (cell,) = (cell for cell in report.cells if cell.runtime == "misbehaving")
    assert (cell.verdict, cell.findings, cell.case) == ("errored", ("OA309",), None)
    assert cell.reason.endswith("while it imported the runtime")


def test_an_import_that_raises_is_errored_with_its_words(double, alone):
    runtime = alone(Misbehaving("raise_error", at="import"))
    found = runtime.availability()
    assert (found.usable, found.reason) == (False, "RuntimeError: a poisoned import")


def test_a_runtime_that_dies_as_it_opens_the_file_is_one_errored_cell_and_not_tried_again(double, alone):
    runtime = alone(Misbehaving("segfault", at="open"))
    report = verified(double, runtime)
    (cell,) = (cell for cell in report.cells if cell.runtime == "misbehaving")
    assert (cell.verdict, cell.findings, cell.case) == ("errored", ("OA309",), None)
    assert cell.reason.endswith("while it opened the file")
    assert runtime.process.generation == 1


def test_a_runtime_that_dies_twice_in_a_row_is_not_tried_again(double, alone):
    runtime = alone(Misbehaving("segfault"))
    report = verified(double, runtime)
    assert set(by_case(report).values()) == {"errored"}
    reasons = [cell.reason for cell in report.cells if cell.runtime == "misbehaving"]
    assert [reason.startswith("not tried again, since it died twice in a row") for reason in reasons] == [
        False,
        False,
        *[True] * (len(reasons) - 2),
    ]
    assert runtime.process.generation == 2


def test_a_death_over_a_relation_is_that_of_its_case(double, alone):
    plan = Plan(runtimes=(alone(Misbehaving("segfault", call=2)),), axes={"n": 9})
    (cell,) = verify(double, plan=plan).cells
    assert (cell.verdict, cell.findings) == ("errored", ("OA309",))


@pytest.mark.parametrize(
    ("deed", "verdict"), [("segfault", "errored"), ("raise_error", "skipped")], ids=["dies", "raises"]
)
def test_a_death_over_the_weights_is_not_passed_over(onnx_file, alone, deed, verdict):
    path = onnx_file("g (float[n, 4] x) => (float[n, 4] y) { t = Transpose (x) s = MatMul (x, t) p = Softmax (s) y = MatMul (p, x) }")  # fmt: skip
    # The copy that gives the weights has two outputs.
    plan = Plan(runtimes=(alone(Misbehaving(deed, outputs=2)),), axes={"n": 9})
    report = verify(path, plan=plan)
    assert {cell.verdict for cell in report.cells} == {"passed"}
    (seen,) = (record for record in report.records if isinstance(record, StabilityRecord))
    assert seen.verdict == verdict


def test_a_death_between_two_that_live_does_not_count_as_a_row(double, alone):
    session = alone(Misbehaving("segfault", rows=(3,))).open(double)
    for _ in range(3):
        with pytest.raises(ProcessDiedError, match="SIGSEGV"):
            session.run({"x": np.zeros((3, 4), np.float32)})
        np.testing.assert_array_equal(session.run({"x": X})["y"], X + X)


def test_other_sessions_of_the_runtime_are_opened_again(double, alone):
    runtime = alone(Misbehaving("segfault", rows=(3,)))
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 18]> g (float[n, 4] x) => (float[n, 4] y) { y = Neg (x) }')  # fmt: skip
    sound, copy = runtime.open(double), runtime.open(double, model=model.SerializeToString())
    with pytest.raises(ProcessDiedError):
        sound.run({"x": np.zeros((3, 4), np.float32)})
    np.testing.assert_array_equal(copy.run({"x": X})["y"], -X)


def test_refusals_and_errors_keep_their_words(double, alone):
    with pytest.raises(UnavailableError, match=r"^no kernel for this$"):
        alone(Misbehaving("refuse", at="open")).open(double)
    with pytest.raises(FallbackError, match=r"^elsewhere$"):
        alone(Misbehaving("fall_back", at="open")).open(double)
    with pytest.raises(Exception, match=r"^a poisoned import$") as caught:
        alone(Misbehaving("raise_error")).open(double).run({"x": X})
    assert type(caught.value).__name__ == "RuntimeError"


def test_outputs_and_placement_are_those_of_the_same_runtime_in_this_process(double, alone):
    (plain,) = select(("ort-cpu",))
    here, there = plain.open(double), alone(plain).open(double)
    assert here.placement == there.placement
    for name, array in there.run({"x": X}).items():
        np.testing.assert_array_equal(array, here.run({"x": X})[name])
        assert array.flags.writeable
    assert alone(plain).availability() == plain.availability()


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((0, 3), np.float32),
        np.array(2.5),
        np.float16([[1, np.inf], [np.nan, -0.0]]),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array([1, -2], ml_dtypes.int4),
        np.array([["a", "bc"], ["", "\u00e9\u0000"]], object),
        np.array(["ab", "c"]),
        np.arange(6).reshape(2, 3).T,
        np.uint8(7),
        [np.arange(2), (True, None, 1, 2.5, "text", b"\x00\xff")],
        {"a": {1: [np.ones(2, bool)]}},
        "x" * 2**21,
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_as_they_went(double, alone, value):
    came = alone(Misbehaving("spin")).open(double).echo(value)
    assert type(came) is type(value)
    if isinstance(value, np.ndarray):
        assert (came.dtype, came.shape) == (value.dtype, value.shape)
    np.testing.assert_equal(came, value)


def test_an_array_of_arrays_comes_back_as_it_went(double, alone):
    value = np.empty(2, object)
    value[0], value[1] = np.arange(3), {"key": np.float32(1)}
    came = alone(Misbehaving("spin")).open(double).echo(value)
    assert came.dtype == object
    np.testing.assert_array_equal(came[0], value[0])
    assert came[1] == value[1]


def test_a_session_that_is_let_go_is_let_go_in_its_process(double, alone):
    runtime = alone(Misbehaving("spin"))
    first = runtime.open(double, model=double.path.read_bytes())
    number = first._number
    folder = Path(runtime.process._folder.name)
    assert len(list(folder.glob("*.onnx"))) == 1
    del first
    gc.collect()
    assert list(folder.glob("*.onnx")) == []
    second = runtime.open(double)
    with pytest.raises(Exception, match=str(number)) as caught:
        runtime.process.ask(
            Request("call", "it ran", {"session": number, "method": "process", "arguments": ()})
        )
    assert type(caught.value).__name__ == "KeyError"
    assert second.process() > 0


def test_a_closed_process_leaves_no_file_and_starts_again(double, alone):
    runtime = alone(Misbehaving("spin"))
    first = runtime.open(double).process()
    folder = Path(runtime.process._folder.name)
    runtime.process.close()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert runtime.open(double).process() != first


def test_a_process_that_is_no_longer_needed_may_tidy_up(double, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    runtime = Isolated(Misbehaving("tidy_up_later", at="open"), RuntimeProcess(usual_limits()))
    with processes_of((runtime,)):
        runtime.open(double)
    assert (tmp_path / "tidied").exists()
    assert not runtime.process.runs


def test_what_cannot_be_loaded_gets_no_process():
    broken = BrokenRuntime("broken", "half installed")
    assert isolate((broken,)) == (broken,)


def test_of_a_copy_that_gives_more_outputs_only_those_are_sent(exported, monkeypatch):
    artifact, kept = exported["causal-decomposed-18"], []
    keep = RuntimeProcess.keep
    monkeypatch.setattr(RuntimeProcess, "keep", lambda self, data: (kept.append(data), keep(self, data))[1])
    model = onnx.load(artifact.path)
    (softmax,) = (node.output[0] for node in model.graph.node if node.op_type == "Softmax")
    (runtime,) = isolate(select(("ort-cpu",)))
    X = np.random.default_rng(0).standard_normal((2, 9, 45)).astype(np.float32)
    with processes_of((runtime,)):
        sent = open_copy(runtime, artifact, with_outputs(model, [softmax], as_in_file=True), None).run(
            {"X": X}
        )
        model.graph.node[0].name = "another"
        other = open_copy(runtime, artifact, with_outputs(model, [softmax], as_in_file=False), None).run(
            {"X": X}
        )
    np.testing.assert_array_equal(sent[softmax], other[softmax])
    assert sent[softmax].shape[-2:] == (9, 9)
    assert len(kept[0]) < 100
    assert onnx.load_model_from_string(kept[1]).graph.node[0].name == "another"


def test_a_module_that_only_this_process_has_runs_in_it(exported):
    artifact = exported["causal-decomposed-18"]
    (runtime,) = select(("torch",))
    torch = Isolated(
        runtime, RuntimeProcess(usual_limits())
    )  # its own: another test may have kept one that runs
    session = torch.open(artifact)
    assert type(session).__name__ == "TorchSession"
    assert not torch.process.runs


def test_a_module_that_has_a_name_is_built_in_the_other_process(exported):
    artifact = read_artifact(exported["causal-decomposed-18"].path)
    (torch,) = isolate(select(("torch",)))
    with processes_of((torch,)):
        session = torch.open(artifact)
        assert torch.process.runs
        X = np.random.default_rng(0).standard_normal((2, 9, 45)).astype(np.float32)
        there, here = session.run({"X": X}), torch.runtime.open(artifact).run({"X": X})
        (weights,) = session.attention_weights({"X": X})
        outputs, heard = session.run_and_listen({"X": X})
    assert isinstance(heard, Heard)
    np.testing.assert_array_equal(outputs["output"], there["output"])
    np.testing.assert_array_equal(there["output"], here["output"])
    assert weights.shape[-2:] == (9, 9)


def test_a_module_given_by_name_is_what_the_other_process_runs(exported, tmp_path):
    """`--against` names another module than the manifest: that one is to be run, there as here."""
    bare = tmp_path / "bare.onnx"
    bare.write_bytes(exported["causal-decomposed-18"].path.read_bytes())
    held = with_module(read_artifact(bare), resolve("causal"))
    (torch,) = isolate(select(("torch",)))
    X = np.random.default_rng(0).standard_normal((2, 9, 45)).astype(np.float32)
    with processes_of((torch,)):
        there = torch.open(held).run({"X": X})
        assert torch.process.runs
    np.testing.assert_array_equal(there["output"], torch.runtime.open(held).run({"X": X})["output"])


def test_variants_of_a_runtime_share_its_process(double, alone):
    (plain,) = select(("ort-cpu",))
    runtime = alone(plain)
    written = runtime.as_written()
    assert written != runtime
    assert written.process is runtime.process
    assert written.as_written() == written
    path = runtime.rewritten(double, double.path.parent)
    assert onnx.load(path).graph.node[0].op_type == "Add"


def test_processes_are_kept_where_that_is_asked_for(double):
    with kept():
        (first,) = isolate(select(("ort-cpu",)))
        with processes_of((first,)):
            first.availability()
        assert first.process.runs
        (second,) = isolate(select(("ort-cpu",)))
        assert second.process is first.process
    assert not first.process.runs


def test_an_adapter_that_no_other_process_can_import_is_refused_by_name():
    class Local(Misbehaving):
        pass

    with pytest.raises(UsageError, match="'misbehaving' cannot be sent to a process of its own"):
        isolate((Local("spin"),))[0].start()


PARENT = """
import sys, time
from misbehaving import Misbehaving
from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify.runtimes.isolated import isolate
import pathlib
runtime, = isolate((Misbehaving("spin", rows=(3,)),))
session = runtime.open(read_artifact(pathlib.Path(sys.argv[1])))
print(session.process(), flush=True)
import numpy
session.run({"x": numpy.zeros((3, 4), numpy.float32)})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which ends a process with its parent")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_runtime_does_not_outlive_its_parent(double, how):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT, str(double.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as parent:
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        parent.send_signal(how)
        parent.communicate(timeout=60)
    assert gone(pid)


def gone(pid: int) -> bool:
    """Whether a process ends soon."""
    return within(30, lambda: not Path(f"/proc/{pid}").exists() or "Z" in _state(pid))


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    stop = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > stop:
            return False
        time.sleep(0.02)
    return True


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
