"""Files made to do harm: each is refused in one line or has its verdict; nothing crashes, waits, fills the memory or escapes.

benchmarks/hostile.py tries thousands of them and fuzz/fuzz.py looks for more; what they found is here.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from hostile_files import bomb, nested_json, npy, packed
from hostile_models import (
    MUTATIONS,
    beside,
    cyclic_functions,
    doubling_functions,
    mutated,
    nested_ifs,
)
from onnx import TensorProto, helper
from seeds import seeds
from some_records import cell, export, finding, not_run, one_of_every_kind, run

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import manifest_path, read_artifact
from onnx_attest.export.reading import bytes_of
from onnx_attest.models import Contract, TensorSpec
from onnx_attest.verify import guard
from onnx_attest.verify.configuration import read_configuration
from onnx_attest.verify.console import visible
from onnx_attest.verify.finder.calls import MOST_NODES
from onnx_attest.verify.footprint import refuse_beyond_memory
from onnx_attest.verify.inputs import load_inputs
from onnx_attest.verify.known import read_known
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.records import encode, read_records
from onnx_attest.verify.report import render, write_reports
from onnx_attest.verify.signature import read_signature
from onnx_attest.verify.static.check import check_file

SEEDS = seeds()
REFERENCE = ("--runtime", "onnx-reference")
READERS: dict[str, Callable[[Path], object]] = {
    "check": check_file,
    "verify": lambda path: read_signature(read_artifact(path)),
}
CONTROL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2028"
UNSEEN = {char for char in CONTROL if not char.isprintable()}
MARKUP = "<script>alert(1)</script>|`x`|[a](javascript:b)]]>&\n# heading\x00\x1b[31m"


def seed(name: str = "plain") -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(SEEDS[name])
    return model


@pytest.fixture
def plain(tmp_path) -> Path:
    path = tmp_path / "plain.onnx"
    path.write_bytes(seed().SerializeToString())
    return path


def refused(path: Path, reader: str, *words: str) -> None:
    with pytest.raises(UsageError) as said:
        READERS[reader](path)
    message = str(said.value)
    assert [word for word in words if word not in message] == [], message


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# --- the graph ----------------------------------------------------------------------------------------------------


def chain(count: int) -> bytes:
    """Return a model whose functions call each other in a row; as bytes, since messages of that many take seconds."""
    first = seed()
    first.opset_import.add(domain="nest", version=1)
    first.graph.node.append(
        helper.make_node("f0000000", [first.graph.input[0].name], ["nested"], domain="nest")
    )
    output = first.graph.output.add()
    output.CopyFrom(first.graph.input[0])
    output.name = "nested"

    def function(number: int) -> bytes:
        node = helper.make_node("f0000001", ["a"], ["b"], domain="nest")
        made = helper.make_function(
            "nest", "f0000000", ["a"], ["b"], [node], [helper.make_opsetid("nest", 1)]
        )
        data = made.SerializeToString()
        return data.replace(b"f0000001", b"f%07d" % (number + 1)).replace(b"f0000000", b"f%07d" % number)

    size = function(0)
    assert len(size) < 128
    return first.SerializeToString() + b"".join(
        b"\xca\x01" + bytes((len(size),)) + function(number) for number in range(count)
    )


@pytest.mark.parametrize("reader", READERS)
def test_nested_functions_are_refused(tmp_path, reader):
    """A hundred thousand of them: nothing of ours recurses, and ONNX's checker counts how deep they are."""
    refused(written(tmp_path / "m.onnx", chain(3000)), reader, "m.onnx")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("length", [1, 2, 100])
def test_functions_in_a_circle_are_refused(tmp_path, reader, length):
    data = cyclic_functions(seed(), length)
    refused(written(tmp_path / "m.onnx", data), reader, "call each other in a circle")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("depth", [22, 90])
