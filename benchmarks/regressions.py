"""Whether `compare` tells a regression from noise: pairs of real runs, one of each pair with a fault put in.

    python benchmarks/regressions.py [--pairs 20] [--bits 3] [--slower 0.2] [--only errors latency] [--sittings 6]

Errors: the catalogue's multi-head and causal attention on ONNX Runtime, verified with a fresh seed each time. Two such
runs differ by noise alone; in a third the error of each output is made 2^bits times as large, as that of a kernel that
many bits worse is. Also told is how often the noise gate says so without a comparison; a verdict is no measure of that,
since a fault put into the outputs alone is one of the last node, which the look at nodes finds at any size.

Latency: multi-head attention timed as `onnx-attest bench` does, beside torch, in fresh processes each time; with its
fewest sittings, since a fifth shows long before the two per cent that it goes on for. Two such measurements, one after
the other, differ by noise alone; in a third each call of ONNX Runtime is made longer by a part of itself.

Told are, for each kind: how many noisy pairs were taken for a regression, and how many regressions were told.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np

from onnx_attest.export.api import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models.entry import resolve
from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.compare import Comparison, compare
from onnx_attest.verify.engine import Plan, verify_artifact
from onnx_attest.verify.expected import Expected
from onnx_attest.verify.latency import THOROUGH, LatencyBudget, LatencyJob, grouped_jobs, measure
from onnx_attest.verify.records import AnyRecord, CellRecord
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime, OrtSession
from onnx_attest.verify.signature import read_signature

WORKER = """
import sys, time
from onnx_attest.verify.runtimes.onnxruntime import OrtSession
from onnx_attest.verify.workers import latency

part, plain = float(sys.argv[1]), OrtSession.run

def slowed(self, inputs):
    start = time.perf_counter()
    outputs = plain(self, inputs)
    end = time.perf_counter()
    while time.perf_counter() < end + part * (end - start):
        pass
    return outputs

if part:
    OrtSession.run = slowed
