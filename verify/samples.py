"""Statistics of timings: quantiles, bootstrap intervals of a median and of a paired ratio, and what a difference shows.

Timings come in rounds: in each, every participant is timed in a block of calls, in a new random order. A machine that
other programs share is slow for a while and then fast again, so blocks are compared within their round only. Rounds
come in sittings: for each, every session is opened anew, since where its memory lies makes a session faster or slower
for as long as it lives.

The intervals are percentile intervals of a two-stage bootstrap (Davison and Hinkley, 1997, section 3.8): sittings are
drawn with replacement, then rounds within each. That treats calls of a block, and rounds of a sitting, as what they are:
not independent of each other. Drawn single calls would make intervals several times too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.records import LatencyRecord, TimedRecord

REFERENCE = "torch"
"""What others are compared with, where it was timed."""
LEVEL = 0.95
"""Of every interval."""
RESOLUTION = 0.05
"""A measurement whose interval is wider than this part to either side is told as unstable."""
_DRAWS = 1000
_SEED = 20261202
"""Any number: with one, the same records give the same report."""

Rounds = tuple[tuple[tuple[int, float], ...], ...]
"""For each sitting the number of each round and a positive time in it, of a block or a ratio of two."""


@dataclass(frozen=True)
class Quantiles:
    """Of all calls, in seconds: see `quantiles`."""

    p10_s: float
    p25_s: float
    median_s: float
    p75_s: float
    p90_s: float
    p99_s: float

    @property
    def iqr_s(self) -> float:
        """The interquartile range."""
        return self.p75_s - self.p25_s


def quantiles(samples: Sequence[float]) -> Quantiles:
    """Return quantiles of samples in seconds.

    The quantile p of n sorted samples x[0] <= ... <= x[n-1] lies at position h = (n - 1) p and is interpolated
    linearly: x[i] + (h - i) (x[i+1] - x[i]) with i = floor(h). That is definition 7 of Hyndman and Fan (1996), NumPy's
    `linear`. A single sample is each of its own quantiles; p99 of fewer than a hundred is near the largest.

    Raises:
        ValueError: no samples; look at the record's verdict and reason instead.
    """
    if not samples:
        raise ValueError("no samples to summarise; the record's verdict and reason say why")
    return Quantiles(*(float(value) for value in np.percentile(samples, (10, 25, 50, 75, 90, 99))))


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its interval, None where there are too few rounds for one."""

    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def known(self) -> bool:
        """Whether there are ends."""
        return self.low is not None and self.high is not None

    def contains(self, value: float) -> bool:
        """Whether a value lies between the ends; without ends any may."""
        return self.low is None or self.high is None or self.low <= value <= self.high

    @property
    def spread(self) -> float:
        """How far the farther end is from the estimate, as a part of it; infinite without ends."""
        if self.low is None or self.high is None:
            return math.inf
        return max(self.high / self.estimate - 1, 1 - self.low / self.estimate)


def rounds_of(
    latency_s: Sequence[float],
    block_sizes: Sequence[int],
    block_rounds: Sequence[int],
    block_sittings: Sequence[int],
) -> Rounds:
    """Return the median of each block, by sitting.

    Args:
        latency_s: all calls, block after block.
        block_sizes: calls of each block.
        block_rounds: the round that each block was timed in.
        block_sittings: the sitting of each block, never less than that of the one before.

    Calls of which no blocks are known are one.
    """
    if not block_sizes:
        return (((0, float(np.median(latency_s))),),) if latency_s else ()
    ends = np.cumsum(block_sizes)
    sittings: dict[int, list[tuple[int, float]]] = {}
    for end, size, round_, sitting in zip(ends, block_sizes, block_rounds, block_sittings, strict=True):
        median = float(np.median(latency_s[int(end) - size : int(end)]))
        sittings.setdefault(sitting, []).append((round_, median))
    return tuple(tuple(blocks) for blocks in sittings.values())


def ratios(rounds: Rounds, reference: Rounds) -> Rounds:
    """Return the ratio to a reference in each round that both were timed in."""
    base = {number: value for sitting in reference for number, value in sitting if value > 0}
    paired = (
        tuple((number, value / base[number]) for number, value in sitting if number in base and value > 0)
        for sitting in rounds
    )
    return tuple(sitting for sitting in paired if sitting)


def measured(record: TimedRecord) -> Rounds:
    """Return the median of each block of a record, by sitting."""
    return rounds_of(record.latency_s, record.block_sizes, record.block_rounds, record.block_sittings)


