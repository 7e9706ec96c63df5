"""Two runs held against each other: what became worse, what better, and what is only noise (docs/compare.md)."""

from __future__ import annotations

from onnx_attest.verify.compare.change import Change, Comparison
from onnx_attest.verify.compare.judge import compare

__all__ = ["Change", "Comparison", "compare"]