latency.main()
"""


def main() -> None:
    """Run the pairs and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--bits", type=float, default=3)
    parser.add_argument("--slower", type=float, default=0.2)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument(
        "--sittings",
        type=int,
        default=THOROUGH.sittings,
        help=f"of a timing; bench adds some, up to {THOROUGH.most_sittings}",
    )
    parser.add_argument("--only", choices=("errors", "latency"), nargs="+", default=("errors", "latency"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        artifacts = [
            one
            for name in ("mha", "causal")
            for one in export_entry(resolve(name), Path(folder))
            if isinstance(one, Artifact)
        ]
        if "errors" in asked.only:
            worse_kernel(artifacts, asked.pairs, asked.bits)
        if "latency" in asked.only:
            timed = next(one for one in artifacts if one.path.stem == "mha-attention-23")
            (job,) = grouped_jobs([timed], [asked.length], 0)
            slower_runtime(job, asked.pairs, asked.slower, asked.sittings)


def worse_kernel(artifacts: list[Artifact], pairs: int, bits: float) -> None:
    """Compare verifications of the same kernel, and of one that is some bits worse."""
    false, told, noisy, lost = 0, 0, 0, list[float]()
    for number in range(pairs):
        old, new, worse = (3 * number + offset for offset in (1, 2, 3))
        before = verified(artifacts, old)
        noise = compare(before, verified(artifacts, new))
        with worse_by(bits):
            after = verified(artifacts, worse)
        fault = compare(before, after)
        shifts = [one for one in fault.changes if one.kind == "error" and one.quantity == "effective_bits"]
        lost += [-one.amount for one in shifts if one.amount is not None and one.records > 1]
        false += bool(noise.regressions)
        told += bool(_of_kind(fault, "error"))
        cells = newly_noisy(before, after)
        noisy += bool(cells)
        print(
            f"{number:3} noise: {len(noise.regressions)} regressions of {noise.compared['cells']} cells, "
            f"{bits:g} bits worse: errors of {len(shifts)} files, noise of {cells} cells",
            flush=True,
        )
    print(
        f"errors: {false} of {pairs} noisy pairs taken for a regression; told {told} of {pairs} worse kernels"
    )
    if lost:
        print(
            f"effective bits lost: median {statistics.median(lost):.2f}, {min(lost):.2f} to {max(lost):.2f}; "
            f"without compare, by the noise gate alone: {noisy} of {pairs}"
        )


def newly_noisy(before: list[AnyRecord], after: list[AnyRecord]) -> int:
    """Return how many cells passed, and now have more noise than correct implementations."""
    passed = {
        (one.artifact_sha256, one.case.id)
        for one in before
        if isinstance(one, CellRecord) and one.verdict == "passed"
    }
    now = [one for one in after if isinstance(one, CellRecord)]
    return sum(_is_noisy(one) for one in now if (one.artifact_sha256, one.case.id) in passed)


def _is_noisy(cell: CellRecord) -> bool:
    noise = cell.gates.get("noise", {})
    pairs = [(noise.get(name), noise.get(f"{name}_limit")) for name in ("rms_z", "max_z")]
    return any(value is not None and limit is not None and value > limit for value, limit in pairs)


def verified(artifacts: list[Artifact], seed: int) -> list[AnyRecord]:
    """Return the records of a verification on ONNX Runtime, in this process."""
    plan = Plan(runtimes=(OrtRuntime(),), seed=seed, threads=1)
    return [record for artifact in artifacts for record in verify_artifact(artifact, plan)]


@contextmanager
def worse_by(bits: float) -> Iterator[None]:
    """Let the errors of ONNX Runtime's outputs be 2^bits times as large: exact outputs are those of the float64 oracle."""
    plain_open, plain_run = OrtRuntime.open, OrtSession.run
    expected: dict[str, Expected] = {}

    def open_(self, artifact, **options):
        session = plain_open(self, artifact, **options)
        known = expected.setdefault(artifact.sha256, Expected(read_signature(artifact)))
        session.exact = lambda inputs: known.evaluate(inputs, PROFILES["fp32"]).outputs
        return session

    def run(self, inputs):
        outputs = plain_run(self, inputs)
        exact = self.exact(inputs)
        return {
            name: _worse(value, exact[name].value, bits) if name in exact else value
            for name, value in outputs.items()
        }

    with mock.patch.object(OrtRuntime, "open", open_), mock.patch.object(OrtSession, "run", run):
        yield


def _worse(value: np.ndarray, exact: np.ndarray, bits: float) -> np.ndarray:
    both = np.isfinite(value) & np.isfinite(exact)
    error = np.where(both, value.astype(np.float64) - np.where(both, exact, 0.0), 0.0)
    with np.errstate(over="ignore"):
        worse = (value + (2**bits - 1) * error).astype(value.dtype)
    return np.where(both, worse, value)


def slower_runtime(job: LatencyJob, pairs: int, slower: float, sittings: int) -> None:
    """Compare measurements of the same runtime, and of one that is slower."""
    budget = replace(THOROUGH, sittings=sittings, most_sittings=sittings)
    false, told, faster = 0, 0, 0
    before = _measured(job, 0, 0.0, budget)
    for number in range(pairs):
        slowed, after = (
            _measured(job, 2 * number + offset, part, budget) for offset, part in ((1, slower), (2, 0.0))
        )
        noise, fault = compare(before, after), compare(before, slowed)
        false += bool(_of_kind(noise, "latency"))
        faster += any(one.kind == "latency" for one in (*noise.changes, *fault.changes) if not one.counts)
        told += any(one.runtime == "ort-cpu" for one in _of_kind(fault, "latency"))
        for label, one in (("noise", noise), (f"{slower:.0%} slower", fault)):
            said = "; ".join(f"{change.where}: {change.message}" for change in one.changes) or "no difference"
            print(f"{number:3} {label}, {one.compared['timings']} timings: {said}", flush=True)
        before = after
    print(
        f"latency: {false} of {pairs} noisy pairs taken for a regression; told {told} of {pairs} slower runtimes; "
        f"something was taken to be faster in {faster}"
    )


def _measured(job: LatencyJob, seed: int, part: float, budget: LatencyBudget) -> list[AnyRecord]:
    worker = (sys.executable, "-c", WORKER, str(part))
    return list(measure(("torch", "ort-cpu"), [job], threads=1, budget=budget, seed=seed, worker=worker))


def _of_kind(comparison: Comparison, kind: str) -> list[object]:
    return [one for one in comparison.regressions if one.kind == kind]


if __name__ == "__main__":
    main()
