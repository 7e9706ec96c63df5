"""Verification as a function: an artifact in, records out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact, Asked, Manifest, read_artifact
from onnx_attest.verify.engine import Plan, every_runtime, verify_artifact
from onnx_attest.verify.environment import command_line, environment
from onnx_attest.verify.inputs import axes_of_shapes, check_inputs
from onnx_attest.verify.interruption import INTERRUPTIONS, name_of
from onnx_attest.verify.journal.basis import basis_of_artifact, basis_of_plan, versions
from onnx_attest.verify.journal.lines import Header, Journal
from onnx_attest.verify.journal.workplace import Workplace, workplace
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import (
    AnyRecord,
    CellRecord,
    EnvironmentRecord,
    FindingRecord,
    RunRecord,
    Verdict,
)
from onnx_attest.verify.report import write_reports
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.runtimes.isolated import isolate, processes_of
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.signature import Signature, read_signature


class VerificationError(AssertionError):
    """Raised by `Report.raise_for_verdict`; the message holds the findings."""


@dataclass(frozen=True)
class Report:
    """The records of one run, and what they came to."""

    records: tuple[AnyRecord, ...]

    @property
    def run(self) -> RunRecord:
        """The last record: verdict, counts, exit code."""
        last = self.records[-1]
        assert isinstance(last, RunRecord)
        return last

    @property
    def verdict(self) -> Verdict:
        """The verdict of the run."""
        return self.run.verdict

    @property
    def cells(self) -> tuple[CellRecord, ...]:
        """One record a runtime and case."""
        return tuple(record for record in self.records if isinstance(record, CellRecord))

    @property
    def findings(self) -> tuple[FindingRecord, ...]:
        """What was found, each with its blame and next step."""
        return tuple(record for record in self.records if isinstance(record, FindingRecord))

    def save(self, folder: str | Path, *, journal: bytes | None = None) -> None:
        """Write records.jsonl and the reports into a folder, whole or not at all; a shard's with its journal.

        Raises:
            UsageError: the folder cannot be written, or holds something that is not a report.
        """
        write_reports(self.records, Path(folder), journal=journal)

    def raise_for_verdict(self) -> None:
        """Raise if the run did not pass.

        Raises:
            VerificationError: with the verdict, its reason and the findings that are not known.
        """
        if self.verdict == "passed":
            return
        lines = [f"{self.verdict}: {self.run.reason or 'see the findings'}"]
        lines += [
            f"{item.code} {item.runtime} {item.case}: {item.message}"
            for item in self.findings
            if not item.known and item.severity != "note"
        ]
        raise VerificationError("\n".join(lines))


def verify(
    artifact: Artifact | str | Path,
    *,
    runtimes: Sequence[str] = (),
    require: Sequence[str] = (),
    against: Any = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Tensors | None = None,
    plan: Plan | None = None,
) -> Report:
    """Verify one ONNX file on runtimes and return the report.

    Each runtime runs in a process of its own, but for those that a plan brings along: they run where the plan has them.

    Args:
        artifact: what `export` returned, or the path of an ONNX file.
        runtimes: names as in `onnx-attest doctor`; all of them if none is named.
        require: runtimes without which nothing is proven; added to `runtimes`.
        against: the module that the file is to compute, itself or as an `Entry`; or the path of the ONNX file that it
            was made from, by a fusion tool for example.
        input_shapes: instead of the sweep of sizes, by input name.
        inputs: instead of made inputs, by input name.
        plan: for everything else.

    Raises:
        UsageError: the file cannot be read, or names and shapes do not fit it.
    """
    asked = _Asked(runtimes, require, against, input_shapes, inputs)
    report, interruption = _verified(artifact, asked, plan or Plan())
    if interruption is not None:
        raise interruption
    return report


def verify_into(
    folder: Path,
    artifact: Artifact | str | Path,
    *,
    resume: bool = False,
    on_note: Callable[[str], None] = lambda note: None,
    require: Sequence[str] = (),
    against: Any = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Tensors | None = None,
    plan: Plan | None = None,
) -> Report:
    """Verify one ONNX file, write the report into a folder, and return it.

    Each case that is finished is kept on disk before the next one is begun. Interrupted (Ctrl-C, SIGTERM), the report is
    that of the finished cases, and says so.

    Args:
        folder: of the report.
        artifact: see `verify`, as all that follows but for:
        resume: go on where an earlier call for the same folder was left; only of the same options, file and versions.
        on_note: told in a line what became of an earlier one.
        require: see `verify`.
        against: see `verify`.
        input_shapes: see `verify`.
        inputs: see `verify`.
        plan: see `verify`.

    Raises:
        UsageError: see `verify`; or the folder cannot be written, another run is writing it, or what is to be resumed is
            another verification.
    """
    plan = plan or Plan()
    with workplace(folder) as place:
        asked = _Asked((), require, against, input_shapes, inputs, place, resume, on_note)
        report, interruption = _verified(artifact, asked, plan)
        if interruption is not None and not any(cell.case for cell in report.cells):
            raise interruption  # there is nothing to be reported
        report.save(folder, journal=None if plan.shard.is_whole else place.read_journal())
        if interruption is None:
            place.done()
    return report


@dataclass(frozen=True, eq=False)
class _Asked:
    """What `verify` is asked for beside its plan."""

    runtimes: Sequence[str]
    require: Sequence[str]
    against: Any
    shapes: Mapping[str, Sequence[int]] | None
    inputs: Tensors | None
    place: Workplace | None = None
    resume: bool = False
    on_note: Callable[[str], None] = lambda note: None


def _verified(
    artifact: Artifact | str | Path, asked: _Asked, plan: Plan
) -> tuple[Report, BaseException | None]:
    """Return the report, and what interrupted it."""
    started, against = time.monotonic(), asked.against
    subject = read_artifact(Path(artifact)) if isinstance(artifact, str | Path) else artifact
    if isinstance(against, str | Path):
        plan = replace(plan, original=read_signature(read_artifact(Path(against))).model)
    elif against is not None:
        subject, plan = with_module(subject, against), replace(plan, against=True)
    if asked.runtimes:
        plan = replace(plan, runtimes=isolate(select((*asked.runtimes, *asked.require))))
    elif plan.runtimes is every_runtime():
        plan = replace(plan, runtimes=isolate(select()))
    seen: list[AnyRecord] = []
    interruption = None
    with processes_of(plan.runtimes):
        signature = read_signature(subject)
        plan = _with_given(plan, signature, asked.shapes, asked.inputs)
        if asked.place is not None:
            plan = replace(plan, journal=partial(_begun, asked.place, asked, plan, subject))
        try:
            # First what the runtimes' processes can meanwhile be started for.
            for record in verify_artifact(subject, plan, signature):
                seen.append(record)  # noqa: PERF402 - what came before an interruption is kept
        except INTERRUPTIONS as error:
            interruption = error
        kept = [] if asked.place is None else asked.place.environments
        records: list[AnyRecord] = [*(kept or [_environment(plan)]), *seen]
    part = [] if interruption is None else [f"interrupted by {name_of(interruption)}: cases are missing"]
    part += [] if plan.shard.is_whole else [f"shard {plan.shard} of the cases"]
    duration_s = time.monotonic() - started
    records += conclude(
        records,
        required=asked.require,
        duration_s=duration_s,
        part="; ".join(part),
        interruption=interruption,
    )
    return Report(tuple(records)), interruption


def _begun(
    place: Workplace, asked: _Asked, plan: Plan, artifact: Artifact, units: tuple[str, ...]
) -> Journal:
    """Open the journal of a verification; its runtimes have answered by now, and cost no more time."""
    header = Header(
        command="verify",
        basis=basis_of_plan(plan) | basis_of_artifact(artifact) | versions(plan.runtimes),
        shard=str(plan.shard),
        runtimes=tuple(runtime.name for runtime in plan.runtimes),
        units=units,
        required=tuple(asked.require),
    )
    journal = place.begin(header, resume=asked.resume, on_note=asked.on_note)
    place.runs_on(_environment(plan))
    return journal


def _environment(plan: Plan) -> EnvironmentRecord:
    return environment(plan.runtimes, command_line(), plan.configuration)


def _with_given(
    plan: Plan, signature: Signature, shapes: Mapping[str, Sequence[int]] | None, inputs: Tensors | None
) -> Plan:
    if shapes is None and inputs is None:
        return plan
    if shapes is not None and inputs is not None:
        raise UsageError("give input shapes or inputs, not both: inputs have their shapes")
    if inputs is not None:
        check_inputs(inputs, signature)
        return replace(plan, inputs=inputs)
    assert shapes is not None
    return replace(
        plan, axes=axes_of_shapes({name: tuple(shape) for name, shape in shapes.items()}, signature)
    )


def with_module(artifact: Artifact, against: Any) -> Artifact:
    """Return the artifact held against a module: its contract is what the file should keep.

    Args:
        artifact: the file.
        against: an `Entry`; or a module, whose contract is the manifest's, or what the file itself shows.

    Raises:
        UsageError: the module cannot be built, or its contract has other inputs than the file.
    """
    from onnx_attest.export.calling import name_of
    from onnx_attest.export.lower import prepared
    from onnx_attest.models.entry import Entry, build_module

    signature = read_signature(artifact)
    if not isinstance(against, Entry):
        module, contract, name = against, signature.contract, name_of(against)
    else:
        module, contract, name = build_module(against), against.contract, against.name
    if not callable(getattr(module, "forward", None)):
        raise UsageError(
            f"against is of type {name}; give a torch.nn.Module, an Entry or the path of an ONNX file"
        )
    names = tuple(spec.name for spec in contract.inputs)
    if names != signature.got.inputs:
        raise UsageError(
            f"{name} takes {', '.join(names)}, the file takes {', '.join(signature.got.inputs)}; "
            "give the module that the file was exported from"
        )
    module = prepared(module, contract, name=name)
    manifest = artifact.manifest or Manifest(
        model=name,
        variant="attention" if "Attention" in signature.got.operators else "decomposed",
        dtype=signature.floating.name,
        arithmetic="fp32",
        sha256=artifact.sha256,
        contract=contract,
        asked=Asked(
            opset=signature.got.opset,
            variant="",
            inputs=names,
            outputs=tuple(spec.name for spec in contract.outputs),
            axes={spec.name: spec.axes for spec in (*contract.inputs, *contract.outputs)},
        ),
        got=signature.got,
    )
    return replace(artifact, manifest=manifest, module=module, reference=_reference_of(against))


def _reference_of(entry: Any) -> str:
    """Return how another process finds the entry, "" if it cannot: a module, or an entry made in this process."""
    from onnx_attest.models.catalogue import catalogue
    from onnx_attest.models.entry import Entry

    if not isinstance(entry, Entry):
        return ""
    return entry.reference or (entry.name if any(entry is one for one in catalogue().values()) else "")
