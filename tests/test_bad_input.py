"""Bad files, manifests and folders: one line that says what is wrong and what to do, exit 2, nothing written over."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import masked_attention
from onnx import TensorProto, helper, numpy_helper

from onnx_attest.errors import UnwritableError, UsageError
from onnx_attest.export import export_entry
from onnx_attest.export.artifact import (
    Artifact,
    Asked,
    Got,
    Manifest,
    digest,
    manifest_path,
    read_artifact,
    write_artifact,
    write_whole,
)
from onnx_attest.models import Contract, TensorSpec, resolve
from onnx_attest.verify import verify
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.job import Job, run_job
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import encode
from onnx_attest.verify.report import write_reports
from onnx_attest.verify.signature import read_signature
from onnx_attest.verify.task import Task, run_task

ATTENTION = masked_attention("q")
DOUBLE = "double (float[n, 4] x) => (float[n, 4] y) { y = Add (x, x) }"
REFERENCE = ("--runtime", "onnx-reference")


@pytest.fixture
def double(onnx_file) -> Path:
    return onnx_file(DOUBLE)


def tensor(name: str, dtype: int = TensorProto.FLOAT, axes: Any = ("n",)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, axes)


def save(path: Path, inputs: list, outputs: list, nodes: list, constants: tuple = ()) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


ADD = [helper.make_node("Add", ["x", "x"], ["y"])]


# --- the file ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["is empty"]),
        (b"hello, this is text\n", ["not a complete ONNX file", "another format"]),
        (random.Random(0).randbytes(5000), ["not a complete ONNX file"]),
        (b"\x80\x04]q\x00.", ["not a complete ONNX file"]),
        (b"PK\x03\x04" + b"\0" * 100, ["not a complete ONNX file"]),
    ],
    ids=["empty", "text", "random", "pickle", "zip"],
)
# onnx would read these as text formats, by their names alone.
@pytest.mark.parametrize("suffix", [".onnx", ".json", ".textproto", ".onnxtxt", ""])
def test_file_that_is_not_onnx(command, tmp_path, data, words, suffix):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(data)
    command("verify", path).assert_refused(str(path), *words)


@pytest.mark.parametrize("suffix", [".json", ".onnxtxt", ""])
def test_onnx_file_of_another_name_is_read(command, onnx_file, suffix):
    assert command("verify", onnx_file(DOUBLE, f"model{suffix}"), *REFERENCE).code == 0


def test_missing_file(command, tmp_path):
    command("verify", tmp_path / "nowhere.onnx").assert_refused(
        "nowhere.onnx", "No such file", "give the path"
    )


def test_directory(command, tmp_path):
    command("verify", tmp_path).assert_refused("is a directory", "give the .onnx file in it")


def test_pipe(command, tmp_path):
    """It would be waited for: nobody may ever write to it."""
    pipe = tmp_path / "model.onnx"
    os.mkfifo(pipe)
    command("verify", pipe).assert_refused("is a pipe or a device")


def test_file_below_a_file(command, double):
    command("verify", double / "model.onnx").assert_refused("Not a directory")


def test_loop_of_links(command, tmp_path):
    (tmp_path / "a.onnx").symlink_to("b.onnx")
    (tmp_path / "b.onnx").symlink_to("a.onnx")
    command("verify", tmp_path / "a.onnx").assert_refused("a.onnx", "symbolic links")


def test_name_that_is_too_long(command):
    command("verify", "n" * 300 + ".onnx").assert_refused("File name too long")


def test_name_too_long_for_a_manifest_is_a_file_without_one(command, onnx_file):
    path = onnx_file(DOUBLE, "n" * 245 + ".onnx")
    assert command("verify", path, *REFERENCE).code == 0


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="needs /proc/self/mem, which opens and cannot be read"
)
def test_file_that_cannot_be_read(command):
    command("verify", "/proc/self/mem").assert_refused("cannot read /proc/self/mem")


def assert_not_taken_for_a_file(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(UsageError, match=re.escape(str(path))):
        read_signature(read_artifact(path))


def test_no_prefix_of_a_file_is_taken_for_it(onnx_file):
    path = onnx_file(ATTENTION)
    whole = path.read_bytes()
    for length in range(len(whole)):
        assert_not_taken_for_a_file(path, whole[:length])


@pytest.fixture(scope="module")
def multi_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported file."""
    folder = tmp_path_factory.mktemp("exported")
    (artifact,) = export_entry(resolve("mha"), folder, variants=("attention",), opset=23)
    assert isinstance(artifact, Artifact)
    return artifact.path


