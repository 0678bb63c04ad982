"""The least of a quadratic form over the weights of a mean: nonnegative numbers that sum to one."""

import torch
from torch import Tensor

_RIDGE = 1e-10  # of the mean of the diagonal: makes the answer unique, and moves the least value by no more than that
_SLACK = 1e-12  # of the largest entry: how far below the value a slope counts as rounding


def lightest(form: Tensor) -> Tensor:
    """Returns the ``a`` with ``a >= 0`` and ``sum(a) = 1`` that makes ``a^T form a`` least, in float64 on the host.

    ``form`` is positive semidefinite. This is Wolfe's method for the point of a polytope that is nearest to the origin
    ("Finding the nearest point in a polytope", Mathematical Programming 11, 1976), written in inner products: a set of
    positive weights grows by the steepest one, shrinks by those that would turn negative, and never comes back.

    >>> lightest(torch.tensor([[1.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]]))
    tensor([0.6000, 0.2000, 0.2000], dtype=torch.float64)
    """
    form = form.detach().double().cpu()
    size = len(form)
    if not torch.isfinite(form).all():
        raise ValueError("a quadratic form that is not finite has no least value. Look for nan in what it is made of.")
    scale = form.diagonal().mean()
    if scale <= 0:  # semidefinite without a diagonal: the form is zero, and all weights are as good
        return torch.full((size,), 1 / size, dtype=torch.float64)
    form = form + _RIDGE * scale * torch.eye(size, dtype=torch.float64)
    weights = torch.zeros(size, dtype=torch.float64)
    weights[form.diagonal().argmin()] = 1.0
    for _ in range(
        100 * size
    ):  # each pass lowers the value; some n are the rule, and rounding must not make it endless
        slopes = form @ weights
        steepest = slopes.masked_fill(weights > 0, torch.inf).argmin()
        if weights.all() or slopes[steepest] >= weights @ slopes - _SLACK * form.max():
            break
        weights = _with(form, weights, int(steepest))
    return weights


def _with(form: Tensor, weights: Tensor, new: int) -> Tensor:
    """Lets one more weight be positive, and returns the best weights that then are."""
    free = weights > 0
    free[new] = True
    while True:
        goal = torch.zeros_like(weights)
        goal[free] = torch.linalg.solve(form[free][:, free], torch.ones(int(free.sum()), dtype=torch.float64))
        goal = goal / goal.sum()
        negative = free & (goal <= 0)
        if not negative.any():
            return goal
        steps = torch.where(negative, weights / (weights - goal), torch.inf)
        first = steps.argmin()  # the weight that reaches zero first on the way to the goal
        weights = (weights + steps[first] * (goal - weights)).clamp(min=0) * free
        free[first] = False
        weights[first] = 0.0
