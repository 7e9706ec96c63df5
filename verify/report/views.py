"""Which files a report consists of, and what makes each of them from the records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from onnx_attest.verify.records import AnyRecord
from onnx_attest.verify.report.accuracy import accuracy, accuracy_csv
from onnx_attest.verify.report.claims import claims, claims_csv
from onnx_attest.verify.report.headroom import headroom_csv
from onnx_attest.verify.report.html import html
from onnx_attest.verify.report.latency import latency, latency_csv
from onnx_attest.verify.report.pictures.claims import file_name, pictures
from onnx_attest.verify.report.power import power, power_csv
from onnx_attest.verify.report.relations import relations, relations_csv
from onnx_attest.verify.report.stability import stability, stability_csv
from onnx_attest.verify.report.summary import summary
from onnx_attest.verify.report.time import time, time_csv

VIEWS: Mapping[str, Callable[[Iterable[AnyRecord]], str]] = MappingProxyType(
    {
        "summary.md": summary,
        "report.html": html,
        "accuracy.md": accuracy,
        "accuracy.csv": accuracy_csv,
        "stability.md": stability,
        "stability.csv": stability_csv,
        "headroom.csv": headroom_csv,
        "relations.md": relations,
        "relations.csv": relations_csv,
        "latency.md": latency,
        "latency.csv": latency_csv,
        "claims.md": claims,
        "claims.csv": claims_csv,
        "power.md": power,
        "power.csv": power_csv,
        "time.md": time,
        "time.csv": time_csv,
    }
)


def render(records: Iterable[AnyRecord]) -> dict[str, str]:
    """Return the text of each file of the report, by its name; a pure function of the records."""
    records = list(records)
    drawn = {file_name(claim): picture.svg for claim, picture in pictures(records).items()}
    return {name: view(records) for name, view in VIEWS.items()} | drawn
