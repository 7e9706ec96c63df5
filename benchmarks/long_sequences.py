"""What the verification of one long attention costs, beside attention itself and beside the runtimes.

    python benchmarks/long_sequences.py [--length 32768] [--sampled 131072] [--repetitions 1]

1. All rows of `--length` tokens: the oracle with bound, deviation and comparison, over a blocked attention in NumPy's
   float64 that computes the value alone (both with one thread, in a process of their own), and over the fastest runtime
   (both with all cores).
2. The whole command at that length, and at `--sampled` tokens, where rows are sampled: wall time with all that it does,
   the runtimes included, and the peak resident memory of its own process, without those of the runtimes.

One head of 64 features, in two fused forms: ONNX's Attention and com.microsoft's MultiHeadAttention.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from onnx_attest.verify.pages import keep_pages, one_thread_in_blas

# ruff: noqa: E402
one_thread_in_blas()  # as the command does, before NumPy is there

import numpy as np
import onnx
from oracle_speed import BLOCKS, blocked_attention, inputs

from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.gates import judge
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.runtimes.isolated import isolate, processes_of
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.workers.resident import high_water_bytes

FEATURES, MIB = 64, 2.0**20
DEVIATIONS = replace(PROFILES["fp32"], deviations=True)
FORMS = {
    "multi_head": (
        'opset_import: ["": 21, "com.microsoft": 1]',
        "com.microsoft.MultiHeadAttention <num_heads = 1> (Q, K, V)",
        ("ort-cpu", "openvino-cpu"),
    ),
    "attention": (
        'opset_import: ["": 24]',
        "Attention <q_num_heads = 1, kv_num_heads = 1> (Q, K, V)",
        ("openvino-cpu", "ort-cpu"),
    ),
}
"""Opsets, the operator, and the runtimes to ask; ONNX Runtime holds all scores of the standard Attention."""
LOOKED_S = 0.02


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=32768, help="tokens, all of whose rows are verified")
    parser.add_argument("--sampled", type=int, default=131072, help="tokens, some of whose rows are")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    keep_pages()
    if asked.alone:
        print(json.dumps(one_thread(asked.length, asked.repetitions)))
        return
    with tempfile.TemporaryDirectory() as folder:
        files = {form: write(Path(folder), form) for form in FORMS}
        ratios(files, asked.length, asked.repetitions)
        for form, path in files.items():
            whole(form, path, asked.length, FORMS[form][2])
        for form, path in files.items():
            whole(form, path, asked.sampled, FORMS[form][2][:1])
            whole(form, path, asked.sampled, FORMS[form][2])


def write(folder: Path, form: str) -> Path:
    """Write one attention as one operator."""
    opsets, call, _ = FORMS[form]
    names = ", ".join(f"float[batch, seq_len, {FEATURES}] {name}" for name in "QKV")
    text = f"<ir_version: 10, {opsets}> {form} ({names}) => (float[batch, seq_len, {FEATURES}] output) {{ output = {call} }}"
    path = folder / f"{form}.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def made(length: int) -> dict[str, np.ndarray]:
    """Return the inputs (1, length, features) by name."""
    arrays = inputs(length, FEATURES, 2.0)
    return {name: array[None].astype(np.float32) for name, array in zip("QKV", arrays, strict=True)}


def one_thread(length: int, repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of a blocked attention and of the oracle, taken in turns."""
    q, k, v = inputs(length, FEATURES, 2.0)
    scale = FEATURES**-0.5
    block = min(BLOCKS, key=lambda size: seconds(lambda: blocked_attention(q[:512], k, v, scale, size)))
    given = made(length)
    with tempfile.TemporaryDirectory() as folder:
        oracle = GraphOracle(onnx.load(write(Path(folder), "multi_head")))
    outputs = {"output": blocked_attention(q, k, v, scale, block)[None].astype(np.float32)}
    seen: dict[str, list[float]] = {"attention": [], "oracle": []}
    for _ in range(repetitions):
        seen["attention"].append(seconds(lambda: blocked_attention(q, k, v, scale, block)))
        seen["oracle"].append(seconds(lambda: judged(oracle, given, outputs)))
    return seen


