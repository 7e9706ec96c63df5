"""Graphs in ONNX's text form, without their header, that several test files feed."""

from __future__ import annotations


def masked_attention(tokens: str) -> str:
    """Return self-attention with a boolean mask, softmax(x x^T) x; `tokens` is what its floating input is called."""
    return f"""
masked (float[batch, n, 4] {tokens}, bool[batch, n, n] mask) => (float[batch, n, 4] y) <float hidden = {{-inf}}>
{{
  k = Transpose <perm = [0, 2, 1]> ({tokens})
  s = MatMul ({tokens}, k)
  t = Where (mask, s, hidden)
  p = Softmax <axis = -1> (t)
  y = MatMul (p, {tokens})
}}
"""
