"""Records as a run leaves them, to be changed one field at a time, and the tables of a report read back."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable
from typing import Any

import msgspec

from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CaseRecord,
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
    RelationRecord,
    RunRecord,
    SmallestRecord,
    StabilityRecord,
    TimeRecord,
)

REASON = "CUDAExecutionProvider: libcublasLt.so.13: cannot open shared object file"


def case(name: str = "traced-1", logit_std: float | None = 3.0, **axes: int) -> CaseRecord:
    return CaseRecord(name=name, axes=axes or {"batch": 2, "seq_len": 16}, logit_std=logit_std)


def cell(**changes: Any) -> CellRecord:
    base = CellRecord(
        model="mha",
        variant="attention",
        opset=24,
        dtype="float32",
        artifact_sha256="ab",
        runtime="ort-cpu",
        runtime_version="1.31.1",
        case=case(),
        verdict="passed",
        provider_used=("CPUExecutionProvider",),
        gates={"proof": {"max_err_over_tau": 0.0111}},
        max_abs_err=4.125e-7,
        max_rel_err=3.25e-3,
    )
    return msgspec.structs.replace(base, **changes)


def known_failure(**changes: Any) -> CellRecord:
    return cell(**{"model": "naive", "verdict": "failed", "known": "counter-example", **changes})


def not_run(runtime: str = "ort-cuda", reason: str = REASON, **changes: Any) -> CellRecord:
    nothing: dict[str, Any] = {"case": None, "gates": {}, "provider_used": ()}
    unknown: dict[str, Any] = {"max_abs_err": None, "max_rel_err": None}
    return cell(
        **{"runtime": runtime, "verdict": "skipped", "reason": reason, **nothing, **unknown, **changes}
    )


def softmax(**changes: Any) -> StabilityRecord:
    base = StabilityRecord(
        model="mha",
        variant="attention",
        opset=24,
        dtype="float32",
        artifact_sha256="ab",
        runtime="ort-cpu",
        case=case(),
        attention="attention_0",
        source="output",
        verdict="passed",
        rows=32,
        empty_rows=0,
        finite_ratio=1.0,
        row_sum_err_u=2.125,
        row_sum_err_over_limit=0.3125,
        p_max=0.875,
        exp_flushed=3,
        poison="same",
    )
    return msgspec.structs.replace(base, **changes)


def headroom_record(**changes: Any) -> HeadroomRecord:
    base = HeadroomRecord(
        model="mha",
        variant="attention",
        opset=24,
        dtype="float32",
        artifact_sha256="ab",
        runtime="ort-cpu",
        case=case(),
        softmax="attention_0",
        form="Softmax",
        shifted=True,
        verdict="passed",
        profile="one large",
        keys=16,
        tried_to_logit=3.4e38,
        agrees=True,
    )
    return msgspec.structs.replace(base, **changes)


def timing(**changes: Any) -> LatencyRecord:
    base = LatencyRecord(
        model="mha",
        variant="attention",
        opset=24,
        dtype="float32",
        artifact_sha256="ab",
        runtime="ort-cpu",
        runtime_version="1.31.1",
        axes={"batch": 2, "seq_len": 128},
        verdict="passed",
        threads=2,
        session_s=0.0213,
        first_call_s=3.1e-3,
        latency_s=(2e-4, 3e-4, 4e-4),
    )
    return msgspec.structs.replace(base, **changes)


def export(**changes: Any) -> ArtifactRecord:
    base = ArtifactRecord(model="mha", variant="attention", opset=24, dtype="float32", verdict="passed")
    return msgspec.structs.replace(base, **changes)


def finding(**changes: Any) -> FindingRecord:
    base = FindingRecord(
        code="OA301", severity="error", message="error over the bound", next_step="look at node 3"
    )
    return msgspec.structs.replace(base, **changes)


def run(**changes: Any) -> RunRecord:
    base = RunRecord(verdict="passed", reason="", exit_code=0, cells={}, known=0, duration_s=1.5)
    return msgspec.structs.replace(base, **changes)


def environment() -> EnvironmentRecord:
    return EnvironmentRecord(
        onnx_attest="0.1.0",
        python="3.11.9",
        system="Linux",
        machine="x86_64",
        cpu="Some CPU @ 2.0 GHz",
        cpu_features=(),
        cores=16,
        memory_bytes=None,
        packages={"torch": "2.13.0", "onnx": "1.23.2", "onnxruntime-gpu": "1.31.1"},
        runtimes={"ort-cpu": "", "ort-cuda": REASON},
        variables={},
        command=("onnx-attest", "run"),
        recorded_at="2026-01-01T00:00:00Z",
    )


def relations() -> list[RelationRecord]:
    """Return one that is asked for and broken, whose difference is no number, and a fact."""
    seen = RelationRecord(
        model="mha", variant="attention", opset=24, dtype="float32", artifact_sha256="a" * 64, runtime="ort-cpu",
        relation="causal-future", exactness="bitwise", asked_by="contract", case=case(), arithmetic="fp32",
        verdict="failed", holds="no", runs=2, elements=9, differing=3, max_difference_over_bound=float("nan"),
    )  # fmt: skip
    fact = msgspec.structs.replace(seen, asked_by="", verdict="inconclusive", relation="tokens-permuted")
    return [seen, fact]


def one_of_each() -> list[AnyRecord]:
    return [
        environment(),
        export(),
        cell(),
        softmax(),
        headroom_record(),
        timing(),
        not_run(),
        finding(model="mha"),
        run(),
    ]


def table_rows(markdown: str, title: str = "") -> list[dict[str, str]]:
    """Return the rows of the table under a heading, read as GitHub reads it: a pipe after a backslash is text."""
    section = markdown.partition(f"## {title}\n")[2] if title else markdown
    lines = itertools.dropwhile(lambda line: not line.startswith("|"), section.splitlines())
    rows = [_split(line) for line in itertools.takewhile(lambda line: line.startswith("|"), lines)]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def _split(line: str) -> list[str]:
    parts = re.findall(r"((?:\\.|[^\\|])*)\|", line)[1:]
    return [re.sub(r"\\(.)", r"\1", part.strip()) for part in parts]


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def big_run() -> list[AnyRecord]:
    """Return 12 exports on 5 runtimes: one model fails as expected, CUDA is absent, there are findings."""
    forms = [("decomposed", 18), ("attention", 23), ("attention", 24), ("ort-fused", 18)]
    records: list[AnyRecord] = [environment()]
    for model, (variant, opset) in itertools.product(("sdpa", "sdpa-naive", "mha"), forms):
        about: dict[str, Any] = {"model": model, "variant": variant, "opset": opset}
        make: Callable[..., CellRecord] = known_failure if model == "sdpa-naive" else cell
        records += [
            make(**{**about, "runtime": name})
            for name in ("torch", "ort-cpu", "ort-cpu-noopt", "onnx-reference")
        ]
        records.append(not_run("ort-cuda", **about))
    records += [finding(code=f"OA30{index}", model="mha") for index in range(3)]
    return [*records, finding(model="sdpa-naive", known="counter-example"), run()]


def one_of_every_kind() -> list[AnyRecord]:
    """Return a record of each kind there is."""
    about: dict[str, Any] = {"runtime": "ort-cpu", "dtype": "float32"}
    file: dict[str, Any] = {**about, "model": "mha", "variant": "attention", "opset": 24}
    smallest = SmallestRecord(model="y = Softmax (x)", inputs={"x": "float32[2] 1, 2"}, reason="3 bounds off")
    return [
        *one_of_each(),
        relations()[0],
        MachineRecord(library="NumPy", flops=10**9, latency_s=(1e-3, 2e-3)),
        ClaimRecord(claim=3, verdict="passed", setting="d_k 64", measured={"std": 1.0625}, **about),
        PowerRecord(artifact_sha256="ab", arithmetic="fp32", fault="scale", label="scale 1.01", **file),
        ConformanceRecord(
            case="test_softmax", origin="onnx", operator="Softmax", form="operator", features=("axis",),
            opset=13, runtime_version="1.31.1", arithmetic="fp32", outcome="wrong", reference="operator",
            max_err_over_tau=3.0, smallest=smallest, **about,
        ),
        TimeRecord(task="mha float32", seconds={"cells": {"oracle": 0.125}}),
        EvidenceRecord(
            machine="h200", gpus=("a GPU",), recorded_at="2026-12-01", runtime="ort-cuda", runtime_version="1.31.1",
            files=1, of_files=2, cells={"passed": 3}, ran_as={"fp32": 3},
        ),
    ]  # fmt: skip
