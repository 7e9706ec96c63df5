"""All relations of a file, by its layout."""

from __future__ import annotations

from collections.abc import Iterator

from onnx_attest.verify.metamorphic.algebra import Algebra
from onnx_attest.verify.metamorphic.bases import Bases, same
from onnx_attest.verify.metamorphic.caching import caching
from onnx_attest.verify.metamorphic.relation import ABOUT, Relation, Step
from onnx_attest.verify.metamorphic.visibility import Visibility


def relations_of(bases: Bases) -> list[Relation]:
    """Return the relations that can be asked of a file, in the order of ABOUT."""
    order = list(ABOUT)
    return sorted(_all(bases), key=lambda relation: order.index(relation.name))


def _all(bases: Bases) -> Iterator[Relation]:
    base = bases.step()
    outputs = [spec.name for spec in bases.layout.contract.outputs]
    yield Relation("run-twice", "bitwise", (base, Step(base.inputs)), same(outputs), promised=True)
    if bases.layout.form == "bare":
        yield from Algebra(bases).relations()
    yield from caching(bases)
    yield from Visibility(bases).relations()
