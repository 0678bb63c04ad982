"""Gains with their uncertainty: paired by seed, a 95 % interval, and which side of a bar it lies on. No torch."""

import itertools
import math
import operator
import statistics
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

LEVEL = 0.95
ROUNDING = 1e-9  # of the largest difference: a spread below it is none
How = Literal["seeds", "pooled", "mean", "none"]  # where an interval comes from
State = Literal["supported", "inconclusive", "contradicted"]
Sides = tuple[Collection[Hashable], Collection[Hashable]]  # the runs of which a gain is the difference


class Pooled(NamedTuple):
    """A standard deviation over seeds that several cells have in common, and its degrees of freedom.

    ``alike`` is the correlation of cells whose runs have a seed and its draws in common, known with ``draws`` degrees.
    """

    deviation: float
    degrees: int
    alike: float = 0.0
    draws: int = 0


class Gain(NamedTuple):
    """A mean difference, the ends of its interval if there is one, over how many seeds, and by which spread.

    ``how`` is ``seeds`` (that of its own seeds), ``pooled`` (one seed, or seeds that agree, with the spread of other
    cells), ``mean`` (a mean of ``seeds`` gains, with the pooled spread) or ``none`` (no spread is known, and so no
    interval).
    """

    gain: float
    low: float | None
    high: float | None
    seeds: int
    how: How


def gain(mine: Mapping[int, float], base: Mapping[int, float], pooled: Pooled | None = None) -> Gain | None:
    """Returns how much one side has more than another, paired by the seeds that both have; None if they share none.

    >>> one = gain({0: 42.0, 1: 43.0, 2: 44.0, 7: 99.0}, {0: 40.0, 1: 40.5, 2: 41.0})
    >>> written(one), round(one.low, 2), one.how
    ('+2.50 ± 1.24 (3 seeds)', 1.26, 'seeds')
    >>> written(gain({0: 42.0, 1: 43.0}, {0: 40.0, 1: 41.0})), gain({0: 42.0}, {1: 40.0}) is None
    ('+2.00 (2 seeds)', True)
    """
    differences = paired(mine, base)
    return over_seeds(differences, pooled) if differences else None