def judged(oracle: GraphOracle, given: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
    """Hold all rows against the oracle, block by block.

    Raises:
        AssertionError: they are not within their bounds.
    """
    by_rows = oracle.by_rows(given, DEVIATIONS)
    dtypes = {name: array.dtype for name, array in outputs.items()}
    for start in range(0, by_rows.count, by_rows.block):
        rows = np.arange(start, min(start + by_rows.block, by_rows.count))
        judgement = judge({name: array[:, rows] for name, array in outputs.items()}, by_rows.at(rows), dtypes)
        assert judgement.passed, judgement.findings


def ratios(files: Mapping[str, Path], length: int, repetitions: int) -> None:
    """Print what the oracle takes over attention in NumPy, and over the fastest runtime."""
    command = [
        sys.executable,
        __file__,
        "--alone",
        "--length",
        str(length),
        "--repetitions",
        str(repetitions),
    ]
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    printed = subprocess.run(
        command, env={**os.environ, **one}, capture_output=True, text=True, check=True
    ).stdout
    alone = {name: statistics.median(values) for name, values in json.loads(printed).items()}
    print(
        f"{length:,} tokens, one thread: float64 attention in NumPy {alone['attention']:.1f} s, oracle of all rows "
        f"{alone['oracle']:.1f} s: {alone['oracle'] / alone['attention']:.2f} times"
    )
    given, ran, outputs = made(length), dict[str, float](), dict[str, Any]()
    for form, path in files.items():
        for name in FORMS[form][2]:
            (runtime,) = isolate(select((name,)))
            with processes_of([runtime]):
                session = runtime.open(read_artifact(path))
                outputs = session.run(given)
                times = [seconds(partial(session.run, given)) for _ in range(max(3, repetitions))]
            ran[f"{name} {form}"] = statistics.median(times)
    oracle = GraphOracle(onnx.load(files["multi_head"]))
    took = statistics.median(seconds(lambda: judged(oracle, given, outputs)) for _ in range(repetitions))
    fastest = min(ran, key=lambda name: ran[name])
    listed = ", ".join(f"{name} {value:.2f} s" for name, value in ran.items())
    print(
        f"{length:,} tokens, {os.cpu_count()} cores: {listed}; oracle {took:.1f} s: {took / ran[fastest]:.1f} times the fastest "
        f"runtime, {fastest}"
    )


def whole(form: str, path: Path, length: int, names: Sequence[str]) -> None:
    """Print what the command says, takes and holds, on these runtimes."""
    runtimes = [argument for name in names for argument in ("--runtime", name)]
    command = [
        str(Path(sys.executable).parent / "onnx-attest"), "verify", str(path), *runtimes, "--json",
        "--input-shapes", f"Q:[1,{length},{FEATURES}]",
    ]  # fmt: skip
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, high_water_bytes(process.pid) or 0)
            time.sleep(LOOKED_S)
        assert process.stdout is not None
        said = json.loads(process.stdout.read())
    took = time.monotonic() - started
    print(
        f"{length:,} tokens, verify {form}.onnx on {len(names)}: {said['verdict']}, {took:.1f} s, {peak / MIB:.0f} MiB in its own process"
    )
    for cell in said["cells"]:
        over, rows = (cell["gates"].get(name, {}) for name in ("proof", "rows"))
        verified = f"{rows['verified']:,.0f} rows, " if rows else ""
        ratio = f"largest error/bound {over['max_err_over_tau']:.3g}" if over else cell["reason"]
        print(f"  {cell['runtime']} {cell['verdict']}: {verified}{ratio}")
    for finding in said["findings"]:
        if finding["code"] == "OA809":
            print(f"  {finding['message'].partition('. ')[0]}")


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
