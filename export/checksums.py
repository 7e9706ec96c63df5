"""A folder whose every byte is covered by one list of digests, SHA256SUMS, whose own digest is the folder's name.

One strict grammar, so that two readers never see two things in one list: a line is 64 lower-case hexadecimal digits, two
spaces, the path, a newline. Paths are relative, with forward slashes, of the characters A-Z a-z 0-9 . _ - and +, no part
of them begins with a dot, and they are in order, each once. Every regular file below the folder is in the list but the
list itself; nothing else is there: no link, no device, no empty folder.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from onnx_attest.errors import UsageError

LIST = "SHA256SUMS"
_PART = r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*"
_PATH = re.compile(rf"{_PART}(?:/{_PART})*")
_LINE = re.compile(rf"([0-9a-f]{{64}})  ({_PATH.pattern})")
_LARGEST_LIST = 1 << 22
_BLOCK = 1 << 20


class TamperedError(UsageError):
    """A folder is not what its list of digests says; the message names the file."""


def is_coverable(path: str) -> bool:
    """Whether a relative path may stand in a list."""
    return _PATH.fullmatch(path) is not None


def list_of(digests: Mapping[str, str]) -> bytes:
    """Return the list of files, given the digest of each by its path."""
    assert all(map(is_coverable, digests)), "a path that no list takes"
    return "".join(f"{digests[path]}  {path}\n" for path in sorted(digests)).encode("ascii")


def name_of(listed: bytes) -> str:
    """Return the name of the folder that a list covers: the digest of the list."""
    return hashlib.sha256(listed).hexdigest()


def read_list(listed: bytes) -> dict[str, str]:
    """Return the digests by path.

    Raises:
        TamperedError: a line that the grammar does not have; its number is in the message.
    """
    try:
        text = listed.decode("ascii")
    except UnicodeDecodeError as error:
        raise TamperedError(f"{LIST} is not ASCII: {error.reason} at byte {error.start}") from error
    if not text.endswith("\n"):
        raise TamperedError(f"{LIST} does not end with a newline: it was cut")
    digests: dict[str, str] = {}
    for number, line in enumerate(text[:-1].split("\n"), 1):
        found = _LINE.fullmatch(line)
        if found is None:
            raise TamperedError(f"{LIST}, line {number} is not '<sha256>  <path>'")
        digest, path = found.groups()
        digests[path] = digest
    if list(digests) != sorted(digests) or len(digests) != text.count("\n"):
        raise TamperedError(f"{LIST} is not in order, or has a file twice")
    return digests


def verified(folder: Path) -> str:
    """Return the name of a folder, all of whose bytes are what its list says.

    Raises:
        TamperedError: a file is changed, missing or not in the list, or is no regular file; it is named.
        UsageError: there is no list, or something cannot be read.
    """
    try:
        listed = _bytes_of(folder / LIST)
        digests = read_list(listed)
        there = set(_files(folder))
        if lacking := sorted(set(digests) - there):
            raise TamperedError(f"{folder}: {lacking[0]} is in {LIST} and not there")
        if extra := sorted(there - set(digests) - {LIST}):
            raise TamperedError(f"{folder}: {extra[0]} is not in {LIST}")
        for path, digest in digests.items():
            if digest_of(folder / path) != digest:
                raise TamperedError(
                    f"{folder}: {path} does not have the digest that {LIST} says: one of the two was changed"
                )
    except OSError as error:
        raise UsageError(f"{_unreadable(folder, error)}; give the folder of a bundle") from error
    return name_of(listed)


def _unreadable(folder: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and not (folder / LIST).exists():
        return f"{folder} is {f'no bundle: it holds no {LIST}' if folder.is_dir() else 'not there'}"
    return f"cannot read {folder}: {error.strerror or error}"


def digest_of(path: Path) -> str:
    """Return the sha256 of a file, as hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def _bytes_of(path: Path) -> bytes:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise TamperedError(f"{path} is no regular file")
    with path.open("rb") as file:
        data = file.read(_LARGEST_LIST + 1)
    if len(data) > _LARGEST_LIST:
        raise TamperedError(f"{path} is longer than {_LARGEST_LIST} bytes: it is no list of digests")
    return data


def _files(folder: Path) -> Iterator[str]:
    """Yield the regular files below a folder, as relative paths.

    Raises:
        TamperedError: anything else is there.
    """
    left = [folder]  # and no function that calls itself: folders in folders are as many as a path is long
    while left:
        at = left.pop()
        held = sorted(at.iterdir())
        if not held:
            raise TamperedError(f"{folder}: {at.relative_to(folder).as_posix()} is an empty folder")
        for path in held:
            mode, name = path.lstat().st_mode, path.relative_to(folder).as_posix()
            if stat.S_ISDIR(mode):
                left.append(path)
            elif stat.S_ISREG(mode):
                yield name
            else:
                raise TamperedError(f"{folder}: {name} is a link or no file at all")