def paired(mine: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """Returns the differences of two sides, by the seeds that both have.

    >>> paired({0: 42.0, 1: 43.0, 7: 99.0}, {0: 40.0, 1: 40.5, 8: 0.0})
    [2.0, 2.5]
    """
    return [mine[seed] - base[seed] for seed in sorted(mine.keys() & base.keys())]


def over_seeds(values: Sequence[float], pooled: Pooled | None = None) -> Gain:
    """Returns the mean of a number over seeds, with the interval of Student's t: mean ± t · s / √n.

    One seed has no spread of its own, and equal seeds are the chance of a coarse score: then s is the ``pooled`` one of
    other cells, or there is no interval.

    >>> written(over_seeds([1.0, 2.0, 3.0])), written(over_seeds([1.0], Pooled(0.5, 16)))
    ('+2.00 ± 2.48 (3 seeds)', '+1.00 ± 1.06 (1 seed, pooled)')
    >>> over_seeds([1.0, 1.0])
    Gain(gain=1.0, low=None, high=None, seeds=2, how='none')
    """
    count, middle = len(values), statistics.fmean(values)
    if max(values) - min(values) <= ROUNDING * max(map(abs, values)):
        return _borrowing(values, pooled)
    half = student(count - 1) * statistics.stdev(values) / math.sqrt(count)
    return Gain(middle, middle - half, middle + half, count, "seeds")


def _borrowing(values: Sequence[float], pooled: Pooled | None) -> Gain:
    """Returns the mean of a number over seeds with the interval that the spread of other cells gives it, if any."""
    count, middle = len(values), statistics.fmean(values)
    if pooled is None or _is_none(pooled, middle):
        return Gain(middle, None, None, count, "none")
    half = student(pooled.degrees) * pooled.deviation / math.sqrt(count)
    return Gain(middle, middle - half, middle + half, count, "pooled")


def _is_none(pooled: Pooled, middle: float) -> bool:
    """Says whether other cells agree, too: that is no spread to borrow."""
    return pooled.deviation <= ROUNDING * abs(middle)


def mean_gain(
    gains: Sequence[Gain],
    pooled: Pooled | None = None,
    sides: Sequence[Sides] = (),
    draws: Sequence[Collection[Hashable]] = (),
) -> Gain:
    """Returns the mean of gains of different cells, whose seeds count as independent: s · √(Σ 1 / n) / cells.

    ``sides`` has the runs of each gain's two sides, if some gains have runs in common. If all runs vary alike, the
    error is s · √(Σ w² / 2) over all of them, each once, where w is its weight in the mean. ``draws`` names, for each
    gain, what its seeds drew: a share ``alike`` of the variance is that of the draws, each once.

    >>> both = [over_seeds([1.0]), over_seeds([2.0, 3.0])]
    >>> written(mean_gain(both, Pooled(0.5, 16)))
    '+1.75 ± 0.65 (2 pairs)'
    >>> written(mean_gain(both, Pooled(0.5, 16), [("a", "p"), ("bc", "pq")]))
    '+1.75 ± 0.75 (2 pairs)'
    >>> written(mean_gain(both, Pooled(0.5, 16, alike=1.0, draws=16), draws=["a", "ab"]))
    '+1.75 ± 0.84 (2 pairs)'
    """
    count, middle = len(gains), statistics.fmean(each.gain for each in gains)
    if pooled is None or _is_none(pooled, middle):
        return Gain(middle, None, None, count, "mean")
    alone = sum(1 / each.seeds for each in gains)
    squares = _squares(sides) if sides else alone
    degrees, of_draws = pooled.degrees, _squares_of_draws(draws)
    if pooled.alike and of_draws > alone * (1 + ROUNDING):
        squares, degrees = (1 - pooled.alike) * squares + pooled.alike * of_draws, pooled.draws
    half = student(degrees) * pooled.deviation * math.sqrt(squares) / count
    return Gain(middle, middle - half, middle + half, count, "mean")


def _squares_of_draws(draws: Sequence[Collection[Hashable]]) -> float:
    """Returns the sum of squared weights that draws have in the sum of gains; Σ 1 / n if none is in two gains."""
    weights = defaultdict[Hashable, float](float)
    for each in draws:
        for draw in each:
            weights[draw] += 1 / len(each)
    return math.fsum(weight**2 for weight in weights.values())


def _squares(sides: Sequence[Sides]) -> float:
    """Returns half the sum of squared weights that runs have in the sum of gains; Σ 1 / n if none is in two gains."""
    weights = defaultdict[Hashable, float](float)
    for both in sides:
        for runs, sign in zip(both, (1, -1), strict=True):
            for run in runs:
                weights[run] += sign / len(runs)
    return math.fsum(weight**2 for weight in weights.values()) / 2


def pool(cells: Iterable[Sequence[float]]) -> Pooled | None:
    """Pools the spread over seeds of cells that have two or more: s² = Σ (x - mean of its cell)² / Σ (n - 1).

    >>> pool([[1.0, 3.0], [5.0], [2.0, 4.0]]), pool([[1.0]])
    (Pooled(deviation=1.4142135623730951, degrees=2, alike=0.0, draws=0), None)
    """
    return pool_of_pairs((cell, n) for n, cell in enumerate(cells))


def pool_of_pairs(cells: Iterable[tuple[Sequence[float], Hashable]]) -> Pooled | None:
    """Pools the spread of differences, each with the name of its baseline; those from one baseline lend fewer degrees.

    If all runs vary alike, two differences from one baseline have a correlation of 1/2, so their sums of squares, of d
    and e degrees, have the covariance min(d, e) / 2 · s⁴. The degrees are those of the scaled χ² with the mean and the
    variance of the whole sum (Satterthwaite): (Σ d)² / (Σ d + Σ min(d, e) / 2), over all pairs d, e of one baseline,
    rounded. Cells with few seeds in common lend more than that.

    >>> several = [[1.0, 3.0, 2.0], [2.0, 4.0, 3.0], [4.0, 6.0, 5.0]]
    >>> [pool_of_pairs(zip(several, bases)).degrees for bases in ("pqr", "ppq", "ppp")]
    [6, 5, 4]
    """
    several = [(cell, base) for cell, base in cells if len(cell) > 1]
    if not several:
        return None
    squares = sum(statistics.variance(cell) * (len(cell) - 1) for cell, _ in several)
    total = sum(len(cell) - 1 for cell, _ in several)
    from_one = defaultdict[Hashable, list[int]](list)
    for cell, base in several:
        from_one[base].append(len(cell) - 1)
    alike = sum(min(both) / 2 for each in from_one.values() for both in itertools.combinations(each, 2))
    return Pooled(math.sqrt(squares / total), round(total**2 / (total + alike)))


def alike_by_draws(cells: Iterable[tuple[Sequence[float], Hashable]]) -> tuple[float, int]:
    """Returns the correlation of cells with the same draws, seed by seed, and the degrees of freedom that it rests on.

    It is the intraclass correlation of r cells with n seeds each, (B - W) / (B + (r - 1) W), by the mean squares B of
    the seeds' means and W of what differs from them, with n - 1 and (r - 1) (n - 1) degrees, pooled over all draws.

    >>> alike_by_draws([([1.0, 3.0, 2.0], "p"), ([5.0, 7.0, 6.0], "p"), ([1.0, 9.0, 0.0], "q")])
    (1.0, 2)
    >>> alike_by_draws([([1.0, 3.0], "p"), ([3.0, 1.0], "p")]), alike_by_draws([([1.0, 3.0], "p")])
    ((0.0, 1), (0.0, 0))
    """
    same = defaultdict[Hashable, list[list[float]]](list)
    for cell, draws in cells:
        if len(cell) > 1:
            middle = statistics.fmean(cell)
            same[draws, len(cell)].append([value - middle for value in cell])
    between, total, degrees, rows = 0.0, 0.0, 0, 0
    for centred in same.values():
        if (count := len(centred)) > 1:
            between += count * math.fsum(statistics.fmean(seed) ** 2 for seed in zip(*centred, strict=True))
            total += math.fsum(value**2 for cell in centred for value in cell)
            degrees, rows = degrees + len(centred[0]) - 1, rows + count * (len(centred[0]) - 1)
    if not total:
        return 0.0, degrees
    within = (total - between) / (rows - degrees)
    of_seeds, several = between / degrees, rows / degrees
    return max((of_seeds - within) / (of_seeds + (several - 1) * within), 0.0), degrees


@cache
def student(degrees: int) -> float:
    """Returns the quantile of Student's t that a two-sided interval of 95 % needs.

    >>> round(student(2), 3), round(student(16), 3)
    (4.303, 2.12)
    """
    low, high = 0.0, math.pi / 2  # the angle whose tangent is t / √degrees
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _within(middle, degrees) < LEVEL else (low, middle)
    return math.tan(high) * math.sqrt(degrees)


def _within(angle: float, degrees: int) -> float:
    """Returns the probability that t lies within ± √degrees · tan(angle) (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    odd, cosine = degrees % 2, math.cos(angle)
    steps = ((k - 1) / k * cosine**2 for k in range(2 + odd, degrees - 1, 2))
    terms = itertools.accumulate(steps, operator.mul, initial=cosine**odd)
    total = math.sin(angle) * math.fsum(itertools.islice(terms, degrees // 2))  # one degree has no terms
    return (angle + total) * 2 / math.pi if odd else total


def beyond(one: Gain, bar: float = 0.0, *, below: bool = False) -> State:
    """Says on which side of a bar the whole interval lies; ``below`` is the side that supports, if asked for.

    >>> one = over_seeds([1.0, 1.1, 0.9])
    >>> beyond(one), beyond(one, below=True), beyond(one, bar=1.05), beyond(over_seeds([1.0]))
    ('supported', 'contradicted', 'inconclusive', 'inconclusive')
    """
    if one.low is None or one.high is None or one.low <= bar <= one.high:
        return "inconclusive"
    return "supported" if (one.high < bar) == below else "contradicted"


def written(one: Gain, form: str = "+.2f") -> str:
    """Writes a gain with half the width of its interval, and what that is made of.

    >>> written(over_seeds([3.0, 4.0])), written(over_seeds([0.5])), written(over_seeds([0.5], Pooled(0.5, 16)))
    ('+3.50 ± 6.35 (2 seeds)', '+0.50 (1 seed)', '+0.50 ± 1.06 (1 seed, pooled)')
    >>> written(mean_gain([over_seeds([0.5])] * 20, Pooled(0.5, 16)))
    '+0.50 ± 0.24 (20 pairs)'
    """
    what = "pair" if one.how == "mean" else "seed"
    count = f"{one.seeds} {what}{'s' * (one.seeds != 1)}{', pooled' * (one.how == 'pooled')}"
    return f"{short(one, form)} ({count})"


def short(one: Gain, form: str = "+.2f") -> str:
    """Writes a gain with half the width of its interval alone.

    >>> short(over_seeds([3.0, 4.0])), short(over_seeds([3.0]))
    ('+3.50 ± 6.35', '+3.00')
    """
    half = "" if one.high is None else f" ± {one.high - one.gain:{form.removeprefix('+')}}"
    return f"{one.gain:{form}}{half}"
