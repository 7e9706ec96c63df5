"""What a verification of a sentence encoder costs, beside Polygraphy and beside one inference.

    python benchmarks/real/speed.py [--polygraphy PATH] [--repetitions 7]

1. Whole processes at (2, 128) on two runtimes, wall time and peak resident memory, taken in turns with
   `polygraphy run MODEL --onnxrt --onnxrt --input-shapes ...` if that is given, and with the same verification in one
   process if that is asked for: what it costs to give each runtime a process of its own.
2. At (2, 512): float64 values with the bound and the deviation of every node, and the deviations end to end, each over
   one float32 inference of ONNX Runtime, taken in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from onnx_attest.verify.pages import keep_pages, one_thread_in_blas

# ruff: noqa: E402
one_thread_in_blas()  # as the command does, before NumPy is there

import numpy as np
import onnx
import onnxruntime

from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.inspection import Inspection
from onnx_attest.verify.nodewise import walk
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime

HERE = Path(__file__).parent
SHORT, LONG = (2, 128), (2, 512)
DEVIATIONS = replace(PROFILES["fp32"], deviations=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--polygraphy", help="its command")
    parser.add_argument("--in-process", action="store_true", help="also without processes for the runtimes")
    parser.add_argument("--repetitions", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.onnx"
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", f"import encoder; encoder.write(encoder.Path({str(path)!r}))"],
            cwd=HERE, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        processes(path, asked.polygraphy, asked.repetitions, in_process=asked.in_process)
        evaluations(path, asked.repetitions)


def processes(path: Path, polygraphy: str | None, repetitions: int, *, in_process: bool) -> None:
    """Print wall time and memory of whole processes, and their ratio; memory is that of the largest process."""
    shapes = [f"{name}:[{SHORT[0]},{SHORT[1]}]" for name in ("input_ids", "attention_mask")]
    ours = [
        str(Path(sys.executable).parent / "onnx-attest"), "verify", str(path),
        "--runtime", "ort-cpu", "--runtime", "ort-cpu-noopt", "--input-shapes", *shapes,
    ]  # fmt: skip
    commands = {"onnx-attest": ours}
    inputs = path.with_name("inputs.npz")
    ids = np.random.default_rng(0).integers(0, 30522, SHORT)
    np.savez(inputs, input_ids=ids, attention_mask=np.ones(SHORT, np.int64))
    commands["onnx-attest on one set of inputs"] = [*ours[:-3], "--load-inputs", str(inputs)]
    if polygraphy:
        commands["polygraphy"] = [
            polygraphy,
            "run",
            str(path),
            "--onnxrt",
            "--onnxrt",
            "--input-shapes",
            *shapes,
        ]
    if in_process:
        commands["onnx-attest --in-process"] = [*ours, "--in-process"]
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(repetitions):
        for name, command in commands.items():
            seen[name].append(cost(command))
    for name, costs in seen.items():
        wall, memory = (statistics.median(values) for values in zip(*costs, strict=True))
        print(f"{name} at {SHORT}, whole process: {wall:.2f} s, {memory:.0f} MiB (medians of {repetitions})")
    compared = [(name, "polygraphy") for name in seen if polygraphy and name != "polygraphy"]
    compared += [("onnx-attest", "onnx-attest --in-process")] if in_process else []
    for first, other in compared:
        pairs = list(zip(seen[first], seen[other], strict=True))
        print(
            f"{first} over {other}, paired: time {statistics.median(a[0] / b[0] for a, b in pairs):.2f}, "
            f"memory {statistics.median(a[1] / b[1] for a, b in pairs):.2f}"
        )
    if in_process:
        importing = [sys.executable, "-c", "import numpy, onnxruntime"]
        own = statistics.median(cost(importing)[0] for _ in range(repetitions))
        pairs = list(zip(seen["onnx-attest"], seen["onnx-attest --in-process"], strict=True))
        beyond = statistics.median((a[0] - own) / b[0] for a, b in pairs)
        print(f"the same without the {own:.2f} s in which a runtime is imported: time {beyond:.2f}")


def cost(command: Sequence[str]) -> tuple[float, float]:
    """Return seconds and MiB, at the peak, of one process.

    Raises:
        RuntimeError: it failed.
    """
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{command[0]} failed: {said.decode(errors='replace')[-2000:]}")
    return time.monotonic() - started, usage.ru_maxrss / 1024


def evaluations(path: Path, repetitions: int) -> None:
    """Print what node-by-node evaluation and the deviations end to end cost in inferences."""
    keep_pages()
    rng = np.random.default_rng(0)
    inputs = {"input_ids": rng.integers(0, 30522, LONG), "attention_mask": np.ones(LONG, np.int64)}
    inputs["attention_mask"][1, LONG[1] * 3 // 4 :] = 0
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    model = onnx.load(path)
    oracle = GraphOracle(model)
    unoptimised = OrtRuntime("ort-cpu-noopt", optimise=False)
    values = Inspection.of(read_artifact(path), model, oracle, unoptimised, None).session.run(inputs)
    tasks: dict[str, Callable[[], object]] = {
        "values with bounds and deviations, node by node": lambda: walk(oracle, inputs, values, DEVIATIONS),
        "the same, and the deviations end to end": lambda: walk(
            oracle, inputs, values, DEVIATIONS, carry=True
        ),
    }
    ratios = {}
    for name, task in tasks.items():
        task()
        pairs = [(seconds(task), seconds(lambda: session.run(None, inputs))) for _ in range(repetitions)]
        ratios[name] = statistics.median(a / b for a, b in pairs)
        print(
            f"{name} at {LONG}: {statistics.median(a for a, _ in pairs):.2f} s, "
            f"{ratios[name]:.1f} inferences of {1e3 * statistics.median(b for _, b in pairs):.0f} ms"
        )
    alone, whole = ratios.values()
    print(f"so the deviations end to end cost {whole - alone:.1f} inferences more")


def seconds(task: Callable[[], object]) -> float:
    """Return how long a task takes."""
    started = time.perf_counter()
    task()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
