"""Peak memory of one call: what it is of, and why there is none."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from onnx_attest.export import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models.entry import resolve
from onnx_attest.verify.claims.growth import FORMS
from onnx_attest.verify.peak import PeakJob, measure_peaks
from onnx_attest.verify.runtimes.base import Placement, UnavailableError
from onnx_attest.verify.workers import peak
from onnx_attest.verify.workers.resident import is_told


@pytest.fixture(scope="module")
def written_out(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    artifact = next(export_entry(resolve(FORMS["written out"]), tmp_path_factory.mktemp("peak")))
    assert isinstance(artifact, Artifact)
    return replace(artifact, trusted=True)


@pytest.mark.skipif(not is_told(), reason="this system does not tell what a process holds")
def test_a_call_is_weighed_alone_whatever_came_before(written_out):
    lengths = (1024, 2048, 1024)
    jobs = [PeakJob(written_out, {"seq_len": length}) for length in lengths]
    answers = list(measure_peaks("onnx-reference", jobs, threads=1))
    assert [(one.verdict, one.reason) for one in answers] == [("passed", "")] * 3
    matrices = [(one.peak_bytes or 0) / (4 * length**2) for one, length in zip(answers, lengths, strict=True)]
    # Scores, scaled scores and what softmax makes of them are there at once; NumPy keeps nothing.
    assert all(2.5 < one < 8 for one in matrices)
    assert matrices[0] == pytest.approx(matrices[2], rel=0.25)


def test_a_worker_that_dies_is_said_and_the_next_job_has_another(written_out):
    jobs = [PeakJob(written_out, {"seq_len": 16})] * 2
    worker = (sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(3)")
    answers = list(measure_peaks("ort-cpu", jobs, threads=1, worker=worker))
    assert [one.verdict for one in answers] == ["errored"] * 2
    assert all("return code 3" in one.reason for one in answers)


def test_the_memory_of_a_device_is_not_weighed():
    with pytest.raises(UnavailableError, match="memory of a device"):
        peak._refuse_device(Placement(used=("CUDAExecutionProvider", "CPUExecutionProvider")))
    peak._refuse_device(Placement(used=("CPUExecutionProvider",)))


def test_a_system_that_keeps_no_peak_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(peak, "_OWN", Path(tmp_path / "nothing"))
    with pytest.raises(UnavailableError, match="does not tell the peak"):
        peak._set_back()


def test_a_runtime_that_raises_is_errored(written_out):
    request = peak.Request(
        job=1, runtime="ort-cpu", threads=1, artifact=str(written_out.path), axes={"seq_len": -1}
    )
    answer = peak.answer_to(request)
    assert (answer.job, answer.verdict, answer.peak_bytes) == (1, "errored", None)
    assert answer.reason
