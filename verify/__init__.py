"""From an ONNX file to evidence, a verdict and a report. Never needs torch, but for the `torch` runtime.

Lazy, so that the command line answers before numpy and onnx are loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx_attest.verify.api import Report, VerificationError, verify

__all__ = ["Report", "VerificationError", "verify"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from onnx_attest.verify import api

    return getattr(api, name)