@pytest.mark.slow
def test_no_prefix_of_an_exported_file_is_taken_for_it(multi_head, tmp_path):
    whole = multi_head.read_bytes()
    ends = (
        *range(1, 400),
        *range(len(whole) - 400, len(whole)),
    )  # they hold the structure; between are weights
    for length in (*ends, *range(400, len(whole) - 400, 499)):
        assert_not_taken_for_a_file(tmp_path / "cut.onnx", whole[:length])


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_truncated_file_is_said_in_one_line(command, multi_head, tmp_path, share):
    path = tmp_path / "cut.onnx"
    whole = multi_head.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    command("verify", path).assert_refused("cut.onnx is not a complete ONNX file", "truncated")


@pytest.mark.parametrize("count", [40, pytest.param(150, marks=pytest.mark.slow)])
def test_damaged_file_gives_a_verdict_or_one_line(command, onnx_file, count):
    path = onnx_file(ATTENTION)
    whole = path.read_bytes()
    source = random.Random(1)
    for _ in range(count):
        damaged = bytearray(whole)
        damaged[source.randrange(len(whole))] = source.randrange(256)
        path.write_bytes(damaged)
        answer = command("verify", path, *REFERENCE, "--input-shapes", "q:[2,3,4]")
        if answer.code == 2:
            answer.assert_refused()
        assert answer.code in (0, 1, 2, 3)


# --- the graph --------------------------------------------------------------------------------------------------


def test_graph_without_outputs(command, onnx_file):
    command("verify", onnx_file("g (float[n] x) => () { y = Add (x, x) }")).assert_refused("no output")


def test_sequence_as_input(command, onnx_file):
    path = onnx_file("g (seq(float[n]) x) => (int64 y) { y = SequenceLength (x) }")
    command("verify", path).assert_refused("x is no tensor", "can be fed")


@pytest.mark.parametrize(("dtype", "word"), [("string", "text"), ("complex64", "complex64")])
def test_tensor_without_numbers(command, onnx_file, dtype, word):
    path = onnx_file(f"g ({dtype}[n] x) => ({dtype}[n] y) {{ y = Identity (x) }}")
    command("verify", path).assert_refused("x is a tensor of", word)


def test_tensor_of_no_type(command, tmp_path):
    path = save(tmp_path / "m.onnx", [tensor("x", TensorProto.UNDEFINED)], [tensor("y")], ADD)
    command("verify", path).assert_refused("x is no tensor")


def test_name_that_is_not_text(command, double):
    double.write_bytes(double.read_bytes().replace(b"\x01n", b"\x01\xff"))
    command("verify", double).assert_refused("is not text", "Export it again")


def test_output_that_is_an_input(command, tmp_path):
    path = save(tmp_path / "m.onnx", [tensor("x")], [tensor("x")], [])
    command("verify", path).assert_refused("x is listed twice")


def test_output_listed_twice(command, tmp_path):
    path = save(tmp_path / "m.onnx", [tensor("x")], [tensor("y"), tensor("y")], ADD)
    command("verify", path).assert_refused("y is listed twice")


