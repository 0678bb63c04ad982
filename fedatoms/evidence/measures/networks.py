"""Networks in measures: trained round by round, with reconstructed filters, scored on training images."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedatoms.core.trees import Params
from fedatoms.data.federations import samples_of
from fedatoms.engine.evaluation import score
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.state import State
from fedatoms.experiment.build import configure, simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.nn.atoms import fuse
from fedatoms.nn.layers import Conv, Factored
from fedatoms.nn.pure import with_params


def prepared(experiment: Experiment) -> Runtime:
    """Builds an experiment's simulation; only the server's model is scored, and nothing is written to disk."""
    configure(experiment)
    place = "host" if experiment.client_state == "disk" else experiment.client_state
    return prepare(simulation(replace(experiment, score="server", client_state=place)))


def states(runtime: Runtime, rounds: int) -> Iterator[State]:
    """Yields the state before the first and after each of ``rounds``."""
    state = begin(runtime)
    yield state
    for _ in range(rounds):
        state, _record = advance(runtime, state)
        yield state


def reconstructed(model: nn.Module, params: Params) -> nn.Module:
    """Returns a model with other parameters as a plain network on the CPU: filters replace their factors."""
    return fuse(with_params(model, params))


def filters(model: nn.Module, params: Params) -> Tensor:
    """Returns all filters of a model, reconstructed where they have factors, as one float64 vector.

    >>> from fedatoms.nn.atoms import decompose
    >>> net = decompose(nn.Sequential(nn.Conv2d(1, 2, 3)))
    >>> filters(net, dict(net.named_parameters())).shape
    torch.Size([18])
    """
    layers = [layer for layer in reconstructed(model, params).modules() if isinstance(layer, Conv)]
    if not layers:
        raise ValueError("the network has no convolution, so it has no filters to compare. Use another --model.")
    return torch.cat([layer.weight.detach().double().flatten() for layer in layers])


def factors(model: nn.Module, params: Params) -> Tensor | None:
    """Returns the same layers as they are, factors for filters, as one float64 vector; None if no layer has factors.

    >>> from fedatoms.nn.atoms import decompose
    >>> net = decompose(nn.Sequential(nn.Conv2d(1, 2, 3)), atoms=4)  # 4 atoms of 9 numbers, 2 x 4 coefficients
    >>> factors(net, dict(net.named_parameters())).shape
    torch.Size([44])
    """
    layers = [layer for layer in with_params(model, params).modules() if isinstance(_plain(layer), Conv)]
    if not any(isinstance(layer, Factored) for layer in layers):
        return None
    return torch.cat([leaf.detach().double().flatten() for layer in layers for leaf in _leaves(layer)])


def scored_on_training(runtime: Runtime, rows: Tensor | None = None) -> Runtime:
    """Returns a simulation whose test set is all clients' training images, or some ``rows`` of the pool.

    An image that two clients hold counts twice, as in the federated objective.
    """
    pool = runtime.data
    rows = (torch.cat(pool.parts) if rows is None else rows).to(pool.y.device)
    x, y = samples_of(pool, rows)
    data = pool._replace(test_x=x, test_y=y, test_parts=[])
    return prepare(replace(runtime.sim, data=data), like=runtime)


def loss(runtime: Runtime, params: Params) -> float:
    """Returns the mean loss of a model on the simulation's test set."""
    return score(runtime, params).loss


def _plain(layer: nn.Module) -> nn.Module:
    return layer.fused(nn.Parameter(layer.filter().detach())) if isinstance(layer, Factored) else layer


def _leaves(layer: nn.Module) -> tuple[Tensor, ...]:
    return layer.factors() if isinstance(layer, Factored) else (layer.get_parameter("weight"),)
