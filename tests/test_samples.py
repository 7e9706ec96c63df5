"""Statistics of timings: intervals that hold what they promise, ratios within rounds, and what a difference shows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnx_attest.verify.samples import (
    NO_DIFFERENCE,
    Interval,
    Rounds,
    difference,
    exponent,
    floor_of,
    median_of,
    quantiles,
    ratios,
    rounds_of,
)


def drawn(
    seed: int, *, sittings: int = 6, rounds: int = 15, between: float, within: float, centre: float = 1.0
) -> Rounds:
    """Return times whose logarithms vary between sittings and, with heavy tails, within them."""
    draw = np.random.default_rng(seed)
    return tuple(
        tuple(
            (index, centre * math.exp(shift + within * noise))
            for index, noise in enumerate(draw.standard_t(3, rounds))
        )
        for shift in between * draw.standard_normal(sittings)
    )


def test_quantiles_are_those_of_the_docstring() -> None:
    found = quantiles([4.0, 1.0, 2.0, 3.0, 10.0])  # positions 0.4, 2 and 3.6 of 1, 2, 3, 4, 10
    assert (found.p10_s, found.median_s, found.p90_s) == pytest.approx((1.4, 3.0, 7.6))
    assert found.iqr_s == pytest.approx(4 - 2)
    single = quantiles([2.5])
    assert (single.p10_s, single.median_s, single.p99_s) == (2.5, 2.5, 2.5)


def test_no_samples_have_no_quantiles() -> None:
    with pytest.raises(ValueError, match="the record's verdict and reason say why"):
        quantiles(())


def test_blocks_are_taken_apart_by_sitting() -> None:
    found = rounds_of((1, 3, 2, 10, 20, 30, 5), (3, 3, 1), (0, 1, 2), (0, 0, 1))
    assert found == (((0, 2.0), (1, 20.0)), ((2, 5.0),))
    assert rounds_of((), (), (), ()) == ()
    assert rounds_of((1, 2, 9), (), (), ()) == (((0, 2.0),),), "calls of no known blocks are one"


def test_ratios_are_within_rounds_that_both_were_timed_in() -> None:
    one: Rounds = (((0, 2.0), (1, 40.0)), ((2, 3.0),))
    other: Rounds = (((1, 20.0), (0, 1.0)), ((3, 1.0),))
    assert ratios(one, other) == (((0, 2.0), (1, 2.0)),)


def test_a_machine_that_slows_down_for_both_changes_no_ratio() -> None:
    slow = [1.0, 1.0, 3.0, 3.0, 1.0, 5.0]
    base: Rounds = (tuple(enumerate(slow[:3])), tuple((3 + i, s) for i, s in enumerate(slow[3:])))
    twice: Rounds = tuple(tuple((number, 2 * value) for number, value in sitting) for sitting in base)
    found = median_of(ratios(twice, base))
    assert found == Interval(2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("between", "within"),
    [pytest.param(0, 0.1, id="calls vary"), pytest.param(0.04, 0.1, id="sittings vary too")],
)
def test_the_interval_covers_the_true_median_as_often_as_it_says(between: float, within: float) -> None:
    """Of 200 measurements of a known median at least 90 % cover it, and the interval is no wider than three times what it needs."""
    found = [median_of(drawn(seed, between=between, within=within)) for seed in range(200)]
    known = [interval for interval in found if interval is not None and interval.high and interval.low]
    assert np.mean([interval.contains(1.0) for interval in known]) >= 0.9
    needed = 1.96 * np.std([math.log(interval.estimate) for interval in known])
    widths = [
        math.log(interval.high / interval.low) / 2 for interval in known if interval.high and interval.low
    ]
    assert np.median(widths) < 3 * needed


def test_single_calls_drawn_would_make_it_too_narrow() -> None:
    """Why sittings are drawn: with all rounds in one pool, of which sittings vary, the interval would miss the median."""
    pooled, honest = [], []
    for seed in range(100):
        rounds = drawn(seed, between=0.1, within=0.02)
        pool = [block for sitting in rounds for block in sitting]
        half = len(pool) // 2
        mixed = tuple(pool[::2]), tuple(pool[1::2])
        assert len(mixed[0]) == half
        pooled.append(median_of(mixed))
        honest.append(median_of(rounds))
    covered = [np.mean([one is not None and one.contains(1.0) for one in kind]) for kind in (pooled, honest)]
    assert covered[0] < 0.75
    assert covered[1] >= 0.85


def test_too_little_gives_no_interval() -> None:
    assert median_of(()) is None
    for rounds in [(((0, 1.0), (1, 2.0), (2, 3.0), (3, 3.0), (4, 3.0)),), (((0, 1.0),), ((1, 3.0),))]:
        found = median_of(rounds)
        assert found is not None
        assert not found.known
        assert found.spread == math.inf
        assert found.contains(1e9), "nothing is excluded"


def test_sittings_of_unequal_length_count_alike() -> None:
    rounds: Rounds = (tuple((index, 1.0) for index in range(9)), ((9, 1.0),), ((10, 1.0), (11, 1.0)))
    assert median_of(rounds) == Interval(1.0, 1.0, 1.0)


def test_the_same_rounds_give_the_same_interval() -> None:
    rounds = drawn(3, between=0.05, within=0.1)
    first = median_of(rounds)
    median_of.cache_clear()
    assert median_of(rounds) == first


def test_the_floor_is_the_farther_end() -> None:
    assert floor_of(Interval(1.0, 0.99, 1.02)) == pytest.approx(0.02)
    assert floor_of(Interval(1.0, 0.95, 1.02)) == pytest.approx(1 / 0.95 - 1)
    assert floor_of(Interval(1.0)) is None
    assert floor_of(None) is None


@pytest.mark.parametrize(
    ("ratio", "floor", "shown"),
    [
        (Interval(1.1, 1.05, 1.15), 0.03, "slower"),
        (Interval(0.8, 0.75, 0.85), 0.03, "faster"),
        (Interval(1.1, 0.99, 1.2), 0.03, NO_DIFFERENCE),  # its interval has 1
        (Interval(1.02, 1.01, 1.03), 0.03, NO_DIFFERENCE),  # inside the floor
        (Interval(1 / 1.02, 0.97, 0.99), 0.03, NO_DIFFERENCE),
        (Interval(1.1, 1.05, 1.15), None, ""),  # the floor is not known
        (Interval(1.1), 0.03, ""),
        (None, 0.03, ""),
    ],
)
def test_what_a_difference_shows(ratio: Interval | None, floor: float | None, shown: str) -> None:
    assert difference(ratio, floor) == shown


def test_the_exponent_of_a_power_law() -> None:
    sizes = (64, 128, 256, 512)
    points = [(n, drawn(n, between=0.01, within=0.03, centre=1e-7 * n**2)) for n in sizes]
    found = exponent(points)
    assert found is not None
    assert found.points == 4
    assert found.exponent.contains(2.0)
    assert found.exponent.high is not None
    assert found.exponent.low is not None
    assert 0 < found.exponent.high - found.exponent.low < 0.2


def test_no_exponent_of_one_size() -> None:
    assert exponent([(64, (((0, 1.0),),)), (64, (((0, 2.0),),))]) is None
    alone = exponent([(1, (((0, 1.0),),)), (10, (((0, 100.0),),))])
    assert alone is not None
    assert alone.exponent == Interval(pytest.approx(2.0))
