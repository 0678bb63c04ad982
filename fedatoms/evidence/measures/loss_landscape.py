"""The loss landscape around two trainings that begin at one point, in the plane of their trajectories.

Li, Xu, Taylor, Studer, Goldstein, "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018: the rows w_t - w_T of
both trajectories, in the space of reconstructed filters, biases and linear layers; their first two principal directions
span the plane. w_T is the midpoint of the two ends, so that neither training is the plane's centre.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils import parameters_to_vector

from fedatoms.core.randomness import generator
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.evidence.measures.base import Experiments, Watch, counting
from fedatoms.evidence.measures.files import Values
from fedatoms.evidence.measures.networks import loss, prepared, reconstructed, scored_on_training, states
from fedatoms.nn.atoms import fuse

MARGIN = 0.25  # of the trajectories' extent, around them


@dataclass(frozen=True)
class Grid:
    """Rounds of the trajectories, grid points on each side, and the most training images for a loss."""

    rounds: int = 25
    points: int = 31
    images: int = 10_000

    def __post_init__(self) -> None:
        if min(self.rounds, self.images) < 1 or self.points < 2:
            raise ValueError(f"{self}: points must be 2 or more, rounds and images 1 or more. Use for example Grid().")


class Plane(NamedTuple):
    """A plane in parameter space, and the share of its points' squared lengths along each direction."""

    centre: Tensor
    directions: Tensor  # (2, P), orthonormal
    shares: tuple[float, float]

    def flat(self, points: Tensor) -> Tensor:
        """Projects points (n, P) to coordinates (n, 2)."""
        return (points - self.centre) @ self.directions.T

    def raised(self, coordinates: Tensor) -> Tensor:
        """Returns the points (n, P) of coordinates (n, 2)."""
        return self.centre + coordinates @ self.directions


def landscape(experiments: Experiments, settings: Grid, watch: Watch) -> Values:
    """Measures the training loss around the first rounds of a plain and a decomposed run, and along both."""
    tick = counting(watch, 2 * (settings.rounds + 1) + settings.points**2)
    plain, atoms = from_one_point(experiments)
    paths = [trajectory(run, settings.rounds, lambda: tick("rounds")) for run in (plain, atoms)]
    scored = scored_on_training(plain, some_rows(plain, settings.images))
    plane, judge = plane_of(paths[0], paths[1]), loss_at(scored)
    flat = [plane.flat(path) for path in paths]
    x, y = (_ticks(torch.cat(flat)[:, axis], settings.points) for axis in (0, 1))
    grid: list[list[float | None]] = []
    for height in y:
        grid.append([])
        for point in plane.raised(torch.stack([x, height.expand_as(x)], 1)):
            grid[-1].append(judge(point))
            tick("points of the grid")
    return {
        "x": x.tolist(),
        "y": y.tolist(),
        "loss": grid,
        "images": len(scored.data.test_y),
        "shares": list(plane.shares),
        "paths": [
            {"x": each[:, 0].tolist(), "y": each[:, 1].tolist(), "loss": [judge(point) for point in path]}
            for each, path in zip(flat, paths, strict=True)
        ],
    }


def from_one_point(experiments: Experiments) -> tuple[Runtime, Runtime]:
    """Builds a plain and a decomposed run from one start: the plain network is the reconstructed decomposed one."""
    kinds = [one.parametrisation == "plain" for one in experiments]
    if kinds != [True, False] or len({(one.dataset, one.model) for one in experiments}) != 1:
        raise ValueError(
            "a landscape has two experiments: a plain one, then the same network on the same data, decomposed. Use "
            '(preset("fedavg"), preset("fedavg-atoms")).'
        )
    plain, atoms = map(prepared, experiments)
    return prepare(replace(plain.sim, model=fuse(atoms.sim.model)), like=plain), atoms


def trajectory(runtime: Runtime, rounds: int, tick: Callable[[], None]) -> Tensor:
    """Returns the reconstructed parameters before the first and after each round, (rounds + 1, P) in float64."""
    path = []
    for state in states(runtime, rounds):
        plain = reconstructed(runtime.sim.model, state.server.params)
        path.append(parameters_to_vector(plain.parameters()).detach().double())
        tick()
    return torch.stack(path).to(runtime.sim.device)


def plane_of(first: Tensor, second: Tensor) -> Plane:
    """Fits the plane to two trajectories (n, P); both start at negative coordinates.

    >>> plane = plane_of(torch.tensor([[0.0, 0, 0], [4, 1, 0]]), torch.tensor([[0.0, 0, 0], [4, -1, 0]]))
    >>> plane.flat(torch.tensor([[0.0, 0, 0], [4, 1, 0]])).abs()
    tensor([[4., 0.],
            [0., 1.]])
    """
    centre = (first[-1] + second[-1]) / 2
    rows = torch.cat([first, second]) - centre
    squares, vectors = torch.linalg.eigh(rows @ rows.T)  # in rising order; far smaller than the rows
    directions = normalize(vectors[:, -2:].T.flip(0) @ rows, dim=1)
    start = directions @ rows[0]
    directions = torch.where(start[:, None] > 0, -directions, directions)
    one, two = (squares[-2:].flip(0) / squares.sum()).clamp(0, 1).tolist()
    return Plane(centre, directions, (one, two))


def some_rows(runtime: Runtime, images: int) -> Tensor:
    """Draws at most ``images`` of all clients' training images."""
    rows = torch.cat(runtime.data.parts)
    return rows[torch.randperm(len(rows), generator=generator(runtime.sim.seed, "landscape"))[:images]]


def loss_at(scored: Runtime) -> Callable[[Tensor], float | None]:
    """Returns the loss of a plain network as a function of its parameters, a vector; None where it is not finite.

    Buffers, such as BatchNorm's statistics, keep their initial values.
    """
    net = scored.network
    shapes = {name: leaf.shape for name, leaf in scored.sim.model.named_parameters()}
    held = {**net.parameters, **net.statistics, **net.constants}

    def judge(point: Tensor) -> float | None:
        leaves = point.to(net.dtype).split([math.prod(shape) for shape in shapes.values()])
        named = zip(shapes.items(), leaves, strict=True)
        found = loss(scored, {**held, **{name: leaf.reshape(shape).clone() for (name, shape), leaf in named}})
        return found if math.isfinite(found) else None

    return judge


def _ticks(coordinates: Tensor, points: int) -> Tensor:
    low, high = float(coordinates.min()), float(coordinates.max())
    margin = MARGIN * (high - low) or 1.0
    return torch.linspace(low - margin, high + margin, points, dtype=coordinates.dtype, device=coordinates.device)
