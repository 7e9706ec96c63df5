"""How long is measured, and how exactly."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_attest.errors import UsageError


@dataclass(frozen=True)
class LatencyBudget:
    """How often a job is timed.

    Attributes:
        sittings: at least; for each, everything is opened anew.
        most_sittings: further ones are added up to this, while an interval is wider than `resolution`.
        rounds: of each sitting, at least.
        block_s: about the time of a block; one call at least.
        seconds: about the time that each participant is timed for in the first `sittings`.
        warm_up_s: no further call to warm up is begun after this time.
        resolution: the relative half-width of the intervals of the ratios to the reference that is enough.

    Raises:
        UsageError: no sample would be taken.
    """

    sittings: int = 3
    most_sittings: int = 3
    rounds: int = 3
    block_s: float = 0.01
    seconds: float = 0.15
    warm_up_s: float = 0.05
    resolution: float = 0.02

    def __post_init__(self) -> None:
        """Refuse a budget that measures nothing."""
        if not 1 <= self.sittings <= self.most_sittings or self.rounds < 1:
            raise UsageError(
                f"a latency budget needs 1 <= sittings <= most_sittings and rounds >= 1, got {self}"
            )

    def rounds_for(self, longest_block_s: float) -> int:
        """Return the rounds of a sitting, given the time of the longest block."""
        return max(self.rounds, int(self.seconds / self.sittings / max(longest_block_s, self.block_s)))

    def calls_for(self, call_s: float) -> int:
        """Return the calls of a block, given the time of one."""
        return max(1, round(self.block_s / call_s)) if call_s > 0 else 1


THOROUGH = LatencyBudget(sittings=6, most_sittings=20, rounds=3, seconds=2.0, warm_up_s=0.3, resolution=0.02)
"""For `bench`: a few seconds a participant, and more on a noisy machine."""
