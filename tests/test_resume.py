"""Runs that are killed, interrupted, run into a full disk or meet another one: nothing finished is lost or done twice."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from users_module import DOUBLE

from onnx_attest.errors import UnwritableError, UsageError
from onnx_attest.export.artifact import digest, read_artifact
from onnx_attest.models import resolve
from onnx_attest.verify.engine import Plan, run_cell
from onnx_attest.verify.environment import environment
from onnx_attest.verify.interruption import Terminated
from onnx_attest.verify.job import Job, run_job
from onnx_attest.verify.journal import lines
from onnx_attest.verify.journal.basis import basis_of_artifact
from onnx_attest.verify.journal.lines import FILE, Header, Journal
from onnx_attest.verify.journal.merge import merge
from onnx_attest.verify.journal.shard import Shard
from onnx_attest.verify.journal.workplace import workplace
from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    EnvironmentRecord,
    RunRecord,
    TimeRecord,
    read_records,
)
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.task import Task, run_task

resource = pytest.importorskip("resource", reason="needs limits, signals and locks of POSIX")
HEADER = Header(command="run", basis={"seed": "0"}, units=("first", "second", "third"))
GRAPH = "g (float[n, 4] x) => (float[n, 4] y) { y = Softmax <axis = -1> (x) }"


# --- the journal ------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of two units."""
    journal = Journal.begun(tmp_path / FILE, HEADER)
    journal.keep("first", [1, 2])
    journal.keep("second", {"a": None})
    journal.close()
    return tmp_path / FILE


def reopened(path: Path) -> Journal:
    journal = Journal.found(path)
    assert journal is not None
    return journal


def test_what_was_kept_is_found_again(path):
    journal = reopened(path)
    assert (journal.header, journal.finished) == (HEADER, ["first", "second"])
    assert journal.kept("first", list[int]) == [1, 2]
    assert journal.kept("third", list[int]) is None
    journal.keep("third", 3)
    assert reopened(path).kept("third", int) == 3


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_a_torn_last_line_is_cut_off_and_its_unit_is_not_finished(path, cut):
    path.write_bytes(path.read_bytes()[:-cut])
    journal = reopened(path)
    assert journal.finished == ["first"]
    journal.keep("second", "anew")
    assert (reopened(path).kept("second", str), path.read_bytes().count(b"\n")) == ("anew", 3)


def test_every_cut_leaves_the_units_before_it(path):
    whole = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        journal = Journal.found(path)
        assert sum(end <= cut for end in ends) == (0 if journal is None else 1 + len(journal.names))


def test_zeros_of_a_power_cut_are_cut_off(path):
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 4096)
    assert reopened(path).finished == ["first", "second"]
    assert path.read_bytes() == whole


def test_a_line_that_is_damaged_before_the_last_is_refused(path):
    path.write_bytes(path.read_bytes().replace(b"[1,2]", b"[1;2]"))
    with pytest.raises(UsageError, match=r"line 2 is damaged; leave out --resume"):
        Journal.found(path)


def test_what_is_no_journal_is_refused(tmp_path, path):
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    with pytest.raises(UsageError, match="line 1 is no line of a journal"):
        Journal.found(path)
    assert Journal.found(tmp_path / "nowhere") is None


def test_another_schema_is_refused(path):
    path.write_bytes(path.read_bytes().replace(b'"schema":1', b'"schema":2'))
    with pytest.raises(UsageError, match="has the schema 2, this version reads 1"):
        Journal.found(path)


@pytest.mark.parametrize("where", ["write", "fsync"])
def test_a_full_disk_leaves_the_journal_as_it_was(path, monkeypatch, where):
    before, journal, write = path.read_bytes(), reopened(path), os.write

    def full(descriptor: int, data: Any = b"") -> int:
        if data:
            write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(lines.os, where, full)
        with pytest.raises(UnwritableError, match="No space left on device; what was finished is kept"):
            journal.keep("third", 3)
    assert path.read_bytes() == before
    journal.keep("third", 3)
    assert reopened(path).finished == ["first", "second", "third"]


