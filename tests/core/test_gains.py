"""Gains: the interval is Student's, pairs by seed, and says where its spread is from."""

import math
import random
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedatoms.core.gains import (
    Gain,
    Pooled,
    alike_by_draws,
    beyond,
    gain,
    mean_gain,
    over_seeds,
    pool,
    pool_of_pairs,
    short,
    student,
    written,
)

NUMBERS = st.floats(-100, 100)
SIDES = st.dictionaries(st.integers(0, 9), st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6)
POOLS = st.none() | st.builds(Pooled, st.floats(0, 10), st.integers(1, 50))


def half(one: Gain) -> float:
    assert one.low is not None and one.high is not None
    return (one.high - one.low) / 2


def spread(values: list[float]) -> float:
    return max(values) - min(values)


@given(SIDES, POOLS)
def test_the_interval_contains_the_mean_difference(
    sides: dict[int, tuple[float, float]], pooled: Pooled | None
) -> None:
    one = gain({seed: a for seed, (a, _) in sides.items()}, {seed: b for seed, (_, b) in sides.items()}, pooled)
    assert one is not None and one.seeds == len(sides)
    assert one.gain == pytest.approx(statistics.fmean(a - b for a, b in sides.values()))
    assert (one.low is None) == (one.high is None) == (one.how == "none")
    assert one.low is None or one.high is None or one.low <= one.gain <= one.high
    differences = [a - b for a, b in sides.values()]
    if max(differences) - min(differences) > 1e-6 * max(map(abs, differences)):
        assert one.how == "seeds"
    elif pooled is None and len(sides) == 1:
        assert one.low is None


@given(SIDES, POOLS)
def test_exchanging_the_sides_changes_the_sign_alone(
    sides: dict[int, tuple[float, float]], pooled: Pooled | None
) -> None:
    mine, base = ({seed: both[side] for seed, both in sides.items()} for side in (0, 1))
    one, other = gain(mine, base, pooled), gain(base, mine, pooled)
    assert one is not None and other is not None
    turned = [None if end is None else -end for end in (other.high, other.low)]
    assert one == Gain(-other.gain, *turned, other.seeds, other.how)


@given(st.lists(NUMBERS, min_size=2, max_size=5), st.floats(1.5, 10))
def test_it_widens_with_the_spread(values: list[float], factor: float) -> None:
    assume(spread(values) > 1e-6)
    middle = statistics.fmean(values)
    wider = over_seeds([middle + factor * (value - middle) for value in values])
    assert half(wider) == pytest.approx(factor * half(over_seeds(values)), rel=1e-6, abs=1e-9)
    assert half(over_seeds([1.0], Pooled(factor, 3))) > half(over_seeds([1.0], Pooled(1.0, 3)))


@pytest.mark.parametrize("degrees, printed", [(1, 12.706), (2, 4.303), (4, 2.776), (16, 2.120), (1000, 1.962)])
def test_quantiles_are_those_of_the_printed_tables(degrees: int, printed: float) -> None:
    assert student(degrees) == pytest.approx(printed, abs=5e-4)


@pytest.mark.parametrize("degrees", [*range(1, 40), 1000, 1001])
def test_quantiles_are_those_of_scipy(degrees: int) -> None:
    from scipy.special import stdtrit

    assert student(degrees) == pytest.approx(stdtrit(degrees, 0.975), rel=1e-11)


@pytest.mark.parametrize("values", [[1.0, 2.0], [0.5, 0.25, -1.0], [1.0, 2.0, 4.0, 8.0, 16.0]])
def test_it_is_the_interval_that_scipy_gives(values: list[float]) -> None:
    from scipy import stats

    theirs = stats.t.interval(0.95, len(values) - 1, statistics.fmean(values), stats.sem(values))
    one = over_seeds(values)
    assert (one.low, one.high) == pytest.approx(tuple(theirs))


def test_intervals_of_three_seeds_cover_the_truth_in_95_of_100() -> None:
    draws, hits, total = random.Random(0), 0, 4000
    for _ in range(total):
        one = over_seeds([draws.gauss(2.0, 0.5) for _ in range(3)])
        hits += beyond(one, 2.0) == "inconclusive"
    assert hits / total == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / total))


def test_so_do_those_of_one_seed_and_of_means_with_the_spread_of_other_cells() -> None:
    draws, alone, means, total = random.Random(1), 0, 0, 3000
    for _ in range(total):
        cells = [[draws.gauss(k, 0.5) for _ in range(1 if k < 3 else 3)] for k in range(6)]
        pooled = pool(cells)
        gains = [over_seeds(cell, pooled) for cell in cells]
        alone += beyond(gains[0], 0.0) == "inconclusive"
        means += beyond(mean_gain(gains, pooled), 2.5) == "inconclusive"
    for hits in (alone, means):
        assert hits / total == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / total))


