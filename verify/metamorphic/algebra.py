"""Relations of the formula itself: linear in V, the softmax unmoved by a shift, keys a set and queries apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from onnx_attest.verify.metamorphic.bases import SEED, Bases, chain, of_rounded, taken, unit_slack
from onnx_attest.verify.metamorphic.relation import (
    Array,
    Between,
    Exactness,
    Pair,
    Relation,
    Step,
    Take,
    whole,
)
from onnx_attest.verify.runtimes.base import Tensors

_ROWS = -2


class Algebra:
    """The relations of a bare attention: queries, keys and values are inputs."""

    def __init__(self, bases: Bases) -> None:
        self._bases, self._layout = bases, bases.layout
        self._base = bases.step()
        self._q, self._k, self._v = (
            next(spec.name for spec in self._layout.specs(role)) for role in ("query", "key", "value")
        )
        self._weights = self._layout.weights()
        self._outputs = [spec.name for spec in self._layout.contract.outputs]
        self._rng = np.random.default_rng(SEED)

    def relations(self) -> Iterator[Relation]:
        """Yield them."""
        yield from self._scalings()
        yield from self._linear()
        yield from self._keys()
        yield from self._queries()

    def _changed(self, **changed: Array) -> Tensors:
        names = {"q": self._q, "k": self._k, "v": self._v}
        return {**self._base.inputs, **{names[one]: array for one, array in changed.items()}}

    def _one(self, name: str, factor: float, step: Step) -> Relation:
        """Return a relation under which outputs are multiplied, and weights stay."""
        factors = {output: 1.0 if output in self._weights else factor for output in self._outputs}
        pairs = tuple(Pair(output, factor=by) for output, by in factors.items())
        exactness: Exactness = "rounding" if step.errors or factor not in (1.0, 2.0, -1.0) else "bitwise"
        return Relation(name, exactness, (self._base, step), pairs, promised=self._bases.explicit)

    def _scalings(self) -> Iterator[Relation]:
        q, k, v = (self._base.inputs[name] for name in (self._q, self._k, self._v))
        yield self._one("values-negated", -1.0, Step(self._changed(v=-v)))
        yield self._one("queries-keys-negated", 1.0, Step(self._changed(q=-q, k=-k)))
        # float16 is short of exponents: what underflows there is rounded, and doubling it is not the same.
        if any(array.dtype == np.float16 for array in (q, k, v)):
            return
        two = q.dtype.type(2)
        yield self._one("values-doubled", 2.0, Step(self._changed(v=v * two)))
        half = k / two
        if np.array_equal(half * two, k):
            yield self._one("queries-keys-scaled", 1.0, Step(self._changed(q=q * two, k=half)))

    def _linear(self) -> Iterator[Relation]:
        v = self._base.inputs[self._v]
        tripled, errors = of_rounded(3 * v.astype(np.float64), v.dtype)
        step = Step(self._changed(v=tripled), errors={self._v: errors})
        yield self._one("values-tripled", 3.0, step)
        slack = unit_slack(v.shape[_ROWS], self._bases.arithmetic)
        plain = [name for name in self._outputs if name not in self._weights]
        one = np.ones(())
        ones = tuple(Between(name, one, one, slack) for name in plain)
        promised = self._bases.explicit and self._layout.structure.sums
        first = Step(self._changed(v=np.ones_like(v)))
        yield Relation("values-ones", "rounding", (first,), limits=ones, promised=promised)
        if ranges := tuple(filter(None, (self._range(name, slack) for name in plain))):
            yield Relation("values-range", "rounding", (self._base,), limits=ranges, promised=promised)

    def _range(self, output: str, slack: float) -> Between | None:
        """Return the limits of an output whose columns are those of the values, heads repeated as they are shared."""
        v = self._base.inputs[self._v].astype(np.float64)
        axes = next(spec.axes for spec in self._layout.contract.outputs if spec.name == output)
        if len(axes) != v.ndim or axes[-1] != v.shape[-1]:
            return None
        low, high = v.min(_ROWS, keepdims=True), v.max(_ROWS, keepdims=True)
        heads = axes[1]
        if len(axes) > 3 and isinstance(heads, int) and heads != v.shape[1]:
            low, high = (np.repeat(limit, heads // v.shape[1], axis=1) for limit in (low, high))
        return Between(output, low, high, slack * float(np.abs(v).max(initial=0.0)))

    def _keys(self) -> Iterator[Relation]:
        k = self._base.inputs[self._k]
        shift = self._rng.standard_normal(k.shape[-1])
        shifted, errors = of_rounded(k.astype(np.float64) + shift, k.dtype)
        step = Step(self._changed(k=shifted), errors={self._k: errors})
        shifted_together = self._one("keys-shifted", 1.0, step)
        yield replace(shifted_together, promised=shifted_together.promised and self._layout.structure.shifts)
        order = self._rng.permutation(k.shape[_ROWS])
        pairs = tuple(
            Pair(name, before=taken(order, -1) if name in self._weights else whole) for name in self._outputs
        )
        permuted = Step(self._at_keys(order))
        promised = self._bases.in_any_order
        yield Relation("keys-permuted", "rounding", (self._base, permuted), pairs, promised=promised)
        yield from self._duplicated(k.shape[_ROWS])

    def _at_keys(self, index: Array) -> Tensors:
        """Return the inputs with keys, values and the masks' columns in this order."""
        changed = dict(self._base.inputs)
        for name in (self._k, self._v):
            changed[name] = np.take(changed[name], index, axis=_ROWS)
        for spec in self._layout.specs("mask"):
            changed[spec.name] = np.take(changed[spec.name], index, axis=-1)
        return changed

    def _duplicated(self, keys: int) -> Iterator[Relation]:
        axis = self._layout.keys
        if not axis or not self._bases.fits(axis, 2 * keys):
            return
        twice = np.tile(np.arange(keys), 2)
        step = Step(self._layout.gathered(self._base.inputs, axis, twice))
        # Where the file ties queries to keys there are twice as many of them, too: the first half is looked at.
        rows: Take = taken(np.arange(keys), _ROWS) if axis == self._layout.queries else whole

        def halves(array: Array) -> Array:
            return np.asarray(array[..., :keys] + array[..., keys:])

        pairs = tuple(
            Pair(name, after=chain(rows, halves) if name in self._weights else rows) for name in self._outputs
        )
        promised = self._bases.in_any_order and self._layout.structure.sums
        yield Relation("keys-duplicated", "rounding", (self._base, step), pairs, promised=promised)

    def _queries(self) -> Iterator[Relation]:
        count = self._base.inputs[self._q].shape[_ROWS]
        order = self._rng.permutation(count)
        changed = {**self._base.inputs, self._q: np.take(self._base.inputs[self._q], order, axis=_ROWS)}
        for spec in self._layout.specs("mask"):
            if len(spec.axes) > 2 and changed[spec.name].shape[_ROWS] == count:
                changed[spec.name] = np.take(changed[spec.name], order, axis=_ROWS)
        pairs = tuple(Pair(name, before=taken(order, _ROWS)) for name in self._outputs)
        promised = self._bases.in_any_order
        yield Relation("queries-permuted", "rounding", (self._base, Step(changed)), pairs, promised=promised)
        axis = self._layout.queries
        if not axis or axis == self._layout.keys or count < 2:
            return
        some = np.arange(0, count, 2)
        if not self._bases.fits(axis, some.size):
            return
        step = Step(self._layout.gathered(self._base.inputs, axis, some))
        pairs = tuple(Pair(name, before=taken(some, _ROWS)) for name in self._outputs)
        yield Relation("queries-subset", "rounding", (self._base, step), pairs, promised=promised)
