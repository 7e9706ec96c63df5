"""Evidence of another machine: kept only if a GPU computed something, told for exactly the files here, no verdict."""

from __future__ import annotations

import platform
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact
from onnx_attest.verify import environment
from onnx_attest.verify.evidence import impersonal, publish, told
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import (
    AnyRecord,
    ArtifactRecord,
    CaseRecord,
    CellRecord,
    EnvironmentRecord,
    EvidenceRecord,
    encode,
    read_records,
)
from onnx_attest.verify.report.summary import summary
from onnx_attest.verify.runtimes.base import UnavailableError
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.runtimes.torch_eager import TorchSession, module_of

GPU = "NVIDIA H200, driver 580.65.06"
(TORCH_CUDA,) = select(("torch-cuda",))
NO_CUDA = TORCH_CUDA.availability().reason


def machine(**changes: Any) -> EnvironmentRecord:
    base = EnvironmentRecord(
        onnx_attest="0.1.0", python="3.11.9", system="Linux 6", machine="x86_64", cpu="a CPU", cpu_features=(),
        cores=16, memory_bytes=None, packages={}, runtimes={}, variables={}, command=(), recorded_at="2026-12-01",
        gpus=(GPU,),
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def cell(**changes: Any) -> CellRecord:
    base = CellRecord(
        model="sdpa", variant="attention", opset=24, dtype="float32", artifact_sha256="aa", runtime="ort-cuda",
        runtime_version="1.31.1", case=CaseRecord(name="traced-1", axes={}), verdict="passed", ran_as="fp32",
        provider_requested=("CUDAExecutionProvider",),
        provider_used=("CUDAExecutionProvider", "CPUExecutionProvider"),
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def file_of(sha256: str) -> ArtifactRecord:
    return ArtifactRecord(
        model="sdpa", variant="attention", opset=24, dtype="float32", verdict="passed", sha256=sha256
    )


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The folder of all evidence, with that of one machine."""
    there: list[AnyRecord] = [
        machine(),
        cell(),
        cell(verdict="failed", known="counter-example", ran_as="tf32"),
        cell(artifact_sha256="another file"),
        cell(runtime="torch-cuda", runtime_version="2.13.0", provider_used=("cuda",)),
        cell(runtime="ort-cuda-tf32", verdict="skipped", provider_used=()),
        cell(runtime="ort-cpu", provider_used=("CPUExecutionProvider",)),
    ]
    (tmp_path / "there.jsonl").write_bytes(encode(there))
    assert (
        publish(tmp_path / "there.jsonl", tmp_path / "evidence")
        == tmp_path / "evidence/nvidia-h200/records.jsonl"
    )
    return tmp_path / "evidence"


def test_it_is_told_for_exactly_the_files_here(published):
    ort, eager = told([file_of("aa"), file_of("not there")], published)
    assert (ort.runtime, ort.files, ort.of_files) == ("ort-cuda", 1, 2)
    assert ort.cells == {"passed": 1, "failed (known)": 1}
    assert ort.ran_as == {"fp32": 1, "tf32": 1}
    assert (eager.runtime, eager.cells) == ("torch-cuda", {"passed": 1})
    assert list(told([file_of("bb")], published)) == []


def test_summary_tells_it_as_recorded_elsewhere(published):
    here = [file_of("aa"), cell(runtime="ort-cpu", provider_used=("CPUExecutionProvider",))]
    text = " ".join(summary([*here, *told(here, published)]).split())
    assert "CUDA was not executed in this run. Recorded elsewhere, and no part of this verdict:" in text
    assert (
        f"ort-cuda 1.31.1 on {GPU}, 2026-12-01: 1 of the 1 files here, cells 1 failed (known), 1 passed"
        in text
    )
    assert "never been executed" in summary(here)


def test_it_is_no_part_of_the_verdict():
    here: list[AnyRecord] = [cell(runtime="ort-cpu", provider_used=("CPUExecutionProvider",))]
    bad = EvidenceRecord(
        machine="m", gpus=(), recorded_at="", runtime="ort-cuda", runtime_version="1", files=1, of_files=1,
        cells={"failed": 3}, ran_as={},
    )  # fmt: skip
    assert conclude([*here, bad], duration_s=1.0) == conclude(here, duration_s=1.0)


@pytest.mark.parametrize(
    ("records", "word"),
    [
        ([machine(), cell(verdict="skipped", provider_used=())], "nothing in it ran on CUDA"),
        (
            [machine(), cell(provider_used=("CPUExecutionProvider",))],
            "nothing in it ran on CUDA",
        ),  # it fell back
        ([machine(gpus=()), cell()], "does not say which GPU"),
    ],
)
def test_what_is_no_evidence_is_refused_and_the_earlier_one_stays(published, tmp_path, records, word):
    before = (published / "nvidia-h200/records.jsonl").read_bytes()
    (tmp_path / "other.jsonl").write_bytes(encode(records))
    with pytest.raises(UsageError, match=word):
        publish(tmp_path / "other.jsonl", published)
    assert (published / "nvidia-h200/records.jsonl").read_bytes() == before
    assert [path.name for path in published.rglob("*")] == ["nvidia-h200", "records.jsonl"]


def test_command_refuses_in_one_line(command, tmp_path):
    command("evidence", tmp_path / "nothing").assert_refused("nothing", "records.jsonl")


def test_no_folder_and_no_host_of_the_machine_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "gpu-box-7")
    words = f"{Path.home()}/lib/x.so of gpu-box-7: cannot open; gpu-box-70 is another"
    (tmp_path / "there.jsonl").write_bytes(encode([machine(), cell(reason=words)]))
    written = read_records(publish(tmp_path / "there.jsonl", tmp_path / "evidence"))
    (kept,) = (one for one in written if isinstance(one, CellRecord))
    assert kept.reason == "HOME/lib/x.so of HOST: cannot open; gpu-box-70 is another"


@pytest.mark.parametrize("host", ["causal", "model", "cell", "float32", "ort-cuda"])
def test_a_machine_may_be_called_what_records_have_in_them(tmp_path, monkeypatch, host):
    """And its home, or the folder it works in, may be called what a node is."""
    monkeypatch.setattr(platform, "node", lambda: host)
    monkeypatch.setenv("HOME", "e")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", "/elsewhere")
    given = [
        machine(),
        cell(reason=f"{host} says {tmp_path}/a and {tmp_path}b", worst_output=f"{tmp_path}/y"),
    ]
    read = msgspec.json.decode(impersonal(encode(given)).splitlines()[1], type=CellRecord)
    assert msgspec.json.decode(impersonal(encode([machine(command=("--at", host))])))["command"] == [
        "--at",
        "HOST",
    ]
    assert read == msgspec.structs.replace(given[1], reason=f"HOST says HERE/a and {tmp_path}b")


def test_gpus_are_named_with_their_driver(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "NVIDIA H200, 580.65.06"\necho "NVIDIA A10, 580.65.06"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert environment.gpus() == (GPU, "NVIDIA A10, driver 580.65.06")
    tool.write_text("#!/bin/sh\necho no driver >&2\nexit 9\n")
    assert environment.gpus() == ()


def test_make_runs_every_cuda_runtime_and_keeps_the_evidence_of_a_failure():
    root = Path(__file__).parent.parent
    asked = subprocess.run(
        ["make", "--dry-run", "verify-cuda"], cwd=root, capture_output=True, text=True, check=True
    )
    for name in ("torch-cuda", "ort-cuda", "ort-cuda-tf32"):
        assert f"--require={name} " in asked.stdout
    assert "evidence reports/cuda && exit $code" in asked.stdout


def test_an_output_on_another_device_is_refused(exported_causal):
    class Elsewhere(torch.nn.Module):
        def forward(self, X: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(torch.zeros(1, device="meta") for _ in names)

    names = [spec.name for spec in exported_causal.manifest.contract.outputs]
    with pytest.raises(UnavailableError, match="came back on meta, not on cpu"):
        TorchSession(Elsewhere(), exported_causal).run({"X": torch.zeros(2, 9, 45).numpy()})


@pytest.mark.skipif(bool(NO_CUDA), reason=f"torch-cuda: {NO_CUDA}")
def test_torch_runs_on_the_gpu_and_leaves_the_module_where_it_is(exported_causal):
    module = module_of(exported_causal)
    session = TORCH_CUDA.open(replace(exported_causal, module=module))
    assert session.placement.used == ("cuda",)
    session.run({"X": torch.zeros(2, 9, 45).numpy()})
    assert {parameter.device.type for parameter in module.parameters()} == {"cpu"}


@pytest.fixture
def exported_causal(exported: dict[str, Artifact]) -> Artifact:
    return exported["causal-decomposed-18"]
