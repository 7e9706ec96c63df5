"""From a module of your own to an ONNX file, with batch and sequence length dynamic.

    python export_script.py attention.onnx

Change: `Attention` (yours, with trained weights loaded), the example inputs, and under `dynamic` each axis of each input
that may have another size at run time, with a name. An axis that is not named there is fixed at the example's size.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from onnx_attest.export import export

WIDTH, HEADS = 48, 4


class Attention(nn.Module):
    """Self-attention of four heads; mask is True where a query may look at a key."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return (batch, seq_len, WIDTH) for x of that shape and a mask (batch, seq_len, seq_len)."""
        heads = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask[:, None])
        return self.out(y.transpose(1, 2).flatten(-2))


def module() -> nn.Module:
    """Return the module as it is shipped: load your weights here."""
    torch.manual_seed(0)
    return Attention().eval()


def main(path: Path) -> None:
    """Write the file, and its manifest beside it."""
    inputs = (torch.randn(2, 7, WIDTH), torch.ones(2, 7, 7, dtype=torch.bool).tril())
    dynamic = {
        "x": {0: "batch", 1: "seq_len"},
        "mask": {0: "batch", 1: "seq_len", 2: "seq_len"},
    }
    artifact = export(module(), inputs, dynamic=dynamic, path=path)
    print(f"{artifact.path.name}, sha256 {artifact.sha256}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "attention.onnx"))
