"""Training in memory, from Python: your model and your data in, the trained model and its history out."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from fedatoms.scoring import Progress, Score, rounds
from fedatoms.simulate import begin
from fedatoms.simulation import Record, Scored, Simulation, State
from fedatoms.trees import Params

Watch = Callable[[Progress], None]


class Trained(NamedTuple):
    """A trained model (the server's), its scores, what happened in each round, and the last state."""

    model: nn.Module
    scores: dict[Scored, Score]
    history: list[tuple[Record, dict[Scored, Score]]]
    state: State


def train(sim: Simulation, until: int, *, eval_every: int = 1, watch: Watch | None = None) -> Trained:
    """Trains a simulation's model for ``until`` rounds.

    >>> import torch
    >>> from fedatoms.data.federation import federation
    >>> x, y = torch.randn(8, 1, 4, 4), torch.arange(8) % 2
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    >>> done = train(Simulation(net, federation([(x[:4], y[:4]), (x[4:], y[4:])], test=(x, y))), 3)
    >>> len(done.history), sorted(done.scores)
    (3, ['selected', 'server'])
    """
    if until < 1 or eval_every < 1:
        raise ValueError(
            f"{until} rounds scored every {eval_every}: both must be at least 1. Use for example 20 and 1."
        )
    history = []
    for progress in rounds(sim, begin(sim), until, eval_every):
        history.append((progress.record, progress.scores))
        if watch is not None:
            watch(progress)
    return Trained(with_params(sim.model, progress.state.server.params), progress.scores, history, progress.state)


def with_params(model: nn.Module, params: Params) -> nn.Module:
    """Returns a copy of a model that holds other tensors; a tied one is named once.

    >>> from torch import zeros
    >>> with_params(nn.Linear(1, 1), {"weight": zeros(1, 1), "bias": zeros(1)}).bias.item()
    0.0
    """
    new = copy.deepcopy(model)
    held = dict(new.state_dict(keep_vars=True))
    with torch.no_grad():
        for name in held.keys() & params.keys():
            held[name].copy_(params[name])
    return new
