"""From a verified file to a bundle that proves itself: refused without proof, whole or refused, replayed anywhere."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_attest.errors import UsageError
from onnx_attest.export.api import export_entry
from onnx_attest.export.artifact import Artifact, read_artifact
from onnx_attest.export.bundle import ABOUT, CARD, MODEL, REPLAY, load
from onnx_attest.export.checksums import LIST, TamperedError, digest_of, list_of
from onnx_attest.models.entry import resolve
from onnx_attest.verify.api import verify
from onnx_attest.verify.deploy.proof import NotProvenError
from onnx_attest.verify.deploy.replay import replay
from onnx_attest.verify.deploy.write import deploy
from onnx_attest.verify.records import AnyRecord, CellRecord, RunRecord, encode


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
    assert text.startswith("# sdpa\n\n**Verified** on ort-cpu, onnx-reference, and nowhere else.")
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
    from onnx_attest.verify.runtimes.registry import select

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


def test_a_bundle_is_never_written_over(made, bundle):
    artifact, records = made
    with pytest.raises(UsageError, match="is there already"):
        deploy(artifact, records, bundle)


def test_weights_outside_the_folder_of_the_file_are_refused(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    graph = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[n, 2] x) => (float[n, 2] y) { y = Mul (x, w) }'
    )
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2], np.float32), "w"))
    onnx.save(graph, inner / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    records = verify(inner / "m.onnx", runtimes=("ort-cpu",)).records
    kept = deploy(read_artifact(inner / "m.onnx"), records, tmp_path / "whole")
    assert (kept.folder / "w.bin").read_bytes() == (inner / "w.bin").read_bytes()
    assert kept.session().run(None, {"x": np.ones((3, 2), np.float32)})[0].tolist() == [[1.0, 2.0]] * 3
    (inner / "w.bin").rename(tmp_path / "w.bin")
    (inner / "w.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(UsageError, match=r"w\.bin"):
        deploy(read_artifact(inner / "m.onnx"), records, tmp_path / "linked")


# Integrity


def test_a_changed_byte_anywhere_is_refused_with_the_file_named(copy):
    draw = random.Random(7)
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    for _ in range(1000):
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
    command("replay", tmp_path / "nowhere").assert_refused("nowhere", "give the folder of a bundle")
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


def test_it_refuses_itself_when_changed_and_fails_when_the_file_is_another(copy):
    (copy / MODEL).write_bytes((copy / MODEL).read_bytes()[:-1])
    done = standalone(copy)
    assert (done.returncode, done.stdout) == (2, "")
    assert "model.onnx does not have the digest" in done.stderr


def test_both_replays_find_another_file_wrong(made, bundle, tmp_path):
    """The list of digests is right, the file is not: somebody who made a bundle of his own."""
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    model = onnx.load(copy / MODEL)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            changed = onnx.numpy_helper.to_array(tensor) * np.float32(1 + 1e-4)
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    onnx.save(model, copy / MODEL)
    names = [
        path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file() and path.name != LIST
    ]
    (copy / LIST).write_bytes(list_of({name: digest_of(copy / name) for name in names}))
    assert run_of(replay(copy, ("ort-cpu",))).exit_code == 1
    assert standalone(copy).returncode == 1


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
