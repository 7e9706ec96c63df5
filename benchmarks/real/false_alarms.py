"""How often `verify` cries wolf on a model that somebody ships: several sizes, many seeds, the runtimes named.

    python benchmarks/real/false_alarms.py MODEL.onnx --sizes x:1,3,48,80 x:2,3,48,160 [--seeds 20]

Prints the verdicts of all cells, and each finding that is an error once, with how often it was found.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

from onnx_attest.verify import verify
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.pages import keep_pages
from onnx_attest.verify.runtimes.registry import select


def main() -> None:
    """Verify at each size with each seed, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--sizes", nargs="+", required=True, help="name:2,3,48; several inputs joined by +")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--runtimes", nargs="+", default=["ort-cpu", "ort-cpu-noopt"])
    asked = parser.parse_args()
    keep_pages()
    plan = Plan(runtimes=select(tuple(asked.runtimes)))
    verdicts: Counter[tuple[str, str]] = Counter()
    found: Counter[tuple[str, str, str, str]] = Counter()
    for size in asked.sizes:
        shapes = {
            name: tuple(int(n) for n in axes.split(","))
            for name, axes in (one.split(":") for one in size.split("+"))
        }
        for seed in range(asked.first, asked.first + asked.seeds):
            report = verify(asked.model, input_shapes=shapes, plan=replace(plan, seed=seed))
            verdicts.update((cell.runtime, cell.verdict) for cell in report.cells)
            found.update(
                (item.code, item.runtime, item.node, item.message.partition(":")[0])
                for item in report.findings
                if item.severity == "error"
            )
    print(f"{asked.model.name}, {len(asked.sizes)} sizes x {asked.seeds} seeds: {dict(verdicts)}")
    for (code, runtime, node, message), count in found.most_common():
        print(f"  {count} x {code} {runtime} {node}: {message}")


if __name__ == "__main__":
    main()
