"""Coordinate-wise median and trimmed mean: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018."""

from torch import Tensor

from fedatoms.aggregation.base import Point, Points, Rule
from fedatoms.core.options import check_range

LEAST = 3  # uploads of which one can be outvoted


def median() -> Rule:
    """Takes the median of each number over the clients, whatever their weights.

    >>> median().fewest
    3
    """
    return Rule(lambda points: [_middle(len(points.uploads), values) for values, _ in points.read()], LEAST)


def trimmed(trim: float = 0.2) -> Rule:
    """Leaves out the share ``trim`` of the largest and of the smallest values of each number, and averages the others.

    At least one of each is left out where three or more clients report: a share of few clients is less than one.

    >>> trimmed(0.1).fewest
    3
    """
    check_range("aggregation trim", trim, "trim")

    def combine(points: Points) -> Point:
        count = len(points.uploads)
        return without_ends(points, max(int(trim * count), 1) if count >= LEAST else 0)

    return Rule(combine, LEAST)


def without_ends(points: Points, cut: int) -> Point:
    """Averages each number without its ``cut`` largest and smallest values."""
    kept = slice(cut, len(points.uploads) - cut)
    return [values.sort(0).values[kept].mean(0) for values, _ in points.read()]


def _middle(count: int, values: Tensor) -> Tensor:
    ordered = values.sort(0).values
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
