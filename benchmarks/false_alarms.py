"""How often the verifier cries wolf: the whole catalogue under many seeds, in every dtype, on every runtime here.

    python benchmarks/false_alarms.py --seeds 20 --dtypes float32 float16 bfloat16

Every kernel here is taken to be right but for the known failures, so each other finding is a false alarm, or a find.
Prints a line a dtype and seed, then the totals. About a minute a seed and dtype on one core.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from onnx_attest.export import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models import CATALOGUE
from onnx_attest.verify.engine import Plan, verify_artifact
from onnx_attest.verify.known import built_in
from onnx_attest.verify.records import AnyRecord, CellRecord, StabilityRecord

COUNTER_EXAMPLES = {known.model for known in built_in() if known.issue == "counter-example"}
OPEN = (
    "import sys, onnxruntime; onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
)


def main() -> None:
    """Sweep and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16", "bfloat16"])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for dtype in asked.dtypes:
            artifacts = list(export_all(Path(folder), dtype))
            dead = {
                (artifact.path.stem, "ort-cpu"): reason
                for artifact in artifacts
                if (reason := crash(artifact))
            }
            total: Counter[str] = Counter()
            worst = 0.0
            for seed in range(asked.first, asked.first + asked.seeds):
                seen, largest, alarms = sweep(artifacts, Plan(seed=seed, dead=dead, threads=1))
                total += seen
                worst = max(worst, largest)
                print(f"{dtype} seed {seed}: {dict(seen)}, largest error/bound {largest:.3f}", flush=True)
                for alarm in alarms:
                    print(f"  ALARM {alarm}", flush=True)
            print(f"{dtype} all seeds: {dict(total)}, largest error/bound {worst:.3f}", flush=True)


def export_all(folder: Path, dtype: str) -> Iterator[Artifact]:
    """Yield every artifact of the catalogue."""
    for entry in CATALOGUE:
        if not entry.is_verified_in(dtype):
            continue
        for result in export_entry(entry, folder, dtype=dtype):
            if isinstance(result, Artifact):
                yield result


def crash(artifact: Artifact) -> str:
    """Return how ONNX Runtime dies over a file, "" if it does not: it would take this process along."""
    code = subprocess.run(
        [sys.executable, "-c", OPEN, str(artifact.path)], capture_output=True, check=False
    ).returncode
    return f"its process ended with {code}" if code < 0 else ""


def sweep(artifacts: list[Artifact], plan: Plan) -> tuple[Counter[str], float, list[str]]:
    """Return the verdicts counted, the largest error over its bound of what passed, and each alarm in a line."""
    seen: Counter[str] = Counter()
    largest, alarms = 0.0, []
    for artifact in artifacts:
        for record in verify_artifact(artifact, plan):
            if not isinstance(record, CellRecord | StabilityRecord):
                continue
            kind = "softmax " if isinstance(record, StabilityRecord) else ""
            seen[kind + record.verdict + (" (known)" if record.known else "")] += 1
            largest = max(largest, ratio(record))
            if record.verdict in ("failed", "errored") and not record.known:
                case = record.case.id if record.case else ""
                alarms.append(f"{artifact.path.stem} {record.runtime} {case}: {record.reason[:300]}")
    return seen, largest, alarms


def ratio(record: AnyRecord) -> float:
    """Return the error over its bound of a cell that passed; a counter-example passes with any, by good luck."""
    if not isinstance(record, CellRecord) or record.verdict != "passed" or record.model in COUNTER_EXAMPLES:
        return 0.0
    return record.gates.get("proof", {}).get("max_err_over_tau") or 0.0


if __name__ == "__main__":
    main()