def test_size_of_minus_one_is_an_open_axis(command, tmp_path):
    path = save(tmp_path / "m.onnx", [tensor("x", axes=[-1, 4])], [tensor("y", axes=[-1, 4])], ADD)
    assert command("verify", path, *REFERENCE).code == 0


def test_empty_outputs_prove_nothing(command, tmp_path):
    path = save(tmp_path / "m.onnx", [tensor("x", axes=[0, 4])], [tensor("y", axes=[0, 4])], ADD)
    answer = command("verify", path, *REFERENCE)
    assert answer.code == 3
    assert "every output is empty" in answer.out


def test_fixed_sizes_beyond_all_memory(command, tmp_path):
    huge = [10**9, 10**5]
    path = save(tmp_path / "m.onnx", [tensor("x", axes=huge)], [tensor("y", axes=huge)], ADD)
    command("verify", path, *REFERENCE).assert_refused("x:[1000000000,100000]", "GB are free")


@pytest.mark.parametrize("length", [2, 7], ids=["one size of several", "no size that was guessed"])
def test_traced_length_baked_into_a_reshape(command, tmp_path, length):
    """A dynamic axis that takes one size is an error of the file, whichever size that is: the graph says so."""
    sizes = (
        numpy_helper.from_array(np.array([4 * length]), "s"),
        numpy_helper.from_array(np.array([length, 4]), "r"),
    )
    nodes = [helper.make_node("Reshape", ["x", "s"], ["t"]), helper.make_node("Reshape", ["t", "r"], ["y"])]
    axes = {"axes": ["n", 4]}
    path = save(tmp_path / "m.onnx", [tensor("x", **axes)], [tensor("y", **axes)], nodes, sizes)
    answer = command("verify", path, *REFERENCE)
    assert (answer.code, "OA121" in answer.out) == (1, True)
    assert answer.out.startswith("**failed**")


def test_half_precision_is_not_judged_by_the_bounds_of_single(command, onnx_file):
    path = onnx_file("g (float16[n, 9] x) => (float16[n, n] y) { t = Transpose (x) y = MatMul (x, t) }")
    assert command("verify", path, *REFERENCE).code == 0
    # Held to single precision, the same file fails: it is the bound that makes the difference.
    assert command("verify", path, *REFERENCE, "--arithmetic", "fp32").code == 1


def external(folder: Path, location: str, data: bytes | None = None) -> Path:
    weight = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    if data is not None:
        (folder / location).write_bytes(data)
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    axes = {"axes": ["n", 4]}
    return save(folder / "m.onnx", [tensor("x", **axes)], [tensor("y", **axes)], nodes, (weight,))


def test_missing_external_data(command, tmp_path):
    command("verify", external(tmp_path, "weights.bin")).assert_refused("weights.bin")


def test_truncated_external_data(command, tmp_path):
    command("verify", external(tmp_path, "weights.bin", b"1234567")).assert_refused(
        "constant", "export it again"
    )


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", ""])
def test_external_data_outside_the_folder(command, tmp_path, location):
    command("verify", external(tmp_path, location)).assert_refused("m.onnx")


# --- the manifest -----------------------------------------------------------------------------------------------


def manifest_of(data: bytes, **changes: Any) -> Manifest:
    inputs, outputs = (TensorSpec("x", ("n", 4)),), (TensorSpec("y", ("n", 4), role="output"),)
    fields: dict[str, Any] = {
        "model": "double",
        "variant": "decomposed",
        "dtype": "float32",
        "arithmetic": "fp32",
        "sha256": digest(data),
        "contract": Contract(inputs, outputs, {"n": 3}),
        "asked": Asked(18, "decomposed", ("x",), ("y",), {"x": ("n", 4), "y": ("n", 4)}),
        "got": Got(18, ("x",), ("y",), {"x": ("n", 4), "y": ("n", 4)}, {"Add": 1}),
    }
    return Manifest(**fields | changes)


