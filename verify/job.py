"""The main job: every built-in model exported in every variant, verified on every runtime, timed, and reported."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnx_attest.errors import UnwritableError, UsageError
from onnx_attest.export.api import ExportFailure, export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models.entry import Entry
from onnx_attest.verify.cases import is_batch
from onnx_attest.verify.engine import Plan, verify_artifact
from onnx_attest.verify.environment import command_line, environment
from onnx_attest.verify.expected import Expected
from onnx_attest.verify.findings import finding
from onnx_attest.verify.latency import LatencyJob, measure
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import AnyRecord, ArtifactRecord, CaseRecord, FindingRecord, LatencyRecord
from onnx_attest.verify.report import write_reports
from onnx_attest.verify.report.folder import refuse_unwritable
from onnx_attest.verify.signature import read_signature

LATENCY_LENGTHS = (32, 128, 512)
LATENCY_STD = 2.0


@dataclass(frozen=True, eq=False)
class Job:
    """What `onnx-attest run` is asked for.

    Attributes:
        entries: the models.
        variants: of each model; all that it has if none is named.
        dtypes: of the graphs; only float32 is timed.
        required: runtimes without which nothing is proven.
        folder: of the reports.
        latency: whether to time what was verified.
        on_step: told what is going on, for a progress bar.
    """

    entries: Sequence[Entry]
    plan: Plan
    folder: Path
    variants: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    required: tuple[str, ...] = ()
    latency: bool = True
    on_step: Callable[[str], None] = field(default=lambda step: None)


def run_job(job: Job) -> list[AnyRecord]:
    """Run the job, write its reports and return its records.

    Raises:
        UsageError: two models of one name, or the folder cannot be written: said before anything is exported.
    """
    started = time.monotonic()
    names = [entry.name for entry in job.entries]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UsageError(f"two models are called {twice[0]}, and so would their files be; rename one")
    scratch = _scratch(job.folder)
    try:
        records: list[AnyRecord] = [environment(job.plan.runtimes, command_line())]
        artifacts = list(_export_all(job, scratch / "artifacts", records))
        for artifact in artifacts:
            job.on_step(f"verify {artifact.path.stem}")
            records += verify_artifact(artifact, job.plan)
        if job.latency:
            records += _time_all(job, artifacts)
        records += conclude(records, required=job.required, duration_s=time.monotonic() - started)
        job.on_step("write the reports")
        write_reports(records, job.folder, scratch / "artifacts")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return records


def _scratch(folder: Path) -> Path:
    """Return a folder beside the reports, for the exported files until the reports are whole."""
    refuse_unwritable(folder)
    scratch = Path(tempfile.mkdtemp(dir=folder.resolve().parent, prefix=f".{folder.name}-run."))
    (scratch / "artifacts").mkdir()
    return scratch


def _export_all(job: Job, folder: Path, records: list[AnyRecord]) -> Iterator[Artifact]:
    for entry, dtype in itertools.product(job.entries, job.dtypes):
        variants = tuple(variant for variant in job.variants if variant in entry.variants)
        if job.variants and not variants:
            continue
        job.on_step(f"export {entry.name} {dtype}")
        try:
            for result in export_entry(entry, folder, variants=variants, dtype=dtype):
                if isinstance(result, Artifact):
                    yield result
                else:
                    records += failed_export(result)
        except UnwritableError:
            raise
        except UsageError as error:  # one model that cannot be built is not the end of the run
            failure = ExportFailure(entry.name, "all", 0, dtype, str(error))
            records += failed_export(failure)


def failed_export(failure: ExportFailure) -> list[AnyRecord]:
    """Return the records of an export that gave no file."""
    artifact = ArtifactRecord(
        model=failure.model,
        variant=failure.variant,
        opset=failure.opset or None,
        dtype=failure.dtype,
        verdict="skipped" if failure.skipped else "errored",
        reason=failure.reason,
        findings=() if failure.skipped else ("OA105",),
    )
    if failure.skipped:
        return [artifact]
    item = finding("OA105", failure.reason, blame="exporter")
    return [
        artifact,
        FindingRecord(
            code=item.code, severity=item.severity, message=item.message, next_step=item.next_step, blame=item.blame,
            model=failure.model, variant=failure.variant, opset=failure.opset or None, dtype=failure.dtype,
        ),
    ]  # fmt: skip


def _time_all(job: Job, artifacts: Sequence[Artifact]) -> Iterator[LatencyRecord]:
    """Yield the timings: one runtime after another, never two at a time."""
    timed = [artifact for artifact in artifacts if artifact.manifest and artifact.manifest.dtype == "float32"]
    jobs = [item for artifact in timed for item in latency_jobs(artifact, job.plan.seed)]
    for runtime in job.plan.runtimes:
        job.on_step(f"time {runtime.name}")
        yield from measure(runtime.name, jobs, threads=threads(job.plan))


def latency_jobs(artifact: Artifact, seed: int) -> list[LatencyJob]:
    """Return one job for each length of LATENCY_LENGTHS, with inputs as the verification makes them."""
    signature = read_signature(artifact)
    expected = Expected(signature)
    contract = signature.contract
    std = LATENCY_STD if expected.has_attention() and expected.reaches(LATENCY_STD) else None
    mask = "all" if "all" in contract.mask_kinds() else None
    jobs = []
    for length in LATENCY_LENGTHS:
        axes = {axis: 1 if is_batch(axis) else length for axis in contract.symbolic_axes()}
        case = CaseRecord(name="latency", axes=axes, mask=mask, logit_std=std, seed=seed)
        jobs.append(LatencyJob(artifact, axes, expected.inputs(case)))
    return jobs


def threads(plan: Plan) -> int:
    """Return how many threads each runtime is timed with: the plan's, or all cores of this process."""
    if plan.threads is not None:
        return plan.threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
