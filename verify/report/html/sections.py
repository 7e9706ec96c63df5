"""The sections of the page that show the other views' tables with their pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx_attest.verify.claims import STATEMENTS
from onnx_attest.verify.records import (
    AnyRecord,
    CellRecord,
    ClaimRecord,
    FindingRecord,
    HeadroomRecord,
    MachineRecord,
    RelationRecord,
    StabilityRecord,
)
from onnx_attest.verify.report import accuracy as of_accuracy
from onnx_attest.verify.report import headroom as of_headroom
from onnx_attest.verify.report import latency as of_latency
from onnx_attest.verify.report import relations as of_relations
from onnx_attest.verify.report import stability as of_stability
from onnx_attest.verify.report.claims import measured_tables, not_measured
from onnx_attest.verify.report.grouping import grouped, of_kind, subject_on_runtime
from onnx_attest.verify.report.html.markup import Markup, joined, tag
from onnx_attest.verify.report.html.tables import figure, filled, folded, shown
from onnx_attest.verify.report.pictures.accuracy import bits, errors
from onnx_attest.verify.report.pictures.claims import pictures, weight_errors
from onnx_attest.verify.report.pictures.latency import latency_pictures
from onnx_attest.verify.report.pictures.stability import stability_pictures
from onnx_attest.verify.report.shipping import shipping_tables
from onnx_attest.verify.report.timings import floors, timings


def accuracy(records: Sequence[AnyRecord]) -> Markup:
    """Return errors against bounds, and bits, as pictures; the totals to be opened."""
    cells = grouped(of_kind(records, CellRecord), subject_on_runtime).values()
    totals = filled("Accuracy by export and runtime", of_accuracy.TOTALS, cells, of_accuracy.TOTALS_NOTE)
    return joined(
        map(figure, errors(records)), map(figure, bits(records)), folded("By export and runtime", totals)
    )


def softmax(records: Sequence[AnyRecord]) -> Markup:
    """Return stability against the scale of the logits, where each softmax breaks, and the figures to be opened."""
    looked = grouped(of_kind(records, StabilityRecord), subject_on_runtime).values()
    whole = filled("Softmax by export and runtime", of_stability.BY_EXPORT, looked)
    breaking = filled("Where it breaks", of_headroom.COLUMNS, _headroom(records), of_headroom.NOTE)
    drawn = stability_pictures(records)
    return joined(
        _figures(drawn), folded("Where each softmax breaks", breaking), folded("By export and runtime", whole)
    )


def _headroom(records: Sequence[AnyRecord]) -> Iterable[Sequence[HeadroomRecord]]:
    return grouped(of_kind(records, HeadroomRecord), of_headroom.kind_of_row).values()


def relations(records: Sequence[AnyRecord]) -> Markup:
    """Return the relations that were not kept; those that were to be opened."""
    seen = of_kind(records, RelationRecord)
    broken = [one for one in seen if one.asked_by and one.verdict != "passed"]
    asked = grouped((one for one in seen if one.asked_by), of_relations.on_runtime).values()
    facts = grouped((one for one in seen if not one.asked_by), of_relations.of_export).values()
    if not seen:
        return Markup()
    return joined(
        filled("Relations that were not kept", of_relations.BROKEN, broken)
        or tag("p", "Every relation that was asked for was kept."),
        folded(
            "What has to hold", filled("What has to hold", of_relations.ASKED, asked, of_relations.ASKED_NOTE)
        ),
        folded(
            "What was found to hold",
            filled("Found to hold", of_relations.FACTS, facts, of_relations.FACTS_NOTE),
        ),
    )


def latency(records: Sequence[AnyRecord]) -> Markup:
    """Return which variant to ship, time against length, and the figures to be opened."""
    found = timings(records)
    not_timed = [one.message for one in of_kind(records, FindingRecord) if one.code == "OA704"]
    growth = filled(
        "Growth with length", of_latency.GROWTH_COLUMNS, of_latency.growths(found), of_latency.GROWTH_NOTE
    )
    every = filled("By export, runtime and shape", of_latency.COLUMNS, found, of_latency.LIMITS)
    noise = filled(
        "A runtime against itself", of_latency.FLOOR_COLUMNS, floors(records), of_latency.FLOOR_NOTE
    )
    machine = filled(
        "The machine", of_latency.MACHINE_COLUMNS, of_kind(records, MachineRecord), of_latency.MACHINE_NOTE
    )
    return joined(
        map(shown, shipping_tables(records, found)),
        (tag("p", message) for message in not_timed),
        _figures(latency_pictures(records)),
        folded("Growth with length", growth),
        folded("Every timing", every),
        folded("Noise floor", noise),
        folded("The machine", machine),
    )


def claims(records: Sequence[AnyRecord]) -> Markup:
    """Return each statement of the chapter that was tested, its picture, and what was measured, to be opened."""
    mine = of_kind(records, ClaimRecord)
    drawn = pictures(mine)
    errors_drawn = weight_errors(mine)
    by_runtime = (
        tag("details", tag("summary", runtime), figure(picture), open=index == 0)
        for index, (runtime, picture) in enumerate(errors_drawn.items())
    )
    return joined(
        (tag("h3", "Errors of the weights"), *by_runtime) if errors_drawn else None,
        [
            _claim(number, held, drawn[number].svg if number in drawn else "")
            for number, held in sorted(grouped(mine, lambda one: one.claim).items())
        ],
    )


def _claim(number: int, records: Sequence[ClaimRecord], picture: str) -> Markup:
    statement = STATEMENTS.get(number)
    says = statement.says if statement else "a statement that this version does not know"
    lines = not_measured(records)
    return tag(
        "article",
        tag("h3", f"{number}. {says}"),
        tag("p", statement.shown) if statement else None,
        figure(picture) if picture else None,
        folded("What was measured", *map(shown, measured_tables(records))),
        tag("ul", (tag("li", line) for line in lines)) if lines else None,
    )


def _figures(drawn: Mapping[tuple[str, str], str]) -> Markup:
    """Return the pictures of models, the first one open."""
    return joined(
        tag("details", tag("summary", f"{model}, {dtype}"), figure(picture), open=index == 0)
        for index, ((model, dtype), picture) in enumerate(drawn.items())
    )
