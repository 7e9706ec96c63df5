"""The folder of a report: written whole or not at all.

Everything is built in a scratch folder beside the target and put in its place by two renames.
Until the new folder stands, the old one is kept; if the second rename fails, it is put back. A
process killed between the two leaves it whole in `.NAME.*/old`.
"""

from __future__ import annotations

import glob
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from onnx_attest.errors import UsageError
from onnx_attest.export.bundle import refuse_within
from onnx_attest.verify.records import AnyRecord, encode
from onnx_attest.verify.report.views import ON_REQUEST, VIEWS, render

_NEW = "new"
RECORDS = "records.jsonl"
JOURNAL = "journal.jsonl"
ARTIFACTS = "artifacts"
PICTURES = "pictures"
# Replacing a folder deletes what is in it, so it may hold nothing but a report. Finder adds its file anywhere.
# A table of the benchmarks may stand beside a committed report: a new report keeps it.
KEPT = ("bundles.md", "detection.md", "operators.md")
OURS = frozenset({RECORDS, JOURNAL, ARTIFACTS, PICTURES, *VIEWS, *KEPT, ".DS_Store"})


def write_reports(
    records: Iterable[AnyRecord], folder: Path, artifacts: Path | None = None, *, journal: bytes | None = None
) -> None:
    """Write records.jsonl and all views into `folder`, in place of an earlier report.

    Args:
        records: what the run left behind.
        folder: made if it is not there; an earlier report in it is replaced as a whole, with its artifacts.
        artifacts: a folder with the exported files, which become those of `folder/artifacts`, and also stay where they
            are. To keep the artifacts of the earlier report, give that very folder.
        journal: of a shard, for `onnx-attest merge`.

    Raises:
        UsageError: the folder is a file, holds something that is not a report, or cannot be written, or the
            disk is full. The earlier report is then what it was.
    """
    records = list(records)
    views = render(records)
    texts = {name: views[name].encode() for name in views if name not in ON_REQUEST}
    texts[RECORDS] = encode(records)
    if journal is not None:
        texts[JOURNAL] = journal
    try:
        target = _resolved(folder)  # a link to a folder stays, and its folder is replaced
        source = None if artifacts is None else _existing(artifacts)
        _refuse_foreign(target)
        _replace(target, texts, source)
    except OSError as error:
        raise UsageError(
            f"cannot write the report {folder}: {error.strerror or error}; nothing was changed: make room or choose "
            "another folder with -o"
        ) from error


def refuse_unwritable(folder: Path) -> None:
    """Say before the work that a report cannot be written to `folder` after it.

    Raises:
        UsageError: the folder is a file, is not a report, or a file cannot be made beside it.
    """
    try:
        target = _resolved(folder)
        _refuse_foreign(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.").cleanup()
    except OSError as error:
        raise UsageError(
            f"cannot write the report {folder}: {error.strerror or error}; choose another folder with -o"
        ) from error


def half_written(folder: Path) -> Iterator[Path]:
    """Yield the scratch folders of reports that were being written to `folder` when their process was killed.

    One that holds the earlier report is not among them.
    """
    for path in folder.parent.glob(f".{glob.escape(folder.name)}.*"):
        if path.is_dir() and [entry.name for entry in path.iterdir()] == [_NEW]:
            yield path


def _resolved(folder: Path) -> Path:
    try:
        return folder.resolve()
    except RuntimeError as error:  # a loop of links, before Python 3.13; since then an OSError
        raise OSError(str(error)) from error


def _refuse_foreign(target: Path) -> None:
    refuse_within(target)
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"{target} is a file; give a folder for the report with -o")
    names = {entry.name for entry in target.iterdir()}
    if names and RECORDS not in names:
        raise UsageError(f"{target} holds no {RECORDS}, so it is not a report; choose another folder with -o")
    if foreign := sorted(names - OURS):
        raise UsageError(
            f"{target} holds {foreign[0]}, which is no part of a report; move it, or choose another folder"
        )


def _existing(artifacts: Path) -> Path:
    if not artifacts.is_dir():
        raise UsageError(f"{artifacts} is not a folder; give the one with the exported files, or none")
    return artifacts.resolve()


def _replace(target: Path, texts: Mapping[str, bytes], source: Path | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    new, old = scratch / _NEW, scratch / "old"
    try:
        _build(new, texts, source)
        for kept in (target / name for name in KEPT):
            if kept.is_file():
                shutil.copy2(kept, new)
        _swap(new, target, old)
    except BaseException:
        # If the old report could not be put back, it is still in here: leave it.
        shutil.rmtree(new if old.exists() else scratch, ignore_errors=True)
        raise
    shutil.rmtree(scratch, ignore_errors=True)


def _build(new: Path, texts: Mapping[str, bytes], source: Path | None) -> None:
    new.mkdir()
    for name, data in texts.items():
        (new / name).parent.mkdir(exist_ok=True)
        (new / name).write_bytes(data)
    if source is None:
        return
    if new.is_relative_to(source):
        raise UsageError(f"{source} would have to be moved into itself; choose another folder with -o")
    try:
        shutil.copytree(source, new / ARTIFACTS, symlinks=True, copy_function=_link_or_copy)
    except shutil.Error as error:  # copytree's own: a list of (from, to, message)
        raise OSError(error.args[0][0][2]) from error
    # copytree copies the mode of the folder too; a temporary one is private, a report is shared.
    (new / ARTIFACTS).chmod(stat.S_IMODE(new.stat().st_mode))


def _link_or_copy(source: str, destination: str) -> None:
    """Put a file into a second place without moving it: it must still be in the first if the swap fails."""
    try:
        Path(destination).hardlink_to(source)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, destination)


def _swap(new: Path, target: Path, old: Path) -> None:
    """Put `new` in the place of `target`, which goes to `old`; if that fails, it stands where it stood."""
    if not target.exists():
        new.replace(target)
        return
    target.replace(old)
    try:
        new.replace(target)
    except BaseException:
        _put_back(old, target)
        raise


def _put_back(old: Path, target: Path) -> None:
    try:
        old.replace(target)
    except OSError as error:
        raise UsageError(
            f"cannot put the earlier report back ({error.strerror}): it is whole in {old}; rename it to {target}"
        ) from error
