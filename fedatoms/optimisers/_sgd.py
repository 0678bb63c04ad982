"""SGD with momentum, as torch's: Sutskever et al., "On the Importance of Initialization and Momentum", ICML 2013."""

from functools import partial

import torch
from torch import Tensor

from fedatoms.core import trees
from fedatoms.core.options import check_range
from fedatoms.core.trees import Memory, Params
from fedatoms.optimisers.base import Optimiser


def sgd(momentum: float = 0.0) -> Optimiser:
    """Moves along ``v = momentum * v + g``, which without momentum is the gradient.

    >>> sgd().init is None, sgd(momentum=0.9).init({"w": torch.ones(1)})
    (True, {'velocity': {'w': tensor([0.])}})
    """
    check_range("momentum", momentum)
    plain = Optimiser(displacement=partial(displacement, momentum=momentum))
    return plain._replace(init=_at_rest, update=partial(_accelerate, momentum=momentum)) if momentum else plain


def displacement(steps: Tensor, rate: float | Tensor, momentum: float) -> Tensor:
    """Returns how far K unit gradients move a parameter: ``rate`` times the sum over j <= K of (1 - b^j) / (1 - b).

    >>> displacement(torch.tensor(2.0), rate=0.1, momentum=0.5)  # 0.1 * (1 + 1.5)
    tensor(0.2500)
    """
    b = momentum
    return rate * (steps - b * (1 - b**steps) / (1 - b)) / (1 - b)


def _at_rest(weights: Params) -> Memory:
    return {"velocity": trees.zeros_like(weights)}


def _accelerate(gradient: Params, state: Memory, weights: Params, *, momentum: float) -> tuple[Params, Memory]:
    velocity = trees.apply(lambda g, v: torch.add(g, v, alpha=momentum), gradient, state["velocity"])
    return velocity, {"velocity": velocity}
