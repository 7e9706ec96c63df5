"""Where the time goes: each instant counted once, and a run that nobody times is left alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest
from users_module import DOUBLE

from onnx_attest.errors import UsageError
from onnx_attest.models import resolve
from onnx_attest.verify import engine, gates, seams
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.job import Job, run_job
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.records import AnyRecord, EnvironmentRecord, RunRecord, TimeRecord
from onnx_attest.verify.report.time import NONE, time, time_csv
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.seams import Seams
from onnx_attest.verify.stopwatch import Stopwatch, timed
from onnx_attest.verify.task import run_task


@pytest.fixture
def watch() -> Stopwatch:
    """Return a stopwatch whose clock goes on by a second each time it is looked at."""
    return Stopwatch(partial(next, itertools.count(0.0)))


def test_an_instant_is_counted_once_for_the_innermost_part(watch):
    with watch.stage("cells"), watch.kind("oracle"), watch.stage("softmax"):
        pass
    assert watch.taken() == {
        "": {"else": 2.0},
        "cells": {"else": 2.0, "oracle": 2.0},
        "softmax": {"else": 1.0},
    }


def test_what_was_taken_is_not_taken_again(watch):
    watch.add("start", "start", 3.0)
    assert watch.taken() == {"": {"else": 1.0}, "start": {"start": 3.0}}
    assert watch.taken() == {"": {"else": 1.0}}


def test_a_part_ends_where_it_raises(watch):
    with pytest.raises(UsageError), watch.stage("cells"):
        raise UsageError("no")
    assert watch.taken() == {"": {"else": 2.0}, "cells": {"else": 1.0}}


def test_of_a_generator_its_steps_are_timed_and_not_its_reader(watch):
    def numbers() -> Iterator[int]:
        yield from (1, 2)

    def reading() -> Iterator[None]:
        with watch.kind("inference"):
            yield

    for _ in timed(numbers, lambda: watch.stage("export"))():
        next(reading())
    taken = watch.taken()
    assert taken["export"] == {"else": 3.0}  # two numbers, and the end
    assert taken[""]["inference"] == 2.0


def test_every_seam_is_there_and_is_put_back():
    before = (
        engine.run_cell,
        engine.read_signature,
        GraphOracle.evaluate,
        gates.judge,
        vars(engine._Verification),
    )
    (runtime,) = select(("onnx-reference",))
    opened = type(runtime).open
    held = Seams(Stopwatch())
    held.of_runtimes([runtime])
    assert GraphOracle.evaluate is not before[2]
    assert engine.judge is gates.judge is not before[3]  # wherever it was imported
    assert type(runtime).open is not opened
    held.let_go()
    after = (
        engine.run_cell,
        engine.read_signature,
        GraphOracle.evaluate,
        gates.judge,
        vars(engine._Verification),
    )
    assert after == before
    assert type(runtime).open is opened


def test_a_function_that_is_gone_is_a_broken_seam(monkeypatch):
    monkeypatch.setitem(seams._KINDS, "onnx_attest.verify.gates:no_such_gate", "gates")
    with pytest.raises(AttributeError, match="no_such_gate"):
        Seams(Stopwatch())


@pytest.mark.slow
def test_a_run_says_where_its_time_went_and_the_same_records_as_another_engine(tmp_path):
    (tmp_path / "user.py").write_text(DOUBLE.format(in_eager="pass"))
    entry = resolve(f"{tmp_path / 'user.py'}:factory")
    plan = Plan(runtimes=select(("torch", "onnx-reference")))
    job = partial(Job, [entry], plan, latency=False)

    def in_this_process(tasks):
        for number, task in enumerate(tasks):
            yield number, list(run_task(msgspec.structs.replace(task, threads=1), lambda step: None))

    alone = run_job(job(tmp_path / "alone", processes=1))
    both = run_job(job(tmp_path / "both", processes=2, profile=True))
    here = run_job(job(tmp_path / "here", engine=in_this_process))
    assert but_for_times(alone) == but_for_times(both) == but_for_times(here)

    *tasks, run = (record for record in both if isinstance(record, TimeRecord))
    assert [record.task for record in tasks] == ["factory float32", "factory float16"]
    assert {record.process for record in tasks} == {0, 1}
    assert run.task == ""
    assert set(run.seconds) == {"environment", "tasks", ""}
    for record in tasks:
        assert record.seconds["export"]["exporter"] > 0
        assert record.seconds["exporter check"]["exporter"] > 0
        assert record.seconds["cells"].keys() >= {"oracle", "inference", "gates", "else"}
        assert record.seconds["start"]["start"] > 0
        assert (
            sum(sum(kinds.values()) for stage, kinds in record.seconds.items() if stage != "start")
            < (run.seconds["tasks"]["else"])
        )
    assert "Exporting and the runtimes' own inference: " in (tmp_path / "both" / "time.md").read_text()
    assert NONE in (tmp_path / "alone" / "time.md").read_text()


def but_for_times(records: list[AnyRecord]) -> list[AnyRecord]:
    """Return the records without what differs between two runs of the same."""
    return [one for one in records if not isinstance(one, EnvironmentRecord | TimeRecord | RunRecord)]


def test_the_view_adds_up():
    records: list[AnyRecord] = [
        TimeRecord(task="mha float32", process=0, seconds={"export": {"exporter": 6.0, "else": 1.0}}),
        TimeRecord(task="mha float16", process=1, seconds={"cells": {"inference": 1.0, "oracle": 2.0}}),
        TimeRecord(task="", seconds={"environment": {"else": 2.0}, "tasks": {"else": 7.0}}),
        RunRecord(verdict="passed", reason="", exit_code=0, cells={}, known=0, duration_s=10.0),
    ]
    text = time(records)
    assert "The run took 10 s: environment 2 s, tasks 7 s" in text
    assert "Its 2 tasks took 10 s in 2 processes, all added up" in text
    assert "Exporting and the runtimes' own inference: 70.0 % of that" in text
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")
    ]
    assert ["stage", "exporter", "inference", "oracle", "else", "all", "share"] in rows
    assert ["export", "6", "", "", "1", "7", "70.0 %"] in rows
    assert ["cells", "", "1", "2", "", "3", "30.0 %"] in rows
    assert ["all", "6", "1", "2", "1", "10", "100.0 %"] in rows
    assert ["mha float32", "0", "7"] in rows
    assert time_csv(records).splitlines()[:2] == [
        "task,process,stage,kind,seconds",
        "mha float32,0,export,exporter,6.0",
    ]


def test_a_run_that_nobody_timed_says_how_to():
    assert NONE in time([])
