"""Detection beside the peers: the same faults and the same correct kernels, judged by this suite and by real peers.

    python benchmarks/detection --seeds 3 -o reports/reference

Correct runs are implementations that no gate was made with: torch, ONNX Runtime with and without optimisations, ONNX's
reference evaluator, correct rewritings of the file on ONNX Runtime, and NumPy kernels that sum in other orders than
the pool's. Faults are the mutants of `onnx-attest power`, run on ONNX Runtime. Thresholds are the shipped ones; seeds are
fresh. `make bench-detection` sets up the environment that the peers need, and runs it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))

import peers
from table import Score, write

from onnx_attest.export import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models import resolve
from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.kernels import TF32_CUT, Kernel
from onnx_attest.verify.power.experiment import STRONG, Bench, Trial
from onnx_attest.verify.power.summary import above_resolution
from onnx_attest.verify.records import CORRECT
from onnx_attest.verify.runtimes.base import Placement, Tensors
from onnx_attest.verify.runtimes.registry import select

OURS = "onnx-attest"
FILES = (
    ("sdpa", "decomposed"),
    ("mha", "attention"),
    ("torch-sdpa-causal", "attention"),
    ("gqa", "decomposed"),
)
"""A specification, a module with projections, causal with other keys than queries, grouped heads; both forms of graph."""
ARITHMETICS = (
    ("fp32", "float32"),
    ("fp16-unfused", "float16"),
    ("bf16-unfused", "bfloat16"),
    ("tf32", "float32"),
)
RUNTIMES = ("torch", "ort-cpu", "ort-cpu-noopt", "onnx-reference")
# Other orders than those of the pool, and one that accumulates in float64.
ORDERS = (
    ("blocks of 4", 4, False),
    ("blocks of 16", 16, False),
    ("online, blocks of 16", 16, True),
    ("blocks of 64", 64, False),
)


@dataclass
class Tally:
    """What one judge said."""

    runs: int = 0
    alarms: int = 0
    by_arithmetic: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    no_judgement: int = 0
    killed: Counter[str] = field(default_factory=Counter)
    killed_by_fault: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class Computed:
    """A kernel as a session: it computes the file's graph in its own order."""

    placement = Placement()

    def __init__(self, bench: Bench, kernel: Kernel) -> None:
        self._bench, self._kernel = bench, kernel

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        """Return the outputs in the dtypes of the file."""
        dtypes = self._bench.signature.dtypes
        values = self._bench.computed(inputs, self._kernel)
        with np.errstate(over="ignore"):
            return {name: value.astype(dtypes[name]) for name, value in values.items()}


