"""What the project ships: a module, and the function that exports it. Change: both are yours."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from onnx_attest.export import export
from onnx_attest.export.artifact import Artifact


class Attention(nn.Module):
    """One head over (batch, seq_len, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, seq_len, 16)."""
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 4.0  # (batch, seq_len, seq_len); 4 = sqrt(16)
        return torch.softmax(scores, dim=-1) @ self.v(x)


def shipped() -> nn.Module:
    """Return the module with the weights that are shipped."""
    torch.manual_seed(0)
    return Attention().eval()


def export_to(path: Path) -> Artifact:
    """Write the file that is shipped."""
    return export(shipped(), (torch.randn(2, 7, 16),), dynamic={"x": {0: "batch", 1: "seq_len"}}, path=path)
