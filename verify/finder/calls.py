"""Functions that call each other: how large a graph is once they are written out, before anybody writes them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

MOST_NODES = 10**6
"""Nodes of a graph whose functions are written out; the largest exported models have a tenth of it."""
_ENOUGH = 2**40
"""Nodes that are counted: what doubles a thousand times is a number of a thousand digits."""
_Key = tuple[str, str, str]


class EndlessError(ValueError):
    """Functions that call each other in a circle, or that are too many nodes once they are written out."""


def refuse_endless(model: Any) -> None:
    """Refuse functions that cannot be written out; nothing is, and no call of Python is as deep as theirs are.

    Args:
        model: an onnx.ModelProto.

    Raises:
        EndlessError: it names one of them.
    """
    if not model.functions:
        return
    calls = {
        (one.domain, one.name, getattr(one, "overload", "")): Counter(_called(one.node))
        for one in model.functions
    }
    sizes = _sizes(calls)
    whole = sum(times * sizes.get(key, 1) for key, times in Counter(_called(model.graph.node)).items())
    if whole > MOST_NODES:
        raise EndlessError(
            f"with its functions written out it has more than {MOST_NODES:,} nodes, and no file of that size is dealt with"
        )


def _sizes(calls: Mapping[_Key, Counter[_Key]]) -> dict[_Key, int]:
    """Return how many nodes each function is, written out, as far as `_ENOUGH`."""
    sizes: dict[_Key, int] = {}
    for first in calls:
        if first in sizes:
            continue
        entered, waiting = {first}, [(first, iter(calls[first]))]
        while waiting:
            key, called = waiting[-1]
            following = next((one for one in called if one in calls and one not in sizes), None)
            if following is None:
                whole = sum(times * sizes.get(one, 1) for one, times in calls[key].items())
                sizes[key] = min(_ENOUGH, whole)
                entered.discard(key)
                waiting.pop()
            elif following in entered:
                raise EndlessError(f"its functions call each other in a circle, {following[1]} among them")
            else:
                entered.add(following)
                waiting.append((following, iter(calls[following])))
    return sizes


def _called(nodes: Any) -> Iterator[_Key]:
    """Yield what each node calls, also those of graphs inside them."""
    for node in nodes:
        yield node.domain, node.op_type, getattr(node, "overload", "")
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _called(attribute.g.node)
            for graph in attribute.graphs:
                yield from _called(graph.node)
