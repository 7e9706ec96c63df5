"""Whether the latency report can be believed: a runtime against itself, a slowdown put into one, and another harness.

    python benchmarks/latency_trust.py [--repetitions 40] [--slower 0.1] [--threads 2] [--length 512]
    python benchmarks/latency_trust.py --pyperf 5

Each repetition is one measurement as `onnx-attest bench` makes it, of the catalogue's multi-head attention, with three
participants: ONNX Runtime's CPU provider, the same in a second process (which every measurement has), and the same once
more with each call made longer by a part of itself. Told are: how often the interval of the ratio to itself covers 1, the
noise floor, how often the slow one is reported as slower, and what ratio it was given.

With --pyperf the same call is timed by pyperf too, a sitting of ours and two processes of pyperf's in turns, since a shared
machine is faster now and slower then: its median beside ours, and our interval.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyperf

from onnx_attest.export.api import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models.entry import resolve
from onnx_attest.verify.latency import THOROUGH, LatencyJob, grouped_jobs, measure
from onnx_attest.verify.records import LatencyRecord
from onnx_attest.verify.samples import Interval, Rounds, difference, floor_of, measured, median_of, paired

PLAIN, SLOWED = "ort-cpu", "ort:CPUExecutionProvider"  # the same runtime under two names
WORKER = """
import sys, time
from onnx_attest.verify.runtimes.onnxruntime import OrtSession
from onnx_attest.verify.workers import latency

part, plain, answer_to = float(sys.argv[1]), OrtSession.run, latency.Timed.answer_to

def slowed(self, inputs):
    start = time.perf_counter()
    outputs = plain(self, inputs)
    end = time.perf_counter()
    while time.perf_counter() < end + part * (end - start):
        pass
    return outputs

def answer(self, request):
    if getattr(request, "runtime", "").startswith("ort:"):
        OrtSession.run = slowed
    return answer_to(self, request)

latency.Timed.answer_to = answer
latency.main()
"""
PYPERF = """
import sys
import numpy as np
import onnxruntime
import pyperf

path, inputs, threads = sys.argv[-3:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(threads)
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
with np.load(inputs) as file:
    given = dict(file)
runner = pyperf.Runner(program_args=(__file__,), add_cmdline_args=lambda command, args: command.extend(sys.argv[-3:]))
runner.argparser.add_argument("rest", nargs="*")
runner.bench_func("run", session.run, names, given)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--slower", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--variant", default="attention-23")
    parser.add_argument("--pyperf", type=int, default=0, help="so many times instead, in turns with pyperf")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        entry = resolve("mha")
        made = [one for one in export_entry(entry, Path(folder)) if isinstance(one, Artifact)]
        artifact = next(one for one in made if asked.variant in one.path.name)
        (job,) = grouped_jobs([artifact], [asked.length], 0)
        print(f"{artifact.path.name}, length {asked.length}, {asked.threads} threads")
        if asked.pyperf:
            against_pyperf(job, asked.threads, asked.pyperf, Path(folder))
        else:
            against_itself(job, asked.threads, asked.repetitions, asked.slower)


def against_itself(job: LatencyJob, threads: int, repetitions: int, slower: float) -> None:
    """Repeat the measurement, and print how often it was right."""
    worker = (sys.executable, "-c", WORKER, str(slower))
    covered, floors, shown, ratios, medians = 0, list[float](), Counter[str](), list[float](), list[float]()
    for number in range(repetitions):
        records = measure(
            (PLAIN, SLOWED), [job], threads=threads, budget=THOROUGH, seed=number, worker=worker
        )
        timed = [one for one in records if isinstance(one, LatencyRecord)]
        plain = next(one for one in timed if one.runtime == PLAIN and not one.twin)
        itself = _ratio(next(one for one in timed if one.twin), plain)
        slow = _ratio(next(one for one in timed if one.runtime == SLOWED), plain)
        floor = floor_of(itself)
        assert floor is not None
        covered += itself.contains(1)
        floors.append(floor)
        shown[difference(slow, floor)] += 1
        ratios.append(slow.estimate)
        medians.append(_median(plain).estimate)
        print(
            f"{number:3} {1e3 * medians[-1]:.3g} ms, itself {_text(itself)}, floor {floor:.1%}, slowed {_text(slow)}: "
            f"{difference(slow, floor)}",
            flush=True,
        )
    print(f"covers 1: {covered} of {repetitions}")
    print(
        f"noise floor: median {statistics.median(floors):.1%}, largest {max(floors):.1%}, at most 5 %: {sum(floor <= 0.05 for floor in floors)}"
    )
    print(
        f"slowed by {slower:.0%}: {dict(shown)}, ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )


def against_pyperf(job: LatencyJob, threads: int, repetitions: int, folder: Path) -> None:
    """Time the same call with pyperf, a sitting of ours and a process of pyperf's in turns, and print both medians."""
    np.savez(folder / "inputs.npz", **job.inputs)
    (folder / "timed.py").write_text(PYPERF)
    within, pairs = 0, list[tuple[float, float]]()
    for number in range(repetitions):
        sittings, values = list[Rounds](), list[float]()
        for turn in range(THOROUGH.sittings):
            sittings.append(_ours(job, threads, THOROUGH.sittings * number + turn))
            values += _theirs(job, threads, folder, f"{number}-{turn}")
        ours = median_of(tuple(one for rounds in sittings for one in rounds))
        assert ours is not None
        theirs = statistics.median(values)
        ratio = theirs / ours.estimate
        good = ours.contains(theirs) or abs(ratio - 1) <= 0.05
        within += good
        pairs.append((ours.estimate, theirs))
        print(
            f"ours {1e3 * ours.estimate:.3f} ms ({1e3 * (ours.low or 0):.3f} to {1e3 * (ours.high or 0):.3f}), "
            f"pyperf {1e3 * theirs:.3f} ms, ratio {ratio:.3f}: {'agree' if good else 'differ'}",
            flush=True,
        )
    print(f"within 5 % or the interval: {within} of {repetitions}")
    mine, others = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"all together: ours {1e3 * mine:.3f} ms, pyperf {1e3 * others:.3f} ms, ratio {others / mine:.3f}")


def _ours(job: LatencyJob, threads: int, seed: int) -> Rounds:
    """Return one sitting of the usual measurement."""
    budget = replace(THOROUGH, sittings=1, most_sittings=1, seconds=THOROUGH.seconds / THOROUGH.sittings)
    records = measure((PLAIN,), [job], threads=threads, budget=budget, seed=seed)
    return measured(next(one for one in records if isinstance(one, LatencyRecord) and not one.twin))


def _theirs(job: LatencyJob, threads: int, folder: Path, name: str) -> tuple[float, ...]:
    """Return the values of two of pyperf's processes."""
    out = folder / f"pyperf-{name}.json"
    asked = ["--processes", "2", "--values", "5", "--quiet", "--output", str(out)]
    command = [
        sys.executable,
        str(folder / "timed.py"),
        *asked,
        str(job.artifact.path),
        str(folder / "inputs.npz"),
        str(threads),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return tuple(pyperf.Benchmark.load(str(out)).get_values())


def _median(record: LatencyRecord) -> Interval:
    found = median_of(measured(record))
    assert found is not None
    return found


def _ratio(one: LatencyRecord, other: LatencyRecord) -> Interval:
    found = median_of(paired(one, other))
    assert found is not None
    return found


def _text(interval: Interval) -> str:
    return f"{interval.estimate:.3f} ({interval.low:.3f} to {interval.high:.3f})"


if __name__ == "__main__":
    main()
