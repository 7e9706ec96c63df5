"""The whole run: every case on every runtime, judged, and the smallest inputs of what is not right."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from onnx_attest.errors import UsageError
from onnx_attest.verify.conformance.beyond import beyond
from onnx_attest.verify.conformance.case import OPERATORS, Case
from onnx_attest.verify.conformance.execution import CASE_LIMIT_S, run_case
from onnx_attest.verify.conformance.judging import Judged, judged, record
from onnx_attest.verify.conformance.matrix import (
    ConformanceReport,
    RuntimeRun,
    is_more_than_right,
    lines_of,
)
from onnx_attest.verify.conformance.reference import References, reference_of
from onnx_attest.verify.conformance.representatives import representatives
from onnx_attest.verify.conformance.smallest import smallest
from onnx_attest.verify.conformance.suite import suite
from onnx_attest.verify.conformance.text import as_text
from onnx_attest.verify.environment import cpu_features
from onnx_attest.verify.records import ConformanceRecord
from onnx_attest.verify.runtimes.base import Runtime
from onnx_attest.verify.runtimes.isolated import isolate, processes_of

_PACKAGES = ("onnx", "numpy")
_RUNS_MODULES = "runs a PyTorch module: these cases are graphs, and have none"
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Station:
    """A runtime that works here."""

    runtime: Runtime
    version: str

    def judge(self, case: Case) -> Judged:
        """Return what the runtime makes of a case, by a reference made for it."""
        ran = run_case(self.runtime, case.model, case.inputs)
        return judged(case, ran, reference_of(case, self.runtime.arithmetic(case.dtype)))


def run_conformance(
    runtimes: Sequence[Runtime],
    operators: Sequence[str] = (),
    on_step: Say = lambda step: None,
    *,
    cases: Sequence[Case] | None = None,
    limits: Mapping[str, Any] = MappingProxyType({}),
) -> ConformanceReport:
    """Return what each runtime makes of each case.

    Args:
        runtimes: those that run modules are left out, those that do not work here are listed with their reason.
        operators: to look at, all of OPERATORS if none is named.
        on_step: told what is going on.
        cases: instead of ONNX's and ours of these operators.
        limits: of each runtime's process, as `isolate` takes them.

    Raises:
        UsageError: an unknown operator.
    """
    chosen = chosen_operators(operators)
    left_out = {one.name: _RUNS_MODULES for one in runtimes if _runs_module(one)}
    kept = {name: limit for name, limit in limits.items() if limit is not None}
    alone = isolate((one for one in runtimes if one.name not in left_out), **{"time_s": CASE_LIMIT_S, **kept})
    with processes_of(alone):
        on_step("ONNX's cases")
        looked_at = [*suite(chosen), *beyond(chosen)] if cases is None else list(cases)
        found = {one.name: one.availability() for one in alone}
        stations = [Station(one, found[one.name].version) for one in alone if found[one.name].usable]
        records = _run(stations, looked_at, on_step)
        telling = [one for one in records if is_more_than_right(one)]
        details = tuple(_with_smallest(telling, stations, looked_at, on_step))
    return ConformanceReport(
        versions={name: version(name) for name in _PACKAGES},
        machine=" ".join(cpu_features()),
        runtimes={
            name: RuntimeRun(one.version, "" if one.usable else one.remark) for name, one in found.items()
        },
        left_out=left_out,
        operators=chosen,
        cases=lines_of(records),
        details=details,
    )


def _runs_module(runtime: Runtime) -> bool:
    own = getattr(runtime, "runtime", runtime)  # of one that a user configured, which has its process already
    return bool(getattr(own, "runs_module", False))


def chosen_operators(names: Sequence[str]) -> tuple[str, ...]:
    """Return the operators in the order of OPERATORS, all of them if none is named.

    Raises:
        UsageError: an unknown one; the message lists those there are.
    """
    if unknown := [name for name in names if name not in OPERATORS]:
        raise UsageError(f"unknown operator {', '.join(unknown)}; there are {', '.join(OPERATORS)}")
    return tuple(name for name in OPERATORS if not names or name in names)


def _run(stations: Sequence[Station], cases: Sequence[Case], on_step: Say) -> list[ConformanceRecord]:
    """Return all records, case by case. Runtimes work side by side: each waits for its own process most of the time."""
    references = {case.name: References(case) for case in cases}

    def column(station: Station) -> list[ConformanceRecord]:
        on_step(f"{len(cases)} cases on {station.runtime.name}")
        return [_record(station, case, references[case.name]) for case in cases]

    with ThreadPoolExecutor(min(len(stations), os.cpu_count() or 1) or 1) as pool:
        columns = list(pool.map(column, stations))
    return [one for row in zip(*columns, strict=True) for one in row]


def _record(station: Station, case: Case, references: References) -> ConformanceRecord:
    profile = station.runtime.arithmetic(case.dtype)
    ran = run_case(station.runtime, case.model, case.inputs)
    reference = references.under(profile)
    found = judged(case, ran, reference)
    return record(case, station.runtime.name, station.version, profile, found, reference, references.at_odds)


def _with_smallest(
    details: Sequence[ConformanceRecord], stations: Sequence[Station], cases: Sequence[Case], on_step: Say
) -> Iterator[ConformanceRecord]:
    """Yield the records, those that stand for a cell or for a kind of refusal with their smallest input.

    What is the smallest for one runtime is where the search begins for the next one.
    """
    chosen, by_name = representatives(details), {case.name: case for case in cases}
    runners = {station.runtime.name: station for station in stations}
    known: dict[str, Case] = {}
    for one in details:
        if (one.case, one.runtime) not in chosen:
            yield one
            continue
        on_step(f"the smallest input of {one.case} on {one.runtime}")
        judge = runners[one.runtime].judge
        start, found = by_name[one.case], Judged(one.outcome, one.reason, one.max_err_over_tau)
        best = smallest(start, found, judge, begin=known.get(one.case))
        known.setdefault(one.case, best.case)
        yield as_text(one, best)