def test_functions_that_double_are_refused_before_they_are_written_out(tmp_path, reader, depth):
    data = doubling_functions(seed(), depth)
    refused(written(tmp_path / "m.onnx", data), reader, "written out", f"{MOST_NODES:,} nodes")


def test_functions_that_end_are_none_of_these(tmp_path):
    data = doubling_functions(seed(), 8)
    path = written(tmp_path / "m.onnx", data)
    for reader in READERS.values():
        reader(path)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("depth", [100, 5000])
def test_graphs_deep_inside_graphs_are_refused(tmp_path, reader, depth):
    refused(written(tmp_path / "m.onnx", nested_ifs(seed(), depth)), reader, "not a complete ONNX file")


def test_graphs_inside_graphs_are_read_as_deep_as_protobuf_goes(tmp_path):
    path = written(tmp_path / "m.onnx", nested_ifs(seed(), 20))
    for reader in READERS.values():
        reader(path)


@pytest.mark.parametrize("trips", [2**40, 2**63 - 1])
def test_a_loop_without_end_is_not_gone_through(tmp_path, monkeypatch, trips):
    monkeypatch.setattr("onnx_attest.verify.oracle.ops.flow.control._MOST_TURNS", 100)
    model = seed("control")
    trip = next(one for one in model.graph.initializer if one.name == "three")
    trip.CopyFrom(helper.make_tensor("three", TensorProto.INT64, [], [trips]))
    oracle = GraphOracle(model)
    with pytest.raises(UnsupportedOperatorError, match="Loop of more than 100 turns"):
        oracle.evaluate({"x": np.ones((2, 4), np.float32), "more": np.array(True)})


def lying(kind: str) -> onnx.ModelProto:
    model = seed("layers")
    tensor = model.graph.initializer[0]
    if kind == "shorter":
        tensor.raw_data = tensor.raw_data[:-4]
    elif kind == "longer":
        tensor.raw_data += b"\0" * 4
    elif kind == "nothing":
        tensor.ClearField("raw_data")
    else:
        del tensor.dims[:]
        tensor.dims.extend(
            {"overflow": (2**32, 2**32), "negative": (-1, 16), "enormous": (2**62,), "wraps": (2**61, 8, 2)}[
                kind
            ]
        )
    return model


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "kind", ["shorter", "longer", "nothing", "overflow", "negative", "enormous", "wraps"]
)
def test_sizes_that_lie(tmp_path, command, reader, kind):
    """What ONNX's checker lets pass, the first who needs the numbers refuses."""
    path = written(tmp_path / "m.onnx", lying(kind).SerializeToString())
    if reader == "check":
        answer = command("check", path)
        assert answer.code in (0, 2)
    else:
        command("verify", path, *REFERENCE).assert_refused()


def test_a_function_that_computes_no_output(command, tmp_path):
    """ONNX's checker lets it pass."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18, "own": 1]> g (float[n, 4] x) => (float[n, 4] y) { y = own.f (x) }'
        '<domain: "own", opset_import: ["": 18]> f (a) => (b) { c = Add (a, a) }'
    )
    answer = command("verify", written(tmp_path / "m.onnx", model.SerializeToString()), *REFERENCE)
    assert answer.code in (1, 3)
    assert "no node computes the output" in answer.out


def test_a_call_of_more_than_its_function_takes(command, tmp_path):
    """ONNX's checker lets it pass as well."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18, "own": 1]> g (float[n, 4] x) => (float[n, 4] y) { y = own.f (x, x) }'
        '<domain: "own", opset_import: ["": 18]> f (a) => (b) { b = Add (a, a) }'
    )
    path = written(tmp_path / "m.onnx", model.SerializeToString())
    command("verify", path, *REFERENCE).assert_refused("a call of the file does not fit its function")
    command("power", path).assert_refused()
    assert command("check", path).code in (0, 2)


