"""Latency and memory of artifacts on runtimes: measured side by side, each in a process of its own."""

from onnx_attest.verify.latency.budget import THOROUGH, LatencyBudget
from onnx_attest.verify.latency.choice import worth_timing
from onnx_attest.verify.latency.jobs import LENGTHS, grouped_jobs, job_at
from onnx_attest.verify.latency.measure import AnyTimed, LatencyJob, measure

__all__ = [
    "LENGTHS",
    "THOROUGH",
    "AnyTimed",
    "LatencyBudget",
    "LatencyJob",
    "grouped_jobs",
    "job_at",
    "measure",
    "worth_timing",
]
