"""Where a run keeps what it has finished until its report stands: `.NAME.run` beside the folder NAME of the report.

It is locked as long as the run lasts, holds the journal and the exported files, and goes when the report is whole. Each
process has a folder of its own in it for what is not finished: a worker that outlives a killed run for a moment writes
there, and not among the files of the run that continues it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from onnx_attest.errors import UnwritableError, UsageError
from onnx_attest.export.artifact import digest
from onnx_attest.verify.environment import machine_of
from onnx_attest.verify.journal.basis import differences
from onnx_attest.verify.journal.lines import ENVIRONMENT, FILE, Header, Journal
from onnx_attest.verify.records import EnvironmentRecord
from onnx_attest.verify.report.folder import half_written, refuse_unwritable

try:
    import fcntl as _fcntl

    fcntl: ModuleType | None = _fcntl
except ImportError:  # Windows, which has no lock that a dead process leaves behind open
    fcntl = None

_NAMED = 3


class Workplace:
    """The folder of a run that is going on, and its journal once that is begun.

    Attributes:
        path: of the folder.
        artifacts: folder of the exported files of finished units.
        scratch: folder of this process.
        journal: None before `begin`.
        environments: where the units were finished, each machine once; none before `runs_on`.
    """

    def __init__(self, path: Path, report: Path) -> None:
        self.path, self.artifacts = path, path / "artifacts"
        self.scratch = Path(tempfile.mkdtemp(dir=path, prefix="process."))
        self.journal: Journal | None = None
        self.environments: list[EnvironmentRecord] = []
        self._report = report

    def begin(
        self, header: Header, *, resume: bool, on_note: Callable[[str], None] = lambda note: None
    ) -> Journal:
        """Open the journal: the one that is there if that is what is asked for, else a new one.

        Args:
            header: of this run.
            resume: whether to continue an earlier one.
            on_note: told in a line what became of an earlier one.

        Raises:
            UsageError: what is there depends on something else, or is damaged.
            UnwritableError: it cannot be written.
        """
        path = self.path / FILE
        found = self._found(path, resume)
        if found is not None and resume:
            try:
                _refuse_other(found.header, header, self._report)
            except UsageError:
                found.close()
                raise
            self.journal = found
            self._make_artifacts()
            on_note(f"goes on where {self._report} was left: {len(found.finished)} finished")
        else:
            if resume:
                on_note(f"nothing of {self._report} was left unfinished: this is a new run")
            elif found is not None and found.finished:
                on_note(f"an unfinished run into {self._report} is dropped (--resume would have gone on)")
            if found is not None:
                found.close()
            shutil.rmtree(self.artifacts, ignore_errors=True)
            self._make_artifacts()
            self.journal = Journal.begun(path, header)
        return self.journal

    def _make_artifacts(self) -> None:
        try:
            self.artifacts.mkdir(exist_ok=True)
        except OSError as error:
            raise UnwritableError(f"cannot write {self.artifacts}: {error.strerror}") from error

    @staticmethod
    def _found(path: Path, resume: bool) -> Journal | None:
        try:
            return Journal.found(path)
        except UsageError:
            if resume:
                raise
            return None  # it is begun anew anyway

    @property
    def opened(self) -> Journal:
        """The journal, which is begun."""
        assert self.journal is not None
        return self.journal

    def runs_on(self, machine: EnvironmentRecord) -> None:
        """Keep where this process runs, unless an earlier one ran there too."""
        names = [name for name in self.opened.names if name.startswith(f"{ENVIRONMENT} ")]
        self.environments = [self.opened.kept(name, EnvironmentRecord) for name in names]
        if all(machine_of(one) != machine_of(machine) for one in self.environments):
            self.environments.append(machine)
            self.opened.keep(f"{ENVIRONMENT} {len(self.environments)}", machine)

    def take(self, folder: Path) -> None:
        """Put the exported files of a finished unit among the others.

        Raises:
            UnwritableError: they cannot be.
        """
        try:
            for path in sorted(folder.iterdir()):
                path.replace(self.artifacts / path.name)
            folder.rmdir()
        except OSError as error:
            raise UnwritableError(f"cannot write {self.artifacts}: {error.strerror or error}") from error

    def digests(self) -> set[str]:
        """Return the digests of the exported files that are here."""
        return {digest(path.read_bytes()) for path in self.artifacts.glob("*.onnx")}

    def read_journal(self) -> bytes:
        """Return the journal so far, for the report of a shard."""
        return (self.path / FILE).read_bytes()

    def done(self) -> None:
        """Remove it: the report stands."""
        self.opened.close()
        self.journal = None
        with contextlib.suppress(OSError):  # the report stands all the same
            (self.path / FILE).unlink()  # first: without it nothing is taken for unfinished
        shutil.rmtree(self.path, ignore_errors=True)

    def leave(self) -> None:
        """Leave what is finished for a later run; with nothing finished, nothing stays."""
        if self.journal is not None and self.journal.finished:
            self.journal.close()
            shutil.rmtree(self.scratch, ignore_errors=True)
        elif self.journal is not None or not (self.path / FILE).exists():
            shutil.rmtree(self.path, ignore_errors=True)
        else:  # not even looked at: it is an earlier run's
            shutil.rmtree(self.scratch, ignore_errors=True)


@contextmanager
def workplace(report: Path) -> Iterator[Workplace]:
    """Give the workplace of a report, locked.

    Raises:
        UsageError: the report or the workplace cannot be written, or another run is writing it.
    """
    refuse_unwritable(report)
    target = report.resolve()
    path = target.with_name(f".{target.name}.run")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_locked(path, report))
            for old in (*path.glob("process.*"), *half_written(target)):  # of processes that were killed
                shutil.rmtree(old, ignore_errors=True)
            place = Workplace(path, report)
        except OSError as error:
            raise UsageError(
                f"cannot write {path}, which the run needs beside its report: {error.strerror or error}; choose "
                "another folder with -o"
            ) from error
        try:
            yield place
        finally:
            if place.path.exists():
                place.leave()


@contextmanager
def _locked(path: Path, report: Path) -> Iterator[None]:
    """Make a folder and hold its lock, which ends with the process, however that ends."""
    while True:
        path.mkdir(exist_ok=True)
        if fcntl is None:
            yield
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(
                    f"another run is writing {report}; wait for it, or choose another folder with -o"
                ) from error
            if _is_still(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)


def _is_still(descriptor: int, path: Path) -> bool:
    """Whether a folder is still in its place: the run that held the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _refuse_other(before: Header, now: Header, report: Path) -> None:
    """Refuse to continue a run that depends on something else.

    Raises:
        UsageError: it does; what, in words.
    """
    told = differences(before.texts(), now.texts())
    if told:
        more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
        raise UsageError(
            f"--resume: the run into {report} was made with another {'; '.join(told[:_NAMED])}{more}; leave out --resume to "
            "begin anew"
        )