def test_a_unit_that_is_something_else_now_is_refused(path):
    with pytest.raises(UsageError, match="first is no longer what this version keeps"):
        reopened(path).kept("first", str)


# --- the folder of a run ----------------------------------------------------------------------------------------


def test_two_runs_into_one_folder_are_refused_and_a_dead_one_holds_nothing(tmp_path):
    with workplace(tmp_path / "report") as place:
        with (
            pytest.raises(UsageError, match=r"another run is writing .*report"),
            workplace(tmp_path / "report"),
        ):
            pass
        place.begin(HEADER, resume=False).keep("first", 1)
    program = (
        "import os, sys, pathlib\nfrom onnx_attest.verify.journal.workplace import workplace\n"
        "with workplace(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path / "report")], check=False)
    assert killed.returncode == -signal.SIGKILL
    notes: list[str] = []
    with workplace(tmp_path / "report") as place:
        journal = place.begin(HEADER, resume=True, on_note=notes.append)
        assert [path.name for path in place.path.glob("process.*")] == [place.scratch.name]
        assert (journal.kept("first", int), notes) == (
            1,
            [f"goes on where {tmp_path / 'report'} was left: 1 finished"],
        )
        place.done()
    assert list(tmp_path.iterdir()) == []


def test_a_new_run_drops_an_unfinished_one_and_says_so(tmp_path):
    with workplace(tmp_path / "report") as place:
        place.begin(HEADER, resume=False).keep("first", 1)
    notes: list[str] = []
    with workplace(tmp_path / "report") as place:
        assert place.begin(HEADER, resume=False, on_note=notes.append).finished == []
    assert notes == [f"an unfinished run into {tmp_path / 'report'} is dropped (--resume would have gone on)"]
    assert list(tmp_path.iterdir()) == [], "with nothing finished, nothing stays"


def test_what_a_kill_left_of_a_report_goes(tmp_path):
    (tmp_path / ".report.abc" / "new" / "pictures").mkdir(parents=True)
    earlier = tmp_path / ".report.def" / "old"
    earlier.mkdir(parents=True)
    (tmp_path / ".reports.abc" / "new").mkdir(parents=True)
    with workplace(tmp_path / "report"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".report.def", ".reports.abc"]
    assert earlier.is_dir()


def test_what_does_not_get_as_far_as_its_journal_leaves_an_earlier_one(tmp_path):
    with workplace(tmp_path / "report") as place:
        place.begin(HEADER, resume=False).keep("first", 1)
    with pytest.raises(ZeroDivisionError), workplace(tmp_path / "report"):
        raise ZeroDivisionError
    with workplace(tmp_path / "report") as place:
        assert place.begin(HEADER, resume=True).finished == ["first"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"basis": {"seed": "1"}}, r"another seed \(0, now 1\); leave out --resume to begin anew"),
        ({"basis": {"seed": "0", "version of ort-cpu": "2"}}, r"another version of ort-cpu \(none, now 2\)"),
        (
            {"basis": {"seed": "0", "runtime ort-cpu": "OrtRuntime(provider=...)"}},
            r"ort-cpu \(is asked now, was not\)",
        ),
        ({"shard": "1/2"}, r"another shard \(none, now 1/2\)"),
        ({"command": "verify"}, r"another command \(run, now verify\)"),
        ({"required": ("ort-cpu",)}, "another required"),
        ({"runtimes": ("ort-cpu",)}, "another runtimes"),
        ({"units": ("first",)}, "another work"),
    ],
)
def test_a_run_of_another_kind_is_not_resumed(tmp_path, change, said):
    with workplace(tmp_path / "report") as place:
        place.begin(HEADER, resume=False).keep("first", 1)
    other = msgspec.structs.replace(HEADER, **change)
    with workplace(tmp_path / "report") as place, pytest.raises(UsageError, match=said):
        place.begin(other, resume=True)
    with workplace(tmp_path / "report") as place:
        assert place.begin(HEADER, resume=True).finished == ["first"], "what was refused is still there"


