"""What a run leaves behind, and the matrix made of it: feature by runtime, how many cases came out how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.export.decoding import decoded
from onnx_attest.export.reading import MIB, bytes_of
from onnx_attest.verify.records import SCHEMA, ConformanceRecord, Outcome

_LARGEST = 256 * MIB
OUTCOMES: tuple[Outcome, ...] = ("right", "inconclusive", "refused", "crashed", "wrong")
"""The best first. A wrong number is the worst that a runtime can give: a refusal and a crash are noticed."""


class RuntimeRun(msgspec.Struct, frozen=True):
    """A runtime of the matrix: its version, and why it did not run, "" if it did."""

    version: str
    skipped: str = ""


class CaseLine(msgspec.Struct, frozen=True, kw_only=True):
    """One case and what came of it on each runtime; see `ConformanceRecord`."""

    case: str
    origin: str
    operator: str
    form: str
    features: tuple[str, ...]
    opset: int
    dtype: str
    reference: str
    oracle_lacks: str = ""
    case_at_odds: str = ""
    outcomes: dict[str, Outcome]


class Blame:
    """Which features of a case that is not right may be what is at fault.

    A case that is right and asks for some of the same things, and for nothing else, clears those. Where everything is
    cleared, it is a combination: then only the plainest of those cases clears.
    """

    def __init__(self, lines: Iterable[CaseLine]) -> None:
        """Read what is right on each runtime."""
        self._right: dict[tuple[str, str, str], set[frozenset[str]]] = {}
        for line in lines:
            for runtime, outcome in line.outcomes.items():
                if outcome == "right":
                    key = (line.operator, line.form, runtime)
                    self._right.setdefault(key, set()).add(frozenset(line.features))

    def suspects(self, line: CaseLine, runtime: str) -> frozenset[str]:
        """Return the features that no right case clears, all of them of a case that is right."""
        features = frozenset(line.features)
        if line.outcomes[runtime] == "right":
            return features
        right = self._right.get((line.operator, line.form, runtime), set())
        clearing = sorted((one for one in right if one <= features), key=lambda one: (len(one), sorted(one)))
        if not clearing:
            return features
        return features.difference(*clearing) or features.difference(clearing[0]) or features


class MatrixCell(msgspec.Struct, frozen=True, kw_only=True):
    """How many cases with a feature came out how on a runtime.

    Attributes:
        explained: cases that are not right, and that another feature of theirs explains; they are not in `counts`.
    """

    operator: str
    form: str
    feature: str
    runtime: str
    counts: dict[Outcome, int]
    explained: int = 0

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names the cell in every run."""
        return self.operator, self.form, self.feature, self.runtime


class ConformanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `onnx-attest conformance` found.

    Attributes:
        versions: of the packages that the cases and the oracle come from.
        machine: the instruction sets that kernels are picked by.
        runtimes: by name, those that did not run included.
        left_out: runtimes that are no part of it, and why.
        operators: that were looked at.
        cases: all of them.
        details: the records that are more than `right`: what was wrong or refused, where the tolerance and the bound
            disagree.
    """

    schema: int = SCHEMA
    kind: str = "conformance"
    versions: dict[str, str]
    machine: str
    runtimes: dict[str, RuntimeRun]
    left_out: dict[str, str]
    operators: tuple[str, ...]
    cases: tuple[CaseLine, ...]
    details: tuple[ConformanceRecord, ...]

    @property
    def ran(self) -> tuple[str, ...]:
        """The runtimes that ran."""
        return tuple(name for name, run in self.runtimes.items() if not run.skipped)

    def cells(self) -> list[MatrixCell]:
        """Return the matrix, row by row in the order of the cases."""
        counts: dict[tuple[str, str, str, str], Counter[Outcome]] = {}
        explained: Counter[tuple[str, str, str, str]] = Counter()
        blame = Blame(self.cases)
        for line in self.cases:
            for runtime, outcome in line.outcomes.items():
                suspects = blame.suspects(line, runtime)
                for feature in line.features:
                    key = (line.operator, line.form, feature, runtime)
                    found = counts.setdefault(key, Counter())
                    if feature in suspects:
                        found[outcome] += 1
                    else:
                        explained[key] += 1
        return [
            MatrixCell(
                operator=operator, form=form, feature=feature, runtime=runtime,
                counts={outcome: found[outcome] for outcome in OUTCOMES if found[outcome]},
                explained=explained[operator, form, feature, runtime],
            )
            for (operator, form, feature, runtime), found in counts.items()
        ]  # fmt: skip

    def totals(self, runtime: str) -> Counter[Outcome]:
        """Return how many cases came out how on a runtime."""
        return Counter(line.outcomes[runtime] for line in self.cases if runtime in line.outcomes)


def lines_of(records: Iterable[ConformanceRecord]) -> tuple[CaseLine, ...]:
    """Return one line for each case of the records, in their order."""
    by_case: dict[str, list[ConformanceRecord]] = {}
    for record in records:
        by_case.setdefault(record.case, []).append(record)
    return tuple(_line(same) for same in by_case.values())


def _line(same: Sequence[ConformanceRecord]) -> CaseLine:
    first = same[0]
    return CaseLine(
        case=first.case,
        origin=first.origin,
        operator=first.operator,
        form=first.form,
        features=first.features,
        opset=first.opset,
        dtype=first.dtype,
        reference=first.reference,
        oracle_lacks=first.oracle_lacks,
        case_at_odds=first.case_at_odds,
        outcomes={one.runtime: one.outcome for one in same},
    )


def is_more_than_right(record: ConformanceRecord) -> bool:
    """Whether there is more to say of a record than that it is right."""
    return record.outcome != "right" or record.by_tolerance == "beyond" or bool(record.case_at_odds)


_UNSAID: tuple[object, ...] = ("", None)
"""What a row leaves out: it reads the same without."""
_OF_THE_CASE = (
    "origin",
    "operator",
    "form",
    "features",
    "opset",
    "dtype",
    "reference",
    "oracle_lacks",
    "case_at_odds",
)
"""What a detail leaves out, since the line of its case has it."""


def encode_report(report: ConformanceReport) -> bytes:
    """Return the report as JSON, a case or a detail a line, so that a new version of a runtime shows as a diff."""
    fields = msgspec.to_builtins(report)
    for detail in fields["details"]:
        for name in (*_OF_THE_CASE, "runtime_version", "schema", "kind"):
            del detail[name]
    parts = []
    for name, value in fields.items():
        if name in ("cases", "details"):
            rows = ({key: said for key, said in row.items() if said not in _UNSAID} for row in value)
            lines = b",\n  ".join(msgspec.json.encode(row) for row in rows)
            parts.append(msgspec.json.encode(name) + b": [\n  " + lines + b"\n ]")
        else:
            parts.append(msgspec.json.encode(name) + b": " + msgspec.json.encode(value))
    return b"{\n " + b",\n ".join(parts) + b"\n}\n"


def read_report(path: Path) -> ConformanceReport:
    """Return the report of a file that `encode_report` made.

    Raises:
        UsageError: no such file, or another kind of file.
    """
    try:
        fields = decoded(msgspec.json.decode, bytes_of(path, _LARGEST))
        return msgspec.convert(_with_details(fields), ConformanceReport)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; give a conformance.json") from error
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is no conformance.json of `onnx-attest conformance -o DIR`: {error}"
        ) from error


def _with_details(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a report with what its details leave out."""
    lines = {line["case"]: line for line in fields["cases"]}
    details = [
        {
            "kind": fields["kind"],
            "runtime_version": fields["runtimes"][detail["runtime"]]["version"],
            **{name: value for name, value in lines[detail["case"]].items() if name in _OF_THE_CASE},
            **detail,
        }
        for detail in fields["details"]
    ]
    return {**fields, "details": details}
