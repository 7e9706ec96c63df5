"""The journal: a file of lines, each on disk before the next unit of work begins.

The first line says what the run depends on; each further one is a unit that is finished whole, with all that belongs to
it. A line that a kill, a power cut or a full disk tore is the last one, and is cut off.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from onnx_attest.errors import UnwritableError, UsageError
from onnx_attest.export.decoding import decoded
from onnx_attest.export.reading import MIB, bytes_of

SCHEMA = 1
FILE = "journal.jsonl"
ENVIRONMENT = "environment"
"""What the units are called that say where the others were finished; a number follows."""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="journal", tag_field="kind"):
    """The first line.

    Attributes:
        command: whose journal it is: `run` or `verify`.
        basis: what its results depend on, see `basis.py`, as texts by their names.
        shard: `2/5`, or "" for a whole run.
        runtimes: in the order of the report.
        units: names of the units of the whole run, in the order of its report.
        required: the runtimes without which nothing is proven.
    """

    schema: int = SCHEMA
    command: str
    basis: dict[str, str]
    shard: str = ""
    runtimes: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    def texts(self) -> dict[str, str]:
        """Return all that a run depends on. Its units come last: where they differ, something else does, which says more."""
        return {
            "command": self.command,
            "shard": self.shard,
            "required": ", ".join(self.required),
            "runtimes": ", ".join(self.runtimes),
            **self.basis,
            "work": ", ".join(self.units),
        }


class Unit(msgspec.Struct, frozen=True, kw_only=True, tag="unit", tag_field="kind"):
    """A unit of work and what came of it, as JSON."""

    name: str
    value: msgspec.Raw


_DECODER = msgspec.json.Decoder(Header | Unit)
_LARGEST = 512 * MIB


class Journal:
    """A journal that is open: what it holds, and where the next unit goes.

    Attributes:
        header: its first line.
    """

    def __init__(self, path: Path, header: Header, units: dict[str, msgspec.Raw], end: int) -> None:
        """Open a file whose lines are known; what stands behind `end` is cut off.

        Raises:
            UnwritableError: it cannot be written.
        """
        self._path, self.header, self._units = path, header, units
        self._names = dict.fromkeys(units)
        try:
            self._file = path.open("r+b", buffering=0)
            self._file.truncate(end)
            self._file.seek(end)
        except OSError as error:
            raise _unwritable(path, error) from error

    @staticmethod
    def begun(path: Path, header: Header) -> Journal:
        """Return a new journal, its first line on disk; an earlier one at this path is gone.

        Raises:
            UnwritableError: it cannot be written.
        """
        try:
            path.write_bytes(b"")
        except OSError as error:
            raise _unwritable(path, error) from error
        journal = Journal(path, header, {}, 0)
        journal._append(header)
        _sync_folder(path.parent)
        return journal

    @staticmethod
    def found(path: Path) -> Journal | None:
        """Return the journal at a path, None if there is none or not even its first line is whole.

        Raises:
            UsageError: it is no journal, or a line before the last one is damaged.
        """
        header, units, end = _read(path)
        return None if header is None else Journal(path, header, units, end)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the units that it holds, in the order in which they were finished."""
        return tuple(self._names)

    @property
    def finished(self) -> list[str]:
        """The names of those units of the run that it holds."""
        units = set(self.header.units)
        return [name for name in self._names if name in units]

    def kept(self, name: str, kind: Any) -> Any:
        """Return what came of a unit, None unless an earlier process finished it.

        Args:
            name: of the unit.
            kind: the type that it is decoded as.

        Raises:
            UsageError: what is kept under that name is something else.
        """
        if name not in self._units:
            return None
        try:
            return decoded(msgspec.json.Decoder(kind).decode, self._units[name])
        except msgspec.DecodeError as error:
            raise UsageError(
                f"{self._path}: {name} is no longer what this version keeps: {error}; leave out --resume"
            ) from error

    def keep(self, name: str, value: Any) -> None:
        """Write a finished unit; when this returns it is on disk.

        Raises:
            UnwritableError: it is not, and the journal is as it was before.
        """
        self._append(Unit(name=name, value=msgspec.Raw(msgspec.json.encode(value))))
        self._names[name] = None

    def once(self, name: str, make: Callable[[], Any], kind: Any) -> Any:
        """Return what came of a unit, made now and kept unless an earlier process finished it.

        Raises:
            UnwritableError, UsageError: see `keep` and `kept`.
        """
        kept = self.kept(name, kind)
        if kept is None:
            kept = make()
            self.keep(name, kept)
        return kept

    def close(self) -> None:
        """Close the file; the journal stays."""
        self._file.close()

    def _append(self, line: Header | Unit) -> None:
        before = self._file.tell()
        try:
            _write_all(self._file.fileno(), msgspec.json.encode(line) + b"\n")
            os.fsync(self._file.fileno())
        except BaseException as error:
            with contextlib.suppress(OSError):  # then it is a torn line, which is cut off when it is read
                self._file.truncate(before)
                self._file.seek(before)
            if isinstance(error, OSError):
                raise _unwritable(self._path, error) from error
            raise


def read_units(path: Path) -> tuple[Header, dict[str, msgspec.Raw]]:
    """Return the first line of a journal and what it holds, without opening it for more.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    header, units, _ = _read(path)
    if header is None:
        raise UsageError(
            f"{path.parent} holds no journal of a shard ({path.name}); give the report of a run with --shard"
        )
    return header, units


def _read(path: Path) -> tuple[Header | None, dict[str, msgspec.Raw], int]:
    """Return what is whole: the first line, the units, and where the next line goes."""
    try:
        data = bytes_of(path, _LARGEST)
    except FileNotFoundError:
        return None, {}, 0
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; leave out --resume") from error
    header: Header | None = None
    units: dict[str, msgspec.Raw] = {}
    end = 0
    for number, line in enumerate(_lines(data), 1):
        following = end + len(line)
        try:
            read = decoded(_DECODER.decode, line) if line.endswith(b"\n") else None
        except msgspec.DecodeError:
            read = None
        if read is None and following < len(data):
            raise UsageError(f"{path}, line {number} is damaged; leave out --resume to begin anew")
        if read is None:
            break
        if isinstance(read, Header) != (number == 1):
            raise UsageError(f"{path}, line {number} is no line of a journal; leave out --resume")
        if isinstance(read, Header):
            header = read
        else:
            units[read.name] = read.value
        end = following
    if header is not None and header.schema != SCHEMA:
        raise UsageError(
            f"{path} has the schema {header.schema}, this version reads {SCHEMA}; leave out --resume"
        )
    return header, units, end


def _lines(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_folder(folder: Path) -> None:
    """Put the name of a new file on disk, where a system lets folders be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> UnwritableError:
    return UnwritableError(
        f"cannot write {path}: {error.strerror or error}; what was finished is kept: make room, then --resume"
    )
