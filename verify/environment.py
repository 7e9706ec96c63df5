"""What the numbers depend on: the machine, its software and its settings. One function a probe; nothing names a person."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from onnx_attest import __version__
from onnx_attest.export.artifact import without_halves
from onnx_attest.verify.paths import without_folders
from onnx_attest.verify.records import EnvironmentRecord
from onnx_attest.verify.runtimes.base import Runtime

PACKAGES = (
    "torch",
    "onnx",
    "onnxscript",
    "onnx-ir",
    "onnxruntime",
    "onnxruntime-gpu",
    "numpy",
    "ml-dtypes",
    "protobuf",
)
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "CUDA_VISIBLE_DEVICES",
)
# Instruction sets that decide which kernels a runtime picks, and so its rounding.
CPU_FEATURES = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "asimd",
    "sve",
    "bf16",
)


def environment(
    runtimes: Sequence[Runtime], command: Sequence[str] = (), configuration: Mapping[str, str] | None = None
) -> EnvironmentRecord:
    """Return the record of this machine, and of the settings that are not the defaults."""
    availabilities = {runtime.name: runtime.availability() for runtime in runtimes}
    return EnvironmentRecord(
        onnx_attest=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        machine=platform.machine(),
        cpu=cpu_model(),
        cpu_features=cpu_features(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=memory_bytes(),
        packages=packages(),
        runtimes={name: "" if found.usable else found.reason for name, found in availabilities.items()},
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        command=tuple(without_halves(without_folders(argument)) for argument in command),
        recorded_at=datetime.now(UTC).strftime("%Y-%m-%d"),
        gpus=gpus(),
        configuration=dict(configuration or {}),
    )


def machine_of(record: EnvironmentRecord) -> EnvironmentRecord:
    """Return the record without what differs between two runs on one machine: when, and how it was called."""
    return msgspec.structs.replace(record, command=(), recorded_at="")


def packages() -> dict[str, str]:
    """Return the installed version of each package that can change a number."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """Return the processor's name, "unknown" where the system does not tell."""
    return _cpuinfo("model name") or platform.processor() or "unknown"


def cpu_features() -> tuple[str, ...]:
    """Return those instruction sets of CPU_FEATURES that the processor has, () where the system does not tell."""
    flags = set((_cpuinfo("flags") or _cpuinfo("Features")).split())
    return tuple(name for name in CPU_FEATURES if name in flags)


def gpus() -> tuple[str, ...]:
    """Return NVIDIA's GPUs, each with its driver; () where nvidia-smi is not there or does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    asked = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603 - found on the path
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = (line.split(",") for line in answer.stdout.splitlines() if line.strip())
    return tuple(f"{row[0].strip()}, driver {row[-1].strip()}" for row in rows)


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def memory_bytes() -> int | None:
    """Return the size of the main memory, None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def command_line() -> tuple[str, ...]:
    """Return how this process was called."""
    return ("onnx-attest", *sys.argv[1:])
