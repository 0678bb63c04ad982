"""Scores on the test set: of the server's model, the mean of the selected clients', the mean of all clients' last."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatoms.data.batches import normalise
from fedatoms.simulate import advance
from fedatoms.simulation import Record, Scored, Simulation, State
from fedatoms.trees import Params

BATCH = 500


class Score(NamedTuple):
    """A model's result on the test set."""

    accuracy: float  # in per cent
    loss: float


def evaluate(sim: Simulation, state: State) -> dict[Scored, Score]:
    """Scores the models that the simulation asks for; models that are equal are run once."""
    scores: dict[Scored, Score] = {}
    seen: list[tuple[Params, Score]] = []
    for which in sim.score:
        params = scored_model(state, which, len(sim.data.parts))
        known = [score for other, score in seen if all(_same(other[name], leaf) for name, leaf in params.items())]
        scores[which] = known[0] if known else score(sim, params)
        seen.append((params, scores[which]))
    return scores


def scored_model(state: State, which: Scored, clients: int) -> Params:
    """Returns one of the three global models."""
    server = state.server.params
    if which == "selected":
        return server if state.selected is None else state.selected
    if which == "all":
        assert state.last_sum is not None
        return {**server, **{name: (leaf / clients).to(server[name].dtype) for name, leaf in state.last_sum.items()}}
    return server


@torch.no_grad()
def score(sim: Simulation, params: Params) -> Score:
    """Runs a model over the test set."""
    data, dtype = sim.pool, sim.network.dtype
    right, loss = (torch.zeros((), dtype=torch.float64, device=sim.device) for _ in range(2))
    for first in range(0, len(data.test_y), BATCH):
        x, y = data.test_x[first : first + BATCH], data.test_y[first : first + BATCH]
        logits = sim.network.predict(params, normalise(x, data.recipe, dtype))
        right += (logits.argmax(1) == y).sum()
        loss += F.cross_entropy(logits, y, reduction="sum")
    count = len(data.test_y)
    return Score(100 * float(right) / count, float(loss) / count)


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a, b)  # only the second waits for a GPU


class Progress(NamedTuple):
    """What is known after a round; ``scores`` is empty in rounds without an evaluation."""

    state: State
    record: Record
    scores: dict[Scored, Score]


def rounds(sim: Simulation, state: State, until: int, eval_every: int = 1) -> Iterator[Progress]:
    """Runs rounds up to number ``until`` and scores the models every ``eval_every`` of them, and after the last."""
    while state.round < until:
        state, record = advance(sim, state)
        due = state.round % eval_every == 0 or state.round == until
        yield Progress(state, record, evaluate(sim, state) if due else {})
