"""From a PyTorch module to an ONNX file with its manifest.

Lazy, because `onnx_attest.export.artifact` is read where there is no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx_attest.export.api import export, export_entry

__all__ = ["export", "export_entry"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from onnx_attest.export import api

    return getattr(api, name)
