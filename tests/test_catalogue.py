"""Every model of the catalogue beyond the chapter's, in every variant, on every runtime that needs no GPU. Slow."""

from __future__ import annotations

import pytest
from conftest import CHAPTER

from onnx_attest.export import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models import CATALOGUE
from onnx_attest.verify.engine import Plan, verify_artifact
from onnx_attest.verify.records import CellRecord, FindingRecord, StabilityRecord
from onnx_attest.verify.runtimes.registry import select

pytestmark = pytest.mark.slow
OTHERS = [entry for entry in CATALOGUE if entry.name not in CHAPTER]


@pytest.fixture(scope="module", params=OTHERS, ids=lambda entry: entry.name)
def records(request, tmp_path_factory):
    """The records of one model in all its variants."""
    artifacts = list(export_entry(request.param, tmp_path_factory.mktemp(request.param.name)))
    assert all(isinstance(artifact, Artifact) for artifact in artifacts), artifacts
    plan = Plan(runtimes=select(("torch", "ort-cpu", "ort-cpu-noopt", "onnx-reference")))
    return [record for artifact in artifacts for record in verify_artifact(artifact, plan)]


def test_no_false_alarm(records):
    cells = [record for record in records if isinstance(record, CellRecord)]
    unexpected = [
        (c.runtime, c.variant, c.case and c.case.id, c.reason)
        for c in cells
        if c.verdict != "passed" and not c.known
    ]
    assert cells
    assert unexpected == []


def test_no_alarm_of_the_softmax(records):
    looked_at = [record for record in records if isinstance(record, StabilityRecord)]
    assert looked_at
    assert [
        (r.runtime, r.case.id, r.reason) for r in looked_at if r.verdict == "failed" and not r.known
    ] == []


STATIC = {
    "sdpa-naive": {"OA420"},
    "sdpa-unscaled": {"OA425"},
    # That the exporter gives nn.MultiheadAttention a mask of one row is what known.toml excuses at run time.
    "torch-mha": {"OA118"},
    "torch-sdpa-causal": {"OA431"},
    # onnxscript#2654: the decomposed graph gives the mean of the values where torch gives 0.
    **{
        name: {"OA427"}
        for name in ("self-attention", "mha", "cross", "gqa", "mqa", "torch-sdpa", "block", "encoder")
    },
}
"""What the static rules say of the catalogue, each looked at and true."""


def test_nothing_unexpected_is_found(records):
    found = [record for record in records if isinstance(record, FindingRecord)]
    found = [f for f in found if f.code not in STATIC.get(f.model, ())]
    assert [(f.code, f.message) for f in found if not f.known and f.severity != "note"] == []