def paired(record: TimedRecord, reference: TimedRecord) -> Rounds:
    """Return the ratio of two records of one group in each round."""
    return ratios(measured(record), measured(reference))


@lru_cache(maxsize=100_000)
def median_of(rounds: Rounds) -> Interval | None:
    """Return the median over all rounds with its interval; None without rounds.

    Fewer than two sittings, or fewer than five rounds in all, give no interval: nothing is known of what a further
    one would be.
    """
    values = [np.array([value for _, value in sitting]) for sitting in rounds if sitting]
    if not values:
        return None
    estimate = float(np.median(np.concatenate(values)))
    if len(values) < 2 or sum(map(len, values)) < 5:
        return Interval(estimate)
    low, high = np.quantile(_medians(values), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(estimate, min(float(low), estimate), max(float(high), estimate))


def _medians(sittings: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the medians of _DRAWS bootstrap samples."""
    draw = np.random.default_rng(_SEED)
    sizes = np.array([len(sitting) for sitting in sittings])
    padded = np.full((len(sittings), sizes.max()), np.nan)
    for row, sitting in zip(padded, sittings, strict=True):
        row[: len(sitting)] = sitting
    chosen = draw.integers(len(sittings), size=(_DRAWS, len(sittings)))
    # A uniform number makes a place in a sitting of any length. Of a shorter one more is drawn than it has, so that
    # all rows have one length: it weighs as much as the others.
    places = (draw.random((*chosen.shape, padded.shape[1])) * sizes[chosen][..., None]).astype(np.intp)
    drawn = padded[chosen[..., None], places].reshape(_DRAWS, -1)
    medians: NDArray[np.float64] = np.median(drawn, axis=1)
    return medians


def against_itself(records: Sequence[LatencyRecord]) -> Interval | None:
    """Return the ratio of a group's twin to what it is the twin of; None where they were not timed."""
    twin = next((one for one in records if one.twin and one.latency_s), None)
    first = (
        None if twin is None else next((one for one in records if not one.twin and _same(one, twin)), None)
    )
    return None if twin is None or first is None else median_of(paired(twin, first))


def _same(one: LatencyRecord, other: LatencyRecord) -> bool:
    return (one.artifact_sha256, one.runtime, one.axes) == (other.artifact_sha256, other.runtime, other.axes)


def floor_of(twin: Interval | None) -> float | None:
    """Return the smallest part by which two have to differ before it says anything: what a runtime differs from itself.

    It is the farther end of the interval of the ratio of a runtime to itself, in another process: its noise and its
    bias together. None where that was not measured.
    """
    if twin is None or twin.low is None or twin.high is None:
        return None
    return max(twin.high, 1 / twin.low) - 1


NO_DIFFERENCE = "no difference shown"


def difference(ratio: Interval | None, floor: float | None) -> str:
    """Return what a ratio to a reference shows: `faster`, `slower`, or that no difference is shown.

    A difference counts if the interval leaves out 1 and the estimate is beyond the noise floor. Without an interval or
    a floor it is not known, "".
    """
    if ratio is None or not ratio.known or floor is None:
        return ""
    if ratio.contains(1) or max(ratio.estimate, 1 / ratio.estimate) - 1 <= floor:
        return NO_DIFFERENCE
    return "slower" if ratio.estimate > 1 else "faster"


@dataclass(frozen=True)
class Power:
    """The exponent of t ~ n^exponent, and its interval."""

    exponent: Interval
    points: int


def exponent(points: Sequence[tuple[int, Rounds]]) -> Power | None:
    """Return the exponent that a quantity grows with, fitted by least squares of log t on log n; None below two sizes.

    Its interval is that of the same bootstrap, with each size drawn on its own.
    """
    usable = [(n, rounds) for n, rounds in points if n > 0 and any(rounds)]
    sizes = np.log([n for n, _ in usable])
    if len(set(sizes)) < 2:
        return None
    centred = sizes - sizes.mean()
    weights = centred / (centred @ centred)
    values = [[np.array([value for _, value in sitting]) for sitting in rounds] for _, rounds in usable]
    estimate = float(weights @ [math.log(np.median(np.concatenate(sittings))) for sittings in values])
    if any(len(sittings) < 2 for sittings in values):
        return Power(Interval(estimate), len(usable))
    drawn = np.stack([np.log(_medians(sittings)) for sittings in values])
    # One seed draws the same rounds at each size; turned against each other they are independent.
    turned = np.stack([np.roll(row, 37 * index) for index, row in enumerate(drawn)])
    low, high = np.quantile(weights @ turned, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Power(Interval(estimate, float(low), float(high)), len(usable))