@pytest.mark.parametrize("rows, seeds", [(2, 3), (8, 3), (8, 2)])
def test_so_do_those_of_one_seed_with_the_spread_of_rows_over_one_baseline(rows: int, seeds: int) -> None:
    draws, hits, total = random.Random(3), 0, 4000
    for _ in range(total):
        base = [draws.gauss(0.0, 1.0) for _ in range(seeds)]
        cells = [[draws.gauss(k, 1.0) - each for each in base] for k in range(rows)]
        alone = draws.gauss(0.0, 1.0) - draws.gauss(0.0, 1.0)
        pooled = pool_of_pairs((cell, "base") for cell in cells)
        hits += beyond(over_seeds([alone], pooled), 0.0) == "inconclusive"
    assert 0.945 < hits / total < 0.98


def test_so_do_means_of_gains_over_one_twin_which_are_alike() -> None:
    draws, hits, total = random.Random(2), {True: 0, False: 0}, 2000
    twins = [*range(3), 0, 0, 0, 0]  # whose five decomposed groups share the first plain one
    sides = [(f"{n}", f"plain {twin}") for n, twin in enumerate(twins)]
    names = [([mine], [plain]) for mine, plain in sides]
    for _ in range(total):
        plain = [draws.gauss(0.0, 1.0) for _ in range(3)]
        gains = [over_seeds([1.0 + draws.gauss(0.0, 1.0) - plain[twin]]) for twin in twins]
        for known in hits:
            mean = mean_gain(gains, Pooled(math.sqrt(2), 1000), names if known else ())
            hits[known] += beyond(mean, 1.0) == "inconclusive"
    assert hits[True] / total == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / total))
    assert hits[False] / total < 0.9


@pytest.mark.parametrize("seeds", [1, 3], ids=["one seed in the mean", "three seeds in the mean"])
def test_so_do_means_of_gains_whose_seeds_have_their_draws_in_common(seeds: int) -> None:
    """Five methods on four partitions: a seed draws the same clients for all five, which moves all their gains."""
    draws, hits, total = random.Random(4), {True: 0, False: 0}, 2000
    names = [{(column, seed) for seed in range(seeds)} for column in range(4) for _ in range(5)]
    for _ in range(total):
        shift = [[draws.gauss(0.0, 0.6) for _ in range(3)] for _ in range(4)]
        cells = [[draws.gauss(1.0 + each, 0.8) for each in shift[column]] for column in range(4) for _ in range(5)]
        alike, degrees = alike_by_draws((cell, n // 5) for n, cell in enumerate(cells))
        spread = pool(cells)
        assert spread is not None and degrees == 8
        gains = [over_seeds(cell[:seeds], spread) for cell in cells]
        for known in hits:
            pooled = spread._replace(alike=alike, draws=degrees) if known else spread
            hits[known] += beyond(mean_gain(gains, pooled, draws=names), 1.0) == "inconclusive"
    assert 0.93 < hits[True] / total < 0.98
    assert hits[False] / total < 0.85


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.floats(0, 1))
def test_draws_of_their_own_change_nothing(seeds: list[int], alike: float) -> None:
    gains = [over_seeds([float(n)] * count) for n, count in enumerate(seeds, 1)]
    draws = [{(n, seed) for seed in range(count)} for n, count in enumerate(seeds)]
    assert mean_gain(gains, Pooled(0.5, 16, alike, 3), draws=draws) == mean_gain(gains, Pooled(0.5, 16))


@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=4))
def test_how_alike_cells_are_is_a_share(cells: list[list[float]]) -> None:
    alike, degrees = alike_by_draws((cell, "draws") for cell in cells)
    assert 0 <= alike <= 1 + 1e-9 and degrees == (2 if len(cells) > 1 else 0)
    assert alike_by_draws((cell, n) for n, cell in enumerate(cells)) == (0.0, 0)  # each with its own draws


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_twins_of_their_own_change_nothing(seeds: list[int]) -> None:
    gains = [over_seeds([float(n)] * count) for n, count in enumerate(seeds, 1)]
    sides = [([(n, s) for s in range(count)], [(-n, s) for s in range(count)]) for n, count in enumerate(seeds, 1)]
    alone, known = (mean_gain(gains, Pooled(0.5, 16), some) for some in ((), sides))
    assert half(known) == pytest.approx(half(alone))


