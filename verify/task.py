"""One piece of the main job: a model in one dtype, exported in its variants and verified on every runtime."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import msgspec

from onnx_attest.errors import UnwritableError, UsageError
from onnx_attest.export.api import ExportFailure, export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models.entry import Entry, resolve
from onnx_attest.verify.claims import CLAIMS
from onnx_attest.verify.claims.experiments import run_claims
from onnx_attest.verify.claims.laboratory import Files
from onnx_attest.verify.engine import Plan, Step, verify_artifact
from onnx_attest.verify.findings import finding
from onnx_attest.verify.known import Known
from onnx_attest.verify.records import AnyRecord, ArtifactRecord, FindingRecord
from onnx_attest.verify.runtimes.registry import select

EXPORT = "the export"
"""What a step is called that belongs to no runtime."""


class Dead(msgspec.Struct, frozen=True):
    """A runtime whose process died over an artifact, and how: it is not tried again."""

    artifact: str
    runtime: str
    reason: str


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker is asked for.

    Attributes:
        reference: of the entry, as `resolve` takes it; "" for the experiments on the chapter's statements.
        variants: of those the entry has; all of them if none is named.
        folder: where the exported files go.
        runtimes: names, in the order of the reports.
        threads: of each runtime; None for the engine's choice, which is the same however many tasks run at a time.
        dead: what an earlier attempt at this task died of.
        cost: expected, beside that of other tasks: an engine begins the long ones first.
        profile: end with a record of where the time went.
    """

    reference: str
    dtype: str
    variants: tuple[str, ...]
    folder: str
    runtimes: tuple[str, ...]
    known: tuple[Known, ...]
    seed: int = 0
    threads: int | None = None
    fail_fast: bool = False
    dead: tuple[Dead, ...] = ()
    cost: float = 0.0
    profile: bool = False

    @property
    def model(self) -> str:
        """The name to call it by before the entry is known."""
        return self.reference.rpartition(":")[2] or CLAIMS


Engine = Callable[[Sequence[Task]], Generator[tuple[int, list[AnyRecord]], None, None]]
"""What runs tasks: it gives the number of each with its records as soon as it is done, however many run at a time, and where.

What was given is kept before the next is asked for (`verify/journal/`). A task is plain data (msgspec), and so are its records; it needs its folder, the runtimes that it names and torch, and no
other task. What an engine runs in each of its processes is `run_task`, and `after_death` says what to do about one that
died. Closing the generator ends all that is going on.
"""


def run_task(task: Task, on_step: Callable[[Step], None]) -> Iterator[AnyRecord]:
    """Yield the records of a task.

    Raises:
        UnwritableError: the exported files cannot be written; everything else that goes wrong is a record.
    """
    plan = Plan(
        runtimes=select(task.runtimes) if task.runtimes else (),
        known=task.known,
        seed=task.seed,
        threads=task.threads,
        fail_fast=task.fail_fast,
        dead={(item.artifact, item.runtime): item.reason for item in task.dead},
        on_step=on_step,
    )
    on_step(Step(f"{task.model} {task.dtype}", EXPORT))
    try:
        if not task.reference:
            yield from run_claims(plan, Files(Path(task.folder)))
            return
        for result in _export(resolve(task.reference), task):
            if isinstance(result, Artifact):
                yield from verify_artifact(result, plan)
                on_step(Step(f"{task.model} {task.dtype}", EXPORT))
            else:
                yield from failed_export(result)
    except UnwritableError:
        raise
    except UsageError as error:  # one model that cannot be built is not the end of the run
        yield from failed_export(ExportFailure(task.model, "all", 0, task.dtype, str(error)))


def _export(entry: Entry, task: Task) -> Iterator[Artifact | ExportFailure]:
    if not entry.is_verified_in(task.dtype):
        reason = f"the entry is verified in {', '.join(entry.dtypes)} only: in others its bound says nothing"
        yield ExportFailure(entry.name, "all", 0, task.dtype, reason, skipped=True)
        return
    variants = tuple(variant for variant in task.variants if variant in entry.variants)
    if task.variants and not variants:
        return
    yield from export_entry(entry, Path(task.folder), variants=variants, dtype=task.dtype)


def after_death(task: Task, last: Step, reason: str) -> Task | list[AnyRecord]:
    """Return what to do after the process of a task died: the task without what it died of, or the records of its end.

    Args:
        task: that was being done.
        last: the step that was announced last.
        reason: of the death, in one line.
    """
    tried = any((item.artifact, item.runtime) == (last.artifact, last.runtime) for item in task.dead)
    if last.runtime == EXPORT or tried:
        return failed_export(ExportFailure(task.model, "all", 0, task.dtype, f"{EXPORT}: {reason}"))
    dead = Dead(last.artifact, last.runtime, f"{reason}, at {last.doing}")
    return msgspec.structs.replace(task, dead=(*task.dead, dead))


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