@pytest.fixture
def with_manifest(double) -> Callable[[Callable[[dict], None]], Path]:
    """Give a function that edits the manifest of the file, as JSON."""
    data = double.read_bytes()
    write_artifact(data, manifest_of(data), double)

    def edited(edit: Callable[[dict], None]) -> Path:
        path = manifest_path(double)
        content = json.loads(path.read_text())
        edit(content)
        path.write_text(json.dumps(content))
        return double

    return edited


@pytest.mark.parametrize("text", ["hello", "", "[1, 2]", "null", "{}", '{"schema": 1', "\0\xff"])
def test_manifest_that_is_none(command, double, text):
    manifest_path(double).write_text(text, encoding="latin-1")
    command("verify", double).assert_refused(
        "model.manifest.json is not a manifest", "delete it or export again"
    )


def test_manifest_that_is_a_folder(command, double):
    manifest_path(double).mkdir()
    command("verify", double).assert_refused("model.manifest.json", "Is a directory")


def test_manifest_that_is_a_loop_of_links(command, double):
    manifest_path(double).symlink_to(manifest_path(double))
    command("verify", double).assert_refused("model.manifest.json", "symbolic links")


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (lambda m: m.update(schema=99), "its schema is 99"),
        (lambda m: m.pop("contract"), "contract"),
        (lambda m: m["contract"].update(traced={}), "traced"),
        (lambda m: m["contract"].update(traced={"n": 0}), "traced"),
        (lambda m: m["contract"].update(empty_rows="perhaps"), "perhaps"),
        (lambda m: m["contract"]["inputs"][0].update(dtype="float33"), "float33"),
        (lambda m: m["contract"]["inputs"][0].update(axes=["n", -4]), "negative"),
        (lambda m: m["contract"]["inputs"][0].update(axes=["n"]), "other names or axes"),
        (lambda m: m["contract"]["inputs"][0].update(name="z"), "other names or axes"),
        (lambda m: m["contract"].update(inputs=[]), "other names or axes"),
        (lambda m: m["contract"].update(outputs=[]), "other names or axes"),
    ],
)  # fmt: skip
def test_manifest_that_contradicts_itself(command, with_manifest, edit, word):
    command("verify", with_manifest(edit)).assert_refused("is not a manifest", word)


@pytest.mark.parametrize(
    "text",
    [
        "not a graph",
        '<ir_version: 8, opset_import: ["": 18]> g (float[n, 4] z) => (float[n, 4] y) { y = Add (z, z) }',
    ],
    ids=["text", "other input"],
)
def test_specification_that_cannot_be_evaluated(command, with_manifest, text):
    path = with_manifest(lambda m: m["contract"].update(specification=text))
    command("verify", path).assert_refused("the contract's specification")


def test_contract_of_another_dtype(command, with_manifest):
    path = with_manifest(lambda m: m["contract"]["inputs"][0].update(dtype="int64"))
    command("verify", path).assert_refused("x is int64", "takes float")


@pytest.mark.parametrize("module", ["nowhere", "/nowhere/file.py:factory", "os:getcwd", None])
def test_module_that_cannot_be_built_skips_torch(command, with_manifest, module):
    path = with_manifest(lambda m: m.update(module=module))
    answer = command("verify", path, *REFERENCE, "--runtime", "torch", "--json")
    verdicts = {cell["runtime"]: cell["verdict"] for cell in json.loads(answer.out)["cells"]}
    assert (answer.code, verdicts) == (0, {"onnx-reference": "passed", "torch": "skipped"})


def assert_about_another_file(answer: Any) -> None:
    result = json.loads(answer.out)
    assert (answer.code, result["verdict"]) == (1, "failed")
    assert "OA801" in [item["code"] for item in result["findings"]]


def test_manifest_of_other_bytes(command, with_manifest):
    path = with_manifest(lambda m: m.update(sha256="0" * 64))
    assert_about_another_file(command("verify", path, *REFERENCE, "--json"))


