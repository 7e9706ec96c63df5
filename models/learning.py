"""What the scale does to learning: a task that attention solves in a hundred steps, with and without sqrt(d_k)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

ITEMS, KEYS, STEPS, RATE = 64, 64, 150, 1.0


@dataclass(frozen=True)
class Learning:
    """How the training went.

    Attributes:
        losses: of each step: mean squared distance of the attended values from the wanted ones; 1 is where equal weights
            start, 2 is a wrong key with all the weight.
        solved: share of the items whose loss ended below 1/2.
        first_gradient, last_gradient: median over the items of the norm of d loss / d scores.
    """

    losses: tuple[float, ...]
    solved: float
    first_gradient: float
    last_gradient: float


def learn_to_recall(d_k: int, *, scaled: bool, seed: int = 0) -> Learning:
    """Train W so that softmax(q W K^T [/ sqrt(d_k)]) picks one of 64 keys for each of 64 queries; plain gradient descent.

    Queries, keys and W K^T's rows have unit variance in each feature, so the scores have variance d_k before the scale.
    """
    generator = torch.Generator().manual_seed(seed)
    W = (torch.randn(d_k, d_k, generator=generator) / d_k**0.5).requires_grad_()
    K = torch.randn(ITEMS, KEYS, d_k, generator=generator)  # (items, keys, d_k)
    wanted = torch.eye(KEYS)[torch.randint(KEYS, (ITEMS,), generator=generator)]  # (items, keys)
    Q = torch.randn(ITEMS, d_k, generator=generator)
    losses, gradients = [], []
    for _ in range(STEPS):
        scores = torch.einsum("id,ikd->ik", Q @ W, K) / (d_k**0.5 if scaled else 1.0)
        scores.retain_grad()
        each = ((scores.softmax(dim=-1) - wanted) ** 2).sum(
            dim=-1
        )  # V is the identity: the weights are the output
        loss = each.mean()
        loss.backward()
        assert scores.grad is not None
        assert W.grad is not None
        gradient = (scores.grad * ITEMS).norm(dim=-1).median()
        losses.append(loss.item())
        gradients.append(gradient.item())
        with torch.no_grad():
            W -= RATE * W.grad
        W.grad = None
    solved = (each < 0.5).float().mean().item()
    return Learning(tuple(losses), solved, gradients[0], gradients[-1])
