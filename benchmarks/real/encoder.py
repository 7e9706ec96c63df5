"""A sentence encoder of three layers, 384 wide, with random weights: what the speed benchmark verifies."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

WIDTH, HEADS, LAYERS, VOCABULARY, LONGEST = 384, 12, 3, 30522, 512


class Layer(nn.Module):
    """Attention and a feed-forward network, each with its residual and its normalisation behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return x (batch, tokens, width) one layer on; mask (batch, 1, 1, tokens) is added to the scores."""
        q, k, v = (
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5 + mask
        attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)
        x = self.first(x + self.out(attended))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """Tokens to one vector a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.norm, self.layers = nn.LayerNorm(WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return (batch, width), the mean over the tokens that the mask keeps."""
        x = self.norm(self.tokens(input_ids) + self.places.weight[: input_ids.shape[1]])
        kept = attention_mask.to(x.dtype)
        hidden = ((1 - kept) * torch.finfo(x.dtype).min)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, hidden)
        return (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)


def write(path: Path) -> None:
    """Export the encoder with dynamic batch and length."""
    torch.manual_seed(0)
    example = (torch.randint(0, VOCABULARY, (2, 9)), torch.ones(2, 9, dtype=torch.int64))
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=LONGEST)}
    program = torch.onnx.export(
        Encoder().eval(), example, dynamo=True, opset_version=18, dynamic_shapes=(axes, axes),
        input_names=["input_ids", "attention_mask"], output_names=["sentence"], verbose=False,
    )  # fmt: skip
    program.save(str(path))
