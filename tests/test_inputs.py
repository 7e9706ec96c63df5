"""Inputs and sizes that the user gives: read whole, held against the file, refused by name before anything runs."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import masked_attention
from onnx import TensorProto, numpy_helper

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify import verify
from onnx_attest.verify.footprint import BYTES_PER_ELEMENT, free_bytes, largest_tensor
from onnx_attest.verify.inputs import axes_of_shapes, check_inputs, load_inputs, parse_shapes
from onnx_attest.verify.signature import Signature, read_signature

MASKED = masked_attention("x")
REFERENCE = ("--runtime", "onnx-reference")


@pytest.fixture
def path(onnx_file) -> Path:
    return onnx_file(MASKED)


@pytest.fixture
def signature(path) -> Signature:
    return read_signature(read_artifact(path))


def good(batch: int = 2, n: int = 3) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((batch, n, 4)).astype(np.float32)
    return {"x": x, "mask": np.ones((batch, n, n), bool)}


# --- sizes ------------------------------------------------------------------------------------------------------


def test_shapes_are_read_as_polygraphy_writes_them():
    assert parse_shapes(["x:[2,128,512]", " a:b:[ 1 , 2 ] ", "s:[]"]) == {
        "x": (2, 128, 512),
        "a:b": (1, 2),
        "s": (),
    }


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x:[1",
        "x:1,2",
        ":[1]",
        "x:[-1,4]",
        "x:[1.5]",
        "x:[a]",
        "x:[1,]",
        "x:[,1]",
        "x:[1 2]",
        "x:[٣]",
        "",
    ],
)
def test_shape_of_another_form_is_refused(text):
    with pytest.raises(UsageError, match=r"is not of the form name:\[2,128,512\]"):
        parse_shapes([text])


def test_input_named_twice_is_refused():
    with pytest.raises(UsageError, match="gives x twice"):
        parse_shapes(["x:[1]", "x:[2]"])


def test_sizes_of_all_axes(signature):
    assert axes_of_shapes({"x": (5, 6, 4)}, signature) == {"batch": 5, "n": 6}


def test_axis_that_no_shape_names_keeps_its_traced_size(onnx_file):
    path = onnx_file("g (float[a, 4] x, float[b, 4] z) => (float[c, 4] y) { y = Concat <axis = 0> (x, z) }")
    signature = read_signature(read_artifact(path))
    assert axes_of_shapes({"x": (9, 4)}, signature) == {"a": 9, "b": signature.contract.traced["b"]}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1, 2, 4)}, "names 'z'; the file's inputs are x, mask"),
        ({"x": (1, 2)}, r"gives x 2 axes, it has 3: \[batch,n,4\]"),
        ({"x": ()}, "gives x 0 axes, it has 3"),
        ({"x": (1, 2, 5)}, "gives x the size 5 where the file fixes 4"),
        ({"x": (1, 2, 4), "mask": (1, 3, 3)}, r"gives the axis n two sizes, 2 and 3 \(in mask\)"),
        ({"mask": (1, 2, 3)}, "gives the axis n two sizes, 2 and 3"),
    ],
)
def test_sizes_that_do_not_fit_the_file_are_refused(signature, shapes, message):
    with pytest.raises(UsageError, match=message):
        axes_of_shapes(shapes, signature)


@pytest.mark.parametrize(
    ("texts", "word"),
    [(["nonsense"], "name:[2,128,512]"), (["z:[1]"], "x, mask"), (["x:[1,2,5]"], "fixes 4"), (["x:[1,2,4]", "x:[1,3,4]"], "twice")],
)  # fmt: skip
def test_command_says_which_shape_is_wrong(command, path, texts, word):
    command("verify", path, *REFERENCE, "--input-shapes", *texts).assert_refused(word)


def test_function_says_which_shape_is_wrong(path):
    with pytest.raises(UsageError, match="the file's inputs are x, mask"):
        verify(path, runtimes=["onnx-reference"], input_shapes={"z": [1, 2, 4]})


def test_given_sizes_are_the_only_ones(path):
    report = verify(path, runtimes=["onnx-reference"], input_shapes={"x": [2, 5, 4]})
    assert report.verdict == "passed"
    assert {tuple(cell.case.axes.items()) for cell in report.cells} == {(("batch", 2), ("n", 5))}


def test_sizes_of_nothing_prove_nothing(command, path):
    answer = command("verify", path, *REFERENCE, "--input-shapes", "x:[0,3,4]")
    assert answer.code == 3
    assert "every output is empty" in answer.out


# --- sizes beyond the machine -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["99999999", "9" * 30])
def test_sizes_beyond_all_memory_are_refused_before_anything_is_made(command, path, size):
    command("verify", path, *REFERENCE, "--input-shapes", f"x:[1,{size},4]").assert_refused(
        size, "GB are free", "smaller"
    )


def test_inputs_beyond_the_free_memory_are_refused(path, monkeypatch):
    monkeypatch.setattr("onnx_attest.verify.footprint.free_bytes", lambda: 1000)
    with pytest.raises(UsageError, match="give smaller sizes"):
        verify(path, runtimes=["onnx-reference"], inputs=good())


def test_machine_that_does_not_tell_its_memory_refuses_nothing(path, monkeypatch):
    monkeypatch.setattr("onnx_attest.verify.footprint.free_bytes", lambda: None)
    assert verify(path, runtimes=["onnx-reference"], inputs=good()).verdict == "passed"


def test_free_memory_is_a_plausible_number():
    free = free_bytes()
    assert free is None or free > BYTES_PER_ELEMENT


def test_largest_tensor_is_found_inside_the_graph(signature):
    assert largest_tensor(signature.model, {"x": (1, 50, 4), "mask": (1, 50, 50)}) == 50 * 50


def test_sizes_that_do_not_fit_the_graph_still_count(signature):
    shapes = {"x": (1, 50, 4), "mask": (3, 7, 9)}
    assert largest_tensor(signature.model, shapes) >= 50 * 4


def test_scores_inside_an_attention_are_counted(onnx_file):
    graph = "g (float[1, 3, n, 4] q) => (float[1, 3, n, 4] y) { y = Attention (q, q, q) }"
    model = read_signature(read_artifact(onnx_file(graph, opset=23))).model
    assert largest_tensor(model, {"q": (1, 3, 70, 4)}) == 3 * 70 * 70


def test_scores_inside_an_attention_of_joined_heads_are_counted(onnx_file):
    attention = "Attention <q_num_heads = 3, kv_num_heads = 3> (q, q, q)"
    graph = f"g (float[1, n, 12] q) => (float[1, n, 12] y) {{ y = {attention} }}"
    model = read_signature(read_artifact(onnx_file(graph, opset=23))).model
    assert largest_tensor(model, {"q": (1, 70, 12)}) == 3 * 70 * 70


def test_attention_of_other_ranks_is_no_reason_to_crash(onnx_file):
    graph = "g (float[n] q) => (float[n] y) { y = Attention (q, q, q) }"
    model = read_signature(read_artifact(onnx_file(graph, opset=23))).model
    assert largest_tensor(model, {"q": (70,)}) == 70


# --- K16: a value under a wrong name ----------------------------------------------------------------------------


def misnamed() -> dict[str, np.ndarray]:
    inputs = good()
    return {"x": inputs["x"], "attention_mask": inputs["mask"]}


def test_mask_under_a_wrong_name_in_an_npz_names_the_files_inputs(command, path, tmp_path):
    np.savez(tmp_path / "in.npz", **misnamed())
    answer = command("verify", path, *REFERENCE, "--load-inputs", tmp_path / "in.npz")
    answer.assert_refused("no input is called attention_mask", "the file's inputs are x, mask")


def test_mask_under_a_wrong_name_in_python_names_the_files_inputs(path):
    with pytest.raises(UsageError, match="no input is called attention_mask; the file's inputs are x, mask"):
        verify(path, runtimes=["onnx-reference"], inputs=misnamed())


def test_mask_under_a_wrong_name_in_onnx_own_layout_names_the_files_inputs(command, path, tmp_path):
    folder = save_folder(tmp_path / "test_data_set_0", misnamed())
    command("verify", path, *REFERENCE, "--load-inputs", folder).assert_refused(
        "attention_mask", "the file's inputs are x, mask"
    )


# --- what fits and what does not --------------------------------------------------------------------------------


def replaced(**changes: object) -> dict[str, object]:
    return {**good(), **changes}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": good()["x"]}, "no value for mask; the file's inputs are x, mask"),
        ({}, "no value for x, mask"),
        (replaced(x=good()["x"].astype(np.float64)), "x is float64, the file takes float32"),
        (replaced(x=good()["x"].astype(">f4")), "x is >f4, the file takes float32"),
        (replaced(mask=good()["mask"].astype(np.int64)), "mask is int64, the file takes bool"),
        (replaced(x=good()["x"][0]), r"x has the shape \(3, 4\), the file takes 3 axes"),
        (replaced(x=good()["x"][..., :3]), r"x has the shape \(2, 3, 3\), the file fixes 4 where it has 3"),
        (replaced(mask=good(n=5)["mask"]), "mask has 5 where another input has 3 for the axis n"),
        (replaced(x=good()["x"].tolist()), "x is list; give a NumPy array of float32"),
    ],
)
def test_inputs_that_do_not_fit_the_file_are_refused(signature, inputs, message):
    with pytest.raises(UsageError, match=message):
        check_inputs(inputs, signature)


def test_inputs_and_sizes_together_are_refused(path):
    with pytest.raises(UsageError, match="give input shapes or inputs, not both"):
        verify(path, inputs=good(), input_shapes={"x": [2, 3, 4]})


# --- .npz -------------------------------------------------------------------------------------------------------


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def test_npz_is_verified_with_its_own_numbers(command, path, tmp_path):
    np.savez(tmp_path / "in.npz", **good(batch=3, n=6))
    answer = command("verify", path, *REFERENCE, "--load-inputs", tmp_path / "in.npz", "--json")
    (cell,) = json.loads(answer.out)["cells"]
    assert (cell["verdict"], cell["case"]["name"], cell["case"]["axes"]) == (
        "passed",
        "loaded",
        {"batch": 3, "n": 6},
    )


def test_array_without_a_name_is_refused(command, path, tmp_path):
    np.save(tmp_path / "in.npy", good()["x"])
    command("verify", path, "--load-inputs", tmp_path / "in.npy").assert_refused(
        "numpy.savez(path, name=array"
    )


def test_pickled_array_is_not_run(command, path, tmp_path):
    np.savez(tmp_path / "in.npz", x=np.array([{"a": 1}], object))
    command("verify", path, "--load-inputs", tmp_path / "in.npz").assert_refused(
        "x in", "is not a plain array"
    )


@pytest.mark.parametrize("data", [b"", b"hello", b"\x80\x04}q\x00."], ids=["empty", "text", "pickle"])
def test_file_that_is_no_npz(command, path, tmp_path, data):
    (tmp_path / "in.npz").write_bytes(data)
    command("verify", path, "--load-inputs", tmp_path / "in.npz").assert_refused("in.npz", "numpy.savez")


def test_no_prefix_of_an_npz_is_taken_for_it(signature, tmp_path):
    np.savez(tmp_path / "in.npz", **good())
    whole = (tmp_path / "in.npz").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut.npz").write_bytes(whole[:length])
        with pytest.raises(UsageError, match=r"cut\.npz"):
            load_inputs(tmp_path / "cut.npz", signature)


def test_damaged_npz_is_noticed(signature, tmp_path):
    np.savez(tmp_path / "in.npz", **good())
    damaged = bytearray((tmp_path / "in.npz").read_bytes())
    damaged[damaged.index(good()["x"].tobytes())] ^= 0xFF
    (tmp_path / "in.npz").write_bytes(damaged)
    with pytest.raises(UsageError, match=r"in\.npz is not a complete \.npz: .*save it again"):
        load_inputs(tmp_path / "in.npz", signature)


@pytest.mark.parametrize(
    "member",
    [b"hello", npy(b"{this is no header\n"), npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n") + b"1234"],
    ids=["text", "header", "short"],
)  # fmt: skip
def test_member_that_is_no_array(signature, tmp_path, member):
    with pytest.raises(UsageError, match=r"x in .*in\.npz is not an? .*array"):
        load_inputs(npz(tmp_path / "in.npz", x=member), signature)


def test_member_beyond_all_memory(signature, tmp_path):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999, 4), }\n"
    with pytest.raises(UsageError, match=r"x in .*in\.npz is too large for this machine"):
        load_inputs(npz(tmp_path / "in.npz", x=npy(header)), signature)


def test_npz_with_a_name_twice(signature, tmp_path):
    stream = io.BytesIO()
    np.save(stream, good()["x"])
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        archive.writestr("x.npy", stream.getvalue())
        archive.writestr("x", stream.getvalue())
    with pytest.raises(UsageError, match="holds x twice"):
        load_inputs(tmp_path / "in.npz", signature)


@pytest.mark.parametrize("name", ["nowhere.npz", "n" * 300])
def test_inputs_that_are_not_there(command, path, tmp_path, name):
    command("verify", path, "--load-inputs", tmp_path / name).assert_refused("cannot read", "input_0.pb")


# --- ONNX's own layout ------------------------------------------------------------------------------------------


def save_folder(folder: Path, inputs: dict[str, np.ndarray], *, named: bool = True) -> Path:
    folder.mkdir()
    for index, (name, array) in enumerate(inputs.items()):
        tensor = numpy_helper.from_array(array, name if named else "")
        (folder / f"input_{index}.pb").write_bytes(tensor.SerializeToString())
    return folder


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by position"])
def test_folder_is_read(signature, tmp_path, named):
    loaded = load_inputs(save_folder(tmp_path / "set", good(), named=named), signature)
    assert list(loaded) == ["x", "mask"]
    assert all(np.array_equal(loaded[name], array) for name, array in good().items())


def test_position_counts_as_a_number_and_not_as_text(onnx_file, tmp_path):
    names = [f"x{index}" for index in range(11)]
    graph = f"g ({', '.join(f'float[n] {name}' for name in names)}) => (float[n] y) {{ y = Sum ({', '.join(names)}) }}"
    signature = read_signature(read_artifact(onnx_file(graph)))
    arrays = {name: np.full(1, index, np.float32) for index, name in enumerate(names)}
    loaded = load_inputs(save_folder(tmp_path / "set", arrays, named=False), signature)
    assert {name: float(array[0]) for name, array in loaded.items()} == {f"x{i}": float(i) for i in range(11)}


def test_folder_without_inputs(command, path, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    command("verify", path, "--load-inputs", folder).assert_refused("holds no input_0.pb", "give an .npz")


def changed(**fields: object) -> bytes:
    tensor = numpy_helper.from_array(good()["x"], "x")
    for name, value in fields.items():
        if value is None:
            tensor.ClearField(name)
        elif name == "dims":
            tensor.dims[0] = value
        else:
            setattr(tensor, name, value)
    return tensor.SerializeToString()


def outside() -> bytes:
    tensor = TensorProto(name="x", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../../etc/hostname")
    return tensor.SerializeToString()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"hello", changed()[:20], changed(dims=7), changed(dims=-1), changed(data_type=99), changed(raw_data=None),
        outside(), onnx.SequenceProto(name="x", elem_type=1).SerializeToString(),
        changed().replace(b"B\x01x", b"B\x01\x91"),
    ],
    ids=["empty", "text", "cut", "size", "negative", "type", "no data", "outside", "sequence", "name"],
)  # fmt: skip
def test_broken_tensor_is_said_by_its_file(command, path, tmp_path, data):
    folder = save_folder(tmp_path / "set", good())
    (folder / "input_0.pb").write_bytes(data)
    command("verify", path, "--load-inputs", folder).assert_refused("input_0.pb is not an ONNX tensor")


def test_tensor_that_is_a_folder(command, path, tmp_path):
    folder = tmp_path / "set"
    (folder / "input_0.pb").mkdir(parents=True)
    command("verify", path, "--load-inputs", folder).assert_refused("input_0.pb", "Is a directory")


def test_tensor_given_twice(command, path, tmp_path):
    folder = save_folder(tmp_path / "set", good())
    (folder / "input_1.pb").write_bytes((folder / "input_0.pb").read_bytes())
    command("verify", path, "--load-inputs", folder).assert_refused("input_1.pb gives x a second time")


def test_odd_digits_in_a_name_are_no_number(signature, tmp_path):
    folder = save_folder(tmp_path / "set", good())
    (folder / "input_0.pb").rename(folder / "input_²2.pb")
    assert set(load_inputs(folder, signature)) == {"x", "mask"}
