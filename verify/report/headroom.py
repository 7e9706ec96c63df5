"""Where each softmax breaks, and how far the data is from it: a table of stability.md, and headroom.csv."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx_attest.verify.records import AnyRecord, HeadroomRecord
from onnx_attest.verify.report.formats import UNKNOWN, extreme, listed, number
from onnx_attest.verify.report.grouping import Subject, grouped, of_kind, subject
from onnx_attest.verify.report.outcomes import shown_together
from onnx_attest.verify.report.tables import Column, Table, fill

Rows = Sequence[HeadroomRecord]


def headroom_table(records: Iterable[AnyRecord]) -> Table:
    """Return one row an export, runtime and profile of logits; softmaxes that subtract their maximum apart."""
    rows = grouped(of_kind(records, HeadroomRecord), kind_of_row).values()
    return fill("Where it breaks", COLUMNS, rows, NOTE)


def kind_of_row(record: HeadroomRecord) -> tuple[Subject, str, bool, str | None]:
    """Return what the records of a row of the table share."""
    return subject(record), record.runtime, record.shifted, record.profile


def _tried(records: Rows) -> list[HeadroomRecord]:
    return [one for one in records if one.profile is not None]


def _broke_at(records: Rows) -> str:
    """Return the smallest logit that broke one; if none did, up to where it was tried."""
    tried = _tried(records)
    if not tried:
        return UNKNOWN
    broken = [one.broke_at_logit for one in tried if one.broke_at_logit is not None]
    if broken:
        return _logit(min(broken))
    return f"never up to {extreme((one.tried_to_logit for one in tried), min)}"


def _predicted(records: Rows) -> str:
    tried = _tried(records)
    known = [one.predicted_logit for one in tried if one.predicted_logit is not None]
    return _logit(min(known)) if known else ("never" if tried else UNKNOWN)


def _logit(value: float) -> str:
    """Return four digits: prediction and measurement may differ by one in a hundred."""
    return f"{value:.4g}"


def _agrees(records: Rows) -> str:
    tried = _tried(records)
    if not tried:
        return UNKNOWN
    agreeing = sum(bool(one.agrees) for one in tried)
    return "yes" if agreeing == len(tried) else f"{agreeing} of {len(tried)}"


def _least_headroom(records: Rows) -> str:
    known = [one.headroom_log2 for one in records if one.headroom_log2 is not None]
    return number(min(known)) if known else UNKNOWN


def _keys(records: Rows) -> str:
    return listed(str(one.keys) for one in _tried(records))


NOTE = (
    "Each softmax is cut out of the file as a graph of its own and run by the same runtime with larger and larger logits "
    "until a row is no longer finite or no longer sums to one. The prediction is ln(largest number) of the format that "
    "the exponentials are seen to be kept in, less ln(keys) where all logits are equal."
)
COLUMNS: tuple[Column[Rows], ...] = (
    Column("model", "name of the module", lambda records: records[0].model),
    Column("variant", "form of the graph", lambda records: records[0].variant),
    Column("opset", "opset of the file", lambda records: subject(records[0]).opset),
    Column("dtype", "floating dtype of the graph", lambda records: records[0].dtype),
    Column("runtime", "what executed the softmax", lambda records: records[0].runtime),
    Column("softmaxes", "how many of the file", lambda records: str(len({one.softmax for one in records}))),
    Column("form", "their operators", lambda records: listed(one.form for one in records)),
    Column("shifted", "whether the maximum is subtracted", lambda records: "yes" if records[0].shifted else "no"),
    Column("logits", "of a row: one large among zeros, all equal, or those of the case scaled",
           lambda records: records[0].profile or UNKNOWN),
    Column("keys", "in a row", _keys),
    Column("kept in", "dtype of the exponentials, as seen; n/a: they cannot be",
           lambda records: listed(one.kept for one in records)),
    Column("predicted", "smallest logit at which one is to break, by formula", _predicted),
    Column("breaks at", "smallest logit at which one did", _broke_at),
    Column("agrees", "prediction and measurement are within 1 %", _agrees),
    Column("given", "largest logit of the case",
           lambda records: extreme((one.given_largest_logit for one in records), max)),
    Column("headroom (log2)", "least powers of two from the given logits to the break", _least_headroom),
    Column("verdict", "failed: it breaks at the given logits, or earlier than predicted", shown_together),
    Column("reason", "why it did not pass",
           lambda records: "; ".join(dict.fromkeys(one.reason for one in records if one.reason))),
)  # fmt: skip
