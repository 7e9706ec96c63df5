"""What Ray costs beside processes of this machine, what a dying node costs, and what the driver holds.

    python benchmarks/ray_engine.py

Three nodes of `ray.cluster_utils` on this machine, a processor each.

* overhead: the accuracy cells of a few models of the catalogue, on as many local processes as the cluster has nodes and
  on the cluster, in turns. Both begin without a process: starting them is part of a run; so each turn has a new
  cluster, whose own start is not counted. The verdicts of both must be the same.
* death: the same once more on four nodes, one of which is killed when the first task is done.
* memory: 20,000 synthetic cells, 100 a task, whose records are dropped as they arrive; the resident size of this process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from onnx_attest.verify.on_ray import run_on_ray
from onnx_attest.verify.pool import run_tasks
from onnx_attest.verify.records import AnyRecord, CellRecord
from onnx_attest.verify.task import Engine, Task
from onnx_attest.verify.workers.resident import resident_bytes

NODES = 3
MODELS = ("sdpa", "mha", "causal", "self-attention", "sdpa-naive", "sdpa-unscaled")
RUNTIMES = ("ort-cpu", "openvino-cpu")
SYNTHETIC = """
import json, pathlib, sys
cell = {"kind": "cell", "model": "synthetic", "variant": "decomposed", "opset": 18, "dtype": "float32", "artifact_sha256": "0",
        "runtime": "ort-cpu", "runtime_version": "1", "case": None, "verdict": "passed", "reason": "x" * 2000}
for line in sys.stdin:
    pathlib.Path(json.loads(line)["records"]).write_text((json.dumps(cell) + "\\n") * 100)
    print(json.dumps({"type": "done"}), flush=True)
"""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cells", type=int, default=20_000, help="synthetic ones")
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--only", choices=("overhead", "death", "memory"), nargs="*", default=None)
    asked = parser.parse_args()
    parts = asked.only or ("overhead", "death", "memory")
    right = True
    if "overhead" in parts:
        right &= overhead(asked.model, asked.repetitions)
    with new_cluster() as cluster:
        if "death" in parts:
            right &= death(asked.model, cluster)
        if "memory" in parts:
            memory(asked.cells)
    return 0 if right else 1


@contextmanager
def new_cluster() -> Iterator[Any]:
    """Start a cluster on this machine, and end it."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def here(tasks: Sequence[Task]) -> Iterator[tuple[int, list[AnyRecord]]]:
    """Do tasks in processes of this machine."""
    return run_tasks(tasks, processes=NODES)


def overhead(models: Sequence[str], repetitions: int) -> bool:
    """Print what both engines take; return whether they came to the same."""
    taken: dict[str, list[float]] = {"local": [], "ray": []}
    seen: list[Counter[tuple[Any, ...]]] = []
    for _ in range(repetitions):
        for name, engine, place in (("local", here, nullcontext()), ("ray", run_on_ray, new_cluster())):
            with place:
                begun = time.monotonic()
                seen.append(done(engine, models))
                taken[name].append(time.monotonic() - begun)
    local, on_ray = (statistics.median(taken[name]) for name in ("local", "ray"))
    pairs = [b / a - 1 for a, b in zip(taken["local"], taken["ray"], strict=True)]
    same = all(one == seen[0] for one in seen)
    print(
        f"{sum(seen[0].values())} cells: local {local:.1f} s, Ray {on_ray:.1f} s (medians); Ray takes more by "
        f"{', '.join(f'{pair:+.1%}' for pair in pairs)} in the pairs"
    )
    print(f"verdicts {'the same' if same else 'DIFFERENT'}", flush=True)
    return same


def death(models: Sequence[str], cluster: Any) -> bool:
    """Kill a node in the middle; print and return whether all cells are there, with the verdicts of one process."""
    expected = done(here, models)
    victim = cluster.add_node(num_cpus=2)
    found = done(run_on_ray, models, lambda: cluster.remove_node(victim, allow_graceful=False))
    print(f"a node killed: {sum(found.values())} of {sum(expected.values())} cells", end="")
    print(f", verdicts {'the same' if found == expected else 'DIFFERENT'}", flush=True)
    return found == expected


def done(
    engine: Engine, models: Sequence[str], after_first: Callable[[], None] | None = None
) -> Counter[tuple[Any, ...]]:
    """Return the cells that a run over models gives, by their names and verdicts."""
    with tempfile.TemporaryDirectory() as name:
        tasks = [Task(reference=model, dtype="float32", variants=(), folder=f"{name}/{number}", runtimes=RUNTIMES, known=())
                 for number, model in enumerate(models)]  # fmt: skip
        for task in tasks:
            Path(task.folder).mkdir()
        found: Counter[tuple[Any, ...]] = Counter()
        for count, (_, records) in enumerate(engine(tasks)):
            cells = [record for record in records if isinstance(record, CellRecord)]
            found.update(
                (one.model, one.variant, one.opset, one.runtime, one.case and one.case.id, one.verdict)
                for one in cells
            )
            if count == 0 and after_first is not None:
                after_first()
    return found


def memory(cells: int) -> None:
    """Print what this process holds while so many synthetic cells pass through."""
    with tempfile.TemporaryDirectory() as name:
        task = Task(reference="synthetic", dtype="float32", variants=(), folder=name, runtimes=(), known=())
        tasks = [task] * (cells // 100)
        sizes: list[float] = []
        count = 0
        for _, records in run_on_ray(tasks, worker=(sys.executable, "-c", SYNTHETIC)):
            count += len(records)
            sizes.append(resident_bytes(os.getpid()) / 2**20)
        shown = [sizes[int(share * (len(sizes) - 1))] for share in (0.1, 0.25, 0.5, 0.75, 1.0)]
        told = ", ".join(f"{size:.0f}" for size in shown)
        print(
            f"{count} cells; MiB held after a tenth, a quarter, a half, three quarters, all: {told}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
