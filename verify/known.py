"""Known failures: a data file of what is expected to fail, and why; an entry that no longer fails is itself a failure."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.export.reading import bytes_of
from onnx_attest.verify.configuration.toml import LARGEST, NotTomlError, toml_of
from onnx_attest.verify.records import CaseRecord


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One known failure.

    Attributes:
        model, variant, dtype, runtime: patterns, `*` matches all.
        case: patterns of case ids. Brackets are literal.
        issue: the address of a public issue, or `counter-example`.
        always: whether it fails on every machine and with every seed; if not, a cell that passes is no news.
    """

    model: str | list[str]
    variant: str | list[str]
    runtime: str | list[str]
    case: list[str]
    issue: str
    note: str
    dtype: str | list[str] = "*"
    always: bool = True

    def matches(self, model: str, variant: str, dtype: str, runtime: str, case: CaseRecord | None) -> bool:
        """Whether the entry is about this cell; one without a case, since its runtime died, only `*` is about."""
        return (
            _any(self.model, model)
            and _any(self.variant, variant)
            and _any(self.dtype, dtype)
            and _any(self.runtime, runtime)
            and _any(self.case, case.id if case else "")
        )


class _KnownFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    known: list[Known] = []


def _any(patterns: str | Sequence[str], text: str) -> bool:
    listed = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatchcase(text, pattern.replace("[", "[[]")) for pattern in listed)


@cache
def built_in() -> tuple[Known, ...]:
    """Return the entries that ship with the package."""
    return _parse(files("onnx_attest.verify").joinpath("known.toml").read_bytes(), "known.toml")


def read_known(path: Path) -> tuple[Known, ...]:
    """Return the entries of a file in addition to the built-in ones.

    Raises:
        UsageError: unreadable, not TOML, or an entry without its fields.
    """
    try:
        return (*built_in(), *_parse(bytes_of(path, LARGEST), str(path)))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _parse(data: bytes, name: str) -> tuple[Known, ...]:
    try:
        return tuple(msgspec.convert(toml_of(data), _KnownFile).known)
    except (NotTomlError, msgspec.ValidationError) as error:
        raise UsageError(f"{name} is not a list of known failures: {error}") from error


def find_known(
    entries: Sequence[Known], model: str, variant: str, dtype: str, runtime: str, case: CaseRecord | None
) -> Known | None:
    """Return the first entry that is about this cell, None if it is to pass."""
    return next((entry for entry in entries if entry.matches(model, variant, dtype, runtime, case)), None)
