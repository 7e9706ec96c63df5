"""`onnx-attest power`: the mutants of one file on one runtime, and what that comes to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.blame import MODULES
from onnx_attest.verify.environment import command_line, environment
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.power.experiment import Bench
from onnx_attest.verify.power.mutants import inapplicable
from onnx_attest.verify.power.score import lines, score
from onnx_attest.verify.power.summary import power_records
from onnx_attest.verify.records import AnyRecord, EnvironmentRecord, PowerRecord, RunRecord, Verdict
from onnx_attest.verify.runtimes.base import Runtime
from onnx_attest.verify.runtimes.isolated import isolate, processes_of
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.verdicts import exit_code


@dataclass(frozen=True)
class Power:
    """The records of the experiment, the run's own last."""

    records: tuple[AnyRecord, ...]

    @property
    def run(self) -> RunRecord:
        """The last record."""
        return next(record for record in self.records if isinstance(record, RunRecord))

    @property
    def exit_code(self) -> int:
        """Of the command: 1 if the file itself does not pass, 3 if no fault could be shown."""
        return self.run.exit_code

    def as_object(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        faults = [record for record in self.records if isinstance(record, PowerRecord)]
        return {
            "verdict": self.run.verdict,
            "exit_code": self.exit_code,
            "reason": self.run.reason,
            "score": vars(score(faults)),
            "faults": [msgspec.structs.asdict(record) for record in faults],
        }


def run_power(
    artifact: Artifact,
    runtime: Runtime | str,
    *,
    arithmetic: str | None = None,
    seed: int = 0,
    on_step: Callable[[str], None] = lambda step: None,
    configuration: Mapping[str, str] | None = None,
) -> Power:
    """Run the experiment.

    Args:
        artifact: the file.
        runtime: that the mutants run on; one that is named runs in a process of its own.
        arithmetic: declared, instead of the runtime's.
        seed: of the inputs.
        on_step: told what is going on.
        configuration: the settings that are not the defaults, for the record.

    Raises:
        UsageError: an unknown runtime, one that does not run here or runs no file; a file that cannot be read or evaluated.
    """
    started = time.monotonic()
    if isinstance(runtime, str):
        (runtime,) = isolate(select((runtime,)))
    if runtime.name in MODULES:
        raise UsageError(
            f"{runtime.name} runs the module, not a mutant of the file; name a runtime that runs files"
        )
    on_step(f"make the mutants of {artifact.path.stem}")
    with processes_of((runtime,)):
        bench = Bench(artifact, runtime, arithmetic=arithmetic, seed=seed)
        on_step(f"run the mutants of {artifact.path.stem} on {runtime.name}")
        try:
            faults = power_records(bench) + _not_applicable(bench)
        except UnsupportedOperatorError as error:  # without exact results no effect is known
            raise UsageError(
                f"{artifact.path} cannot be evaluated at the sizes that it declares, or that were guessed: {error}"
            ) from error
        known: list[EnvironmentRecord] = [environment((runtime,), command_line(), configuration)]
    verdict, reason = _verdict(faults)
    run = RunRecord(
        verdict=verdict,
        reason=reason,
        exit_code=exit_code(verdict),
        cells={},
        known=0,
        duration_s=time.monotonic() - started,
    )
    return Power((*known, *faults, run))


def _verdict(faults: list[PowerRecord]) -> tuple[Verdict, str]:
    total = score(faults)
    if total.false_alarms:
        return "failed", f"the file itself does not pass: {next(lines(faults))}"
    if not total.pairs[1]:
        reasons = dict.fromkeys(record.reason for record in faults if record.reason)
        return "inconclusive", "; ".join(reasons) or "no fault shows on any case"
    return "passed", ""


def _not_applicable(bench: Bench) -> list[PowerRecord]:
    reasons = inapplicable(bench.signature.model, traced_length=bench.traced_length)
    return [
        PowerRecord(
            **bench.identity.fields(),
            runtime=bench.runtime_name,
            arithmetic=bench.arithmetic.name,
            fault=fault,
            label="",
            reason=reason,
        )
        for fault, reason in reasons.items()
    ]
