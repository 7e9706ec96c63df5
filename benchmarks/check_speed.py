"""What `onnx-attest check` takes on a file of 1,000 nodes, as a whole process, and where the time goes.

    python benchmarks/check_speed.py [--nodes 1000] [--repetitions 9]

The file is a stack of decoder blocks with decomposed attention; beside it stands a process that only imports onnx.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_WIDTH = 64


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=9)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stack.onnx"
        count, attentions = write(path, asked.nodes)
        command = [str(Path(sys.executable).parent / "onnx-attest"), "check", str(path)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
        print(f"{count} nodes, {attentions} attentions, {path.stat().st_size / 2**20:.1f} MiB; {said}")
        others = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "python -c 'import onnx'": [sys.executable, "-c", "import onnx"],
            "onnx-attest --version": [command[0], "--version"],
            "onnx-attest check": command,
        }
        seen: dict[str, list[float]] = {name: [] for name in others}
        for _ in range(asked.repetitions):
            for name, one in others.items():
                seen[name].append(seconds(one))
        for name, values in seen.items():
            print(
                f"{name}: {statistics.median(values):.2f} s (median of {asked.repetitions}, {min(values):.2f} to {max(values):.2f})"
            )


def seconds(command: list[str]) -> float:
    """Return how long a process takes."""
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def write(path: Path, nodes: int) -> tuple[int, int]:
    """Write a stack of blocks of at least so many nodes; return how many nodes and attentions it has."""
    rng = np.random.default_rng(0)
    made: list[onnx.NodeProto] = []
    constants = [
        numpy_helper.from_array(np.float32(1 / np.sqrt(_WIDTH)), "scale"),
        numpy_helper.from_array(np.ones(_WIDTH, np.float32), "ones"),
        numpy_helper.from_array(np.zeros(_WIDTH, np.float32), "zeros"),
    ]
    value, blocks = "x", 0
    while len(made) < nodes:
        prefix = f"block{blocks}"
        for name in "qkvo":
            weights = rng.standard_normal((_WIDTH, _WIDTH)).astype(np.float32) / 8
            constants.append(numpy_helper.from_array(weights, f"{prefix}.{name}"))
        steps = [
            ("LayerNormalization", [value, "ones", "zeros"], "n"),
            ("MatMul", ["n", f"{prefix}.q"], "q"),
            ("MatMul", ["n", f"{prefix}.k"], "k"),
            ("MatMul", ["n", f"{prefix}.v"], "v"),
            ("Transpose", ["k"], "t"),
            ("MatMul", ["q", "t"], "s"),
            ("Mul", ["s", "scale"], "l"),
            ("Softmax", ["l"], "p"),
            ("MatMul", ["p", "v"], "a"),
            ("MatMul", ["a", f"{prefix}.o"], "b"),
            ("Add", [value, "b"], "y"),
        ]
        own = {output for *_, output in steps}
        for kind, inputs, output in steps:
            names = [f"{prefix}.{name}.out" if name in own else name for name in inputs]
            attributes = {"perm": [0, 2, 1]} if kind == "Transpose" else {}
            made.append(
                helper.make_node(
                    kind, names, [f"{prefix}.{output}.out"], name=f"{prefix}.{output}", **attributes
                )
            )
        value, blocks = f"{prefix}.y.out", blocks + 1
    shape = ["batch", "seq", _WIDTH]
    graph = helper.make_graph(
        made,
        "stack",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return len(made), blocks


if __name__ == "__main__":
    main()
