"""Scores on the test set: of three global models, and of every client's own model on its own part of it."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatoms import trees
from fedatoms.data.batches import normalise
from fedatoms.simulate import advance
from fedatoms.simulation import SCORED_AT_ONCE, Record, Scored, Simulation, State
from fedatoms.trees import Params


class Score(NamedTuple):
    """A model's result on the test set; for clients' own models the mean over samples, and how clients differ."""

    accuracy: float  # in per cent
    loss: float
    worst: float | None = None  # mean accuracy of the worst tenth of the clients
    spread: float | None = None  # standard deviation over clients


def evaluate(sim: Simulation, state: State) -> dict[Scored, Score]:
    """Scores the models that the simulation asks for; models that are equal are run once."""
    scores: dict[Scored, Score] = {}
    seen: list[tuple[Params, Score]] = []
    for which in sim.score:
        if which == "personal":
            scores[which] = personal_score(sim, state)
            continue
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


def score(sim: Simulation, params: Params) -> Score:
    """Runs a model over the test set."""
    right, loss = _outcomes(sim, params, torch.arange(len(sim.data.test_y)))
    return Score(100 * float(right.double().mean()), float(loss.double().mean()))


def personal_score(sim: Simulation, state: State) -> Score:
    """Runs the server's model with each client's own part in it over that client's part of the test set."""
    shared: tuple[Tensor, Tensor] | None = None  # of clients that have nothing of their own yet
    right, loss, counts = [], [], []
    for client, part in enumerate(sim.data.test_parts):
        row = state.clients.read(client)
        own = {} if row is None else trees.restrict(row.own, sim.own)
        if own:
            outcome = _outcomes(sim, {**state.server.params, **own}, part)
        else:
            shared = shared or _outcomes(sim, state.server.params, torch.arange(len(sim.data.test_y)))
            outcome = shared[0][part.to(sim.device)], shared[1][part.to(sim.device)]
        right.append(outcome[0].double().sum())
        loss.append(outcome[1].double().sum())
        counts.append(float(len(part)))
    tested = torch.tensor(counts, dtype=torch.float64)
    each = (torch.stack(right).cpu() / tested)[tested > 0].sort().values
    if not len(each):
        raise ValueError(
            "no client has a part of the test set, so its own model cannot be scored. Use --own-test classes."
        )
    mean = Score(100 * float(torch.stack(right).sum()) / sum(counts), float(torch.stack(loss).sum()) / sum(counts))
    worst = each[: max(round(len(each) / 10), 1)].mean()
    return mean._replace(worst=100 * float(worst), spread=100 * float(each.std(correction=0)))


@torch.no_grad()
def _outcomes(sim: Simulation, params: Params, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Says of each test sample whether a model is right, and its loss."""
    data, dtype, right, losses = sim.pool, sim.network.dtype, [], []
    for some in rows.to(sim.device).split(SCORED_AT_ONCE):
        y = data.test_y[some]
        logits = sim.predict(params, normalise(data.test_x[some], data.recipe, dtype))
        right.append(logits.argmax(1) == y)
        losses.append(F.cross_entropy(logits, y, reduction="none"))
    return torch.cat(right), torch.cat(losses)


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
