"""From a verified file to a bundle that proves itself: refused without proof, whole or refused, replayed anywhere."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
import venv
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from browser import opened

from onnx_attest.errors import UnwritableError, UsageError
from onnx_attest.export.api import export_entry
from onnx_attest.export.artifact import Artifact, read_artifact
from onnx_attest.export.bundle import ABOUT, CARD, MODEL, REPLAY, load
from onnx_attest.export.checksums import LIST, TamperedError, digest_of, list_of
from onnx_attest.export.convert import convert
from onnx_attest.models.entry import resolve
from onnx_attest.verify.api import verify
from onnx_attest.verify.deploy import standalone as standalone_program
from onnx_attest.verify.deploy.proof import NotProvenError
from onnx_attest.verify.deploy.replay import replay
from onnx_attest.verify.deploy.standalone import replay as replay_alone
from onnx_attest.verify.deploy.write import deploy
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.gates import judge
from onnx_attest.verify.journal.shard import Shard
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.records import AnyRecord, ArtifactRecord, CellRecord, RunRecord, encode, read_records
from onnx_attest.verify.runtimes.chromium import Chromium
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.runtimes.web_packages import folder as web_folder


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Artifact, list[AnyRecord]]:
    """The chapter's attention, and the records of its verification on two runtimes."""
    folder = tmp_path_factory.mktemp("made")
    artifact = next(one for one in export_entry(resolve("sdpa"), folder) if isinstance(one, Artifact))
    return artifact, list(verify(artifact, runtimes=("ort-cpu", "onnx-reference")).records)


@pytest.fixture(scope="module")
def bundle(made, tmp_path_factory) -> Path:
    artifact, records = made
    folder = tmp_path_factory.mktemp("bundles") / "sdpa"
    deploy(artifact, records, folder)
    return folder


