"""Where the time of a process goes: each instant is counted once, for the innermost part that is going on."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onnx_attest.verify.work import ELSE


class Stopwatch:
    """Seconds by stage and kind of work. A stage holds kinds: the cells of an artifact, say, and the oracle in them.

    For one thread: work that a part hands to others counts as long as it is waited for.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start it; `clock` gives seconds."""
        self._clock = clock
        self._seconds: dict[tuple[str, str], float] = {}
        self._going_on = [("", ELSE)]
        self._since = clock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what happens meanwhile for this stage, but for stages inside it."""
        with self._inside((name, ELSE)):
            yield

    @contextmanager
    def kind(self, name: str) -> Iterator[None]:
        """Count what happens meanwhile as this kind of work, in the stage that is going on."""
        with self._inside((self._going_on[-1][0], name)):
            yield

    def add(self, stage: str, kind: str, seconds: float) -> None:
        """Count time that somebody else measured."""
        self._seconds[stage, kind] = self._seconds.get((stage, kind), 0.0) + seconds

    def taken(self) -> dict[str, dict[str, float]]:
        """Return the seconds since this was last asked, by stage and kind; what is in no stage is in the stage ""."""
        self._settle()
        taken, self._seconds = self._seconds, {}
        by_stage: dict[str, dict[str, float]] = {}
        for (stage, kind), seconds in taken.items():
            by_stage.setdefault(stage, {})[kind] = seconds
        return by_stage

    @contextmanager
    def _inside(self, part: tuple[str, str]) -> Iterator[None]:
        self._settle()
        self._going_on.append(part)
        try:
            yield
        finally:
            self._settle()
            self._going_on.pop()

    def _settle(self) -> None:
        now = self._clock()
        self.add(*self._going_on[-1], now - self._since)
        self._since = now


def timed(function: Callable[..., Any], part: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function that does the same inside a part; of a generator each step, not what is done between them.

    Args:
        function: with or without an object that it is bound to.
        part: gives the part anew for each call, `lambda: watch.stage("cells")` say.
    """
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def steps(*arguments: Any, **options: Any) -> Iterator[Any]:
            generator = function(*arguments, **options)
            while True:
                with part():
                    try:
                        item = next(generator)
                    except StopIteration:
                        return
                yield item

        return steps

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with part():
            return function(*arguments, **options)

    return call