def test_manifest_of_a_file_with_other_inputs(command, onnx_file):
    path = onnx_file(
        "g (float[batch, 5] left, int64[batch] right) => (float[batch, 5] sum) { sum = Add (left, left) }"
    )
    write_artifact(path.read_bytes(), manifest_of(b"another file"), path)
    assert_about_another_file(command("verify", path, *REFERENCE, "--json"))


# --- files of the user beside the model -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "word"),
    [("hello", "="), ("[[known]]\nmodel = 'm'\n", "variant"), ("known = 3", "int"), ("[[knwon]]\n", "knwon"), ("\0", "known")],
)  # fmt: skip
def test_known_file_that_is_none(command, double, tmp_path, text, word):
    known = tmp_path / "known.toml"
    known.write_text(text)
    command("verify", double, *REFERENCE, "--known", known).assert_refused(
        "not a list of known failures", word
    )


def test_known_file_that_cannot_be_read(command, double, tmp_path):
    command("verify", double, "--known", tmp_path).assert_refused(str(tmp_path), "Is a directory")
    command("verify", double, "--known", tmp_path / "nowhere").assert_refused("nowhere", "No such file")


@pytest.fixture
def records(tmp_path) -> Path:
    path = tmp_path / "records.jsonl"
    path.write_bytes(encode(conclude([], duration_s=1.0)))
    return path


def test_report_of_a_folder_without_records(command, tmp_path):
    command("report", tmp_path).assert_refused("records.jsonl", "No such file", "give a records.jsonl")


def test_report_of_an_empty_file(command, records):
    records.write_bytes(b"")
    command("report", records).assert_refused("holds no record")


@pytest.mark.parametrize("line", [b"{", b"null", b'{"kind": "nope"}', b"\xff", b"", b'{"kind": "run"}'])
def test_report_of_a_broken_line_names_its_number(command, records, line):
    whole = records.read_bytes()
    records.write_bytes(whole * 2 + line + b"\n" + whole)
    command("report", records).assert_refused("records.jsonl, line 3 is not a record")


def test_report_of_a_name_that_is_too_long(command):
    command("report", "n" * 300).assert_refused("File name too long")


def test_unknown_view_lists_the_views(command, records):
    command("report", records, "--view", "nope").assert_refused("unknown view 'nope'", "summary.md")


# --- where the output goes --------------------------------------------------------------------------------------

UNWRITABLE = ("a file", "below a file", "foreign", "mixed", "loop", "long", "proc")


@pytest.fixture
def output(request, tmp_path) -> Path:
    """A place that no report can be written to."""
    folder = tmp_path / "out"
    if request.param == "proc":
        if not Path("/proc/self").exists():
            pytest.skip("needs /proc, in which nobody can make a folder")
        return Path("/proc/report")
    if request.param == "long":
        return tmp_path / ("n" * 300)
    if request.param in ("a file", "below a file"):
        folder.write_text("mine")
        return folder if request.param == "a file" else folder / "report"
    if request.param == "loop":
        folder.symlink_to("out")
        return folder
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    if request.param == "mixed":
        (folder / "records.jsonl").write_text("{}")
    return folder


