"""Multi-head self-attention, with a mask given and with a causal mask built from the length."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


def split_heads(tensor: Tensor, heads: int) -> Tensor:
    """Return (batch, heads, seq_len, d_head) from (batch, seq_len, heads * d_head)."""
    return tensor.unflatten(-1, (heads, -1)).transpose(1, 2)


class MultiHeadAttention(nn.Module):
    """Heads of attention side by side, between one projection in and one out."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        if d_model % heads:
            raise ValueError(f"d_model={d_model} is not a multiple of heads={heads}")
        self.heads = heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (batch, seq_len, d_model); mask is (batch, seq_len, seq_len), true where a key may be attended."""
        q, k, v = (
            split_heads(projection(X), self.heads) for projection in (self.query, self.key, self.value)
        )
        per_head = None if mask is None else mask.unsqueeze(1)  # (batch, 1, seq_len, seq_len)
        attended = scaled_dot_product_attention(q, k, v, attn_mask=per_head)
        return self.output(attended.transpose(1, 2).flatten(-2))


class CausalSelfAttention(MultiHeadAttention):
    """The same with a lower-triangular mask that is built inside, from the length of X."""

    def forward(self, X: Tensor) -> Tensor:  # type: ignore[override]
        """Return (batch, seq_len, d_model) in which row i depends on rows 0 to i of X."""
        length = X.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=X.device).tril()
        return super().forward(X, mask.unsqueeze(0))
