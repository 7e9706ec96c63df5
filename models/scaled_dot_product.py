"""The chapter's attention, softmax(Q K^T / sqrt(d_k)) V, and its two counter-examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ScaledDotProductAttention(nn.Module):
    """Attention that writes out each step, and returns the weights beside the output.

    where Q, K are (batch, seq_len, d_k), V is (batch, seq_len, d_v) and d_k scales the scores to unit variance.
    `torch.nn.functional.scaled_dot_product_attention` differs in a query row without any key: it returns 0 where
    this returns NaN, and it does not return the weights.
    """

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.d_k = d_k

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output (batch, seq_len, d_v) and the weights (batch, seq_len, seq_len).

        `mask` is (batch, seq_len, seq_len); where it is 0 the key may not be attended.
        """
        scores = self.scores(Q, K)  # (batch, seq_len, seq_len)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        weights = self.weights(scores)  # (batch, seq_len, seq_len)
        return weights @ V, weights

    def scores(self, Q: Tensor, K: Tensor) -> Tensor:
        """Return the scaled products, one row a query."""
        return Q @ K.transpose(-2, -1) / self.d_k**0.5

    def weights(self, scores: Tensor) -> Tensor:
        """Return the softmax over the keys."""
        return scores.softmax(dim=-1)


class NaiveSoftmaxAttention(ScaledDotProductAttention):
    """Counter-example: no maximum is subtracted, so exp overflows at a score of 88.7 in fp32."""

    def weights(self, scores: Tensor) -> Tensor:
        """Return exp(scores) over its row sum, as the formula is written in a textbook."""
        exponentials = scores.exp()
        return exponentials / exponentials.sum(dim=-1, keepdim=True)


class UnscaledAttention(ScaledDotProductAttention):
    """Counter-example: no division by sqrt(d_k), so the scores have variance d_k and softmax saturates."""

    def scores(self, Q: Tensor, K: Tensor) -> Tensor:
        """Return the bare products."""
        return Q @ K.transpose(-2, -1)


class OutputAlone(ScaledDotProductAttention):
    """The same steps without a mask, for what they cost: the weights are made, and not returned."""

    def forward(self, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:  # type: ignore[override]
        """Return the output alone, with any number of axes before the last two."""
        return super().forward(Q, K, V)[0]


class SelfAttention(nn.Module):
    """The chapter's self-attention: Q, K and V are three linear maps of one X, then the formula above."""

    def __init__(self, d_model: int, d_k: int, d_v: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_k)
        self.key = nn.Linear(d_model, d_k)
        self.value = nn.Linear(d_model, d_v)

    def forward(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (batch, seq_len, d_v) for X of (batch, seq_len, d_model) and mask (batch, seq_len, seq_len)."""
        # One head: torch's exporter takes scaled_dot_product_attention with four axes only.
        q, k, v = (projection(X).unsqueeze(1) for projection in (self.query, self.key, self.value))
        per_head = None if mask is None else mask.unsqueeze(1)  # (batch, 1, seq_len, seq_len)
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=per_head)
        return attended.squeeze(1)