@pytest.mark.parametrize("reader", READERS)
def test_a_name_anywhere_that_is_no_text(tmp_path, reader):
    data = seed("layers").SerializeToString()
    (name,) = {seed("layers").graph.name}
    assert data.count(name.encode()) == 1
    refused(
        written(tmp_path / "m.onnx", data.replace(name.encode(), b"\x8e" * len(name))), reader, "is not text"
    )


@pytest.mark.parametrize("dims", [[1] * 70, [-1, -1]], ids=["70 axes", "negative"])
def test_a_constant_of_a_shape_that_no_array_has(command, tmp_path, dims):
    """It scales the logits of an attention, where its one number is looked for."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[n, 4] x) => (float[n, n] p) <float c = {2.0}> '
        "{ k = Transpose (x) s = MatMul (x, k) t = Mul (s, c) p = Softmax <axis = -1> (t) }"
    )
    model.graph.initializer[0].dims.extend(dims)
    path = written(tmp_path / "m.onnx", model.SerializeToString())
    assert command("check", path).code in (0, 2)
    assert command("verify", path, *REFERENCE, "--time-budget", "0.2").code in (1, 2, 3)


def test_a_vector_as_long_as_an_axis_is_not_written_out(tmp_path):
    """Its length is known by the numbers alone that ONNX propagates, and it wants 64 bytes for each element."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (int64[100000000, n] x) => (float[m] z) <int64[1] zero = {0}, int64[1] one = {1}> '
        "{ s = Shape (x) n = Slice (s, zero, one) c = ConstantOfShape (n) f = Cast <to = 1> (n) z = Concat <axis = 0> (c, f) }"
    )
    path = written(tmp_path / "m.onnx", model.SerializeToString())
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert subprocess.run([sys.executable, "-m", "onnx_attest", "check", path], check=False).returncode in (
        0,
        2,
    )
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < max(before, 2**20), "KiB: less than 1 GiB"


def test_a_constant_of_a_type_that_there_is_not(command, tmp_path):
    model = seed("layers")
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    tensor.data_type = 99
    path = written(tmp_path / "m.onnx", model.SerializeToString())
    command("verify", path, *REFERENCE).assert_refused("has the unknown type 99")


MASKED = (
    "g (float[batch, n, 4] x, bool[batch, n, m] mask) => (float[batch, n, 4] y) <float hidden = {-inf}> {"
    "k = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, k) t = Where (mask, s, hidden) p = Softmax <axis = -1> (t) "
    "y = MatMul (p, x) }"
)


def test_a_mask_of_other_keys_than_there_are(command, tmp_path):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {MASKED}')
    path = written(tmp_path / "m.onnx", model.SerializeToString())
    assert command("verify", path, *REFERENCE, "--time-budget", "0.2").code in (0, 3)


# --- data beside the file -----------------------------------------------------------------------------------------


@pytest.fixture
def around(tmp_path) -> Path:
    """A folder with what tensors may not lie in, and what lies outside of it."""
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"\0" * 64)
    (folder / "short").write_bytes(b"\0" * 63)
    (folder / "link").symlink_to("short")
    (folder / "device").symlink_to("/dev/zero")
    (folder / "circle").symlink_to("circle")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "pipe")
    return folder


OUTSIDE = ("../secret", "up/secret", "sub/../../secret", "/dev/zero", "/etc/hostname", "link", "device", "circle", "pipe", "sub", "", ".", "a\0b")  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("place", OUTSIDE)
def test_data_beside_the_file(around, reader, place):
    """It leaves the folder, is a link, a pipe, a device, a folder, or nothing that a file is called."""
    model = seed("layers")
    data = beside(model, model.graph.initializer[0], location=place)
    refused(written(around / "m.onnx", data), reader, "m.onnx")


PLACES = ({"offset": -1}, {"length": -4}, {"length": "x"}, {"length": 64}, {"offset": 64, "length": 0}, {"offset": "9" * 5000}, {"length": 2**63}, {"offset": 2**62, "length": 2**62})  # fmt: skip


