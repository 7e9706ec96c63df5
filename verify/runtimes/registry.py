"""The table of runtimes; a provider of ONNX Runtime is one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnx_attest.errors import UsageError
from onnx_attest.verify.runtimes.base import Runtime
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime, refuse_unknown_options
from onnx_attest.verify.runtimes.reference import ReferenceRuntime
from onnx_attest.verify.runtimes.torch_eager import TorchRuntime

RUNTIMES: tuple[Runtime, ...] = (
    TorchRuntime(),
    OrtRuntime("ort-cpu"),
    OrtRuntime("ort-cpu-noopt", optimise=False),
    # ORT computes fp32 products in TF32 unless told otherwise; then it is another arithmetic.
    OrtRuntime("ort-cuda", "CUDAExecutionProvider", {"use_tf32": "0"}),
    ReferenceRuntime(),
)


def select(names: tuple[str, ...] = ()) -> tuple[Runtime, ...]:
    """Return the runtimes of these names in the order given, all of them if none is named.

    Raises:
        UsageError: an unknown name; the message lists those there are.
    """
    known = {runtime.name: runtime for runtime in RUNTIMES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"unknown runtime {', '.join(unknown)}; there are {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names)) if names else RUNTIMES


def with_session(
    runtimes: Sequence[Runtime], options: Mapping[str, str], libraries: Sequence[str]
) -> tuple[Runtime, ...]:
    """Return the runtimes with the session options and custom operators of the session that a user really runs.

    Raises:
        UsageError: an option or a library, and no runtime that is ONNX Runtime to take it; an unknown option.
    """
    if not options and not libraries:
        return tuple(runtimes)
    if not any(isinstance(runtime, OrtRuntime) for runtime in runtimes):
        raise UsageError(
            "--session-option and --custom-ops are ONNX Runtime's; none of the runtimes named is"
        )
    refuse_unknown_options(options)
    return tuple(
        replace(runtime, session_options=dict(options), custom_operators=tuple(libraries))
        if isinstance(runtime, OrtRuntime)
        else runtime
        for runtime in runtimes
    )
