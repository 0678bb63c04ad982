"""Norm bound: Sun et al., "Can You Really Backdoor Federated Learning?", 2019; the bound follows the median, as in
Nguyen et al., "FLAME: Taming Backdoors in Federated Learning", USENIX Security 2022."""

import torch
from torch import Tensor

from fedatoms.aggregation.base import Point, Points, Rule, lengths, mixed
from fedatoms.core.options import check_range


def norm_bound(radius: float = 1.0) -> Rule:
    """Shortens each update to at most ``radius`` times the round's median length, and averages by weights.

    >>> norm_bound().fewest
    3
    """
    check_range("aggregation radius", radius, "radius")

    def combine(points: Points) -> Point:
        weights = points.weights * shortened(lengths(points), radius)
        return mixed(points, weights, rest=1 - float(weights.sum()))

    return Rule(combine, 3)


def shortened(far: Tensor, radius: float) -> Tensor:
    """Returns the factors that make some lengths at most ``radius`` times their median.

    >>> shortened(torch.tensor([1.0, 2.0, 8.0]), radius=2.0)
    tensor([1.0000, 1.0000, 0.5000])
    """
    bound = radius * float(far.quantile(0.5))
    return torch.where(far > bound, bound / far, 1.0)
