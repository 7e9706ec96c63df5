"""The other attentions that people ship: other queries, fewer key heads, a cache, other masks and positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from onnx_attest.models.multi_head import MultiHeadAttention, split_heads


class CrossAttention(nn.Module):
    """Queries from one sequence, keys and values from another of another length and width."""

    def __init__(self, d_model: int, d_memory: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_memory, d_model)
        self.value = nn.Linear(d_memory, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, X: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Return (batch, q_len, d_model); memory (batch, kv_len, d_memory), mask (batch, q_len, kv_len)."""
        q = split_heads(self.query(X), self.heads)  # (batch, heads, q_len, d_head)
        k, v = (split_heads(projection(memory), self.heads) for projection in (self.key, self.value))
        attended = scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(1))
        return self.output(attended.transpose(1, 2).flatten(-2))


class GroupedQueryAttention(nn.Module):
    """Several query heads share one key and value head; with one key head it is multi-query attention."""

    def __init__(self, d_model: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        d_head = d_model // heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, kv_heads * d_head)
        self.value = nn.Linear(d_model, kv_heads * d_head)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, X: Tensor, mask: Tensor) -> Tensor:
        """Return (batch, seq_len, d_model); mask is (batch, seq_len, seq_len)."""
        q = split_heads(self.query(X), self.heads)  # (batch, heads, seq_len, d_head)
        k, v = (split_heads(projection(X), self.kv_heads) for projection in (self.key, self.value))
        attended = scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(1), enable_gqa=True)
        return self.output(attended.transpose(1, 2).flatten(-2))


class CachedAttention(MultiHeadAttention):
    """New tokens attend to a cache of keys and values and, causally, to each other.

    One decode step is seq_len = 1; prefill in chunks is any other. Query i stands at position past_len + i, so the
    mask is aligned at the bottom right. `torch.nn.functional.scaled_dot_product_attention(is_causal=True)` aligns at
    the top left instead.
    """

    def forward(  # type: ignore[override]
        self, X: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return output (batch, seq_len, d_model) and the new cache, (batch, heads, past_len + seq_len, d_head) each."""
        q, new_key, new_value = (
            split_heads(projection(X), self.heads) for projection in (self.query, self.key, self.value)
        )
        k, v = torch.cat((past_key, new_key), dim=2), torch.cat((past_value, new_value), dim=2)
        position = torch.arange(k.shape[2], device=X.device)
        allowed = position[None, :] <= position[past_key.shape[2] :, None]  # (seq_len, past_len + seq_len)
        attended = scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.output(attended.transpose(1, 2).flatten(-2)), k, v


class SlidingWindowAttention(MultiHeadAttention):
    """Each token attends to itself and the `window - 1` before it."""

    def __init__(self, d_model: int, heads: int, window: int) -> None:
        super().__init__(d_model, heads)
        self.window = window

    def forward(self, X: Tensor) -> Tensor:  # type: ignore[override]
        """Return (batch, seq_len, d_model)."""
        position = torch.arange(X.shape[1], device=X.device)
        distance = position[:, None] - position[None, :]
        mask = (distance >= 0) & (distance < self.window)
        return super().forward(X, mask.unsqueeze(0))


class PaddedAttention(MultiHeadAttention):
    """A mask that names the real tokens of each sequence, the same for every query."""

    def forward(self, X: Tensor, real: Tensor) -> Tensor:  # type: ignore[override]
        """Return (batch, seq_len, d_model); `real` is (batch, seq_len), true where a key may be attended."""
        mask = real.unsqueeze(1).expand(-1, X.shape[1], -1)  # (batch, seq_len, seq_len)
        return super().forward(X, mask)


class AdditiveMaskAttention(MultiHeadAttention):
    """A floating mask that is added to the scores: 0 where a key may be attended, -inf where not."""


class RotaryAttention(MultiHeadAttention):
    """Queries and keys are rotated by an angle that grows with the position; causal."""

    def forward(self, X: Tensor) -> Tensor:  # type: ignore[override]
        """Return (batch, seq_len, d_model)."""
        q, k, v = (
            split_heads(projection(X), self.heads) for projection in (self.query, self.key, self.value)
        )
        cosine, sine = self.angles(X)
        mask = torch.ones(X.shape[1], X.shape[1], dtype=torch.bool, device=X.device).tril()
        attended = scaled_dot_product_attention(
            rotate(q, cosine, sine), rotate(k, cosine, sine), v, attn_mask=mask
        )
        return self.output(attended.transpose(1, 2).flatten(-2))

    def angles(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, (seq_len, d_head / 2) each, in the dtype of X."""
        half = self.query.out_features // self.heads // 2
        frequency = 10000.0 ** (-torch.arange(half, device=X.device, dtype=torch.float32) / half)
        angle = torch.arange(X.shape[1], device=X.device, dtype=torch.float32)[:, None] * frequency
        return angle.cos().to(X.dtype), angle.sin().to(X.dtype)


def rotate(tensor: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return (..., seq_len, d_head) with the pairs (first half, second half) rotated."""
    first, second = tensor.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class AlibiAttention(MultiHeadAttention):
    """Attention with linear biases: a key loses a slope times its distance, another slope in each head; causal."""

    def forward(self, X: Tensor) -> Tensor:  # type: ignore[override]
        """Return (batch, seq_len, d_model)."""
        q, k, v = (
            split_heads(projection(X), self.heads) for projection in (self.query, self.key, self.value)
        )
        position = torch.arange(X.shape[1], device=X.device)
        distance = (position[:, None] - position[None, :]).to(X.dtype)
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1, device=X.device) / self.heads)
        bias = -slopes.to(X.dtype)[:, None, None] * distance.clamp(min=0)  # (heads, seq_len, seq_len)
        bias = bias.masked_fill(distance < 0, float("-inf"))
        attended = scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0))
        return self.output(attended.transpose(1, 2).flatten(-2))


class SoftcapAttention(MultiHeadAttention):
    """Scores are bent to lie within +-cap before the mask, cap tanh(s / cap); the softmax is written out."""

    def __init__(self, d_model: int, heads: int, cap: float) -> None:
        super().__init__(d_model, heads)
        self.cap = cap

    def forward(self, X: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """Return (batch, seq_len, d_model); mask is (batch, seq_len, seq_len)."""
        q, k, v = (
            split_heads(projection(X), self.heads) for projection in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        scores = self.cap * torch.tanh(scores / self.cap)
        scores = scores.masked_fill(~mask.unsqueeze(1), float("-inf"))
        attended = scores.softmax(dim=-1) @ v
        return self.output(attended.transpose(1, 2).flatten(-2))