# --- run --------------------------------------------------------------------------------------------------------


def fake(task: Task) -> list[AnyRecord]:
    """Return the records of a task that exported and verified one file; the file is written too."""
    data = f"{task.reference} {task.dtype}".encode()
    name = task.reference.rpartition("/")[2].replace(":", "-")
    (Path(task.folder) / f"{name}-{task.dtype}.onnx").write_bytes(data)
    sha = digest(data)
    common: dict[str, Any] = {"model": name, "variant": "decomposed", "opset": 18, "dtype": task.dtype}
    cell = CellRecord(
        **common,
        artifact_sha256=sha,
        runtime="onnx-reference",
        runtime_version="1",
        case=None,
        verdict="passed",
    )
    return [ArtifactRecord(**common, verdict="passed", sha256=sha), cell]


class Engine:
    """Does the tasks last one first; raises after so many."""

    def __init__(self, after: int | None = None, raising: BaseException | None = None) -> None:
        self.after, self.raising, self.done = after, raising, list[str]()

    def __call__(self, tasks: Sequence[Task]) -> Iterator[tuple[int, list[AnyRecord]]]:
        for number in reversed(range(len(tasks))):
            if len(self.done) == self.after:
                assert self.raising is not None
                raise self.raising
            self.done.append(f"{tasks[number].reference.rpartition('/')[2]} {tasks[number].dtype}")
            yield number, fake(tasks[number])


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    """Return a job of four tasks: two models, two dtypes."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(DOUBLE.format(in_eager="pass").replace('"double"', f'"{name}"'))
    entries = [resolve(f"{tmp_path / name}.py:factory") for name in ("one", "two")]

    def make(folder: str = "report", **options: Any) -> Job:
        given = {"latency": False, "engine": Engine(), "evidence": tmp_path / "none", **options}
        return Job(entries, Plan(runtimes=select(("onnx-reference",))), tmp_path / folder, **given)

    return make


def kept(records: Sequence[AnyRecord]) -> list[AnyRecord]:
    """Return the records without times and environment."""
    found = []
    for record in records:
        if isinstance(record, RunRecord):
            record = msgspec.structs.replace(record, duration_s=0.0)
        if not isinstance(record, EnvironmentRecord | TimeRecord):
            found.append(record)
    return found


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize(
    ("raising", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143)], ids=["C", "TERM"]
)
def test_an_interrupted_run_keeps_its_records_never_passes_and_goes_on(job, tmp_path, after, raising, code):
    whole = run_job(job("whole"))
    records = run_job(job(engine=Engine(after, raising)))
    run = records[-1]
    assert isinstance(run, RunRecord)
    assert (run.verdict, run.exit_code, run.cells) == ("inconclusive", code, {"passed": after})
    assert f"after {after} of 4 tasks" in run.reason
    assert read_records(tmp_path / "report") == records
    assert "inconclusive" in (tmp_path / "report" / "summary.md").read_text().splitlines()[0]
    assert len(list((tmp_path / "report" / "artifacts").iterdir())) == after
    rest = Engine()
    resumed = run_job(job(engine=rest, resume=True))
    assert len(rest.done) == 4 - after
    assert kept(resumed) == kept(whole)
    assert {path.name for path in (tmp_path / "report" / "artifacts").iterdir()} == {
        path.name for path in (tmp_path / "whole" / "artifacts").iterdir()
    }
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"report", "whole"}


def test_an_interrupted_run_that_failed_has_failed(job):
    def failing(tasks: Sequence[Task]) -> Iterator[tuple[int, list[AnyRecord]]]:
        records = fake(tasks[0])
        yield 0, [records[0], msgspec.structs.replace(records[1], verdict="failed")]
        raise KeyboardInterrupt

    run = run_job(job(engine=failing))[-1]
    assert isinstance(run, RunRecord)
    assert (run.verdict, run.exit_code) == ("failed", 130)


def test_a_run_interrupted_before_anything_is_finished_leaves_the_earlier_report(job, tmp_path):
    run_job(job())
    before = (tmp_path / "report" / "records.jsonl").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run_job(job(engine=Engine(0, KeyboardInterrupt())))
    assert (tmp_path / "report" / "records.jsonl").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_a_report_that_cannot_be_written_loses_no_work(job, tmp_path, monkeypatch):
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("onnx_attest.verify.report.folder._swap", full)
        with pytest.raises(UsageError, match="No space left on device"):
            run_job(job())
    assert not (tmp_path / "report").exists()
    rest = Engine()
    run = run_job(job(engine=rest, resume=True))[-1]
    assert isinstance(run, RunRecord)
    assert (rest.done, run.cells) == ([], {"passed": 4})


def test_a_task_whose_file_is_gone_is_done_again(job, tmp_path):
    run_job(job(engine=Engine(3, KeyboardInterrupt())))
    files = sorted((tmp_path / ".report.run" / "artifacts").iterdir())
    files[0].unlink()
    files[1].write_bytes(b"something else")
    rest = Engine()
    run_job(job(engine=rest, resume=True))
    assert len(rest.done) == 3


def test_a_module_that_changed_is_another_run(job, tmp_path):
    run_job(job(engine=Engine(3, KeyboardInterrupt())))
    (tmp_path / "one.py").write_text((tmp_path / "one.py").read_text() + "\n# changed\n")
    with pytest.raises(UsageError, match=r"another models"):
        run_job(job(resume=True))


def test_other_options_are_another_run(job):
    run_job(job(engine=Engine(3, KeyboardInterrupt())))
    for options, said in (({"dtypes": ("float32",)}, "dtypes"), ({"profile": True}, "profile")):
        with pytest.raises(UsageError, match=f"another {said}"):
            run_job(job(resume=True, **options))


def test_another_version_of_a_runtime_is_another_run(job, monkeypatch):
    run_job(job(engine=Engine(3, KeyboardInterrupt())))
    monkeypatch.setattr(
        "onnx_attest.verify.job.versions", lambda runtimes: {"version of onnx-reference": "9.9"}
    )
    with pytest.raises(UsageError, match=r"another version of onnx-reference \([0-9.]+, now 9.9\)"):
        run_job(job(resume=True))


def test_a_run_that_goes_on_elsewhere_names_both_machines(job, monkeypatch):
    def elsewhere(*arguments: Any) -> EnvironmentRecord:
        return msgspec.structs.replace(environment(*arguments), cpu="another")

    def machines(records: Sequence[AnyRecord]) -> list[str]:
        return [record.cpu for record in records if isinstance(record, EnvironmentRecord)]

    (here,) = machines(run_job(job(engine=Engine(2, KeyboardInterrupt()))))
    assert machines(run_job(job(engine=Engine(1, KeyboardInterrupt()), resume=True))) == [here]
    monkeypatch.setattr("onnx_attest.verify.job.environment", elsewhere)
    assert machines(run_job(job(resume=True))) == [here, "another"]


# --- shards -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [1, 2, 3, 5, 7])
def test_each_unit_is_in_one_shard_whatever_their_order(of):
    costs = {f"unit {number}": float(number**2 % 17) for number in range(23)}
    parts = [Shard(number, of).part_of(costs) for number in range(1, of + 1)]
    assert sorted(itertools.chain(*parts)) == sorted(costs)
    backwards = dict(reversed(costs.items()))
    assert [set(Shard(number, of).part_of(backwards)) for number in range(1, of + 1)] == list(map(set, parts))
    loads = [sum(costs[name] for name in part) for part in parts]
    assert max(loads) - min(loads) <= max(costs.values()), "the last unit given made the largest"


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2", "1/2/3", " 1/2", ""])
def test_a_shard_of_another_form_is_refused(command, text):
    command("run", "--model", "sdpa", f"--shard={text}").assert_refused("--shard", "2/5 say")


def test_more_shards_than_tasks_are_refused(job):
    with pytest.raises(UsageError, match="--shard 5/5: of what is to be done, 4 parts can be made"):
        run_job(job(shard=Shard(5, 5)))


def test_the_shards_of_a_run_merged_are_the_whole_run(job, tmp_path):
    whole = run_job(job("whole", latency=False))
    for number in (1, 2, 3):
        run = run_job(job(f"shard{number}", shard=Shard(number, 3)))[-1]
        assert isinstance(run, RunRecord)
        assert f"shard {number}/3" in run.reason
    merged = merge([tmp_path / f"shard{number}" for number in (3, 1, 2)], tmp_path / "merged", tmp_path)
    assert kept(merged) == kept(whole)
    assert {path.name: path.read_bytes() for path in (tmp_path / "merged" / "artifacts").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "whole" / "artifacts").iterdir()
    }
    assert read_records(tmp_path / "merged") == merged
    assert not list(tmp_path.glob(".*"))


def test_a_run_in_shards_times_nothing_and_says_so_once(job, tmp_path):
    for number in (1, 2):
        run_job(job(f"shard{number}", latency=True, shard=Shard(number, 2)))
    merged = merge([tmp_path / "shard1", tmp_path / "shard2"], tmp_path / "merged", tmp_path)
    (said,) = [record.message for record in merged if getattr(record, "code", "") == "OA704"]
    assert "shards" in said


def test_a_report_made_again_is_still_a_shard(job, command, tmp_path):
    run_job(job("shard", shard=Shard(1, 2)))
    journal = (tmp_path / "shard" / FILE).read_bytes()
    command("report", tmp_path / "shard", "-o", tmp_path / "shard")
    assert (tmp_path / "shard" / FILE).read_bytes() == journal
    run_job(job("shard"))
    assert not (tmp_path / "shard" / FILE).exists(), "a whole run is none"


def test_shards_that_are_not_all_of_one_run_are_refused(job, command, tmp_path):
    for number in (1, 2):
        run_job(job(f"shard{number}", shard=Shard(number, 2)))
    run_job(job("whole"))
    run_job(job("other", shard=Shard(2, 2), dtypes=("float32",)))
    run_job(job("third", shard=Shard(3, 3)))
    run_job(job("cut", shard=Shard(2, 2), engine=Engine(1, KeyboardInterrupt())))

    def refused(*names: str) -> Callable[..., None]:
        answer = command("merge", *(tmp_path / name for name in names), "-o", tmp_path / "merged")
        return answer.assert_refused

    refused("shard1")("shard 2/2 of the run is missing")
    refused("shard1", "shard2", "shard2")("shard 2/2 is given twice")
    refused("shard1", "other")("of different runs", "dtypes")
    refused("shard1", "third")("of splits in 2 and 3")
    refused("shard1", "whole")("whole holds no journal of a shard", "--shard")
    refused("shard1", "cut")("is not finished in any shard")
    refused("shard1", "nowhere")("nowhere")
    assert not (tmp_path / "merged").exists()


def test_a_shard_goes_on_too(job, tmp_path):
    whole = run_job(job("whole"))
    run_job(job("shard1", shard=Shard(1, 2), engine=Engine(1, Terminated())))
    rest = Engine()
    run_job(job("shard1", shard=Shard(1, 2), engine=rest, resume=True))
    assert len(rest.done) == 1
    run_job(job("shard2", shard=Shard(2, 2)))
    assert kept(merge([tmp_path / "shard1", tmp_path / "shard2"], tmp_path / "merged", tmp_path)) == kept(
        whole
    )


# --- verify -----------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from onnx_attest.verify.journal import lines
number, torn, write, count = int(sys.argv.pop(1)), int(sys.argv.pop(1)), lines._write_all, 0
def killing(descriptor, data):
    global count
    count += 1
    if count == number:
        if torn: os.write(descriptor, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGNAL)
    write(descriptor, data)
lines._write_all = killing
sys.argv[0] = "onnx-attest"
from onnx_attest.verify.cli import main
main()
"""
"""Ends its own process with a signal as a line of the journal is about to be written, or half written."""


