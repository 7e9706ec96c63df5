"""Kinds of wrong and refused cells that somebody confirmed by hand: a data file, and what of it no longer occurs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.verify.conformance.matrix import ConformanceReport
from onnx_attest.verify.records import ConformanceRecord, Outcome


class Confirmed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of fault, or of refusal.

    Attributes:
        title: what the runtime does, in a few words.
        runtime, case: patterns, `*` matches all; any of them has to match.
        outcome: what came of those cases.
        found: how it was confirmed: what was computed by other means, and what came out.
        version: of the runtime it was confirmed on.
        issue: a public report, "" if none is known.
        says: a pattern of the runtime's words, or of what is wrong.
    """

    title: str
    runtime: list[str]
    case: list[str]
    outcome: Outcome
    found: str
    version: str
    issue: str = ""
    says: str = "*"

    def is_about(self, case: str, runtime: str) -> bool:
        """Whether it is about a case on a runtime, whatever came of it."""
        return _any(self.runtime, runtime) and _any(self.case, case)

    def confirms(self, record: ConformanceRecord) -> bool:
        """Whether a record is of this kind."""
        about = self.is_about(record.case, record.runtime)
        return about and record.outcome == self.outcome and _any((self.says,), record.reason)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    confirmed: list[Confirmed] = []


def _any(patterns: Iterable[str], text: str) -> bool:
    return any(fnmatchcase(text, pattern.replace("[", "[[]")) for pattern in patterns)


@cache
def built_in() -> tuple[Confirmed, ...]:
    """Return the kinds that ship with the package."""
    return parse((files("onnx_attest.verify.conformance") / "confirmed.toml").read_text())


def parse(text: str) -> tuple[Confirmed, ...]:
    """Return the kinds of a file.

    Raises:
        UsageError: it is not TOML, or an entry lacks a field.
    """
    try:
        return tuple(msgspec.convert(tomllib.loads(text), _File).confirmed)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"confirmed.toml is not a list of confirmed kinds: {error}") from error


def kind_of(record: ConformanceRecord, kinds: Sequence[Confirmed]) -> Confirmed | None:
    """Return the first kind that a record is of, None if nobody confirmed it."""
    return next((kind for kind in kinds if kind.confirms(record)), None)


def stale(report: ConformanceReport, kinds: Sequence[Confirmed]) -> list[Confirmed]:
    """Return the kinds whose cases ran, and none of them came out like that any more."""
    ran = [(line.case, runtime) for line in report.cases for runtime in line.outcomes]
    found = [kind_of(one, kinds) for one in report.details]
    return [
        kind
        for kind in kinds
        if not any(kind is one for one in found) and any(kind.is_about(*pair) for pair in ran)
    ]
