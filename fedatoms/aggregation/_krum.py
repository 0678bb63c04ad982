"""Krum and multi-Krum: Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
NeurIPS 2017."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedatoms.aggregation.base import Point, Points, Rule, mixed, squared_distances
from fedatoms.core.options import check_range


def krum(liars: int = 1) -> Rule:
    """Takes the one upload whose n - liars - 2 nearest others are nearest, by the sum of squared distances.

    >>> krum(1).fewest
    5
    """
    return _nearest(liars, lambda count: 1)


def multi_krum(liars: int = 1) -> Rule:
    """Averages the n - liars uploads of the best such scores, by their weights.

    >>> multi_krum(2).fewest
    7
    """
    return _nearest(liars, lambda count: max(count - int(liars), 1))


def scores(squared: Tensor, liars: int) -> Tensor:
    """Returns each client's sum of squared distances to its n - liars - 2 nearest others, at least one.

    >>> scores(torch.tensor([[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]]), liars=0)
    tensor([1., 1., 4.])
    """
    nearest = max(len(squared) - liars - 2, 1)
    return squared.sort(1).values[:, 1 : nearest + 1].sum(1)


def _nearest(liars: float, taken: Callable[[int], int]) -> Rule:
    check_range("aggregation liars", liars, "liars")

    def combine(points: Points) -> Point:
        chosen = scores(squared_distances(points), int(liars)).argsort(stable=True)[: taken(len(points.uploads))]
        weights = torch.zeros_like(points.weights)
        weights[chosen] = points.weights[chosen]
        return mixed(points, weights / weights.sum())

    return Rule(combine, 2 * int(liars) + 3, int(liars))