def ended(
    how: str, number: int, arguments: Sequence[object], *, torn: bool = False
) -> subprocess.CompletedProcess[str]:
    """Return what became of a command that gets a signal at a line of the journal."""
    program = KILLED.replace("SIGNAL", how)
    command = [sys.executable, "-c", program, str(number), str(int(torn)), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("number", "torn"),
    [(7, True), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, True), (12, False)))],
)
def test_a_verification_that_is_killed_goes_on_where_it_was(command, onnx_file, tmp_path, number, torn):
    path = onnx_file(GRAPH)
    asked = ("verify", path, "--runtime", "onnx-reference", "--in-process")
    killed = ended("SIGKILL", number, (*asked, "-o", tmp_path / "report"), torn=torn)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, ""), killed.stderr
    assert not (tmp_path / "report").exists()
    journal = tmp_path / ".report.run" / FILE
    assert journal.read_bytes().count(b"\n") == number - 1
    answer = command(*asked, "-o", tmp_path / "report", "--resume")
    assert (answer.code, list(tmp_path.glob(".*"))) == (0, [])
    assert command(*asked, "-o", tmp_path / "whole").code == 0
    assert kept(read_records(tmp_path / "report")) == kept(read_records(tmp_path / "whole"))


@pytest.mark.parametrize(("how", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_verification_that_is_interrupted_reports_what_it_has(onnx_file, tmp_path, how, code):
    path = onnx_file(GRAPH)
    asked = ("verify", path, "--runtime", "onnx-reference", "--in-process", "-o", tmp_path / "report")
    answer = ended(how, 8, asked)
    assert answer.returncode == code, answer.stderr
    *records, run = read_records(tmp_path / "report")
    assert isinstance(run, RunRecord)
    assert (run.verdict, run.exit_code) == ("inconclusive", code)
    assert run.reason.startswith("interrupted by ")
    cells = [record for record in records if isinstance(record, CellRecord)]
    assert cells
    assert answer.stdout.startswith("**inconclusive**")
    assert answer.stderr == "interrupted: what was finished is kept, and --resume goes on with it\n"


def test_the_shards_of_a_verification_merged_are_the_whole(command, onnx_file, tmp_path):
    asked = ("verify", onnx_file(GRAPH), "--runtime", "onnx-reference", "--in-process")
    for number in (1, 2):
        assert command(*asked, "-o", tmp_path / f"{number}", "--shard", f"{number}/2").code == 0
    assert command(*asked, "-o", tmp_path / "whole").code == 0
    assert command("merge", tmp_path / "2", tmp_path / "1", "-o", tmp_path / "merged").code == 0
    assert kept(read_records(tmp_path / "merged")) == kept(read_records(tmp_path / "whole"))


def test_another_file_or_option_is_another_verification(command, onnx_file, tmp_path, monkeypatch):
    path, calls = onnx_file(GRAPH), itertools.count(1)

    def interrupting(*arguments: object, **options: object) -> Any:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return run_cell(*arguments, **options)

    asked = ("verify", path, "--runtime", "onnx-reference", "--in-process", "-o", tmp_path / "report")
    with monkeypatch.context() as patched:
        patched.setattr("onnx_attest.verify.engine.run_cell", interrupting)
        assert command(*asked).code == 130
    for option, name in (
        ("--seed=3", "seed"),
        ("--thorough", "thorough"),
        ("--require=onnx-reference", "required"),
    ):
        command(*asked, option, "--resume").assert_refused(f"another {name}", "leave out --resume")
    onnx_file(GRAPH.replace("-1", "1"))
    command(*asked, "--resume").assert_refused("another file (")
    onnx_file(GRAPH)
    assert command(*asked, "--resume").code == 0


@pytest.mark.parametrize("option", ["--resume", "--shard=1/2"])
def test_what_needs_a_folder_says_so(command, onnx_file, option):
    command("verify", onnx_file(GRAPH), option).assert_refused(option.partition("=")[0], "-o")


@pytest.mark.parametrize("option", ["--fail-fast", "--time-budget=9", "--relations-only"])
def test_what_a_shard_cannot_do_is_refused(command, onnx_file, tmp_path, option):
    asked = ("verify", onnx_file(GRAPH), "--shard=1/2", "-o", tmp_path / "report", option)
    command(*asked).assert_refused("--shard", option.partition("=")[0])


def test_external_data_is_part_of_what_is_verified(onnx_file, tmp_path):
    graph = "g (float[n, 4] x) => (float[n, 4] y) <float[4] w = {1, 2, 3, 4}> { y = Add (x, w) }"
    model = onnx.load(onnx_file(graph))
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    path = tmp_path / "large.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = basis_of_artifact(read_artifact(path))
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[0] ^= 1
    (tmp_path / "weights.bin").write_bytes(data)
    after = basis_of_artifact(read_artifact(path))
    assert [name for name in before if before[name] != after[name]] == ["file", "external data weights.bin"]


# --- a full disk ------------------------------------------------------------------------------------------------


def limited(size: int, arguments: Sequence[object]) -> subprocess.CompletedProcess[str]:
    """Return what became of a command none of whose files may become larger than a size."""
    return subprocess.run(
        [sys.executable, "-m", "onnx_attest", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )


@pytest.mark.parametrize(
    "size",
    [8000, *(pytest.param(size, marks=pytest.mark.slow) for size in (10, 500, 2000, 4000, 20000))],
)
def test_no_room_is_one_line_and_nothing_half_written(onnx_file, tmp_path, size):
    path = onnx_file(GRAPH)
    asked = ("verify", path, "--runtime", "onnx-reference", "--in-process", "-o", tmp_path / "report")
    answer = limited(size, asked)
    assert (answer.returncode, answer.stdout) == (2, ""), answer
    assert answer.stderr.startswith("onnx-attest: error: cannot write "), answer.stderr
    assert "File too large" in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert not (tmp_path / "report").exists()
    journal = tmp_path / ".report.run" / FILE
    if journal.exists():
        assert all(json.loads(line) for line in journal.read_bytes().splitlines())


@pytest.mark.slow
def test_a_run_with_no_room_goes_on_when_there_is(tmp_path):
    """A real run: its workers' records, the exported files, the journal and the report each meet the limit."""
    (tmp_path / "user.py").write_text(DOUBLE.format(in_eager="pass"))
    asked = (
        "run",
        "--model",
        f"{tmp_path / 'user.py'}:factory",
        "--runtime",
        "onnx-reference",
        "--no-latency",
    )
    asked = (*asked, "--dtype", "float32", "-o", tmp_path / "report")
    for size in (100, 1000, 5000, 20000):
        answer = limited(size, (*asked, "--resume"))
        assert (answer.returncode, answer.stdout) == (2, ""), (size, answer)
        assert answer.stderr.splitlines()[-1].startswith("onnx-attest: error: "), answer.stderr
        assert "Traceback" not in answer.stderr
        assert not (tmp_path / "report").exists()
    answer = limited(resource.RLIM_INFINITY, (*asked, "--resume"))
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
def test_a_real_task_is_kept_and_found_again(tmp_path):
    """What a task gives passes through the journal unchanged."""
    (tmp_path / "user.py").write_text(DOUBLE.format(in_eager="pass"))
    task = Task(
        reference=f"{tmp_path / 'user.py'}:factory", dtype="float32", variants=(), folder=str(tmp_path), known=(),
        runtimes=("onnx-reference",),
    )  # fmt: skip
    records = list(run_task(task, lambda step: None))
    journal = Journal.begun(tmp_path / FILE, HEADER)
    journal.keep("first", records)
    assert reopened(tmp_path / FILE).kept("first", list[AnyRecord]) == records
