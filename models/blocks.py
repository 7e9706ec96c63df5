"""Attention where it is used: in a transformer block."""

from __future__ import annotations

from torch import Tensor, nn

from onnx_attest.models.multi_head import MultiHeadAttention


class PreNormBlock(nn.Module):
    """X + attention(norm(X)), then the same with a feed-forward net, as most transformers since GPT-2."""

    def __init__(self, d_model: int, heads: int, d_hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = MultiHeadAttention(d_model, heads)
        self.hidden_norm = nn.LayerNorm(d_model)
        self.hidden = nn.Sequential(nn.Linear(d_model, d_hidden), nn.GELU(), nn.Linear(d_hidden, d_model))

    def forward(self, X: Tensor, mask: Tensor) -> Tensor:
        """Return (batch, seq_len, d_model); mask is (batch, seq_len, seq_len), true where a key may be attended."""
        X = X + self.attention(self.attention_norm(X), mask)
        return X + self.hidden(self.hidden_norm(X))


class Encoder(nn.Module):
    """Several pre-norm blocks, and a last normalisation."""

    def __init__(self, d_model: int, heads: int, d_hidden: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(PreNormBlock(d_model, heads, d_hidden) for _ in range(blocks))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, X: Tensor, mask: Tensor) -> Tensor:
        """Return (batch, seq_len, d_model); mask is (batch, seq_len, seq_len), true where a key may be attended."""
        for block in self.blocks:
            X = block(X, mask)
        return self.norm(X)
