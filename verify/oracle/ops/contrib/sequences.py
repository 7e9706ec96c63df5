"""Sequences of different lengths in one batch: where their queries stand, and their caches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.contrib.attended import zeros_like
from onnx_attest.verify.oracle.ops.operator import Inputs, UnsupportedOperatorError, integers, optional


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Where the queries of each sequence stand.

    Attributes:
        valid: keys of each sequence, past and new, (batch).
        start: position of its first query, (batch).
        total: of the longest.
        queries: how many, padding included.
    """

    valid: NDArray[np.int64]
    start: NDArray[np.int64]
    total: int
    queries: int

    @property
    def is_prompt(self) -> bool:
        """Whether there is no past."""
        return self.queries == self.total

    @property
    def same_start(self) -> int | None:
        """Where the first query of every sequence stands, if none is shorter than another, else None."""
        return int(self.start[0]) if np.all(self.valid == self.total) and not np.ptp(self.start) else None

    @property
    def padding(self) -> NDArray[np.bool_]:
        """Return which queries stand behind their sequence's end, (batch, queries): nothing says what they give."""
        return self.start[:, None] + np.arange(self.queries) >= self.valid[:, None]

    def allowed(
        self, *, causal: bool, window: int, rows: NDArray[np.intp] | None = None
    ) -> NDArray[np.bool_]:
        """Return which keys each query attends, (batch, 1, queries, total): its `window` last ones, itself included.

        `rows` are the queries that are asked for, None for all.
        """
        asked = np.arange(self.queries) if rows is None else rows
        position = (self.start[:, None] + asked)[..., None]  # (batch, queries, 1)
        key = np.arange(self.total)
        seen = np.ones((*position.shape[:2], self.total), bool)
        if causal:
            seen &= key <= position
        if window > 0:
            seen &= key > position - window
        # A padding query keeps all keys there are, so that no row is empty.
        return ((seen | self.padding[:, asked, None]) & (key < self.valid[:, None, None]))[:, None]


def lengths_of(inputs: Inputs, queries: int, new: int) -> Lengths:
    """Return the lengths from seqlens_k, total lengths less 1, and total_sequence_length."""
    valid, total = np.array(integers(inputs, 5)) + 1, integers(inputs, 6)[0]
    if new != queries:
        raise UnsupportedOperatorError(f"GroupQueryAttention with {new} new keys for {queries} queries")
    start = np.zeros_like(valid) if queries == total else valid - queries
    past = optional(inputs, 3)
    if np.any(start < 0) or np.any(start > (0 if past is None else past.value.shape[2])):
        raise UnsupportedOperatorError(
            "GroupQueryAttention with lengths in seqlens_k that its past does not have"
        )
    return Lengths(valid=valid, start=start, total=total, queries=queries)


def appended(past: Bounded | None, new: Bounded, lengths: Lengths) -> Bounded:
    """Return the cache as the operator leaves it: each sequence's past, its new tokens behind, zeros as the rest."""
    size = max(lengths.total, 0 if past is None else past.value.shape[2])
    sequences = []
    for index, start in enumerate(lengths.start):
        own = _slice(new, index)
        kept = [_slice(past, index, start)] if past is not None and start else []
        rest = zeros_like(own, size - int(start) - lengths.queries)
        sequences.append(bounded.concatenated([*kept, own, rest], 2))
    return bounded.concatenated(sequences, 0)


def _slice(a: Bounded, index: int, end: int | None = None) -> Bounded:
    return a.moved(lambda array: array[index : index + 1, :, :end])


def is_valid(cache: Bounded, lengths: Lengths) -> NDArray[np.bool_]:
    """Return (batch, 1, size, 1)."""
    return (np.arange(cache.value.shape[2]) < lengths.valid[:, None])[:, None, :, None]


def known_part(cache: Bounded, lengths: Lengths) -> Bounded:
    """Return the keys there are, (batch, kv heads, total, size), zeros where a sequence is shorter."""
    known = bounded.where(Bounded(is_valid(cache, lengths)), cache, Bounded(np.zeros(1)))
    return known.moved(lambda array: array[:, :, : lengths.total])
