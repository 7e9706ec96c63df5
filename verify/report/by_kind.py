"""The CSV file of each kind of record: its fields, unrounded, one record a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    ClaimRecord,
    ConformanceRecord,
    EnvironmentRecord,
    EvidenceRecord,
    FindingRecord,
    HeadroomRecord,
    LatencyRecord,
    MachineRecord,
    PowerRecord,
    Record,
    RelationRecord,
    RunRecord,
    StabilityRecord,
    TimeRecord,
)
from onnx_attest.verify.report.flatten import flat_rows
from onnx_attest.verify.report.grouping import of_kind
from onnx_attest.verify.report.latency import latency_csv
from onnx_attest.verify.report.tables import to_csv
from onnx_attest.verify.report.time import time_csv


def csv_of(kind: type[Record], records: Iterable[AnyRecord]) -> str:
    """Return the records of one kind, one a line."""
    return to_csv(*flat_rows(kind, of_kind(records, kind)))


FILE_OF: Mapping[type[Record], str] = MappingProxyType(
    {
        RunRecord: "run.csv",
        ArtifactRecord: "exports.csv",
        CellRecord: "accuracy.csv",
        FindingRecord: "findings.csv",
        StabilityRecord: "stability.csv",
        HeadroomRecord: "headroom.csv",
        RelationRecord: "relations.csv",
        LatencyRecord: "latency.csv",
        MachineRecord: "machine.csv",
        ClaimRecord: "claims.csv",
        PowerRecord: "power.csv",
        ConformanceRecord: "conformance.csv",
        TimeRecord: "time.csv",
        EvidenceRecord: "evidence.csv",
        EnvironmentRecord: "environment.csv",
    }
)
# Timings have statistics that the records lack, and a stage of the run is a line of its own.
_OTHERWISE: Mapping[type[Record], Callable[[Iterable[AnyRecord]], str]] = MappingProxyType(
    {LatencyRecord: latency_csv, TimeRecord: time_csv}
)
CSV: Mapping[str, Callable[[Iterable[AnyRecord]], str]] = MappingProxyType(
    {name: _OTHERWISE.get(kind, partial(csv_of, kind)) for kind, name in FILE_OF.items()}
)
