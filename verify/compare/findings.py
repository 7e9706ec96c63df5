"""Findings that are new, and those that are gone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from onnx_attest.verify.compare.change import Change
from onnx_attest.verify.compare.match import Place, matched, place
from onnx_attest.verify.records import FindingRecord
from onnx_attest.verify.report.outcomes import is_known

_OF_TIME = "OA7"
"""Findings about latency say how well it was measured, which is the machine's doing."""


def findings(
    old: Sequence[FindingRecord], new: Sequence[FindingRecord], both: frozenset[Place]
) -> Iterator[Change]:
    """Yield findings that one run alone has, about what both have looked at; notes are left out.

    The message is not compared: it has numbers of a case. A new error counts, unless there was another one of the same
    file on the same runtime before: which gate tells of a fault first is a matter of the inputs.

    Args:
        old: of the earlier run.
        new: of the later one.
        both: the files on runtimes that both have cells of.
    """
    before = [one for one in old if _is_told(one, both)]
    after = [one for one in new if _is_told(one, both)]
    found = matched(before, after, _key)
    erroneous = {place(one) for one in before if _is_error(one)}
    for one in found.appeared:
        yield _change(one, is_new=True, counts=_is_error(one) and place(one) not in erroneous)
    for one in found.vanished:
        yield _change(one, is_new=False, counts=False)


def _is_told(one: FindingRecord, both: frozenset[Place]) -> bool:
    where = place(one)
    # A finding about a file, or about a run, is about whatever of it both have run.
    seen = {other[: len(where) - 1] for other in both} | {("", "", None, "")}
    known_place = where in both if one.runtime else where[: len(where) - 1] in seen
    return one.severity != "note" and known_place and not one.code.startswith(_OF_TIME)


def _is_error(one: FindingRecord) -> bool:
    return one.severity == "error" and not is_known(one)


def _key(one: FindingRecord) -> Hashable:
    return one.code, place(one), one.blame, bool(one.known)


def _change(one: FindingRecord, *, is_new: bool, counts: bool) -> Change:
    word = f"{one.severity} (known)" if is_known(one) else one.severity
    return Change(
        kind="finding",
        direction="worse" if is_new else "better",
        counts=counts,
        **place(one).fields(),
        case=one.case,
        quantity=one.code,
        before=None if is_new else word,
        after=word if is_new else None,
        message=f"{one.code} {word} {'is new' if is_new else 'is gone'}: {one.message}",
    )
