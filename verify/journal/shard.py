"""`--shard 2/5`: one of five parts of a run, the same wherever it is asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from onnx_attest.errors import UsageError

_FORM = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")


@dataclass(frozen=True)
class Shard:
    """One part of several of a run.

    Attributes:
        number: of the part, from 1.
        of: how many parts there are.
    """

    number: int = 1
    of: int = 1

    @staticmethod
    def parsed(text: str) -> Shard:
        """Return the shard of a text such as `2/5`.

        Raises:
            UsageError: a text of another form, or a part that there is not.
        """
        match = _FORM.fullmatch(text)
        if match is None or int(match[1]) > int(match[2]):
            raise UsageError(f"--shard {text}: give the number of the part and how many there are, 2/5 say")
        return Shard(int(match[1]), int(match[2]))

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the run."""
        return self.of == 1

    @property
    def is_first(self) -> bool:
        """Whether what belongs to no part alone is done with this one."""
        return self.number == 1

    def __str__(self) -> str:
        """Return it as it is asked for, "" for all of the run."""
        return "" if self.is_whole else f"{self.number}/{self.of}"

    def part_of(self, costs: Mapping[str, float]) -> tuple[str, ...]:
        """Return which of the units of a run are in this part, in their order.

        The dearest first, each goes to the part that has least to do so far: the longest part takes at most a third more
        than the best split (Graham 1969). What decides is a unit's cost and name, not when anything is finished.

        Args:
            costs: expected of each unit beside the others, by its name.

        Raises:
            UsageError: there are fewer units than parts.
        """
        if self.of > len(costs):
            raise UsageError(f"--shard {self}: of what is to be done, {len(costs)} parts can be made at most")
        loads = [(0.0, 0, number) for number in range(1, self.of + 1)]
        mine = set()
        for name in sorted(costs, key=lambda name: (-costs[name], name)):
            load, count, number = min(loads)
            loads[number - 1] = (load + costs[name], count + 1, number)
            if number == self.number:
                mine.add(name)
        return tuple(name for name in costs if name in mine)


WHOLE = Shard()
