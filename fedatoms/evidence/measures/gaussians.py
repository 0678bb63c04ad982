"""Two weights and two Gaussians: averages of 5 and of 25 models, and of latent clients.

x ~ N(y (2, 2), I) for labels y = 1 and -1, the model w . x without a bias, the mean squared error; its minimum is
w* = (2/9, 2/9). Every client has its own samples and takes a few steps of gradient descent on all of them, and the
models are averaged. The 25 models are independent, as in the paper: they show the effect of more clients.

Beyond the paper: 5 models whose weights are one filter of two entries with one atom, w = a d, with the coefficient a
and the atom d (2,) averaged separately. Their 25 products are the paper's latent clients. ``products`` is the mean of
the 5 own products of the same clients in the same round, so its variance is that without latent clients.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedatoms.core.randomness import generator
from fedatoms.evidence.measures.base import Experiments, Watch, counting
from fedatoms.evidence.measures.files import Values

MEAN = torch.tensor([2.0, 2.0], dtype=torch.float64)
OPTIMUM = MEAN / (1 + MEAN @ MEAN)  # of the loss over all x: (I + m m^T) w = m


@dataclass(frozen=True)
class Gaussians:
    """The numbers of models, their samples and training, and the repeats."""

    models: tuple[int, ...] = (5, 25)
    latent: int = 5  # models with a coefficient and an atom each
    samples: int = 10
    steps: int = 5
    lr: float = 0.02
    start: tuple[float, float] = (-0.5, 0.5)
    rounds: int = 30
    repeats: int = 200
    shown: int = 6  # repeats whose trajectories are kept
    seed: int = 0


class Clients(NamedTuple):
    """The samples of all clients in all repeats."""

    x: Tensor  # (R, C, n, 2)
    y: Tensor  # (R, C, n)


def synthetic(experiments: Experiments, settings: Gaussians, watch: Watch) -> Values:
    """Measures the averaged model: its path, its variance over repeats, its distance from the optimum."""
    tick = counting(watch, len(settings.models) + 1)
    lines = []
    for models in settings.models:
        lines.append(_line(f"{models} models", models, independent(clients(settings, models), settings), settings))
        tick("models")
    together, apart = latent(clients(settings, settings.latent), settings)
    name = f"{settings.latent} models with latent clients"
    lines.append(_line(name, settings.latent, together, settings) | {"products": variances(apart)})
    tick("models")
    return {"optimum": OPTIMUM.tolist(), "lines": lines, "landscape": _landscape(settings)}


def clients(settings: Gaussians, models: int) -> Clients:
    """Draws the samples of ``models`` clients in each repeat.

    >>> clients(Gaussians(repeats=3, samples=10), models=5).x.shape
    torch.Size([3, 5, 10, 2])
    """
    draws = generator(settings.seed, "synthetic", models)
    shape = settings.repeats, models, settings.samples
    y = torch.randint(2, shape, generator=draws).double() * 2 - 1
    return Clients(y[..., None] * MEAN + torch.randn(*shape, 2, generator=draws, dtype=torch.float64), y)


def independent(data: Clients, settings: Gaussians) -> Tensor:
    """Trains plain weights; returns the averaged models at the start and after each round, (R, T + 1, 2).

    >>> settings = Gaussians(repeats=3, rounds=4)
    >>> independent(clients(settings, models=5), settings).shape
    torch.Size([3, 5, 2])
    """
    w = torch.tensor(settings.start, dtype=torch.float64).expand(len(data.x), 1, 2)
    path = [w]
    for _ in range(settings.rounds):
        local = w.expand(*data.x.shape[:2], 2)
        for _ in range(settings.steps):
            local = local - settings.lr * gradient(local, data)
        w = local.mean(1, keepdim=True)
        path.append(w)
    return torch.cat(path, 1)


def latent(data: Clients, settings: Gaussians) -> tuple[Tensor, Tensor]:
    """Trains w = a d from a = 1; returns mean(a) mean(d), which the next round starts from, and mean(a d).

    >>> settings = Gaussians(repeats=3, rounds=4)
    >>> together, apart = latent(clients(settings, models=1), settings)
    >>> torch.equal(together, apart)  # one client has no latent ones
    True
    """
    d = torch.tensor(settings.start, dtype=torch.float64).expand(len(data.x), 1, 2)
    a = torch.ones_like(d[..., :1])
    together, apart = [a * d], [a * d]
    for _ in range(settings.rounds):
        a, d = (each.expand(*data.x.shape[:2], -1) for each in (a, d))
        for _ in range(settings.steps):
            g = gradient(a * d, data)
            a, d = a - settings.lr * (g * d).sum(-1, keepdim=True), d - settings.lr * g * a
        apart.append((a * d).mean(1, keepdim=True))
        a, d = (each.mean(1, keepdim=True) for each in (a, d))
        together.append(a * d)
    return torch.cat(together, 1), torch.cat(apart, 1)


def gradient(w: Tensor, data: Clients) -> Tensor:
    """Returns the gradient of each client's mean squared error.

    >>> one = Clients(torch.tensor([[1.0, 0.0]]), torch.tensor([1.0]))
    >>> gradient(torch.zeros(2), one)
    tensor([-2.,  0.])
    """
    error = (data.x @ w[..., None])[..., 0] - data.y
    return 2 * (error[..., None] * data.x).mean(-2)


def variances(paths: Tensor) -> list[float]:
    """Returns the variance over repeats after each round.

    >>> variances(torch.tensor([[[0.0, 0.0]], [[2.0, 0.0]]]))  # two repeats, one point each
    [1.0]
    """
    found: list[float] = (paths - paths.mean(0)).square().sum(-1).mean(0).tolist()
    return found


def population_loss(w: Tensor) -> Tensor:
    """Returns the loss over all x, |w|^2 + (w . m)^2 - 2 w . m + 1.

    >>> bool(population_loss(OPTIMUM) < population_loss(OPTIMUM + 0.01))
    True
    """
    along = w @ MEAN
    return w.square().sum(-1) + along.square() - 2 * along + 1


def _line(name: str, models: int, paths: Tensor, settings: Gaussians) -> Values:
    return {
        "name": name,
        "models": models,
        "variance": variances(paths),
        "distance": (paths - OPTIMUM).norm(dim=-1).mean(0).tolist(),
        "paths": paths[: settings.shown].tolist(),
    }


def _landscape(settings: Gaussians, points: int = 41) -> Values:
    """Returns the loss over all x on a square around the start and the optimum."""
    start = torch.tensor(settings.start, dtype=torch.float64)
    half = 0.75 * float((start - OPTIMUM).abs().max())
    x, y = (
        torch.linspace(float(middle) - half, float(middle) + half, points, dtype=torch.float64)
        for middle in (start + OPTIMUM) / 2
    )
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
    return {"x": x.tolist(), "y": y.tolist(), "loss": population_loss(grid).tolist()}
