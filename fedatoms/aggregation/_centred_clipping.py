"""Centred clipping: Karimireddy et al., "Learning from History for Byzantine Robust Optimization", ICML 2021."""

from fedatoms.aggregation._norm_bound import shortened
from fedatoms.aggregation.base import Point, Points, Rule, lengths, mixed
from fedatoms.core.options import check_range

STEPS = 3


def centred_clipping(radius: float = 1.0) -> Rule:
    """Moves a centre by the mean of clipped differences, ``v += mean of (x_k - v) min(1, r / |x_k - v|)``, three times.

    The centre begins at the model that the clients were sent, the last round's aggregate; ``r`` is ``radius`` times the
    median distance from it.

    >>> centred_clipping().fewest
    3
    """
    check_range("aggregation radius", radius, "radius")

    def combine(points: Points) -> Point:
        centre = [origin for _, origin in points.read()]
        for _ in range(STEPS):
            weights = points.weights * shortened(lengths(points, centre), radius)
            rest = 1 - float(weights.sum())
            centre = [move + rest * old for move, old in zip(mixed(points, weights), centre, strict=True)]
        return centre

    return Rule(combine, 3)
