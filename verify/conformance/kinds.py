"""Records that are about the same thing: a kind that somebody confirmed, or the same words on one runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx_attest.verify.conformance.confirmed import Confirmed, kind_of
from onnx_attest.verify.conformance.matrix import OUTCOMES
from onnx_attest.verify.conformance.words import kind_of_words
from onnx_attest.verify.records import ConformanceRecord, Outcome


@dataclass(frozen=True)
class Kind:
    """What is wrong, or refused, in the same way in some cases.

    Attributes:
        records: of one outcome, the one with the smallest input first.
        confirmed: by whom it was looked at by hand; None if nobody did.
    """

    records: tuple[ConformanceRecord, ...]
    confirmed: Confirmed | None

    @property
    def outcome(self) -> Outcome:
        """What came of the cases."""
        return self.records[0].outcome

    @property
    def runtimes(self) -> tuple[str, ...]:
        """The runtimes that it is about."""
        return tuple(dict.fromkeys(one.runtime for one in self.records))

    @property
    def cases(self) -> tuple[str, ...]:
        """The cases that show it."""
        return tuple(dict.fromkeys(one.case for one in self.records))


def kinds(details: Sequence[ConformanceRecord], confirmed: Sequence[Confirmed]) -> list[Kind]:
    """Return the kinds of what is not right, the worst outcome first."""
    found: dict[tuple[object, ...], list[ConformanceRecord]] = {}
    entries: dict[tuple[object, ...], Confirmed | None] = {}
    for one in details:
        if one.outcome == "right":
            continue
        entry = kind_of(one, confirmed)
        key: tuple[object, ...] = (
            (entry.title, entry.outcome) if entry else (one.operator, one.outcome, kind_of_words(one.reason))
        )
        found.setdefault(key, []).append(one)
        entries[key] = entry
    made = [Kind(tuple(sorted(same, key=_order)), entries[key]) for key, same in found.items()]
    return sorted(made, key=lambda kind: -OUTCOMES.index(kind.outcome))


def _order(one: ConformanceRecord) -> tuple[bool, bool, int, int]:
    """Order with the plainest first: with a smallest input, of an operator rather than expanded, short."""
    text = "" if one.smallest is None else "".join(one.smallest.inputs.values())
    return one.smallest is None, one.form == "expanded", len(text), len(one.case)
