"""Nearest-neighbour mixing: Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
AISTATS 2023."""

import torch

from fedatoms.aggregation._coordinates import without_ends
from fedatoms.aggregation.base import Point, Points, Rule, squared_distances
from fedatoms.core.options import check_range


def nearest_mixing(liars: int = 1) -> Rule:
    """Replaces each upload by the mean of its n - liars nearest, itself included; then takes a trimmed mean of these.

    >>> nearest_mixing(1).fewest
    3
    """
    check_range("aggregation liars", liars, "liars")

    def combine(points: Points) -> Point:
        squared, count = squared_distances(points), len(points.uploads)
        near = squared.argsort(dim=1, stable=True)[:, : max(count - int(liars), 1)]
        mixing = torch.zeros_like(squared).scatter_(1, near, points.weights[near])
        mixed = points._replace(mixing=mixing / mixing.sum(1, keepdim=True))
        return without_ends(mixed, min(int(liars), (count - 1) // 2))

    return Rule(combine, 2 * int(liars) + 1, int(liars))
