"""Relations of what may be seen: other sequences, masked keys, the future."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnx_attest.models.contract import MaskKind
from onnx_attest.verify.cases import allowed_by
from onnx_attest.verify.metamorphic.bases import SEED, Bases, chain, garbage, taken
from onnx_attest.verify.metamorphic.relation import Array, Pair, Relation, Step, Take, whole
from onnx_attest.verify.runtimes.base import Tensors

_LARGE, _LARGE_TOKENS = 1e4, 30.0
_LARGE_HALF, _LARGE_TOKENS_HALF = 1e2, 3.0
"""Garbage is far from everything else, and what it is multiplied with stays below the largest number of its dtype."""
_FUTURE = 2
"""The last tokens, which nothing before them may see: one would not show that a single key of the future is seen."""


class Visibility:
    """The relations of sequences, masks and causality, for files of every form."""

    def __init__(self, bases: Bases) -> None:
        self._bases, self._layout = bases, bases.layout
        half = any(array.dtype == np.float16 for array in bases.step().inputs.values())
        self._large = _LARGE_HALF if half else _LARGE
        self._large_tokens = _LARGE_TOKENS_HALF if half else _LARGE_TOKENS

    def relations(self) -> Iterator[Relation]:
        """Yield them."""
        if self._layout.batch:
            yield from self._batch(self._layout.batch)
        if self._layout.form in ("bare", "self", "cross"):
            yield from self._padding()
        if self._layout.form in ("bare", "self", "cached"):
            yield from self._causal()
        if self._layout.form == "self":
            yield from self._order()

    def _batch(self, axis: str) -> Iterator[Relation]:
        base, count = self._bases.step(), self._bases.size(axis)
        places = list(self._layout.places(axis))
        if count < 2 or not places:
            return
        changed = dict(base.inputs)
        for spec in self._layout.contract.inputs:
            if axis in spec.axes and spec.role != "mask":
                at = spec.axes.index(axis)
                array = np.moveaxis(changed[spec.name], at, 0)
                last = np.arange(count) == count - 1
                changed[spec.name] = np.ascontiguousarray(
                    np.moveaxis(garbage(spec, array, last, large=self._large_tokens), 0, at)
                )
        others = np.arange(count - 1)
        pairs = tuple(Pair(name, 1, taken(others, at), taken(others, at)) for name, at in places)
        promised = self._bases.explicit
        yield Relation("batch-others", "bitwise", (base, Step(changed)), pairs, promised=promised)
        alone = [Step(self._layout.gathered(base.inputs, axis, np.array([one]))) for one in range(count)]
        pairs = tuple(
            Pair(name, 1 + one, before=taken(np.array([one]), at))
            for name, at in places
            for one in range(count)
        )
        yield Relation("batch-singles", "rounding", (base, *alone), pairs, promised=promised)

    def _attended(self) -> tuple[str, ...]:
        """Return the inputs that keys and values are made of."""
        if self._layout.form == "bare":
            return tuple(spec.name for spec in self._layout.specs("key", "value"))
        return self._layout.memory or self._layout.tokens

    def _goes_with(self, inputs: Tensors, seen: Array) -> bool:
        """Whether a mask, (batch, keys), is of as many sequences and keys as what is attended to: a guess may be wrong."""
        axis = -2 if self._layout.form == "bare" else 1
        counts = [(inputs[name].shape[0], inputs[name].shape[axis]) for name in self._attended()]
        return all(keys == seen.shape[1] and seen.shape[0] in (1, batch) for batch, keys in counts)

    def _poisoned(self, inputs: Tensors, hidden: Array) -> Tensors:
        """Return the inputs with garbage at these keys, (batch, keys)."""
        changed = dict(inputs)
        specs = {spec.name: spec for spec in self._layout.contract.inputs}
        bare = self._layout.form == "bare"
        for name in self._attended():
            array = changed[name]
            # To (batch, keys, ...): heads, if they are an axis, stand between the two.
            moved = np.moveaxis(array, -2, 1) if bare else array
            wide = np.broadcast_to(hidden, (moved.shape[0], hidden.shape[-1]))
            large = self._large if bare else self._large_tokens
            poisoned = garbage(specs[name], moved, wide, large=large)
            changed[name] = np.ascontiguousarray(np.moveaxis(poisoned, 1, -2) if bare else poisoned)
        return changed

    def _padding(self) -> Iterator[Relation]:
        masks = self._layout.specs("mask")
        if len(masks) != 1 or "padding" not in masks[0].masks:
            return
        base = self._bases.step("padding")
        allowed = allowed_by(masks[0], base.inputs[masks[0].name])
        wide = allowed.reshape(allowed.shape[0], -1, allowed.shape[-1])
        seen: Array = np.asarray(wide.any(axis=1))  # (batch, keys)
        if not self._goes_with(base.inputs, seen):
            return
        step = Step(self._poisoned(base.inputs, ~seen))
        # A token that is hidden from all others still has a row of its own.
        own = self._layout.form == "self"
        taking = [(name, _rows_of(seen, at) if own else whole) for name, at in self._layout.rows()]
        pairs = tuple(Pair(name, 1, rows, rows) for name, rows in taking)
        promised = self._bases.explicit
        yield Relation("masked-keys", "bitwise", (base, step), pairs, promised=promised)
        if self._layout.keys and self._layout.batch:
            yield from self._trimmed(base, seen)

    def _trimmed(self, base: Step, seen: Array) -> Iterator[Relation]:
        """Yield the sequence with the most padding beside itself without any."""
        layout, axis = self._layout, self._layout.keys
        real = seen.sum(axis=-1)
        one = int(np.argmin(np.where(real > 0, real, seen.shape[-1])))
        kept = np.arange(int(real[one]))
        if kept.size == seen.shape[-1] or not self._bases.fits(axis, kept.size):
            return
        inputs = layout.gathered(base.inputs, layout.batch, np.array([one]))
        step = Step(layout.gathered(inputs, axis, kept))
        pairs = []
        for name, at in layout.rows():
            takes = [taken(np.array([one]), 0)]
            if axis == layout.queries:
                takes.append(taken(kept, at))
            if name in layout.weights():
                takes.append(taken(kept, -1))
            pairs.append(Pair(name, 1, before=chain(*takes)))
        promised = self._bases.explicit
        yield Relation("padding-trimmed", "rounding", (base, step), tuple(pairs), promised=promised)

    def _causal(self) -> Iterator[Relation]:
        contract = self._layout.contract
        masked = "causal" in contract.mask_kinds()
        mask: MaskKind | None = "causal" if masked else None
        promised = self._bases.explicit and (masked or contract.causal in ("top-left", "bottom-right"))
        base = self._bases.step(mask)
        ending = contract.causal == "bottom-right" and self._layout.form == "bare"
        keys, queries = self._count(base)
        first = keys - _FUTURE if ending else min(keys, queries) - _FUTURE
        if first < 1:
            return
        seeing = first - (keys - queries) if ending else first  # rows before it see no such key
        if seeing < 1:
            return
        future = np.arange(keys) >= first
        rows = [(name, taken(np.arange(seeing), at)) for name, at in self._layout.rows()]
        pairs = tuple(Pair(name, 1, row, row) for name, row in rows)
        step = Step(self._poisoned(base.inputs, future[None]))
        yield Relation("causal-future", "bitwise", (base, step), pairs, promised=promised)
        if self._layout.form == "bare":
            yield self._future_nan(base, future, pairs)
        if not ending:
            yield from self._prefix(base, first, promised=promised)

    def _count(self, base: Step) -> tuple[int, int]:
        """Return the numbers of keys and queries that are inputs."""
        if self._layout.form == "bare":
            k, q = (base.inputs[self._layout.specs(role)[0].name].shape[-2] for role in ("key", "query"))
            return k, q
        spec = next(spec for spec in self._layout.contract.inputs if spec.name == self._layout.tokens[0])
        size = base.inputs[spec.name].shape[spec.axes.index(self._layout.queries)]
        return size, size

    def _future_nan(self, base: Step, future: Array, pairs: tuple[Pair, ...]) -> Relation:
        name = self._layout.specs("value")[0].name
        value = base.inputs[name].copy()
        value[..., future, :] = np.nan
        return Relation("future-nan", "reported", (base, Step({**base.inputs, name: value})), pairs)

    def _prefix(self, base: Step, first: int, *, promised: bool) -> Iterator[Relation]:
        axes = {axis for axis in (self._layout.queries, self._layout.keys) if axis}
        if not self._layout.queries or not all(self._bases.fits(axis, first) for axis in axes):
            return
        if self._layout.form == "bare" and not self._layout.keys:
            return
        kept, inputs = np.arange(first), base.inputs
        for axis in sorted(axes):
            inputs = self._layout.gathered(inputs, axis, kept)
        pairs = []
        for name, at in self._layout.rows():
            columns = (taken(kept, -1),) if name in self._layout.weights() else ()
            pairs.append(Pair(name, 1, before=chain(taken(kept, at), *columns)))
        yield Relation("causal-prefix", "rounding", (base, Step(inputs)), tuple(pairs), promised=promised)

    def _order(self) -> Iterator[Relation]:
        base, axis = self._bases.step(), self._layout.queries
        order = np.random.default_rng(SEED).permutation(self._bases.size(axis))
        step = Step(self._layout.gathered(base.inputs, axis, order))
        pairs = []
        for name, at in self._layout.rows():
            columns = (taken(order, -1),) if name in self._layout.weights() else ()
            pairs.append(Pair(name, 1, before=chain(taken(order, at), *columns)))
        yield Relation("tokens-permuted", "rounding", (base, step), tuple(pairs))


def _rows_of(seen: Array, axis: int) -> Take:
    """Return the choice of the rows of these tokens, (batch, tokens); outputs by heads have heads before their rows."""
    return lambda array: np.moveaxis(array, axis, 1)[seen]
