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

WIDTH, LAYERS = 4096, 36
LAYER_BYTES = 4 * WIDTH * WIDTH


@pytest.fixture
def large(tmp_path):
    """Products with 64 MiB each; the file of weights has holes, so that it takes little room on a disk."""
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(LAYERS * LAYER_BYTES)
        for layer in range(LAYERS):
            file.seek(layer * LAYER_BYTES)
            file.write(np.random.default_rng(layer).standard_normal(4 * WIDTH, dtype=np.float32).tobytes())
    nodes, tensors = [], []
    for layer in range(LAYERS):
        tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": "weights.bin", "offset": layer * LAYER_BYTES, "length": LAYER_BYTES}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
        nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"p{layer}"]))
        nodes.append(helper.make_node("Add", [f"x{layer}", f"p{layer}"], [f"x{layer + 1}"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("x0", f"x{LAYERS}")
    ]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], tensors)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10),
        tmp_path / "m.onnx",
    )
    return tmp_path / "m.onnx"


@pytest.mark.slow
def test_a_file_of_more_than_two_gigabytes(large):
    command = [
        str(Path(sys.executable).parent / "onnx-attest"), "verify", str(large), "--runtime", "ort-cpu-noopt",
        "--input-shapes", f"x0:[2,{WIDTH}]",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    said = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, said
    # ONNX Runtime holds the weights once; the oracle adds a few layers in float64, not all of them.
    assert 1024 * usage.ru_maxrss < 1.8 * LAYERS * LAYER_BYTES
