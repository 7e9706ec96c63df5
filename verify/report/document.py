"""All records as one JSON document, and the JSON Schema of it and of a line of records.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from onnx_attest.verify.records import SCHEMA, AnyRecord, Verdict
from onnx_attest.verify.report.headline import last_run, told

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = "#/$defs/{name}"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: what it came to, then every record as records.jsonl has it, in its order.

    Attributes:
        verdict: of the run; of one that did not finish what is known so far, and never `passed`.
        exit_code: None if it did not finish.
        reason: of the verdict, in words.
    """

    schema: int = SCHEMA
    verdict: Verdict
    exit_code: int | None
    reason: str
    records: tuple[AnyRecord, ...]


def document(records: Iterable[AnyRecord]) -> str:
    """Return report.json: one object, its numbers unrounded; what is not finite is null, as in records.jsonl."""
    records = tuple(records)
    run = last_run(records)
    whole = Document(
        verdict=told(records).verdict,
        exit_code=None if run is None else run.exit_code,
        reason="the run did not finish" if run is None else run.reason,
        records=records,
    )
    return msgspec.json.encode(whole).decode() + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON Schema that a line of records.jsonl and a report.json satisfy."""
    kinds = (*get_args(AnyRecord), Document)
    references, definitions = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    return {
        "$schema": _DRAFT,
        "title": f"Records of onnx-attest, schema {SCHEMA}",
        "description": "A line of records.jsonl, or a report.json. A number that is not known is null.",
        "anyOf": list(references),
        "$defs": definitions,
    }


def schema_text() -> str:
    """Return docs/schema/records.schema.json."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
