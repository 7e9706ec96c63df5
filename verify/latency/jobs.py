"""What is timed: files at lengths, those that compute the same against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.cases import make_inputs
from onnx_attest.verify.latency.measure import LatencyJob
from onnx_attest.verify.records import CaseRecord
from onnx_attest.verify.signature import Signature, read_signature

LENGTHS = (32, 128, 512)
"""That are timed unless others are asked for."""


def grouped_jobs(artifacts: Sequence[Artifact], lengths: Sequence[int], seed: int) -> list[LatencyJob]:
    """Return a job for each artifact and length; those of one model, dtype and size are of one group."""
    jobs = []
    for artifact in artifacts:
        signature = read_signature(artifact)
        contract = signature.contract
        sizes = [
            {axis: 1 if contract.is_batch(axis) else length for axis in contract.symbolic_axes()}
            for length in lengths
        ]
        # A file without symbolic axes has one size.
        different = dict.fromkeys(tuple(size.items()) for size in sizes)
        jobs += [job_at(artifact, signature, dict(axes), seed) for axes in different]
    return in_groups(jobs)


def in_groups(jobs: Sequence[LatencyJob]) -> list[LatencyJob]:
    """Return the jobs with those of a group in a row, groups in order of their first job."""
    order = {group: place for place, group in enumerate(dict.fromkeys(job.group for job in jobs))}
    return sorted(jobs, key=lambda job: order[job.group])


def job_at(artifact: Artifact, signature: Signature, axes: Mapping[str, int], seed: int) -> LatencyJob:
    """Return the job of an artifact at one size, with gaussian inputs and masks that hide nothing."""
    contract = signature.contract
    mask = "all" if "all" in contract.mask_kinds() else None
    case = CaseRecord(name="latency", axes=dict(axes), mask=mask, seed=seed)
    inputs = make_inputs(contract, case, dtype=signature.floating)
    kind = artifact.manifest.dtype if artifact.manifest else signature.floating.name
    group = f"{artifact.name} {kind} {sorted(axes.items())}"
    return LatencyJob(artifact, dict(axes), inputs, group)