def test_one_seed_has_the_pooled_spread_and_says_so() -> None:
    pooled = pool([[1.0, 3.0], [7.0], [4.0, 4.0, 4.0]])
    assert pooled == Pooled(pytest.approx(math.sqrt(2 / 3)), 3)
    one = gain({0: 5.0}, {0: 4.0}, pooled)
    assert one is not None and one.how == "pooled" and half(one) == pytest.approx(student(3) * math.sqrt(2 / 3))
    assert written(one).endswith("(1 seed, pooled)")
    two = gain({0: 5.0, 1: 5.5}, {0: 4.0, 1: 4.0}, pooled)
    assert two is not None and two.how == "seeds"  # its own spread is known


def test_seeds_that_agree_have_no_spread_of_their_own() -> None:
    """Twice 11 of 360 test images apart, by chance: differences of such scores are equal but for rounding."""
    mine, base = ({seed: 100 * right / 360 for seed, right in enumerate(side)} for side in ((342, 335), (331, 324)))
    alone, borrowed = gain(mine, base), gain(mine, base, Pooled(0.5, 16))
    assert alone is not None and alone.how == "none" and beyond(alone) == "inconclusive" and short(alone) == "+3.06"
    assert borrowed is not None and written(borrowed) == "+3.06 ± 0.75 (2 seeds, pooled)"
    assert half(borrowed) == pytest.approx(student(16) * 0.5 / math.sqrt(2))
    both = gain(mine, base, pool([[11.0, 11.0]]))
    assert both is not None and both.how == "none"  # the others agree, too


def test_so_have_values_that_are_no_difference_such_as_ratios() -> None:
    assert over_seeds([0.9, 0.9], Pooled(0.2, 10)) == gain({0: 0.9, 1: 0.9}, {0: 0.0, 1: 0.0}, Pooled(0.2, 10))
    assert beyond(over_seeds([0.9, 0.9]), 1.0, below=True) == "inconclusive"


def test_rows_over_one_baseline_lend_more_than_one_of_them_and_less_than_others() -> None:
    cells = [[1.0, 3.0, 2.0], [2.0, 4.0, 3.0], [1.0, 5.0, 2.0]]
    every, shared, one = pool(cells), pool_of_pairs((cell, "p") for cell in cells), pool(cells[:1])
    assert every is not None and shared is not None and one is not None
    assert shared.deviation == every.deviation and one.degrees < shared.degrees < every.degrees == 6
    assert pool_of_pairs(zip(cells, "pqr", strict=True)) == every


def test_a_mean_of_gains_that_agree_is_not_certain() -> None:
    mean = mean_gain([over_seeds([1.0, 1.0])] * 2, Pooled(0.0, 2))
    assert (mean.low, mean.high) == (None, None) and beyond(mean) == "inconclusive"


def test_without_any_spread_there_is_no_interval_and_nothing_is_decided() -> None:
    assert pool([[1.0], [2.0], []]) is None
    one = over_seeds([50.0])
    assert (one.low, one.high, one.how) == (None, None, "none") and beyond(one) == "inconclusive"
    assert short(one) == "+50.00" and beyond(mean_gain([one, one])) == "inconclusive"


@given(SIDES, st.dictionaries(st.integers(10, 19), NUMBERS), st.dictionaries(st.integers(20, 29), NUMBERS))
def test_seeds_that_one_side_lacks_change_nothing(
    sides: dict[int, tuple[float, float]], more: dict[int, float], others: dict[int, float]
) -> None:
    mine, base = ({seed: both[side] for seed, both in sides.items()} for side in (0, 1))
    assert gain(mine | more, base | others) == gain(mine, base)
    assert gain(more, others) is None


@given(st.lists(NUMBERS, min_size=2, max_size=5), NUMBERS)
def test_the_two_sides_of_a_bar_are_each_others_opposite(values: list[float], bar: float) -> None:
    assume(spread(values) > 1e-6)
    opposite = {"supported": "contradicted", "contradicted": "supported", "inconclusive": "inconclusive"}
    one = over_seeds(values)
    assert one.low is not None and one.high is not None
    assert beyond(one, bar, below=True) == opposite[beyond(one, bar)]
    assert (beyond(one, bar) == "supported") == (one.low > bar)


def test_a_mean_of_many_gains_is_surer_than_each() -> None:
    pooled = Pooled(0.5, 16)
    each = over_seeds([1.0], pooled)
    mean = mean_gain([each] * 16, pooled)
    assert mean.gain == 1.0 and half(mean) == pytest.approx(half(each) / 4) and written(mean).endswith("(16 pairs)")
