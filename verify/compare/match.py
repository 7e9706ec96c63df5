"""Which record of one run belongs to which of the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CaseRecord,
    CellRecord,
    ClaimRecord,
    HeadroomRecord,
    LatencyRecord,
    RelationRecord,
    StabilityRecord,
)

T = TypeVar("T")


class Place(NamedTuple):
    """One file on one runtime."""

    model: str
    variant: str
    opset: int | None
    dtype: str
    runtime: str

    def fields(self) -> dict[str, Any]:
        """Return it as the fields of a change."""
        return self._asdict()


@dataclass(frozen=True)
class Pair(Generic[T]):
    """The same thing in both runs."""

    old: T
    new: T


@dataclass(frozen=True)
class Matched(Generic[T]):
    """The records of one kind in both runs."""

    pairs: tuple[Pair[T], ...]
    appeared: tuple[T, ...]
    vanished: tuple[T, ...]


def place(record: Any) -> Place:
    """Return the file and the runtime that a record is about; an export has none, a statement has no file."""
    return Place(
        record.model,
        getattr(record, "variant", ""),
        getattr(record, "opset", None),
        record.dtype,
        getattr(record, "runtime", ""),
    )


def case_id(record: Any) -> str:
    """Return the id of the record's case, "" where it has none; the seed is no part of it."""
    case: CaseRecord | None = getattr(record, "case", None)
    return "" if case is None else case.id


def matched(old: Iterable[T], new: Iterable[T], key: Callable[[T], Hashable]) -> Matched[T]:
    """Return the records of both runs by key; of several with one key the last counts."""
    before = {key(record): record for record in old}
    after = {key(record): record for record in new}
    return Matched(
        tuple(Pair(before[one], record) for one, record in after.items() if one in before),
        tuple(record for one, record in after.items() if one not in before),
        tuple(record for one, record in before.items() if one not in after),
    )


def of_artifacts(record: ArtifactRecord) -> Hashable:
    """Return the key of an export."""
    return place(record)


def of_cells(record: CellRecord) -> Hashable:
    """Return the key of a cell."""
    return place(record), case_id(record)


def of_relations(record: RelationRecord) -> Hashable:
    """Return the key of a relation."""
    return place(record), record.relation, case_id(record)


def of_claims(record: ClaimRecord) -> Hashable:
    """Return the key of a statement's experiment."""
    return record.claim, record.setting, place(record)


def of_timings(record: LatencyRecord) -> Hashable:
    """Return the key of a timing: file, runtime, sizes, threads."""
    return place(record), tuple(sorted(record.axes.items())), record.threads


Softmax = TypeVar("Softmax", StabilityRecord, HeadroomRecord)


def of_softmaxes(records: Sequence[Softmax]) -> Callable[[Softmax], Hashable]:
    """Return the key of a softmax's records: nodes get other names from another exporter, so they go by their order."""
    order: dict[tuple[Any, ...], dict[str, int]] = {}
    for record in records:
        names = order.setdefault(place(record)[:4], {})
        names.setdefault(_node(record), len(names))

    def key(record: Softmax) -> Hashable:
        number = order[place(record)[:4]][_node(record)]
        return place(record), case_id(record), number, getattr(record, "profile", None)

    return key


def _node(record: StabilityRecord | HeadroomRecord) -> str:
    return record.attention if isinstance(record, StabilityRecord) else record.softmax


def matched_softmaxes(old: Sequence[Softmax], new: Sequence[Softmax]) -> Matched[Softmax]:
    """Return the records of softmaxes of both runs, each by the key of its own run."""
    before, after = of_softmaxes(old), of_softmaxes(new)
    first, second = {before(one): one for one in old}, {after(one): one for one in new}
    return Matched(
        tuple(Pair(first[one], record) for one, record in second.items() if one in first),
        tuple(record for one, record in second.items() if one not in first),
        tuple(record for one, record in first.items() if one not in second),
    )


def same_inputs(old: Any, new: Any) -> bool:
    """Whether two records are about the same file with the same inputs: then only the runtime can differ."""
    return bool(old.artifact_sha256 == new.artifact_sha256 and old.case == new.case)


def of_kind(records: Iterable[AnyRecord], kind: type[T]) -> list[T]:
    """Return the records of one kind."""
    return [record for record in records if isinstance(record, kind)]