class Contest:
    """All judges on all runs."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.pairs: Counter[str] = Counter()
        self.pairs_by_fault: Counter[str] = Counter()
        self.correct: Counter[str] = Counter()
        self.alarms: list[str] = []

    def correct_run(self, who: str, dtype: str, ours: bool, question: peers.Question, spent: float) -> None:
        """Count a run that is right."""
        self.correct[f"{who} {dtype}"] += 1
        for name, alarm, seconds in self._answers(ours, question, spent):
            tally = self.tallies[name]
            tally.seconds += seconds
            if alarm is None:
                tally.no_judgement += 1
                continue
            tally.runs += 1
            tally.alarms += alarm
            tally.by_arithmetic[dtype][0] += alarm
            tally.by_arithmetic[dtype][1] += 1

    def faulty_run(self, trial: Trial, question: peers.Question, spent: float) -> None:
        """Count a run of a mutant whose fault shows."""
        grades = ["u"] + ["pool"] * (trial.strength > 1) + ["strong"] * (trial.strength > STRONG)
        self.pairs.update(grades)
        self.pairs_by_fault[trial.mutant.label] += 1
        for name, alarm, _ in self._answers(trial.killed, question, spent):
            if alarm:
                self.tallies[name].killed.update(grades)
                self.tallies[name].killed_by_fault[trial.mutant.label] += 1

    def _answers(
        self, ours: bool, question: peers.Question, spent: float
    ) -> Iterator[tuple[str, bool | None, float]]:
        yield OURS, ours, spent
        for peer in peers.PEERS:
            started = time.perf_counter()
            answer = peer.judge(question)
            yield peer.name, answer.alarm, time.perf_counter() - started


def main() -> None:
    """Run the contest and write its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="of the correct runs")
    parser.add_argument(
        "--first", type=int, default=101, help="the first of them: none that a threshold was set with"
    )
    parser.add_argument("--models", nargs="+", default=[name for name, _ in FILES])
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("reports/latest"), help="folder of detection.md"
    )
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    contest, started = Contest(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name, variant in FILES:
            if name not in asked.models:
                continue
            for arithmetic, dtype in ARITHMETICS:
                artifact = exported(name, variant, dtype, Path(folder) / arithmetic)
                for seed in range(asked.first, asked.first + asked.seeds):
                    correct_runs(contest, artifact, arithmetic, seed)
                if arithmetic == "fp32":
                    faulty_runs(contest, artifact, asked.first)
                print(f"{name} {arithmetic}: {sum(contest.correct.values())} correct runs, "
                      f"{contest.pairs['u']} manifest pairs, {time.monotonic() - started:.0f} s",
                      file=sys.stderr, flush=True)  # fmt: skip
    asked.output.mkdir(parents=True, exist_ok=True)
    scores = [score(name, contest) for name in (OURS, *(peer.name for peer in peers.PEERS))]
    text = write(scores, contest.pairs, contest.pairs_by_fault, contest.correct, contest.alarms)
    (asked.output / "detection.md").write_text(text)
    print(text)


def exported(name: str, variant: str, dtype: str, folder: Path) -> Artifact:
    """Return the file of one model; of the Attention operator the first opset that has it."""
    folder.mkdir(exist_ok=True)
    found = export_entry(resolve(name), folder, variants=(variant,), dtype=dtype)
    return next(item for item in found if isinstance(item, Artifact))


def correct_runs(contest: Contest, artifact: Artifact, arithmetic: str, seed: int) -> None:
    """Judge every correct implementation on every case of one seed."""
    (ort,) = select(("ort-cpu",))
    bench = Bench(artifact, ort, arithmetic=arithmetic, seed=seed)
    sessions = implementations(bench, artifact, arithmetic)
    for case in bench.cases:
        inputs = bench.inputs(case)
        exact = {name: bounded.value for name, bounded in bench.exact(inputs).items()}
        # TF32 has no torch on a CPU.
        held = sessions.get("torch") or Computed(bench, Kernel("reference", storing=bench.signature.floating))
        reference = held.run(inputs)
        # ONNX's reference evaluator rounds every step in float16: it has a profile of its own.
        profiles = {who: declared(who, arithmetic) for who in sessions}
        gauges = {name: bench.gauge(inputs, PROFILES[name]) for name in set(profiles.values())}
        for who, session in sessions.items():
            started = time.perf_counter()
            cell, outputs = bench.judge(session, case, inputs, gauges[profiles[who]])
            spent = time.perf_counter() - started
            if outputs is None:
                continue
            wrong = cell.verdict == "failed"
            if wrong:
                contest.alarms.append(
                    f"{artifact.path.stem} {arithmetic} {who} {case.id} seed {seed}: {cell.reason}"
                )
            question = asked_of(bench, inputs, outputs, reference, exact, session, held)
            contest.correct_run(who, arithmetic, wrong, question, spent)


def declared(who: str, arithmetic: str) -> str:
    """Return the arithmetic that an implementation is declared to compute in."""
    return "fp16-steps" if (who, arithmetic) == ("onnx-reference", "fp16-unfused") else arithmetic


def implementations(bench: Bench, artifact: Artifact, arithmetic: str) -> dict[str, Any]:
    """Return the correct implementations of one file that run in an arithmetic, by name."""
    truncated = TF32_CUT if arithmetic == "tf32" else 0
    storing = bench.signature.floating
    sessions: dict[str, Any] = {
        name: Computed(bench, Kernel(name, block, online=online, storing=storing, truncated=truncated))
        for name, block, online in ORDERS
    }
    if arithmetic == "tf32":
        return sessions | {
            f"ort-cpu, {mutant.label}": bench.open(mutant.model)
            for mutant in bench.mutants() if mutant.fault == "products-tf32"
        }  # fmt: skip
    if storing == np.float32:
        sessions["sums in float64"] = Computed(bench, Kernel("float64", working=np.float64, storing=storing))
    for runtime in select(RUNTIMES):
        if storing.name == "bfloat16" and runtime.name == "onnx-reference":
            continue  # NumPy sums bfloat16 in bfloat16, and stalls: another arithmetic
        try:
            sessions[runtime.name] = runtime.open(artifact, threads=1)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime refuses bfloat16 on a CPU: it is not among the runs then
            print(f"{artifact.path.stem}: {runtime.name} is left out: {str(error)[:120]}", file=sys.stderr)
    if "ort-cpu" in sessions:
        _, *others = bench.mutants()  # the first is the file itself
        for mutant in others:
            if mutant.fault == CORRECT:
                sessions[f"ort-cpu, {mutant.label}"] = bench.open(mutant.model)
    return sessions


def faulty_runs(contest: Contest, artifact: Artifact, seed: int) -> None:
    """Judge every mutant of a file on every case in which its fault shows."""
    (ort, torch) = select(("ort-cpu", "torch"))
    bench = Bench(artifact, ort, arithmetic="fp32", seed=seed)
    module = torch.open(artifact, threads=1)
    file, *others = bench.mutants()
    # The file itself stays first: what is undone is held against it.
    chosen = [file, *(mutant for mutant in others if mutant.fault != CORRECT)]
    sessions = {id(mutant): bench.open(mutant.model) for mutant in chosen}
    started = time.perf_counter()
    for trial in bench.trials(chosen):
        spent, started = time.perf_counter() - started, time.perf_counter()
        counted = trial.mutant.fault != CORRECT and above_resolution(trial.mutant, trial.resolution)
        if not (counted and trial.manifest) or trial.outputs is None:
            continue
        exact = {name: bounded.value for name, bounded in bench.exact(trial.inputs).items()}
        question = asked_of(
            bench, trial.inputs, trial.outputs, module.run(trial.inputs), exact,
            sessions[id(trial.mutant)], module,
        )  # fmt: skip
        contest.faulty_run(trial, question, spent)
        started = time.perf_counter()


def asked_of(
    bench: Bench, inputs: Tensors, outputs: Tensors, reference: Tensors,
    exact: Mapping[str, Any], session: Any, held: Any,
) -> peers.Question:  # fmt: skip
    """Return what the peers are asked about one run of a session, which they hold against another."""
    return peers.Question(
        inputs=inputs,
        candidate=outputs,
        reference=reference,
        exact=exact,
        run_candidate=session.run,
        run_reference=held.run,
        axes={spec.name: tuple(spec.axes) for spec in bench.signature.contract.inputs},
    )


def score(name: str, contest: Contest) -> Score:
    """Return the line of one judge."""
    tally = contest.tallies[name]
    return Score(
        name, tally.runs, tally.alarms, tally.no_judgement, dict(tally.killed), dict(tally.killed_by_fault),
        tally.seconds / max(tally.runs, 1), {name: tuple(counts) for name, counts in tally.by_arithmetic.items()},
    )  # fmt: skip


if __name__ == "__main__":
    main()
