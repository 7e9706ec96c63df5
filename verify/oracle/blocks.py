"""Large arrays in blocks that stay in a core's cache, side by side on the cores there are.

A bound is a dozen elementwise passes over arrays of many megabytes; each pass through memory costs more than its
arithmetic, and NumPy runs it on one core. Functions whose result at an element depends on the operands there alone, or
on a row of them, give the same numbers block by block.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product, zip_longest
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_LEAST_PRODUCTS = 2**22
"""Products of numbers from which on a product of matrices is worth threads."""
_LEAST_ROWS = 64

Array = NDArray[Any]
Part = Array | float | None
Place = tuple[slice, ...]
Result = TypeVar("Result")
Item = TypeVar("Item")

_LEAST = 2**17
"""Elements from which on blocks are worth their calls."""
_BLOCK = 2**16
"""Elements of a block: eight arrays of them are within the second-level cache of a core."""


def in_blocks(
    function: Callable[..., Sequence[Part]], operands: Sequence[Part], *, whole_axes: int = 0
) -> tuple[Any, ...]:
    """Return what a function of arrays gives, called block by block.

    Args:
        function: of as many arrays as there are operands, returning arrays; None stays None.
        operands: broadcastable to each other; None and numbers are passed on.
        whole_axes: so many last axes are never cut: those that the function reduces, or in which its results differ from
            its operands in size.
    """
    if is_small(*operands):
        return tuple(function(*operands))
    shape = np.broadcast_shapes(*(np.shape(one) for one in operands if one is not None))
    places = list(_places(shape, whole_axes))
    if len(places) < 2:
        return tuple(function(*operands))

    def at(place: Place) -> Sequence[Part]:
        return function(*(_cut(one, place, len(shape)) for one in operands))

    first = at(places[0])
    results = tuple(_whole(part, shape, len(shape) - whole_axes) for part in first)

    def fill(place: Place, parts: Sequence[Part]) -> None:
        for result, part in zip(results, parts, strict=True):
            if result is not None:
                _cut(result, place, len(shape))[...] = part  # type: ignore[index]

    fill(places[0], first)
    side_by_side(lambda place: fill(place, at(place)), places[1:])
    return results


def is_small(*operands: Part) -> bool:
    """Whether operands that broadcast to each other are not worth blocks: without NumPy's word for it, which is dear."""
    shapes: set[tuple[int, ...]] = {one.shape for one in operands if isinstance(one, np.ndarray)}
    if len(shapes) == 1:
        return math.prod(next(iter(shapes))) < _LEAST
    backwards = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return math.prod(max(sizes) for sizes in backwards) < _LEAST


def over_blocks(function: Callable[..., Result], operands: Sequence[Part]) -> list[Result]:
    """Return what a function of arrays gives for each block of operands that broadcast to each other, in any order."""
    if is_small(*operands):
        return [function(*operands)]
    shape = np.broadcast_shapes(*(np.shape(one) for one in operands if one is not None))
    places = list(_places(shape, 0))
    if len(places) < 2:
        return [function(*operands)]
    results: list[Result] = []
    side_by_side(
        lambda place: results.append(function(*(_cut(one, place, len(shape)) for one in operands))), places
    )
    return results


def matmul(a: Array, b: Array) -> Array:
    """Return a @ b, rows in stretches on as many threads as there are cores where BLAS has one thread only.

    BLAS' own threads wait for each other by spinning: on a machine with other work they take four times the CPU time.
    """
    rows = a.shape[-2] if a.ndim > 1 else 0
    if (
        rows < 1
        or b.ndim < 2
        or a.size * b.shape[-1] < _LEAST_PRODUCTS
        or _threads() == 1
        or not one_thread_in_blas()
    ):
        return np.asarray(np.matmul(a, b))
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = np.empty((*lead, rows, b.shape[-1]), np.result_type(a, b))
    length = max(_LEAST_ROWS, -(-rows // _threads()))
    stretches = [slice(start, start + length) for start in range(0, rows, length)]
    places = [
        (*(slice(i, i + 1) for i in index), stretch)
        for index in product(*(range(size) for size in lead))
        for stretch in stretches
    ]

    def work(place: Place) -> None:
        left, right = _cut(a, place, len(place) + 1), _cut(b, place[:-1], len(place) + 1)
        np.matmul(left, right, out=result[place])  # type: ignore[arg-type]

    side_by_side(work, places)
    return result


def one_thread_in_blas() -> bool:
    """Whether NumPy's products are left to one thread, so that other threads do not wait for BLAS' own."""
    return "1" in (os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("OMP_NUM_THREADS"))


def _places(shape: tuple[int, ...], whole_axes: int) -> Iterator[Place]:
    """Yield the blocks of a shape: single indices of its first axes, a stretch of the next one, all of the others."""
    cuttable = len(shape) - whole_axes
    axis, inside = cuttable - 1, math.prod(shape[cuttable:])
    while axis > 0 and inside * shape[axis] <= _BLOCK:
        inside *= shape[axis]
        axis -= 1
    if axis < 0:
        return
    length = max(1, _BLOCK // max(inside, 1))
    stretches = [slice(start, start + length) for start in range(0, shape[axis], length)]
    for index in product(*(range(size) for size in shape[:axis])):
        for stretch in stretches:
            yield (*(slice(i, i + 1) for i in index), stretch)


def _cut(part: Part, place: Place, axes: int) -> Part:
    """Return a part of an array that broadcasts to a shape of so many axes; a size of one is for all."""
    if not isinstance(part, np.ndarray) or part.ndim == 0:
        return part
    missing = axes - part.ndim
    own = (slice(None) if size == 1 else cut for size, cut in zip(part.shape, place[missing:], strict=False))
    return part[tuple(own)]


def _whole(part: Part, shape: tuple[int, ...], cuttable: int) -> Array | None:
    if part is None:
        return None
    return np.empty((*shape[:cuttable], *np.shape(part)[cuttable:]), np.asarray(part).dtype)


def side_by_side(work: Callable[[Item], None], items: Sequence[Item], most: int = sys.maxsize) -> None:
    """Do the work on all items, on as many threads as there are cores, this one included; never inside another such work.

    `most` is how many items may be in work at a time.
    """
    queue, errors = iter(items), np.geterr()

    def run() -> None:
        with np.errstate(**errors):  # a thread has its own
            for item in queue:
                work(item)

    helpers = [_pool().submit(run) for _ in range(min(_threads(), len(items), most) - 1)]
    run()
    for helper in helpers:
        helper.result()


@cache
def _threads() -> int:
    """Return how many threads to use: what OpenMP and BLAS are told, else one for each core."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdigit() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, _threads() - 1), thread_name_prefix="oracle")
