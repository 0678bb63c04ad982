"""Numbers: the mean squared error, scored by its root, the mean absolute error and R squared."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatoms.core.lookup import shown
from fedatoms.objectives.base import Metric, Objective, Targets, as_shape_of, over_rest

NUMBERS = Targets("any", example="y of shape (n,) or (n, k), as numbers")


def regression(unit: str = "") -> Objective:
    """Squared error of outputs in the shape of the targets, or (n, 1) for (n,); ``unit`` is that of the targets.

    >>> metric = regression("mm").metrics[0]
    >>> metric.name, metric.unit, metric.higher
    ('rmse', 'mm', False)
    >>> regression().loss(torch.zeros(2, 1), torch.tensor([1.0, 2.0]))
    tensor([1., 4.])
    """
    if not isinstance(unit, str):
        raise ValueError(f"unit={shown(unit)} is not a text. Use for example unit='mm'.")
    rmse = Metric("rmse", squared, torch.sqrt, unit, higher=False, low=0.0)
    mae = Metric("mae", absolute, None, unit, higher=False, low=0.0)
    return Objective(squared, (rmse, mae, Metric("r2", moments, explained, high=1.0)), NUMBERS, check=fits, least=0.0)


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """Returns the squared error of each sample.

    >>> squared(torch.zeros(1, 2), torch.tensor([[1, 3]]))
    tensor([5.])
    """
    return over_rest(F.mse_loss(as_shape_of(outputs, y), y.to(outputs.dtype), reduction="none"))


def absolute(outputs: Tensor, y: Tensor) -> Tensor:
    """Returns the absolute error of each sample.

    >>> absolute(torch.zeros(1, 2), torch.tensor([[1, 3]]))
    tensor([2.])
    """
    return over_rest(F.l1_loss(as_shape_of(outputs, y), y.to(outputs.dtype), reduction="none"))


def moments(outputs: Tensor, y: Tensor) -> Tensor:
    """Returns squared error, each target and the squared target of each sample, in float64: means make R squared.

    >>> moments(torch.zeros(1, 2), torch.tensor([[1, 3]]))
    tensor([[5., 1., 3., 5.]], dtype=torch.float64)
    """
    outputs, y = outputs.double(), y.double()
    return torch.cat([squared(outputs, y)[:, None], y.reshape(len(y), -1), over_rest(y**2)[:, None]], 1)


def explained(means: Tensor) -> Tensor:
    """Returns R squared, 1 - mean squared error / variance; targets that are all equal leave nothing to explain.

    Several targets vary around a mean of their own each: 1 - Σ (y - output)² / Σ (y - mean of its column)².

    >>> explained(torch.tensor([0.25, 0.0, 1.0])), explained(torch.tensor([0.25, 1.0, 1.0]))
    (tensor(0.7500), tensor(0.))
    """
    error, square = means[..., 0], means[..., -1]
    variance = square - means[..., 1:-1].square().mean(-1)
    return torch.where(variance > 0, 1 - error / variance, torch.zeros_like(error))


def fits(outputs: Tensor, y: Tensor, classes: int) -> str:
    """Says what is wrong with the outputs of a few samples.

    >>> fits(torch.zeros(2, 3), torch.zeros(2), classes=0)
    'the model returns (2, 3) for targets of shape (2,). Let it return (2,), or (2, 1).'
    """
    column = (*y.shape, 1) if y.dim() == 1 else tuple(y.shape)
    if tuple(outputs.shape) in (tuple(y.shape), column):
        return ""
    instead = f", or {column}" if y.dim() == 1 else ""
    shapes = f"the model returns {tuple(outputs.shape)} for targets of shape {tuple(y.shape)}"
    return f"{shapes}. Let it return {tuple(y.shape)}{instead}."
