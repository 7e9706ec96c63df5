"""What a relation is: runs of one file, and which of their outputs have to agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from numpy.typing import NDArray

from onnx_attest.verify.runtimes.base import Tensors

Array = NDArray[Any]
Take = Callable[[Array], Array]
"""Chooses, reorders or adds up elements of an output; never more than that, so that it applies to bounds as well."""
Exactness = Literal["bitwise", "rounding", "reported"]


def whole(array: Array) -> Array:
    """Return all elements as they are."""
    return array


@dataclass(frozen=True)
class Carried:
    """An input that is an output of an earlier run: a cache.

    Attributes:
        step: number of the run that gives it.
        output: its name there.
    """

    step: int
    output: str
    take: Take = whole


@dataclass(frozen=True, eq=False)
class Step:
    """One run.

    Attributes:
        inputs: by name, but for those that are carried over.
        carried: inputs that earlier runs gave.
        errors: by input: how far its numbers are from the exact ones that the relation is about, where those had to
            be rounded to the file's dtype.
    """

    inputs: Tensors
    carried: Mapping[str, Carried] = field(default_factory=dict)
    errors: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Pair:
    """Elements of a later run that have to be a multiple of elements of the first one.

    Attributes:
        output: of both runs.
        step: number of the later run.
        after: which elements of the later run.
        before: which elements of the first run.
        factor: what the latter are multiplied with; a power of two or -1 where the relation is bitwise.
    """

    output: str
    step: int = 1
    after: Take = whole
    before: Take = whole
    factor: float = 1.0


@dataclass(frozen=True, eq=False)
class Between:
    """Limits on an output of the only run, known without any evaluation.

    Attributes:
        low, high: broadcast to the output.
        slack: what rounding may take a correct runtime beyond them.
    """

    output: str
    low: Array
    high: Array
    slack: float


@dataclass(frozen=True, eq=False)
class Relation:
    """Runs of a file, and what has to hold between their outputs.

    Attributes:
        name: as in records and docs/relations.md.
        exactness: `bitwise`; `rounding`: within the sum of both runs' bounds; `reported`: a semantic choice, which is
            found out and not judged.
        steps: the first one is what the others are compared with.
        promised: whether the file's contract says that it holds.
    """

    name: str
    exactness: Exactness
    steps: tuple[Step, ...]
    pairs: tuple[Pair, ...] = ()
    limits: tuple[Between, ...] = ()
    promised: bool = False


@dataclass(frozen=True)
class About:
    """What the documentation says of a relation."""

    statement: str
    exactness: Exactness
    asked: str


ABOUT: Mapping[str, About] = MappingProxyType({
    "run-twice": About("the same inputs give the same bits", "bitwise", "always"),
    "values-negated": About("V times -1 gives the output times -1", "bitwise", "bare attention"),
    "values-doubled": About("V times 2 gives the output times 2", "bitwise", "bare attention, not float16"),
    "queries-keys-scaled": About("2 Q and K / 2 change nothing", "bitwise", "bare attention, not float16"),
    "queries-keys-negated": About("-Q and -K change nothing", "bitwise", "bare attention"),
    "values-tripled": About("3 V gives 3 times the output", "rounding", "bare attention"),
    "values-ones": About("V = 1 gives 1 in every row that has a key", "rounding",
                         "bare attention whose weights sum to one: no sink"),
    "values-range": About("an output lies between the smallest and the largest value of its column", "rounding",
                          "bare attention whose weights sum to one: no sink"),
    "keys-shifted": About("K + c changes nothing: each row's logits move together", "rounding",
                          "bare attention without a sink, a softcap, a rotation by position or normalised keys"),
    "keys-permuted": About("keys and values in another order change nothing", "rounding",
                           "bare attention whose contract says that it is not causal"),
    "keys-duplicated": About("every key and value twice changes nothing", "rounding",
                             "bare attention without a sink whose contract says that it is not causal"),
    "queries-permuted": About("queries in another order give the rows in that order", "rounding",
                              "bare attention whose contract says that it is not causal"),
    "queries-subset": About("some of the queries alone give the same rows", "rounding",
                            "bare attention whose contract says that it is not causal, with queries and keys of two lengths"),
    "tokens-permuted": About("tokens in another order give the rows in that order", "rounding", "never: a fact"),
    "batch-others": About("another sequence of the batch replaced changes nothing", "bitwise",
                          "the contract has a batch axis"),
    "batch-singles": About("a batch of 8 gives what its sequences give alone", "rounding",
                           "the contract has a batch axis"),
    "masked-keys": About("what a mask hides from every query is not seen", "bitwise",
                         "the contract has a padding mask"),
    "padding-trimmed": About("padding that the mask hides gives what the sequence gives without it", "rounding",
                             "the contract has a padding mask"),
    "causal-future": About("outputs at t do not depend on inputs after t", "bitwise",
                           "the contract has a causal mask, or says that the file is causal"),
    "causal-prefix": About("the first tokens alone give the same rows", "rounding",
                           "the contract has a causal mask, or says that the file is causal"),
    "cache-step": About("all tokens but one, then that one with the cache, give what all give at once", "rounding",
                        "the contract has a cache"),
    "chunked-prefill": About("tokens in three chunks, each with the cache of those before, give what all give at once",
                             "rounding", "the contract has a cache"),
    "future-nan": About("a future value that is NaN is not seen: 0 times NaN is NaN, if it is multiplied", "reported",
                        "never: a semantic choice"),
})  # fmt: skip
"""All relations, in the order of the reports."""