@pytest.fixture
def copy(bundle, tmp_path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


def run_of(records: list[AnyRecord]) -> RunRecord:
    return next(one for one in records if isinstance(one, RunRecord))


def test_a_bundle_says_what_was_proven_and_of_which_bytes(made, bundle):
    artifact, _ = made
    read = load(bundle)
    assert (read.about.model, read.about.sha256, read.about.unverified) == ("sdpa", artifact.sha256, "")
    assert [one.runtime for one in read.about.verified] == ["ort-cpu", "onnx-reference"]
    assert read.about.verified[0].provider == "CPUExecutionProvider"
    assert read.about.verified[0].effective_bits >= 23
    assert digest_of(read.model) == artifact.sha256
    assert len(read.about.data) >= 10


def test_the_card_says_it_to_people(bundle):
    text = (bundle / CARD).read_text()
    assert text.startswith(
        "# sdpa\n\n**Verified** on ort-cpu, onnx-reference, and nowhere else, against the formula of its contract, and no module."
    )
    assert (
        "| query | float32 | batch, seq_len, 20 |" in text.replace("  ", " ").replace("  ", " ")
        or "batch, " in text
    )
    assert "All others are untested." in text


def test_the_same_file_records_and_data_give_the_same_bytes(made, bundle, tmp_path):
    artifact, records = made
    again = deploy(artifact, records, tmp_path / "again")
    assert again.name == load(bundle).name


def test_a_bundle_opens_with_the_options_that_were_verified(bundle):
    session = load(bundle).session()
    assert session.get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(UsageError, match="verified on ort-cpu, not on ort-cuda"):
        load(bundle).session("ort-cuda")


@pytest.mark.parametrize("runtime", ["ort-cpu", "ort-cpu-noopt", "onnx-reference"])
def test_it_replays_where_it_is_right(bundle, runtime):
    records = replay(bundle, (runtime,))
    cells = [one for one in records if isinstance(one, CellRecord)]
    assert {one.verdict for one in cells} == {"passed"}
    assert len(cells) == len(load(bundle).about.data)
    assert all(one.gates["noise"]["rms_z"] <= one.gates["noise"]["rms_z_limit"] for one in cells)
    assert run_of(records).exit_code == 0


def test_where_a_runtime_computes_in_fewer_bits_it_says_so_with_the_bits(bundle):
    pytest.importorskip("openvino", reason="openvino is not installed")
    (runtime,) = select(("openvino:CPU,INFERENCE_PRECISION_HINT=bf16",))
    if not runtime.availability().usable:
        pytest.skip(runtime.availability().remark)
    records = replay(bundle, ("openvino:CPU,INFERENCE_PRECISION_HINT=bf16",))
    cells = [one for one in records if isinstance(one, CellRecord)]
    if any("bf16" not in str(one.session) for one in cells):
        pytest.skip("this processor computes no bfloat16")
    assert run_of(records).exit_code == 1
    assert min(one.effective_bits for one in cells if one.effective_bits is not None) < 12


def test_a_runtime_that_is_not_here_is_told_and_required_ones_are_missed(bundle):
    records = replay(bundle, ("ort-cpu",), required=("ort:NoExecutionProvider",))
    assert run_of(records).exit_code == 3


# Nothing is deployed that is not proven


def test_records_of_other_bytes_prove_nothing(made, tmp_path):
    artifact, records = made
    other = tmp_path / "other.onnx"
    model = onnx.load(artifact.path)
    model.producer_name = "somebody else"
    onnx.save(model, other)
    with pytest.raises(NotProvenError, match="no record is about these bytes"):
        deploy(read_artifact(other), records, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_required_runtime_that_did_not_run_is_named(made, tmp_path):
    artifact, records = made
    with pytest.raises(NotProvenError, match="ort-cuda passed in no case"):
        deploy(artifact, records, tmp_path / "bundle", required=("ort-cuda",))


def test_a_failure_is_no_proof_known_or_not(tmp_path):
    artifact = next(
        one for one in export_entry(resolve("sdpa-unscaled"), tmp_path / "x") if isinstance(one, Artifact)
    )
    records = verify(artifact, runtimes=("ort-cpu",)).records
    with pytest.raises(NotProvenError, match="failed"):
        deploy(artifact, records, tmp_path / "bundle")
    forced = deploy(artifact, records, tmp_path / "bundle", force=True)
    assert "failed" in forced.about.unverified
    assert "**UNVERIFIED**" in (forced.folder / CARD).read_text()
    with pytest.raises(UsageError, match="is not verified"):
        forced.session()
    replayed = run_of(replay(forced.folder, ("onnx-reference",)))
    assert replayed.exit_code in (1, 3), "by force is never a pass"


OPTIONS = {"session.set_denormal_as_zero": "1", "graph_optimization_level": "ORT_DISABLE_ALL"}


def plain(tmp_path: Path, graph: str = "g (float[n, 4] x) => (float[n, 4] y) { y = Tanh (x) }") -> Artifact:
    (tmp_path / "in").mkdir(exist_ok=True)
    path = tmp_path / "in" / "m.onnx"
    text = f'<ir_version: 10, opset_import: ["": 18]> {graph}'
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return read_artifact(path)


def opened_with(patch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Return what sessions are opened with from now on, as far as it is in OPTIONS."""
    import onnxruntime

    seen = []
    real = onnxruntime.InferenceSession

    def session(source: Any, chosen: Any, **more: Any) -> Any:
        level = chosen.graph_optimization_level.name
        denormal = chosen.get_session_config_entry("session.set_denormal_as_zero")
        seen.append(dict(zip(OPTIONS, (denormal, level), strict=True)))
        return real(source, chosen, **more)

    patch.setattr(onnxruntime, "InferenceSession", session)
    return seen


def test_a_bundle_opens_with_the_session_options_of_its_records(tmp_path, monkeypatch, command):
    """Not with those that a runtime of that name has by itself: with them it was not verified."""
    artifact = plain(tmp_path)
    options = [word for key, value in OPTIONS.items() for word in ("--session-option", f"{key}={value}")]
    answer = command("verify", artifact.path, "--runtime", "ort-cpu", *options, "-o", tmp_path / "report")
    assert answer.code == 0, answer.err
    records = read_records(tmp_path / "report")
    assert {one.runtime: one.session_options for one in records if isinstance(one, CellRecord)} == {
        "ort-cpu": OPTIONS
    }
    made = deploy(artifact, records, tmp_path / "bundle")
    assert [one.session_options for one in made.about.verified] == [OPTIONS]
    assert "graph_optimization_level=ORT_DISABLE_ALL" in (made.folder / CARD).read_text()
    seen = opened_with(monkeypatch)
    made.session()
    assert seen == [OPTIONS]
    cells = [one for one in replay(made.folder) if isinstance(one, CellRecord)]
    assert {one.verdict for one in cells} == {"passed"}
    assert all(one.session_options == OPTIONS for one in cells)
    done = standalone(made.folder)
    assert done.returncode == 0, done
    assert "opened as ort-cpu was" in done.stdout


def test_options_that_are_not_the_same_everywhere_are_not_deployed(made, tmp_path):
    artifact, records = made

    def with_cells(**changes: Any) -> list[AnyRecord]:
        first = next(one for one in records if isinstance(one, CellRecord) and one.runtime == "ort-cpu")
        return [msgspec.structs.replace(one, **changes) if one is first else one for one in records]

    for changes, said in (
        ({"session_options": OPTIONS}, "other session options from case to case"),
        (
            {"session": {"custom_operators": "libmine.so"}},
            "the operators of libmine.so, which no bundle holds",
        ),
    ):
        with pytest.raises(NotProvenError, match=said):
            deploy(artifact, with_cells(**changes), tmp_path / "bundle")
    everywhere = [
        msgspec.structs.replace(one, session_options={"profile_file_prefix": "/tmp/x"})
        if isinstance(one, CellRecord)
        else one
        for one in records
    ]
    with pytest.raises(NotProvenError, match="profile_file_prefix, which names a file of that machine"):
        deploy(artifact, everywhere, tmp_path / "bundle")


def test_what_passed_in_fewer_bits_is_not_deployed_as_what_it_is_not(made, tmp_path):
    artifact, records = made

    def judged_as(name: str) -> list[AnyRecord]:
        return [
            msgspec.structs.replace(one, arithmetic=name)
            if isinstance(one, CellRecord) and one.runtime == "ort-cpu"
            else one
            for one in records
        ]

    for name in ("bf16", "tf32"):
        with pytest.raises(NotProvenError, match=f"ort-cpu passed as {name}, .* is for fp32, 24"):
            deploy(artifact, judged_as(name), tmp_path / "bundle")
    kept = deploy(artifact, judged_as("bf16"), tmp_path / "bundle", required=("onnx-reference",))
    assert [one.runtime for one in kept.about.verified] == ["onnx-reference"]
    with pytest.raises(UsageError, match="fp99"):
        deploy(artifact, judged_as("fp99"), tmp_path / "other")


def test_a_runtime_that_is_not_known_here_or_named_twice(made, tmp_path):
    """Of another machine's configuration: it passed there, which the bundle says, and is not opened from Python."""
    artifact, records = made
    other = [
        msgspec.structs.replace(one, runtime="mine")
        if isinstance(one, CellRecord) and one.runtime == "onnx-reference"
        else one
        for one in records
    ]
    bundle = deploy(artifact, other, tmp_path / "bundle", required=("ort-cpu", "mine", "ort-cpu"))
    assert [(one.runtime, one.provider) for one in bundle.about.verified] == [
        ("ort-cpu", "CPUExecutionProvider"),
        ("mine", ""),
    ]
    with pytest.raises(UsageError, match="verified on mine, and only sessions of ONNX Runtime are opened"):
        bundle.session("mine")
    replayed = [one for one in replay(bundle.folder) if isinstance(one, CellRecord)]
    assert {(one.runtime, one.verdict) for one in replayed} == {("ort-cpu", "passed"), ("mine", "skipped")}
    assert "unknown runtime mine" in next(one.reason for one in replayed if one.runtime == "mine")
    with pytest.raises(UsageError, match="unknown runtime mine"):
        replay(bundle.folder, required=("mine",))


def test_codes_of_a_quantiser_keep_their_bounds(tmp_path):
    """A number near the middle of two codes is either, as verify says; a replay without bounds failed what had passed."""
    graph = (
        "g (float[n, 64] x) => (uint8[n, 64] y, float s, uint8 z) "
        "{ a = Tanh (x) y, s, z = DynamicQuantizeLinear (a) }"
    )
    artifact = plain(tmp_path, graph)
    made = deploy(artifact, verify(artifact, runtimes=("ort-cpu",)).records, tmp_path / "bundle")
    held = [np.load(made.folder / name / "reference.npz") for name in made.about.data]
    assert any({"bound_0", "bound_2"} <= set(one) for one in held), "where a number is between two codes"
    assert not any("deviation_0" in one for one in held)
    assert run_of(replay(made.folder)).exit_code == 0
    assert standalone(made.folder).returncode == 0
    path = "test_data_set_0/reference.npz"
    resealed(made.folder, path, packed({**held[0], "value_0": held[0]["value_0"] ^ 64}))
    assert run_of(replay(made.folder)).exit_code == 1
    assert standalone(made.folder).returncode == 1


def test_a_file_that_changed_since_it_was_loaded_is_not_opened(copy):
    bundle = load(copy)
    bundle.session()
    (copy / MODEL).write_bytes((copy / MODEL).read_bytes() + b"\0")
    with pytest.raises(TamperedError, match=r"model\.onnx was changed since the bundle was loaded"):
        bundle.session()
    (copy / MODEL).unlink()
    with pytest.raises(UsageError, match="No such file"):
        bundle.session()


def test_no_other_runtime_stands_in_for_one_that_is_asked_for(bundle):
    """By force as well: a session on the CPU is none on a GPU."""
    with pytest.raises(UsageError, match="does not say how a session on ort-cuda is opened"):
        load(bundle).session("ort-cuda", allow_unverified=True)
    assert load(bundle).session(allow_unverified=True)


def test_sizes_that_only_another_runtime_passed_are_not_called_proven(made, tmp_path):
    artifact, records = made
    (first, *_) = [one for one in records if isinstance(one, CellRecord) and one.runtime == "onnx-reference"]
    case = msgspec.structs.replace(first.case, axes={"seq_len": 77_777})
    more = [
        msgspec.structs.replace(first, runtime="onnx-reference", case=case),
        msgspec.structs.replace(first, verdict="failed", reason="another row"),
    ]
    bundle = deploy(artifact, [*records, *more], tmp_path / "bundle")
    assert [one.runtime for one in bundle.about.verified] == ["ort-cpu"]
    assert "77777" not in (bundle.folder / CARD).read_text()


def test_a_bundle_is_never_written_over(made, bundle):
    artifact, records = made
    with pytest.raises(UsageError, match="is there already"):
        deploy(artifact, records, bundle)


WITH_WEIGHTS = (
    '<ir_version: 10, opset_import: ["": 18]> g (float[n, 2] x) => (float[n, 2] y) { y = Mul (x, w) }'
)


def with_weights_beside(path: Path, place: str = "w.bin") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    graph = onnx.parser.parse_model(WITH_WEIGHTS)
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2], np.float32), "w"))
    onnx.save(graph, path, save_as_external_data=True, location=place, size_threshold=0)
    return path


