"""Geometric median by smoothed Weiszfeld steps: Pillutla et al., "Robust Aggregation for Federated Learning",
IEEE Transactions on Signal Processing 2022."""

from fedatoms.aggregation.base import Point, Points, Rule, lengths, mixed
from fedatoms.core.options import check_range

STEPS = 32  # each reads all uploads once
NEAR = 1e-6  # of the largest weight: what keeps a step finite where the centre meets a point


def geometric_median(steps: int = STEPS) -> Rule:
    """Takes the point whose weighted sum of distances to all uploads is least.

    It begins at the median of each number, and each step averages the uploads by their weights over distances. Where
    equal uploads have half of the weight, it is theirs.

    >>> geometric_median().fewest
    3
    """
    check_range("aggregation steps", steps, "steps")

    def combine(points: Points) -> Point:
        centre = [values.median(0).values for values, _ in points.read()]
        for _ in range(int(steps)):
            far = lengths(points, centre)
            if float(points.weights[far == 0].sum()) >= 0.5:  # all others together cannot pull it away
                break
            scale = far.median() or far[far > 0].min()  # not the largest distance, which is a liar's choice
            closeness = points.weights / far.clamp(min=NEAR * float(scale))
            centre = mixed(points, closeness / closeness.sum())
        return centre

    return Rule(combine, 3)