def everything_below(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("output", UNWRITABLE, indirect=True)
def test_verify_says_before_the_work_that_it_cannot_write(command, double, output, tmp_path, monkeypatch):
    before = everything_below(tmp_path)
    monkeypatch.setattr("onnx_attest.verify.api.verify_artifact", None)  # it is not reached
    command("verify", double, "-o", output).assert_refused()
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize("output", UNWRITABLE, indirect=True)
def test_run_says_before_the_work_that_it_cannot_write(command, output, tmp_path, monkeypatch):
    before = everything_below(tmp_path)
    monkeypatch.setattr("onnx_attest.verify.job.run_tasks", None)  # it is not reached
    command("run", "--model", "mha", "--runtime", "onnx-reference", "-o", output).assert_refused()
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize("output", UNWRITABLE, indirect=True)
def test_report_that_cannot_be_written_changes_nothing(command, records, output, tmp_path):
    before = everything_below(tmp_path)
    command("report", records, "-o", output).assert_refused()
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize("name", ["model.onnx/model.onnx", f"{'n' * 300}.onnx"], ids=["below a file", "long"])
def test_artifact_that_cannot_be_written_is_said(double, name):
    with pytest.raises(UsageError, match=r"cannot write .* choose another folder with -o"):
        write_artifact(b"data", manifest_of(b"data"), double.parent / name)


def test_what_cannot_be_written_is_called_by_its_own_name(tmp_path):
    """And not by that of the file that was to be renamed."""
    refused = OSError(errno.EROFS, "read-only", str(tmp_path / ".model.onnx.k3j2"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "mkstemp", raising(refused))
        with pytest.raises(OSError, match=r"model\.onnx") as said:
            write_whole({tmp_path / "model.onnx": b"data"})
    assert said.value.filename == str(tmp_path / "model.onnx")


def raising(error: OSError) -> Any:
    def raise_it(*_: object, **__: object) -> None:
        raise error

    return raise_it


@pytest.fixture
def full_disk(monkeypatch) -> Iterator[None]:
    """A disk on which the second file of this process no longer fits; only its first half is written."""
    opened, original = [], os.fdopen

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *exception: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> None:
            self.file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fdopen(handle: int, *arguments: Any, **options: Any) -> Any:
        opened.append(handle)
        file = original(handle, *arguments, **options)
        return Full(file) if len(opened) > 1 else file

    monkeypatch.setattr("onnx_attest.export.artifact.os.fdopen", fdopen)
    yield
    assert len(opened) > 1, "nothing met the full disk"


def test_full_disk_leaves_the_earlier_artifact_whole(double, with_manifest, request):
    before = everything_below(double.parent)
    request.getfixturevalue("full_disk")
    with pytest.raises(UsageError, match="No space left on device"):
        write_artifact(b"other", manifest_of(b"other"), double)
    assert everything_below(double.parent) == before


def test_artifact_is_not_written_over_a_folder(tmp_path):
    (tmp_path / "model.onnx").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        write_artifact(b"data", manifest_of(b"data"), tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.rglob("*")] == ["model.onnx"]


def test_interrupted_artifact_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_artifact(b"data", manifest_of(b"data"), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_full_disk_ends_a_task_and_blames_no_exporter(tmp_path, full_disk):
    task = Task(reference="sdpa", dtype="float32", variants=(), folder=str(tmp_path), runtimes=(), known=())
    with pytest.raises(UnwritableError, match="No space left on device"):
        list(run_task(task, lambda step: None))
    assert list(tmp_path.iterdir()) == []


def test_full_disk_ends_the_main_job(tmp_path, monkeypatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise UnwritableError("No space left on device")

    monkeypatch.setattr("onnx_attest.verify.job.run_tasks", refuse)
    with pytest.raises(UsageError, match="No space left on device"):
        run_job(Job([resolve("sdpa")], Plan(), tmp_path / "report"))
    assert list(tmp_path.iterdir()) == []


def test_earlier_report_survives_a_run_that_cannot_read_its_file(command, tmp_path):
    write_reports(conclude([], duration_s=1.0), tmp_path / "report")
    before = everything_below(tmp_path)
    command("verify", tmp_path / "nowhere.onnx", "-o", tmp_path / "report").assert_refused("nowhere.onnx")
    assert everything_below(tmp_path) == before


def test_function_raises_what_the_command_says(double):
    double.write_bytes(b"hello")
    with pytest.raises(UsageError, match="not a complete ONNX file"):
        verify(double)
    with pytest.raises(UsageError, match="No such file"):
        read_artifact(double.parent / "nowhere.onnx")
