"""Records taken apart by kind and put together by what they are about, in order of first appearance."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeGuard, TypeVar

from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    HeadroomRecord,
    LatencyRecord,
    RelationRecord,
    StabilityRecord,
)
from onnx_attest.verify.report.formats import UNKNOWN
from onnx_attest.verify.report.outcomes import HasVerdict, Judged

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Subject(NamedTuple):
    """The export that a record is about."""

    model: str
    variant: str
    opset: str
    dtype: str


def subject(record: HasVerdict | RelationRecord) -> Subject:
    """Return the export that the record is about."""
    opset = UNKNOWN if record.opset is None else str(record.opset)
    return Subject(record.model, record.variant, opset, record.dtype)


def subject_on_runtime(record: Judged) -> tuple[Subject, str]:
    """Return the export and the runtime that the record is about."""
    return subject(record), record.runtime


def of_kind(records: Iterable[AnyRecord], kind: type[T]) -> list[T]:
    """Return the records of one kind."""
    return [record for record in records if isinstance(record, kind)]


def judged(records: Iterable[AnyRecord]) -> list[Judged]:
    """Return what an entry of the matrix is made of: cells, softmax rows, and softmaxes that broke too early."""
    return [
        record
        for record in records
        if isinstance(record, CellRecord | StabilityRecord) or _broke_too_early(record)
    ]


def _broke_too_early(record: AnyRecord) -> TypeGuard[HeadroomRecord]:
    """Whether a softmax alone counts: that one works alone, or cannot be cut out, says nothing of the file."""
    return isinstance(record, HeadroomRecord) and record.verdict in ("failed", "errored")


def with_verdict(records: Iterable[AnyRecord]) -> list[HasVerdict]:
    """Return the records that something can be missing from."""
    kinds = ArtifactRecord | CellRecord | StabilityRecord | LatencyRecord
    return [record for record in records if isinstance(record, kinds) or _broke_too_early(record)]


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items by key."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
