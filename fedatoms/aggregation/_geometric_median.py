"""Geometric median by smoothed Weiszfeld steps: Pillutla et al., "Robust Aggregation for Federated Learning",
IEEE Transactions on Signal Processing 2022; at an upload by the step of Vardi & Zhang, PNAS 2000."""

import torch
from torch import Tensor

from fedatoms.aggregation.base import Point, Points, Rule, lengths, mixed, squared_distances
from fedatoms.core.options import check_range

STEPS = 32  # each reads all uploads twice
NEAR = 1e-6  # of the median distance: what keeps a step finite where the centre meets a point


def geometric_median(steps: int = STEPS) -> Rule:
    """Takes the point whose weighted sum of distances to all uploads is least.

    It begins at the median of each number or at an upload, whichever has the smaller sum, and each step averages the
    uploads by their weights over distances. It leaves an upload only if the others pull harder than the upload weighs:
    of numbers it is the weighted median.

    >>> geometric_median().fewest
    3
    """
    check_range("aggregation steps", steps, "steps")

    def combine(points: Points) -> Point:
        centre = _start(points)
        for _ in range(int(steps)):
            far = lengths(points, centre)
            if float(here := points.weights[far == 0].sum()) >= 0.5:  # all others together cannot pull it away
                break
            scale = far.median() or far[far > 0].min()  # not the largest distance, which is a liar's choice
            closeness = torch.where(far > 0, points.weights / far.clamp(min=NEAR * float(scale)), 0.0)
            others = mixed(points, closeness / closeness.sum())
            pull = closeness.sum() * _distance(others, centre)
            if pull <= here:
                break
            centre = [torch.lerp(a, b, float(1 - here / pull)) for a, b in zip(centre, others, strict=True)]
        return centre

    return Rule(combine, 3)


def _start(points: Points) -> Point:
    """Returns the median of each number, or the upload whose sum of distances is least, if it is smaller there."""
    centre = [values.median(0).values for values, _ in points.read()]
    sums = squared_distances(points, centre).sqrt() @ points.weights
    best = int(sums.argmin())
    if sums[best] > lengths(points, centre) @ points.weights:
        return centre
    return [values[best].clone() for values, _ in points.read()]  # else all of a block stays in memory


def _distance(a: Point, b: Point) -> Tensor:
    return torch.stack([(one - other).square().sum().cpu() for one, other in zip(a, b, strict=True)]).sum().sqrt()
