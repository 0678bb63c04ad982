"""Training in memory, from Python: your model and your data in, the trained model and its history out."""

import copy
from collections.abc import Callable, Collection
from typing import NamedTuple

import torch
from torch import nn

from fedatoms.core.trees import Params, misfit
from fedatoms.engine.evaluate import Progress, Score, rounds
from fedatoms.engine.round import begin
from fedatoms.engine.spec import Record, Scored, Simulation, State

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


def with_params(model: nn.Module, params: Params, names: Collection[str] | None = None) -> nn.Module:
    """Returns a copy of a model that holds other tensors: all of them, or those that ``names`` says, and no others.

    A tied tensor is named once. Buffers that a state dict leaves out stay the model's own.

    >>> from torch import zeros
    >>> with_params(nn.Linear(1, 1), {"weight": zeros(1, 1), "bias": zeros(1)}).bias.item()
    0.0
    >>> with_params(nn.Linear(1, 1), {"bias": zeros(1)})
    Traceback (most recent call last):
    ...
    ValueError: the tensors do not fit the model (missing: weight)
    >>> with_params(nn.Linear(1, 1), {"bias": zeros(1)}, names={"bias"}).bias.item()
    0.0
    """
    new = copy.deepcopy(model)
    saved, parameters, buffers = new.state_dict().keys(), dict(new.named_parameters()), dict(new.named_buffers())
    unsaved = buffers.keys() - saved
    held = {name: leaf for name, leaf in {**parameters, **buffers}.items() if name not in unsaved}
    given = {name: leaf for name, leaf in params.items() if name not in unsaved}
    if wrong := misfit(given, held if names is None else {name: held[name] for name in sorted(names)}):
        raise ValueError(f"the tensors do not fit the model ({wrong})")
    with torch.no_grad():
        for name, leaf in given.items():
            held[name].copy_(leaf)
    return new
