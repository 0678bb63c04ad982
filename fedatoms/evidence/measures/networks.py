"""What the measures do with a network: train it round by round, rebuild its filters, score it on training images."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedatoms.core.trees import Params
from fedatoms.engine.evaluate import score
from fedatoms.engine.round import advance, begin
from fedatoms.engine.spec import Simulation, State
from fedatoms.experiment.build import configure, simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.nn.atoms import fuse
from fedatoms.nn.layers import Conv
from fedatoms.nn.pure import with_params


def prepared(experiment: Experiment) -> Simulation:
    """Builds an experiment's simulation; no model but the server's is scored, and nothing goes to a disk."""
    configure(experiment)
    place = "host" if experiment.client_state == "disk" else experiment.client_state
    return simulation(replace(experiment, score="server", client_state=place))


def states(sim: Simulation, rounds: int) -> Iterator[State]:
    """Yields the state before the first round and after each of ``rounds``."""
    state = begin(sim)
    yield state
    for _ in range(rounds):
        state, _record = advance(sim, state)
        yield state


def reconstructed(model: nn.Module, params: Params) -> nn.Module:
    """Returns a model with other parameters as plain layers, on the CPU: filters in the place of their factors."""
    return fuse(with_params(model, params))


def filters(model: nn.Module, params: Params) -> Tensor:
    """Returns all filters of a model's convolutions, reconstructed where they have factors, as one float64 vector.

    >>> from fedatoms.nn.atoms import decompose
    >>> net = decompose(nn.Sequential(nn.Conv2d(1, 2, 3)))
    >>> filters(net, dict(net.named_parameters())).shape
    torch.Size([18])
    """
    layers = [layer for layer in reconstructed(model, params).modules() if isinstance(layer, Conv)]
    if not layers:
        raise ValueError("the network has no convolution, so there are no filters to look at. Use another --model.")
    return torch.cat([layer.weight.detach().double().flatten() for layer in layers])


def scored_on_training(sim: Simulation, rows: Tensor | None = None) -> Simulation:
    """Returns a simulation whose test set is all clients' training images, as they are, or some ``rows`` of the pool.

    An image that two clients hold counts twice, as in the federated objective.
    """
    pool = sim.pool
    rows = (torch.cat(sim.data.parts) if rows is None else rows).to(pool.x.device)
    return replace(sim, data=pool._replace(test_x=pool.x[rows], test_y=pool.y[rows], test_parts=[]))


def loss(sim: Simulation, params: Params) -> float:
    """Returns the mean loss of a model on the simulation's test set."""
    return score(sim, params).loss
