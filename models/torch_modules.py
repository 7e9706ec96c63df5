"""torch's own attention behind a contract: nn.MultiheadAttention and scaled_dot_product_attention."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class TorchMultiheadAttention(nn.Module):
    """nn.MultiheadAttention as self-attention, with `key_padding_mask`, true where a key is padding."""

    def __init__(self, d_model: int, heads: int, *, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, heads, batch_first=True)
        self.need_weights = need_weights

    def forward(self, X: Tensor, key_padding_mask: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return (batch, seq_len, d_model), and the mean of the heads' weights (batch, seq_len, seq_len) if needed."""
        output, weights = self.attention(
            X, X, X, key_padding_mask=key_padding_mask, need_weights=self.need_weights
        )
        return (output, weights) if self.need_weights else output


class TorchScaledDotProduct(nn.Module):
    """scaled_dot_product_attention itself, with what it is called with fixed.

    Attributes:
        options: of the call: `is_causal`, `enable_gqa`, `scale`.
    """

    def __init__(self, **options: bool | float) -> None:
        super().__init__()
        self.options = options

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (batch, heads, q_len, d_v) for Q (batch, heads, q_len, d_k), K and V with kv_len keys."""
        return scaled_dot_product_attention(Q, K, V, attn_mask=mask, **self.options)  # type: ignore[arg-type]
