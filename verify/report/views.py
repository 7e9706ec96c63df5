"""Which files a report consists of, and what makes each of them from the records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType

from onnx_attest.verify.records import AnyRecord
from onnx_attest.verify.report.accuracy import accuracy
from onnx_attest.verify.report.by_kind import CSV
from onnx_attest.verify.report.claims import claims
from onnx_attest.verify.report.document import document
from onnx_attest.verify.report.github import github
from onnx_attest.verify.report.html import html
from onnx_attest.verify.report.junit import junit
from onnx_attest.verify.report.latency import latency
from onnx_attest.verify.report.pictures.claims import file_name, pictures
from onnx_attest.verify.report.power import power
from onnx_attest.verify.report.relations import relations
from onnx_attest.verify.report.stability import stability
from onnx_attest.verify.report.summary import summary
from onnx_attest.verify.report.time import time

View = Callable[[Iterable[AnyRecord]], str]
VIEWS: Mapping[str, View] = MappingProxyType(
    {
        "summary.md": summary,
        "report.html": html,
        "report.json": document,
        "junit.xml": junit,
        "github.md": github,
        "accuracy.md": accuracy,
        "stability.md": stability,
        "relations.md": relations,
        "latency.md": latency,
        "claims.md": claims,
        "power.md": power,
        "time.md": time,
        **CSV,
    }
)
FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "md": "summary.md",
        "html": "report.html",
        "json": "report.json",
        "junit": "junit.xml",
        "github": "github.md",
        "csv": "accuracy.csv",
    }
)
"""Short names of the views that stand for the whole run; a csv has one kind of record, cells unless another is named."""
ON_REQUEST = frozenset({"report.json"})
"""Views that no folder holds: records.jsonl stands beside them there, with the same numbers."""


class Views(Mapping[str, str]):
    """The views of a run by their names; the text of each is made when it is asked for, from the records alone."""

    def __init__(self, records: Iterable[AnyRecord]) -> None:
        self._records = tuple(records)

    @cached_property
    def _drawn(self) -> Mapping[str, str]:
        return {file_name(claim): picture.svg for claim, picture in pictures(self._records).items()}

    def __getitem__(self, name: str) -> str:
        return VIEWS[name](self._records) if name in VIEWS else self._drawn[name]

    def __iter__(self) -> Iterator[str]:
        yield from VIEWS
        yield from self._drawn

    def __len__(self) -> int:
        return len(VIEWS) + len(self._drawn)

    def __contains__(self, name: object) -> bool:
        return name in VIEWS or name in self._drawn


def render(records: Iterable[AnyRecord]) -> Views:
    """Return each view by its name, made when it is asked for; a pure function of the records."""
    return Views(records)
