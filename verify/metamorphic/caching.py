"""Relations of a cache: what tokens give at once, they give in parts with the cache of the parts before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from onnx_attest.verify.metamorphic.bases import Bases, taken
from onnx_attest.verify.metamorphic.relation import Carried, Pair, Relation, Step


def caching(bases: Bases) -> Iterator[Relation]:
    """Yield one step after the others, and three chunks, of a file with a cache."""
    layout = bases.layout
    if not layout.cache or not layout.queries:
        return
    count = bases.size(layout.queries)
    if count > 1:
        yield _in_parts("cache-step", bases, [0, count - 1, count])
    if count > 3:
        yield _in_parts("chunked-prefill", bases, [0, 1, count // 2, count])


def _in_parts(name: str, bases: Bases, ends: Sequence[int]) -> Relation:
    layout, base = bases.layout, bases.step()
    assert layout.cache is not None
    steps, pairs = [base], []
    for number, (start, end) in enumerate(pairwise(ends), start=1):
        index = np.arange(start, end)
        inputs = layout.gathered(base.inputs, layout.queries, index)
        carried = {}
        if number > 1:
            carried = {past: Carried(number - 1, present) for past, present in layout.cache.items()}
        given = {one: array for one, array in inputs.items() if one not in carried}
        steps.append(Step(given, carried))
        pairs += [Pair(output, number, before=taken(index, at)) for output, at in layout.rows()]
    pairs += [Pair(present, len(ends) - 1) for present in layout.cache.values()]
    return Relation(name, "rounding", tuple(steps), tuple(pairs), promised=bases.explicit)