def test_weights_outside_the_folder_of_the_file_are_refused(tmp_path):
    inner = tmp_path / "inner"
    with_weights_beside(inner / "m.onnx")
    records = verify(inner / "m.onnx", runtimes=("ort-cpu",)).records
    kept = deploy(read_artifact(inner / "m.onnx"), records, tmp_path / "whole")
    assert kept.about.weights == ("w.bin",)
    assert standalone(kept.folder).returncode == 0
    assert (kept.folder / "w.bin").read_bytes() == (inner / "w.bin").read_bytes()
    assert kept.session().run(None, {"x": np.ones((3, 2), np.float32)})[0].tolist() == [[1.0, 2.0]] * 3
    (inner / "w.bin").rename(tmp_path / "w.bin")
    (inner / "w.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(UsageError, match=r"w\.bin"):
        deploy(read_artifact(inner / "m.onnx"), records, tmp_path / "linked")


def test_other_weights_beside_the_same_file_are_another_file(tmp_path):
    path = with_weights_beside(tmp_path / "in" / "m.onnx")
    records = verify(path, runtimes=("ort-cpu",)).records
    told = next(one for one in records if isinstance(one, ArtifactRecord))
    assert told.beside == {"w.bin": digest_of(tmp_path / "in" / "w.bin")}
    (path.parent / "w.bin").write_bytes(np.array([1, 3], np.float32).tobytes())
    with pytest.raises(NotProvenError, match="no record is about these bytes"):
        deploy(read_artifact(path), records, tmp_path / "bundle")


def test_a_bundle_whose_weights_are_others_is_about_another_file(tmp_path, command):
    path = with_weights_beside(tmp_path / "in" / "m.onnx")
    made = deploy(read_artifact(path), verify(path, runtimes=("ort-cpu",)).records, tmp_path / "bundle")
    resealed(made.folder, "w.bin", np.array([1, 3], np.float32).tobytes())
    command("replay", made.folder).assert_refused("about another file than model.onnx or its weights")
    assert standalone(made.folder).returncode == 2


@pytest.mark.parametrize(
    "place",
    ["BUNDLE.json", "Replay.py", "model.manifest.json", "bundle.json/w", "test_data_set_0/w", ".hidden"],
)
def test_weights_under_a_name_that_a_bundle_has_are_refused(tmp_path, place):
    (tmp_path / "in" / place).parent.mkdir(parents=True)
    path = with_weights_beside(tmp_path / "in" / "m.onnx", place)
    with pytest.raises(UsageError, match="a name that no bundle takes"):
        deploy(read_artifact(path), [], tmp_path / "bundle", force=True)
    assert not (tmp_path / "bundle").exists()


def test_a_run_that_did_not_come_to_its_end_proves_nothing(made, tmp_path):
    artifact, records = made
    (end,) = [one for one in records if isinstance(one, RunRecord)]
    others = [one for one in records if one is not end]
    with pytest.raises(NotProvenError, match="the records have no end"):
        deploy(artifact, others, tmp_path / "bundle")
    part = msgspec.structs.replace(end, part="interrupted by SIGTERM: cases are missing")
    with pytest.raises(NotProvenError, match="not of a whole run: interrupted by SIGTERM"):
        deploy(artifact, [*others, part], tmp_path / "bundle")
    shard = verify(artifact, runtimes=("ort-cpu",), plan=Plan(shard=Shard(1, 3))).records
    with pytest.raises(NotProvenError, match="not of a whole run: shard 1/3"):
        deploy(artifact, shard, tmp_path / "bundle")


def test_a_later_failure_of_the_same_file_counts(made, tmp_path):
    artifact, records = made
    own = next(one for one in records if isinstance(one, ArtifactRecord))
    failed = msgspec.structs.replace(own, verdict="failed", reason="the exporter dropped an axis")
    with pytest.raises(NotProvenError, match="the file itself failed: the exporter dropped an axis"):
        deploy(artifact, [*records, failed], tmp_path / "bundle")


def test_a_file_that_changes_meanwhile_is_noticed(made, tmp_path):
    given, records = made
    path = tmp_path / "in" / given.path.name
    path.parent.mkdir()
    shutil.copy(given.path, path)
    artifact = read_artifact(path)

    def change(step: str) -> None:
        if step == "writing the bundle":
            path.write_bytes(given.path.read_bytes() + b"\0")

    with pytest.raises(UsageError, match="was changed while it was bundled"):
        deploy(artifact, records, tmp_path / "bundle", on_step=change)
    assert not (tmp_path / "bundle").exists()


def test_what_a_file_was_held_against_is_said(made, tmp_path, command):
    """A file that passes against its own graph may be another than its module."""
    artifact, records = made
    cell = next(one for one in records if isinstance(one, CellRecord))
    exporter = msgspec.structs.replace(cell, runtime="exporter")
    with_module = deploy(artifact, [*records, exporter], tmp_path / "module")
    assert with_module.about.against == "module"
    assert "onnx-reference, and nowhere else.\n" in (with_module.folder / CARD).read_text()
    alone = with_weights_beside(tmp_path / "in" / "m.onnx")
    answer = command("deploy", alone, "-o", tmp_path / "alone")
    assert "verified on ort-cpu, against its own graph alone" in answer.out
    assert load(tmp_path / "alone").about.against == "graph"


# Integrity


@pytest.mark.parametrize("changes", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_changed_byte_anywhere_is_refused_with_the_file_named(copy, changes):
    draw = random.Random(7)
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    for _ in range(changes):
        path = draw.choice(files)
        place, flip = draw.randrange(path.stat().st_size), draw.randrange(1, 256)
        with path.open("r+b") as file:
            file.seek(place)
            (was,) = file.read(1)
            file.seek(place)
            file.write(bytes([was ^ flip]))
        with pytest.raises(TamperedError) as refused:
            load(copy)
        named = path.relative_to(copy).as_posix()
        assert named in str(refused.value) or path.name == LIST
        assert LIST in str(refused.value)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([was]))
    load(copy)


def test_what_is_no_bundle_is_refused_in_one_line(copy, command, tmp_path):
    command("replay", tmp_path / "nowhere").assert_refused(
        "nowhere is not there", "give the folder of a bundle"
    )
    (tmp_path / "empty").mkdir()
    command("replay", tmp_path / "empty").assert_refused("empty is no bundle: it holds no SHA256SUMS")
    (copy / MODEL).write_bytes(b"")
    command("replay", copy).assert_refused(MODEL, LIST)
    shutil.rmtree(copy)
    copy.mkdir()
    (copy / "a").write_text("x")
    (copy / LIST).write_bytes(list_of({"a": digest_of(copy / "a")}))
    command("replay", copy).assert_refused("no bundle", ABOUT)


# Without onnx-attest


def standalone(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", folder / REPLAY, *options], capture_output=True, text=True)


def test_it_replays_itself_with_numpy_and_onnx_runtime_alone(bundle):
    done = standalone(bundle)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"bundle {load(bundle).name}"
    assert sum(line.startswith("test_data_set_") and ": passed" in line for line in lines) == len(
        load(bundle).about.data
    )
    assert not list(bundle.rglob("__pycache__")), "it leaves nothing behind"
    program = (bundle / REPLAY).read_text()
    assert "onnx_attest" not in program.replace("onnx-attest", "")


EXAMPLES = Path(__file__).parent.parent / "examples"
INF, NAN, LARGEST = float("inf"), float("nan"), float(np.finfo(np.float32).max)
JUDGED = (
    # what it gives, what it should be, with which bound, and whether it is right
    (INF, INF, 0.0, True),
    (-INF, INF, 0.0, False),
    (INF, 1e60, 1e50, True),
    (-INF, 1e60, 1e50, False),
    (LARGEST, 1e60, 1e50, False),
    (INF, LARGEST, 1e37, True),
    (-INF, LARGEST, 1e37, False),
    (LARGEST, LARGEST * 1.0000001, 1e37, True),
    (NAN, NAN, NAN, True),
    (1.0, NAN, NAN, False),
    (NAN, 1.0, INF, False),
    (NAN, 1e60, 1e60, False),
    (-0.0, 0.0, 0.0, True),
    (1.0, 1.5, 1.0, True),
    (1.0, 2.5, 1.0, False),
    (1.0, 1.0, 0.0, True),
)


@pytest.mark.parametrize(("given", "value", "bound", "right"), JUDGED)
def test_both_replays_judge_an_element_alike(given, value, bound, right):
    actual, exact, allowed = np.array([given], np.float32), np.array([value]), np.array([bound])
    with np.errstate(invalid="ignore"):
        judgement = judge({"y": actual}, {"y": Bounded(exact, allowed)}, {"y": actual.dtype})
    assert (not judgement.findings) is right
    wrong, _ = standalone_program.judge(np, actual, "float32", exact, allowed)
    assert (not wrong) is right, wrong


def test_the_page_judges_an_element_as_the_replays_do(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    calls = ", ".join(f"ratioOf({g}, {v}, {b}, {LARGEST}) <= 1" for g, v, b, _ in JUDGED)
    calls = calls.replace("inf", "Infinity").replace("nan", "NaN")
    module = (EXAMPLES / "browser" / "bundle.mjs").as_uri()
    (tmp_path / "t.mjs").write_text(
        f'import {{ ratioOf }} from "{module}";\nconsole.log(JSON.stringify([{calls}]));'
    )
    done = subprocess.run([node, tmp_path / "t.mjs"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [right for *_, right in JUDGED]


def test_it_refuses_itself_when_changed_and_fails_when_the_file_is_another(copy):
    (copy / MODEL).write_bytes((copy / MODEL).read_bytes()[:-1])
    done = standalone(copy)
    assert (done.returncode, done.stdout) == (2, "")
    assert "model.onnx does not have the digest" in done.stderr


def test_both_replays_find_another_file_wrong(made, bundle, tmp_path):
    """The list of digests is right, the file is not: somebody who made a bundle of his own."""
    copy = with_other_weights(Path(shutil.copytree(bundle, tmp_path / "copy")))
    assert run_of(replay(copy, ("ort-cpu",))).exit_code == 1
    assert standalone(copy).returncode == 1


def test_a_provider_that_is_not_here_proves_nothing(bundle):
    done = standalone(bundle, "--provider", "NoExecutionProvider")
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("replay: this ONNX Runtime has no NoExecutionProvider; it has ")


def test_a_provider_that_runs_no_node_proves_nothing(bundle, capsys):
    """Some take any session and leave every node to the CPU: a profile of ONNX Runtime tells."""

    class Idle(onnxruntime.InferenceSession):
        def __init__(self, path: str, options: Any, **_: Any) -> None:
            super().__init__(path, options, providers=["CPUExecutionProvider"])

        def get_providers(self) -> list[str]:
            return ["IdleExecutionProvider", "CPUExecutionProvider"]

    library = SimpleNamespace(**vars(onnxruntime))
    library.InferenceSession = Idle
    library.get_available_providers = lambda: ["IdleExecutionProvider", "CPUExecutionProvider"]
    assert replay_alone(np, library, bundle, "IdleExecutionProvider") == 3
    said = capsys.readouterr()
    assert re.search(r"^nodes: \d+ on CPUExecutionProvider$", said.out, re.MULTILINE)
    assert said.err == "replay: IdleExecutionProvider ran none of the nodes: nothing is proven of it\n"


# What somebody else made: the digests hold, and what they cover is not what deploy writes


def resealed(folder: Path, path: str, data: bytes) -> Path:
    """Return the bundle with another file in it, and a list of digests that says so."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)
    files = [one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()]
    digests = {name: digest_of(folder / name) for name in files if name != LIST}
    (folder / LIST).write_bytes(list_of(digests))
    return folder


def with_other_weights(folder: Path) -> Path:
    """Return the bundle of another file, as somebody would make it who says that it was verified."""
    model = onnx.load(folder / MODEL)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            changed = onnx.numpy_helper.to_array(tensor) * np.float32(1 + 1e-4)
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    return with_model(folder, model)


def with_model(folder: Path, model: onnx.ModelProto) -> Path:
    data = model.SerializeToString()
    (folder / MODEL).write_bytes(data)
    about = json.loads((folder / ABOUT).read_text())
    return resealed(folder, ABOUT, edited(about, ("sha256", hashlib.sha256(data).hexdigest())))


def edited(about: dict[str, Any], *changes: tuple[str, Any]) -> bytes:
    for where, value in changes:
        at: Any = about
        *path, last = where.split(".")
        for part in path:
            at = at[int(part)] if part.isdigit() else at[part]
        at[last] = value
    return json.dumps(about).encode()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("opset", "eighteen")], "opset"),
        ([("schema", 2)], "another version than 1"),
        ([("schema", 10**400)], "another version than 1"),
        ([("opset", 1e308)], "opset"),
        ([("inputs", {})], "inputs"),
        ([("inputs.0.dtype", "float99")], "unknown dtype 'float99'"),
        ([("outputs.0.dtype", "object_")], "unknown dtype 'object_'"),
        ([("inputs.0.axes", ["batch"])], "has the shape"),
        ([("inputs.0.axes", ["batch", "seq_len", 7])], "has the shape"),
        ([("inputs.0.name", None)], "name"),
        ([("arithmetic", "fp99")], "fp99"),
        ([("sha256", "0" * 64)], "about another file than model.onnx"),
        ([("data", ["../outside"])], "'../outside', which is no set of test data"),
        ([("data", ["/etc"])], "no set of test data"),
        ([("data", ["test_data_set_0/../../x"])], "no set of test data"),
        ([("data", ["test_data_set_99"])], "test_data_set_99"),
        ([("verified.0.session_options", {"optimized_model_filepath": "x"})], "a file of some machine"),
        ([("verified.0.session_options", {"ep.context_file_path": "x"})], "a file of some machine"),
        ([("verified.0.session_options", {"enable_profiling": "1"})], "a file of some machine"),
        ([("verified.0.session_options", {"no_such": "1"})], "no 'no_such'"),
        ([("verified.0.provider_options", {"cache_dir": "x"})], "a file of some machine"),
    ],
)
def test_a_manifest_that_deploy_does_not_write_is_refused(copy, command, changes, said):
    data = edited(json.loads((copy / ABOUT).read_text()), *changes)
    command("replay", resealed(copy, ABOUT, data)).assert_refused(said)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"null", b"[]", b'{"schema": 1', b"[" * 100_000, b'{"schema": 1e999}']
)
def test_a_manifest_that_is_none_is_refused(copy, command, data):
    command("replay", resealed(copy, ABOUT, data)).assert_refused("no bundle", ABOUT)
    done = standalone(copy)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done


def packed(arrays: dict[str, Any], **options: Any) -> bytes:
    out = BytesIO()
    np.savez(out, **arrays, **options)
    return out.getvalue()


def without(held: dict[str, Any], name: str) -> bytes:
    return packed({key: value for key, value in held.items() if key != name})


def compressed(held: dict[str, Any]) -> bytes:
    out = BytesIO()
    np.savez_compressed(out, **held)
    return out.getvalue()


def claiming(shape: str, held: dict[str, Any]) -> bytes:
    """Return an archive in which an array says that it is larger than what is there."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive, zipfile.ZipFile(BytesIO(packed(held))) as given:
        for name in given.namelist():
            data = given.read(name)
            if name == "input_0.npy":
                header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
                data = data[:10] + header.encode() + data[128:]
            archive.writestr(name, data)
    return out.getvalue()


MALFORMED: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "empty": lambda held: b"",
    "no archive": lambda held: b"PK\x03\x04" * 9,
    "cut": lambda held: packed(held)[:-100],
    "lacks an input": lambda held: without(held, "input_0"),
    "lacks a value": lambda held: without(held, "value_0"),
    "objects": lambda held: packed({**held, "value_0": np.array([{"a": 1}], object)}),
    "bounds of another shape": lambda held: packed({**held, "bound_0": np.zeros(3)}),
    "another rank": lambda held: packed({**held, "input_0": np.zeros(3, np.float32)}),
    "limits of no size": lambda held: packed({**held, "limits": np.zeros(0)}),
    "text": lambda held: packed({**held, "limits": np.array(["a", "b"])}),
    "limits of NaN": lambda held: packed({**held, "limits": np.array([np.nan, np.nan])}),
    "no limit of noise": lambda held: packed({**held, "limits": np.array([np.inf, np.inf])}),
    "bounds of NaN": lambda held: packed({**held, "bound_0": np.full_like(held["bound_0"], np.nan)}),
    "negative bounds": lambda held: packed({**held, "bound_0": -held["bound_0"]}),
    "deviations of NaN": lambda held: packed(
        {**held, "deviation_0": np.full_like(held["deviation_0"], np.nan)}
    ),
    "compressed": compressed,
    "larger than memory": lambda held: claiming("(1000000, 1000000, 1000)", held),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_test_data_that_deploy_does_not_write_are_refused(copy, command, kind):
    path = "test_data_set_0/reference.npz"
    with np.load(copy / path) as file:
        held = dict(file)
    resealed(copy, path, MALFORMED[kind](held))
    command("replay", copy, "--runtime", "ort-cpu").assert_refused(f"{path} is no test data")


@pytest.mark.parametrize(
    "kind", [kind for kind in MALFORMED if "NaN" in kind or kind in ("no limit of noise", "negative bounds")]
)
def test_the_bundle_s_own_program_refuses_bounds_that_nothing_is_beyond(copy, kind):
    path = "test_data_set_0/reference.npz"
    with np.load(copy / path) as file:
        held = dict(file)
    done = standalone(resealed(copy, path, MALFORMED[kind](held)))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done


def test_outputs_without_a_bound_prove_nothing_in_either_replay(copy, command):
    """Wrong numbers that nothing bounds are inconclusive, not right."""
    with_other_weights(copy)
    for folder in sorted(copy.glob("test_data_set_*")):
        with np.load(folder / "reference.npz") as file:
            held = {name: array for name, array in file.items() if name not in ("limits", "floor")}
        held |= {name: np.full_like(held[name], np.inf) for name in ("bound_0", "bound_1")}
        kept = {name: array for name, array in held.items() if not name.startswith("deviation_")}
        resealed(copy, f"{folder.name}/reference.npz", packed(kept))
    assert command("replay", copy, "--runtime", "ort-cpu").code == 3
    done = standalone(copy)
    assert done.returncode == 3, done
    assert "test_data_set_0: inconclusive: elements without a bound" in done.stdout


def test_an_output_of_another_dtype_is_wrong_in_either_replay(copy, command):
    """Even if it is as near as its bound."""
    model = onnx.load(copy / MODEL)
    inner = next(node for node in model.graph.node if "output" in node.output)
    inner.output[list(inner.output).index("output")] = "before"
    model.graph.node.append(onnx.helper.make_node("Cast", ["before"], ["output"], to=onnx.TensorProto.DOUBLE))
    next(
        one for one in model.graph.output if one.name == "output"
    ).type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with_model(copy, model)
    answer = command("replay", copy, "--runtime", "ort-cpu")
    assert answer.code == 1
    done = standalone(copy)
    assert done.returncode == 1, done
    assert "output: float64 (" in done.stdout


def test_both_replays_refuse_a_list_that_is_a_link_and_empty_folders(copy, command, tmp_path):
    (copy / "empty").mkdir()
    command("replay", copy).assert_refused("empty is an empty folder")
    done = standalone(copy)
    assert (done.returncode, done.stderr) == (2, "replay: empty is an empty folder\n")
    (copy / "empty").rmdir()
    (copy / LIST).rename(tmp_path / LIST)
    (copy / LIST).symlink_to(tmp_path / LIST)
    command("replay", copy).assert_refused(f"{LIST} is no regular file")
    done = standalone(copy)
    assert (done.returncode, done.stderr) == (2, f"replay: {LIST} is not there, or is no file\n")


def run(program: list[Any], **variables: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **variables}
    return subprocess.run(program, capture_output=True, text=True, env=given, check=False)


def test_the_bundle_s_own_program_reads_names_of_any_script_whatever_the_locale(tmp_path):
    artifact = plain(tmp_path)
    model = onnx.load(artifact.path)
    model.graph.input[0].name = model.graph.node[0].input[0] = "größe→"
    model.graph.output[0].name = model.graph.node[0].output[0] = "wörter\u2028"
    onnx.save(model, artifact.path)
    folder = deploy(read_artifact(artifact.path), [], tmp_path / "bundle", force=True).folder
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    resealed(folder, ABOUT, json.dumps({**about, "unverified": "größe→"}, ensure_ascii=False).encode())
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = run([sys.executable, folder / REPLAY], **ascii_only)
    assert (done.returncode, done.stderr) == (3, "")
    assert "UNVERIFIED: gr\\xf6\xdfe".replace("\xdf", "\\xdf") in done.stdout
    with np.load(folder / "test_data_set_0" / "reference.npz") as file:
        held = dict(file)
    resealed(folder, "test_data_set_0/reference.npz", packed({**held, "value_0": held["value_0"] + 1}))
    failed = run([sys.executable, folder / REPLAY], **ascii_only)
    assert failed.returncode == 1, failed
    assert "test_data_set_0: failed: w\\xf6rter" in failed.stdout


def test_what_lies_beside_the_bundle_s_own_program_is_found_and_not_run(copy):
    for name in ("json", "argparse", "numpy"):
        (copy / f"{name}.py").write_text("print('run')\nraise SystemExit(0)\n")
    done = run([sys.executable, copy / REPLAY])
    assert (done.returncode, done.stdout) == (2, "")
    assert "argparse.py is not in SHA256SUMS" in done.stderr


def test_folders_in_folders_without_end_are_refused_in_either_replay(copy, command):
    path = copy
    for _ in range(1100):  # as deep as a path may be long; more than Python calls functions in functions
        path /= "d"
        path.mkdir()
    (path / "f").touch()
    try:
        command("replay", copy).assert_refused("is not in SHA256SUMS")
        done = standalone(copy)
        assert (done.returncode, done.stdout) == (2, "")
        assert "is not in SHA256SUMS" in done.stderr
    finally:  # what removes folders of tests calls itself
        (path / "f").unlink()
        while path != copy:
            path.rmdir()
            path = path.parent


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4"])
def test_what_numpy_has_no_numbers_for_is_told(copy, dtype):
    about = json.loads((copy / ABOUT).read_text())
    done = standalone(resealed(copy, ABOUT, edited(about, ("inputs.0.dtype", dtype))))
    assert (done.returncode, done.stderr) == (2, f"replay: NumPy has no {dtype}; use onnx-attest replay\n")


def test_nothing_is_written_into_a_bundle(copy, command, made, tmp_path):
    artifact, records = made
    before = sorted(copy.rglob("*"))
    (tmp_path / "link").symlink_to(copy)
    inside = ("is inside of the bundle", "choose another place with -o")
    command("replay", copy, "--runtime", "ort-cpu", "-o", copy / "report").assert_refused(*inside)
    command("replay", copy, "--runtime", "ort-cpu", "-o", copy).assert_refused(*inside)
    command("replay", copy, "--runtime", "ort-cpu", "-o", tmp_path / "link" / "a" / "report").assert_refused(
        *inside
    )
    command("verify", copy / MODEL, "--runtime", "ort-cpu", "-o", copy / "report").assert_refused(*inside)
    command("convert", copy / MODEL, "--to", "fp16", "-o", copy / "half.onnx").assert_refused(*inside)
    with pytest.raises(UsageError, match="is inside of the bundle"):
        deploy(artifact, records, copy / "another")
    assert sorted(copy.rglob("*")) == before
    assert load(copy)


def test_weights_that_lie_elsewhere_are_refused(copy, command, tmp_path):
    (tmp_path / "w.bin").write_bytes(np.ones(2, np.float32).tobytes())
    graph = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[n, 2] x) => (float[n, 2] y) { y = Mul (x, w) }'
    )
    tensor = onnx.numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    graph.graph.initializer.append(tensor)
    for place in ("../w.bin", str(tmp_path / "w.bin"), "test_data_set_0/../../w.bin", "lacking.bin"):
        held = graph.graph.initializer[0]
        held.ClearField("raw_data")
        held.data_location = onnx.TensorProto.EXTERNAL
        del held.external_data[:]
        held.external_data.add(key="location", value=place)
        with_model(copy, graph)
        with pytest.raises(TamperedError, match="keeps weights in"):
            load(copy)
        command("replay", copy).assert_refused("keeps weights in", repr(place))


def test_a_bundle_without_test_data_proves_nothing(copy, command):
    resealed(copy, ABOUT, edited(json.loads((copy / ABOUT).read_text()), ("data", [])))
    assert command("replay", copy, "--runtime", "ort-cpu").code == 3
    assert standalone(copy).returncode == 3


def test_by_force_is_never_a_pass_in_the_bundle_s_own_program_either(made, tmp_path):
    artifact, _ = made
    forced = deploy(artifact, [], tmp_path / "bundle", force=True)
    done = standalone(forced.folder)
    assert done.returncode == 3
    assert "UNVERIFIED" in done.stdout


def test_a_replay_leaves_a_bundle_as_it_was(bundle, command, tmp_path):
    """So that it may lie on what cannot be written."""
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in bundle.rglob("*")}
    assert command("replay", bundle, "--runtime", "ort-cpu", "-o", tmp_path / "report").code == 0
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in bundle.rglob("*")}


def test_a_full_disk_leaves_nothing(made, tmp_path, monkeypatch):
    artifact, records = made

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UnwritableError, match="No space left on device; nothing was written"):
        deploy(artifact, records, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


# The target


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx", "onnxscript", "onnx_ir", "ml_dtypes", "openvino"):
            raise ModuleNotFoundError(f"No module named {name!r}, and none is needed", name=name)

sys.meta_path.insert(0, Blocked())
sys.argv = ["onnx-attest", *sys.argv[1:]]
from onnx_attest.verify.cli import main
main()
"""


def test_replay_needs_neither_torch_nor_onnx(bundle):
    python = [sys.executable, "-c", BLOCKED, "replay", bundle, "--runtime", "ort-cpu"]
    done = subprocess.run(python, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| ort-cpu | " in done.stdout


@pytest.mark.slow
def test_replay_in_an_environment_without_torch_takes_three_seconds(bundle, tmp_path):
    """Of processor time, of all its processes: what a machine does beside is not the program's."""
    venv.create(tmp_path / "target", with_pip=True)
    python = tmp_path / "target" / "bin" / "python"
    root = Path(__file__).parent.parent
    install = [python, "-m", "pip", "install", "--quiet", f"{root}[cpu]"]
    if subprocess.run(install, capture_output=True, check=False).returncode:
        pytest.skip("there is no registry of packages to install from")
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 1
    replayed = [python, "-m", "onnx_attest", "replay", bundle, "--runtime", "ort-cpu"]
    subprocess.run(replayed, cwd=tmp_path, capture_output=True, check=False)  # compiles what it imports
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(replayed, cwd=tmp_path, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 3


@pytest.mark.slow
def test_replay_says_where_nodes_ran_in_how_many_bits_and_how_fast(bundle, command):
    answer = command("replay", bundle, "--runtime", "ort-cpu", "--latency")
    assert answer.code == 0, answer.err
    (line,) = [line for line in answer.out.splitlines() if line.startswith("| ort-cpu |")][-1:]
    runtime, passed, nodes, bits, _, call = [cell.strip() for cell in line.strip("|").split("|")]
    count = len(load(bundle).about.data)
    assert (runtime, passed) == ("ort-cpu", f"{count} of {count}")
    assert re.fullmatch(r"\d+ on CPUExecutionProvider", nodes)
    assert float(bits) >= 23
    assert re.fullmatch(r"[\d.]+ (ns|µs|us|ms|s)", call)


# Conversions


@pytest.mark.slow
def test_the_card_of_a_conversion_says_what_it_cost(made, tmp_path):
    """Verified twice: runtimes against its own graph, its graph against the file that it was made from."""
    artifact, _ = made
    half = convert(artifact, "fp16", tmp_path / "half.onnx")
    records = verify(half, runtimes=("ort-cpu",)).records
    bundle = deploy(half, list(records), tmp_path / "bundle", original=artifact)
    assert bundle.about.converted_from == artifact.sha256
    text = (bundle.folder / CARD).read_text()
    assert f"Converted from the file with the sha256 `{artifact.sha256}`" in text
    assert "same argmax" in text
    assert "**Verified** on ort-cpu" in text


# The examples


def test_the_example_serves_a_bundle_and_refuses_a_changed_one(bundle, copy, tmp_path):
    with np.load(bundle / "test_data_set_1" / "reference.npz") as file:
        names = [one.name for one in load(bundle).about.inputs]
        np.savez(
            tmp_path / "inputs.npz", **{name: file[f"input_{index}"] for index, name in enumerate(names)}
        )
        value = file["value_0"]

    def serve(folder: Path, inputs: str = "inputs.npz") -> subprocess.CompletedProcess[str]:
        program = [
            sys.executable,
            EXAMPLES / "serve_bundle.py",
            folder,
            tmp_path / inputs,
            tmp_path / "o.npz",
        ]
        return subprocess.run(program, capture_output=True, text=True, check=False)

    done = serve(bundle)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"served {load(bundle).name[:12]} on CPUExecutionProvider")
    with np.load(tmp_path / "o.npz") as outputs:
        assert np.abs(outputs["output"] - value).max() < 1e-5
    lacking = serve(bundle, "lacking.npz")
    assert (lacking.returncode, lacking.stdout, lacking.stderr.count("\n")) == (1, "", 1)
    (copy / MODEL).write_bytes((copy / MODEL).read_bytes()[:-1])
    assert (serve(copy).returncode, serve(copy).stdout) == (1, "")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    yield from opened()


@pytest.fixture
def page(browser, tmp_path) -> Iterator[Callable[[Path], str]]:
    """Serve the example's page with a bundle, and return what it shows."""
    package = web_folder() / "node_modules" / "onnxruntime-web" / "dist"
    if not package.is_dir():
        pytest.skip("the npm package onnxruntime-web is not installed: make web")
    site = Path(shutil.copytree(EXAMPLES / "browser", tmp_path / "site"))
    (site / "ort").symlink_to(package)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def show(bundle: Path) -> str:
        (site / "bundle").unlink(missing_ok=True)
        (site / "bundle").symlink_to(bundle)
        browser.load(f"http://127.0.0.1:{server.server_port}/")
        for _ in range(300):
            if browser.script("return document.body?.dataset.done ?? ''"):
                break
            time.sleep(0.1)
        return str(browser.script("return document.querySelector('pre').textContent"))

    yield show
    server.shutdown()
    server.server_close()


def test_the_example_page_replays_a_bundle_in_the_browser(page, bundle, copy):
    lines = page(bundle).splitlines()
    about = load(bundle).about
    assert lines[0] == f"bundle {load(bundle).name}"
    assert [line.partition(":")[0] for line in lines[1:]] == list(about.data)
    assert all(": passed, largest error " in line for line in lines[1:]), lines
    (copy / MODEL).write_bytes((copy / MODEL).read_bytes()[:-1])
    assert page(copy).startswith("refused: model.onnx does not have the digest")


@pytest.mark.slow
def test_the_example_page_finds_another_file_wrong(page, copy):
    with_other_weights(copy)
    assert ": failed: " in page(copy)


@pytest.mark.slow
def test_the_example_page_opens_nothing_that_is_unverified(page, made, tmp_path):
    artifact, _ = made
    forced = deploy(artifact, [], tmp_path / "bundle", force=True)
    assert page(forced.folder).startswith("refused: the bundle is unverified")


# The commands


def test_the_commands(made, command, tmp_path):
    artifact, records = made
    (tmp_path / "records.jsonl").write_bytes(encode(records))
    answer = command("deploy", artifact.path, "--records", tmp_path / "records.jsonl", "-o", tmp_path / "b")
    assert answer.code == 0, answer.err
    assert answer.out.split()[0] == load(tmp_path / "b").name
    assert "verified on ort-cpu, onnx-reference" in answer.out
    again = command("replay", tmp_path / "b", "--runtime", "ort-cpu", "--json")
    assert again.code == 0
    command("deploy", artifact.path, "-o", tmp_path / "b").assert_refused("is there already")