@pytest.mark.parametrize("entries", PLACES, ids=str)
def test_places_in_the_data_that_lie(around, command, entries):
    model = seed("layers")
    data = beside(model, model.graph.initializer[0], location="short", **entries)
    command("verify", written(around / "m.onnx", data), *REFERENCE).assert_refused()


# --- inputs -------------------------------------------------------------------------------------------------------


def test_zip_bomb(plain, tmp_path, monkeypatch):
    path = written(tmp_path / "inputs.npz", bomb(2**26))
    assert path.stat().st_size < 2**18
    signature = read_signature(read_artifact(plain))
    monkeypatch.setattr("onnx_attest.verify.inputs.free_bytes", lambda: 2**25)
    with pytest.raises(UsageError, match=r"unpacks to .* GB, and .* GB are free"):
        load_inputs(path, signature)


def test_objects_in_an_npz_are_not_unpickled(plain, tmp_path):
    marker = tmp_path / "unpickled"

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (marker,)

    array = np.empty(1, object)
    array[0] = Evil()
    np.savez(tmp_path / "inputs.npz", x=array)
    with pytest.raises(UsageError, match="not a plain array"):
        load_inputs(tmp_path / "inputs.npz", read_signature(read_artifact(plain)))
    assert not marker.exists()


HEADERS = {
    "nested": b"(" * 5000,
    "endless minus": b"[" + b"-" * 9000 + b"1]",
    "shape beyond all memory": b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000, 10000000000), }",
    "shape of no size": b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }",
    "objects inside": b"{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,), }",
    "code": b"__import__('os').system('true')",
}


@pytest.mark.parametrize("kind", HEADERS)
def test_header_of_an_array_that_is_none(plain, tmp_path, kind):
    path = written(tmp_path / "inputs.npz", packed({"x.npy": npy(HEADERS[kind], b"\0" * 160)}))
    with pytest.raises(UsageError, match=r"inputs\.npz"):
        load_inputs(path, read_signature(read_artifact(plain)))


@pytest.mark.parametrize("place", [6, 8, 10, 16, 20, 24, 28, 42])
def test_list_of_members_that_lies(plain, tmp_path, place):
    data = bytearray(packed({"x.npy": npy(HEADERS["code"], b"")}, zipfile.ZIP_DEFLATED))
    at = data.rfind(b"PK\x01\x02") + place
    for changed in (b"\xff\xff", b"\1\0", b"\x63\0"):
        data[at : at + 2] = changed
        with pytest.raises(UsageError, match=r"inputs\.npz"):
            load_inputs(written(tmp_path / "inputs.npz", bytes(data)), read_signature(read_artifact(plain)))


# --- pipes, devices and sizes -------------------------------------------------------------------------------------


def _special(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "what", ["model", "manifest", "inputs", "records", "known", "settings", "bundle", "journal", "input_0.pb"]
)
def test_pipes_and_devices_are_refused(command, plain, tmp_path, monkeypatch, kind, what):
    path = tmp_path / "given"
    arguments: tuple[object, ...] = {
        "model": ("check", path),
        "manifest": ("verify", plain),
        "inputs": ("verify", plain, *REFERENCE, "--load-inputs", path),
        "records": ("report", tmp_path / "folder"),
        "known": ("verify", plain, "--known", path),
        "settings": ("verify", plain),
        "bundle": ("replay", tmp_path / "folder"),
        "journal": ("merge", tmp_path / "folder", "-o", tmp_path / "out"),
        "input_0.pb": ("verify", plain, *REFERENCE, "--load-inputs", tmp_path / "folder"),
    }[what]
    folder = tmp_path / "folder"
    folder.mkdir()
    places = {
        "manifest": manifest_path(plain), "records": folder / "records.jsonl", "settings": tmp_path / "onnx-attest.toml",
        "bundle": folder / "SHA256SUMS", "journal": folder / "journal.jsonl", "input_0.pb": folder / "input_0.pb",
    }  # fmt: skip
    _special(kind, places.get(what, path))
    monkeypatch.chdir(tmp_path)
    command(*arguments).assert_refused()


