"""A file of more than 2 GB, its weights beside it, is verified in memory that does not grow with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

ROWS, WIDTH, TABLES = 2**17, 2**8, 17
TABLE_BYTES = 4 * ROWS * WIDTH


@pytest.fixture
def large(tmp_path):
    """Tables of 128 MiB each, looked up and added; their file has holes, so that it takes little room on a disk."""
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(TABLES * TABLE_BYTES)
        for number in range(TABLES):
            file.seek(number * TABLE_BYTES)
            file.write(np.random.default_rng(number).standard_normal(64 * WIDTH, dtype=np.float32).tobytes())
    nodes, tensors = [helper.make_node("Gather", ["w0", "ids"], ["x0"])], []
    for number in range(TABLES):
        tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[ROWS, WIDTH])
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": "weights.bin", "offset": number * TABLE_BYTES, "length": TABLE_BYTES}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    for number in range(1, TABLES):
        nodes.append(helper.make_node("Gather", [f"w{number}", "ids"], [f"p{number}"]))
        nodes.append(helper.make_node("Add", [f"x{number - 1}", f"p{number}"], [f"x{number}"]))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    y = helper.make_tensor_value_info(f"x{TABLES - 1}", TensorProto.FLOAT, ["n", WIDTH])
    graph = helper.make_graph(nodes, "large", [ids], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.slow
def test_a_file_of_more_than_two_gigabytes(large):
    command = [
        str(Path(sys.executable).parent / "onnx-attest"), "verify", str(large), "--runtime", "ort-cpu-noopt",
        "--input-shapes", "ids:[500]",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    said = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, said
    # ONNX Runtime holds the weights once; the oracle adds one table in float64, not all of them.
    assert 1024 * usage.ru_maxrss < 1.8 * TABLES * TABLE_BYTES
