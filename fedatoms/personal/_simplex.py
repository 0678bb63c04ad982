"""Minimises a quadratic form over the probability simplex: nonnegative weights that sum to one."""

import torch
from torch import Tensor

_RIDGE = 1e-10  # of the mean of the diagonal: makes the minimiser unique, and moves the minimum by no more than that
_SLACK = 1e-12  # of the largest entry: a gradient below the value by less than this is rounding


def minimiser(form: Tensor) -> Tensor:
    """Returns the ``a`` with ``a >= 0`` and ``sum(a) = 1`` that minimises ``a^T form a``, in float64 on the host.

    ``form`` is positive semidefinite. This is Wolfe's method for the point of a polytope that is nearest to the origin
    ("Finding the nearest point in a polytope", Mathematical Programming 11, 1976), written in inner products: its
    active set grows by the steepest coordinate, shrinks by those that would turn negative, and never repeats.

    >>> minimiser(torch.tensor([[1.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]]))
    tensor([0.6000, 0.2000, 0.2000], dtype=torch.float64)
    """
    form = form.detach().double().cpu()
    size = len(form)
    if not torch.isfinite(form).all():
        raise ValueError("a quadratic form that is not finite has no minimum. Look for nan in the features of clients.")
    scale = form.diagonal().mean()
    if scale <= 0:  # semidefinite without a diagonal: the form is zero, and all weights are minimisers
        return torch.full((size,), 1 / size, dtype=torch.float64, device="cpu")
    form = form + _RIDGE * scale * torch.eye(size, dtype=torch.float64, device="cpu")
    weights = torch.zeros(size, dtype=torch.float64, device="cpu")
    weights[form.diagonal().argmin()] = 1.0
    for _ in range(100 * size):  # about n passes are usual; the bound guards against endless loops by rounding
        gradient = form @ weights  # half of it
        steepest = gradient.masked_fill(weights > 0, torch.inf).argmin()
        if weights.all() or gradient[steepest] >= weights @ gradient - _SLACK * form.max():
            break
        weights = _with(form, weights, int(steepest))
    return weights


def _with(form: Tensor, weights: Tensor, new: int) -> Tensor:
    """Adds a coordinate to the active set, and returns the best weights on it."""
    free = weights > 0
    free[new] = True
    while True:
        goal = torch.zeros_like(weights)
        goal[free] = torch.linalg.solve(form[free][:, free], torch.ones_like(weights[free]))
        goal = goal / goal.sum()
        negative = free & (goal <= 0)
        if not negative.any():
            return goal
        steps = torch.where(negative, weights / (weights - goal), torch.inf)
        first = steps.argmin()  # the first weight to reach zero on the way to the goal
        weights = (weights + steps[first] * (goal - weights)).clamp(min=0) * free
        free[first] = False
        weights[first] = 0.0