def test_largest_sizes(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(101)
    with pytest.raises(OSError, match="longer than"):
        bytes_of(path, 100)
    assert len(bytes_of(path, 101)) == 101


@pytest.mark.parametrize(("size", "reader"), [(2**29 + 1, read_records), (2**20 + 1, read_known)])
def test_files_beyond_the_largest_size_are_not_read(tmp_path, size, reader):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(size)
    with pytest.raises(UsageError, match="longer than"):
        reader(path)


def test_a_record_of_a_billion_cells_is_not_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr("onnx_attest.verify.records._LONGEST", 1000)
    line = encode([cell()]).rstrip(b"}\n") + b', "latency_s": [' + b"0," * 1000 + b"0]}\n"
    with pytest.raises(UsageError, match="line 1 is not a record: it is longer than"):
        read_records(written(tmp_path / "records.jsonl", line))


# --- JSON and TOML ------------------------------------------------------------------------------------------------

DEEP_JSON = {
    "lists": nested_json(100_000),
    "tables": nested_json(50_000, b'{"a":', b"}")[:-50_000] + b"1" + b"}" * 50_000,
    "open": b"[" * 100_000,
}


@pytest.mark.parametrize("kind", DEEP_JSON)
def test_deep_json_is_refused(command, plain, tmp_path, kind):
    deep = DEEP_JSON[kind]
    manifest_path(plain).write_bytes(deep)
    command("verify", plain, *REFERENCE).assert_refused("is not a manifest")
    unknown = encode([run()]).rstrip(b"}\n") + b', "more": ' + deep + b"}\n"
    for data in (deep, unknown):
        command("report", written(tmp_path / "records.jsonl", data)).assert_refused("line 1 is not a record")
    (tmp_path / "shard").mkdir()
    written(tmp_path / "shard" / "journal.jsonl", deep + b"\n{}\n")
    command("merge", tmp_path / "shard", "-o", tmp_path / "out").assert_refused("line 1 is damaged")
    command("conformance", "--against", written(tmp_path / "c.json", deep)).assert_refused(
        "is no conformance.json"
    )


@pytest.mark.parametrize("number", [b"1" + b"0" * 5000, b"1e999", b"-1e999"])
def test_numbers_that_are_none_are_refused_or_read(tmp_path, number):
    line = encode([run()])
    for key in (b'"exit_code":', b'"duration_s":', b'"schema":'):
        start = line.index(key) + len(key)
        end = min(place for place in (line.find(b",", start), line.find(b"}", start)) if place > 0)
        path = written(tmp_path / "records.jsonl", line[:start] + number + line[end:])
        try:
            read = read_records(path)
        except UsageError:
            continue
        list(render(read).values())


DEEP_TOML = {
    "lists": "a = " + "[" * 5000 + "]" * 5000,
    "tables": "a = " + "{ a = " * 5000 + "1" + " }" * 5000,
    "open": "a = " + "[" * 50_000,
    "dots": ".".join("a" * 200_000) + " = 1",
    "dots apart": " . ".join("a" * 200_000) + " = 1",
    "table of dots": "[" + ".".join("a" * 5000) + "]\nb = 1",
    "digits": "seed = " + "9" * 5000,
    "hexadecimal": "seed = 0x" + "f" * 5000,
    "a deep value": "seed." + ".".join("a" * 3000) + " = 1",
    "a long value": 'seed = "' + "x" * 100_000 + '"',
}  # fmt: skip


@pytest.mark.parametrize("kind", DEEP_TOML)
def test_deep_toml_is_refused(tmp_path, kind):
    path = tmp_path / "onnx-attest.toml"
    path.write_text(DEEP_TOML[kind])
    for reader, given in ((read_configuration, tmp_path), (read_known, path)):
        with pytest.raises(UsageError) as said:
            reader(given)
        assert len(str(said.value)) < 2000


# --- names and reasons --------------------------------------------------------------------------------------------


def test_terminal_is_not_controlled(command, tmp_path, monkeypatch):
    """Names in a file are shown, in a form that no terminal acts upon."""
    model = seed()
    for node in model.graph.node:
        node.name = f"{CONTROL}{node.op_type}"
    path = written(tmp_path / "m.onnx", model.SerializeToString())
    for arguments in (
        ("check", path, "--attention"),
        ("check", path, "--json"),
        ("verify", path, *REFERENCE),
    ):
        answer = command(*arguments)
        assert answer.code != 2
        assert not set(answer.out + answer.err) & UNSEEN, arguments
    assert json.loads(command("check", path, "--json").out)["attentions"][0]["attention"].startswith(CONTROL)


def test_refusals_control_no_terminal(command, tmp_path):
    answer = command("check", tmp_path / CONTROL)
    assert answer.code == 2
    assert not set(answer.err) & UNSEEN


def test_visible_text_is_what_it_was_but_for_what_cannot_be_seen():
    text = "a\tb\né ≤ 漢 👍\u200d👍"
    assert visible(text) == text
    assert json.loads(visible(json.dumps(CONTROL + "é", ensure_ascii=False))) == CONTROL + "é"
    assert visible("\ud800") == "\\ud800"


def test_name_of_a_file_that_is_no_utf8(command, tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.onnx"))
    path.write_bytes(seed().SerializeToString())
    answer = command("verify", path, *REFERENCE, "-o", tmp_path / "out")
    assert answer.code == 0, answer.err
    assert "\\udcff" in (tmp_path / "out" / "records.jsonl").read_text()


def test_names_are_no_paths(command, tmp_path):
    """A model, an axis, a case or a tensor that is called like a file elsewhere makes none."""
    name = "../../escaped"
    records = [
        msgspec.structs.replace(
            record, **{key: name for key in ("model", "runtime", "variant") if hasattr(record, key)}
        )
        for record in one_of_every_kind()
    ]
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    write_reports(records, folder / "out")
    model = seed()
    for names in [*(node.input for node in model.graph.node), *(node.output for node in model.graph.node)]:
        for place, _ in enumerate(names):
            names[place] = f"{name}/{names[place]}"
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = f"{name}/{value.name}"
    path = written(folder / "m.onnx", model.SerializeToString())
    assert command("verify", path, *REFERENCE, "-o", folder / "verified").code == 0
    assert sorted(one.name for one in folder.iterdir()) == ["m.onnx", "out", "verified"]
    assert [one.name for one in tmp_path.rglob("*escaped*")] == []


@pytest.fixture(scope="module")
def marked_up() -> Any:
    """Every view of records whose texts are all markup and control characters."""

    def spoilt(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: spoilt(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [spoilt(one, key) for one in value]
        return (
            f"{value}{MARKUP}"
            if key in ("reason", "message", "next_step", "node", "case_name", "note")
            and isinstance(value, str)
            else value
        )

    lines = [json.dumps(spoilt(json.loads(encode([record])))).encode() for record in one_of_every_kind()]
    lines.append(encode([not_run(reason=MARKUP), cell(verdict="failed", reason=MARKUP, model=MARKUP), export(reason=MARKUP, verdict="errored"), finding(message=MARKUP)]))  # fmt: skip
    return [msgspec.json.decode(line, type=Any) for line in b"\n".join(lines).splitlines() if line]


def test_reports_show_markup_as_text(marked_up, tmp_path):
    data = b"\n".join(map(msgspec.json.encode, marked_up)) + b"\n"
    views = render(read_records(written(tmp_path / "records.jsonl", data)))
    for name in views:
        text = views[name]
        text.encode()
        if name.endswith(".csv"):
            continue  # data, see docs/security.md
        if not name.endswith(".json"):
            assert not set(text) & {"\x00", "\x1b"}, name
        if name.endswith(".html"):
            assert "<script>alert" not in text
        elif name.endswith(".md"):
            assert "\n# heading" not in text, name
            assert "<script>" not in text.replace("\\<script>", ""), name
            assert "|`x`|" not in text, name
        elif name.endswith(".xml"):
            from xml.etree.ElementTree import fromstring

            fromstring(text)
        elif name.endswith(".svg"):
            assert "<script" not in text, name


# --- the process that is watched ----------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, time
from onnx_attest.models import Contract, TensorSpec
from onnx_attest.verify import guard
guard.READING = frozenset({"do"})
sys.argv = ["onnx-attest", "do"]
def run():
    guard.limit({seconds}, 200 * 2**20)
    guard.doing("reading bad.onnx")
    print("begun", flush=True)
    {what}
import onnx_attest.verify.cli as cli
cli.main = run
guard.main()
"""


def program(what: str, seconds: float = 60) -> list[str]:
    """A command that does ``what``, watched. A short limit only where the limit is what is tested:
    elsewhere a busy machine would meet it before the command came to its end."""
    filled = PROGRAM.replace("{seconds}", str(seconds)).replace("{what}", what)
    return [sys.executable, "-c", filled]


def watched(what: str, seconds: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program(what, seconds),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells what it takes")


@linux
@pytest.mark.parametrize(
    ("what", "seconds", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", 60, "its process was ended by SIGSEGV"),
        ("os.abort()", 60, "its process was ended by SIGABRT"),
        ("while True: pass", 0.3, "it took longer than 0.3 s, so its process was killed"),
        ("time.sleep(600)", 0.3, "it took longer than 0.3 s, so its process was killed"),
        ("x = [bytearray(b'x' * 2**20) for _ in range(2000)]; time.sleep(600)", 60, "MiB of memory, the limit is 200 MiB, so it was killed"),
    ],
    ids=["a crash", "an abort", "busy for ever", "asleep", "memory"],
)  # fmt: skip
def test_guard_says_in_one_line_what_ended(what, seconds, said):
    done = watched(what, seconds)
    assert (done.returncode, done.stdout) == (2, "begun\n")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("onnx-attest")]
    assert line.startswith(f"onnx-attest: error: {said}") or (
        said in line and line.startswith("onnx-attest: error: ")
    )
    assert "while reading bad.onnx" in line


@linux
@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_guard_passes_on_how_a_command_ended(code):
    assert watched(f"raise SystemExit({code})").returncode == code


@linux
def test_guard_counts_from_each_step():
    assert (
        watched(
            "[(guard.doing(str(n)), time.sleep(0.3)) for n in range(15)]; raise SystemExit(3)",
            seconds=4,
        ).returncode
        == 3
    )


@linux
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_guard_hands_signals_on(number, code):
    wait = f"""
    def heed(*_):
        print('heard', flush=True); raise SystemExit({code})
    signal.signal({int(number)}, heed)
    print('ready', flush=True)
    guard.doing('waiting', times=100)
    time.sleep(600)"""
    with subprocess.Popen(program(wait), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["begun\n", "ready\n"]
        process.send_signal(number)
        assert process.stdout.read() == "heard\n"
        assert process.wait(30) == code


@linux
def test_guard_leaves_nobody_behind():
    wait = "print(os.getpid(), flush=True); guard.doing('waiting', times=1000); time.sleep(600)"
    with subprocess.Popen(program(wait), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        child = int(process.stdout.readline())
        process.kill()
    for _ in range(200):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the child outlived its parent")


def test_guard_watches_what_reads_files_of_others(monkeypatch):
    from onnx_attest.verify.cli import app

    names = {one.name or one.callback.__name__.rstrip("_") for one in app.registered_commands}
    assert names >= guard.READING
    assert names - guard.READING == {"run", "export", "explain", "doctor", "init"}


# --- the mutations ------------------------------------------------------------------------------------------------


def test_mutations_are_the_same_for_the_same_seed(tmp_path):
    for number, name in enumerate(sorted(MUTATIONS)):
        made = []
        for turn in ("a", "b"):
            folder = tmp_path / f"{turn}{number}"
            folder.mkdir()
            made.append(mutated([name], SEEDS, 7, number, folder))
        assert made[0] == made[1]


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_mutation_is_refused_or_read(tmp_path, name):
    """Two of each; benchmarks/hostile.py makes thousands."""
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        _, data = mutated([name], SEEDS, 1, number, folder)
        path = written(folder / "m.onnx", data)
        for reader in READERS.values():
            try:
                reader(path)
            except UsageError as error:
                assert str(error).strip()  # noqa: PT017 - either is right, and a refusal says why


@pytest.mark.parametrize("place", ["input", "output"])
def test_more_axes_than_an_array_has(command, tmp_path, place):
    model = seed()
    shape = getattr(model.graph, place)[0].type.tensor_type.shape
    while len(shape.dim) < 72:
        shape.dim.add().dim_value = 1
    path = written(tmp_path / "m.onnx", model.SerializeToString())
    command("verify", path, *REFERENCE).assert_refused("72 axes")


@pytest.mark.parametrize("heads", [-2, 0, 3])
def test_number_of_heads_that_is_none(command, tmp_path, heads):
    """Found by the fuzzer: the scale of a head of -2 numbers has no square root."""
    model = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["": 23]>
    g (float[b, s, 8] q, float[b, s, 8] k, float[b, s, 8] v) => (float[b, s, 8] y) {{
        y = Attention <q_num_heads = {heads}, kv_num_heads = {heads}> (q, k, v)
    }}
    """)
    answer = command("check", written(tmp_path / "m.onnx", model.SerializeToString()))
    assert answer.code in (0, 1, 2)


@pytest.mark.parametrize("field", [{"granularity": 0}, {"granularity": -8}, {"longest": {"n": 0}}])
def test_contract_that_leaves_no_size(field):
    """Found by the fuzzer: a manifest's sizes in multiples of nothing."""
    with pytest.raises(ValueError, match="must be 1 or more"):
        Contract((TensorSpec("x", ("n",)),), (), {"n": 3}, **field)


@pytest.mark.parametrize("shape", [(0, 2**40, 2**40), (2**62, 2), (0, 2**61)])
def test_sizes_that_no_array_has(shape):
    """Found by the fuzzer: nothing is in it, and NumPy has no array of these axes."""
    with pytest.raises(UsageError, match="smaller sizes"):
        refuse_beyond_memory(seed(), {"x": shape})


@pytest.mark.parametrize("operator", ["MultiHeadAttention", "GroupQueryAttention", "Attention"])
def test_operator_without_inputs_or_outputs(command, tmp_path, operator):
    """Found by the fuzzer: ONNX's checker asks nothing of operators that it does not know."""
    model = seed()
    model.opset_import.add(domain="com.microsoft", version=1)
    for given, made in (([], ["unused"]), (["x"], [])):
        model.graph.node.append(helper.make_node(operator, given, made, domain="com.microsoft"))
    answer = command("check", written(tmp_path / "m.onnx", model.SerializeToString()))
    assert answer.code in (0, 1, 2)


def test_sizes_of_minus_one_are_sizes_that_nobody_knows(command, tmp_path):
    """Found by the mutator: `power` made arrays of the sizes that a file declares."""
    model = seed("masked")
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = -1
    answer = command(
        "power", written(tmp_path / "m.onnx", model.SerializeToString()), "--runtime", "onnx-reference"
    )
    assert answer.code in (0, 1, 2, 3)
