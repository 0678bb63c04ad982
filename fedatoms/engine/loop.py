"""Training in memory, from Python: your model and your data in, the trained model and its history out."""

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from fedatoms.core.options import Scored
from fedatoms.engine.evaluate import Progress, Score, rounds
from fedatoms.engine.round import begin
from fedatoms.engine.spec import Record, Simulation, State
from fedatoms.nn.pure import with_params

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
