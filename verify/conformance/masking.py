"""Which keys each query of an Attention may attend, kind by kind: what makes its rows empty.

Only to describe cases: what is right is the oracle's to say, which has the operator's definition once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.conformance.asked import Array, Asked

Allowed = NDArray[np.bool_]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the scores: (batch, heads, queries, keys), keys of the past included."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    value_size: int


def sizes_of(asked: Asked) -> Sizes:
    """Return the sizes of an Attention of three or of four axes."""
    q, k, v = (asked.required(index) for index in range(3))
    past = asked.optional(4)
    before = 0 if past is None else past.shape[2]
    if q.ndim == 4:
        return Sizes(
            q.shape[0], q.shape[1], k.shape[1], q.shape[2], before + k.shape[2], q.shape[3], v.shape[3]
        )
    heads, kv_heads = asked.get("q_num_heads"), asked.get("kv_num_heads")
    return Sizes(
        q.shape[0],
        heads,
        kv_heads,
        q.shape[1],
        before + k.shape[1],
        q.shape[2] // heads,
        v.shape[2] // kv_heads,
    )


@dataclass(frozen=True, eq=False)
class Masking:
    """What hides keys in an Attention; each kind is broadcastable to (batch, heads, queries, keys)."""

    asked: Asked
    sizes: Sizes

    def kinds(self) -> Iterator[tuple[str, Allowed]]:
        """Yield each kind of mask that is there, with what it alone allows."""
        mask, lengths = self.asked.optional(3), self._lengths
        if mask is not None:
            is_boolean = mask.dtype == np.bool_
            allowed = mask if is_boolean else ~np.isneginf(mask.astype(np.float64))
            yield ("boolean mask" if is_boolean else "float mask of -inf"), self._padded(allowed)
        if lengths is not None:
            yield (
                "nonpad_kv_seqlen",
                np.broadcast_to(self._keys < lengths, (len(lengths), 1, 1, self.sizes.keys)),
            )
        if self.asked.get("is_causal", 0):
            yield "causal", self._keys <= self._positions
        yield from (("window", side) for side in self._window())

    def empty_kinds(self) -> tuple[str, ...]:
        """Return the kinds that leave a query without any key, `several together` if none does alone."""
        if not self.sizes.keys or not self.sizes.queries:
            return ()
        found = list(self.kinds())
        alone = [name for name, allowed in found if self._has_empty(allowed)]
        if alone or not found:
            return tuple(dict.fromkeys(alone))
        together = np.ones(self._shape, bool)
        for _, allowed in found:
            together = together & allowed
        return ("several together",) if self._has_empty(together) else ()

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        return self.sizes.batch, self.sizes.heads, self.sizes.queries, self.sizes.keys

    @cached_property
    def _keys(self) -> NDArray[Any]:
        return np.arange(self.sizes.keys)

    @cached_property
    def _lengths(self) -> NDArray[Any] | None:
        lengths = self.asked.optional(6)
        return None if lengths is None else lengths.reshape(-1, 1, 1, 1)

    @cached_property
    def _positions(self) -> NDArray[Any]:
        """Absolute position of each query: behind the past, at the end of the valid keys, or from 0 on."""
        past = self.asked.optional(4)
        offset: Any = 0 if past is None else past.shape[2]
        if self._lengths is not None:
            offset = self._lengths - self.sizes.queries
        return np.asarray(np.arange(self.sizes.queries)[:, None] + offset)

    def _window(self) -> Iterator[Allowed]:
        left, right = self.asked.get("left_window_size", -1), self.asked.get("right_window_size", -1)
        if left >= 0:
            yield self._keys >= self._positions - left
        if right >= 0:
            yield self._keys <= self._positions + right

    def _padded(self, allowed: Array) -> Allowed:
        """Return a mask that may be shorter than the keys, from opset 24 on, with the rest hidden."""
        missing = self.sizes.keys - allowed.shape[-1]
        if missing <= 0 or self.asked.opset < 24:
            return allowed
        return np.pad(allowed, [(0, 0)] * (allowed.ndim - 1) + [(0, missing)])

    def _has_empty(self, allowed: Allowed) -> bool:
        return bool((~np.broadcast_to(allowed, self._shape).any(-1)).any())
