"""Scores of three global models on the test set, and of every client's own model on that client's test images."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedatoms.core import trees
from fedatoms.core.options import Scored
from fedatoms.core.trees import Params
from fedatoms.data.batches import normalise
from fedatoms.engine.runtime import Runtime, scored_at_once
from fedatoms.engine.state import State


class Score(NamedTuple):
    """A model's accuracy and loss; for clients' own models the means over samples, and the spread over clients."""

    accuracy: float  # in per cent
    loss: float
    worst: float | None = None  # mean accuracy of the worst tenth of the clients
    spread: float | None = None  # standard deviation over clients


def evaluate(runtime: Runtime, state: State) -> dict[Scored, Score]:
    """Scores the models that the simulation asks for; equal models are evaluated once."""
    scores: dict[Scored, Score] = {}
    seen: list[tuple[Params, Score]] = []
    for which in runtime.sim.score:
        if which == "personal":
            scores[which] = personal_score(runtime, state)
            continue
        params = scored_model(state, which, len(runtime.data.parts))
        known = [score for other, score in seen if all(_same(other[name], leaf) for name, leaf in params.items())]
        scores[which] = known[0] if known else score(runtime, params)
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


def score(runtime: Runtime, params: Params) -> Score:
    """Evaluates a model on the test set."""
    right, loss = _outcomes(runtime, params, torch.arange(len(runtime.data.test_y)))
    return Score(100 * float(right.double().mean()), float(loss.double().mean()))


def personal_score(runtime: Runtime, state: State) -> Score:
    """Evaluates the server's model with each client's personal parameters on that client's test images."""
    server, parts = state.server.params, runtime.data.test_parts
    own = [_own(runtime, state, client) for client in range(len(parts))]
    found = {client: (torch.zeros(0, device=runtime.sim.device),) * 2 for client in range(len(parts))}  # not tested
    alike = [client for client, tree in enumerate(own) if not tree and len(parts[client])]  # no personal parameters yet
    if alike:
        right, loss = _outcomes(runtime, server, torch.arange(len(runtime.data.test_y)))
        found |= {
            client: (right[rows], loss[rows]) for client in alike for rows in [parts[client].to(runtime.sim.device)]
        }
    owners, at_once = [client for client, tree in enumerate(own) if tree], _clients_at_once(runtime)
    for first in range(0, len(owners), at_once):
        some = owners[first : first + at_once]
        outcomes = _own_outcomes(runtime, server, [own[client] for client in some], [parts[client] for client in some])
        found.update(zip(some, outcomes, strict=True))
    right, loss = (torch.stack([found[client][i].double().sum() for client in range(len(parts))]).cpu() for i in (0, 1))
    return over_clients(right, loss, torch.tensor([float(len(part)) for part in parts], dtype=torch.float64))


def over_clients(right: Tensor, loss: Tensor, tested: Tensor) -> Score:
    """Combines clients' results: correct predictions and summed losses over ``tested`` samples each, in float64.

    >>> over_clients(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]), torch.tensor([3.0, 1.0]))
    Score(accuracy=75.0, loss=1.0, worst=0.0, spread=50.0)
    """
    each = (right / tested)[tested > 0].sort().values
    if not len(each):
        raise ValueError("no client has a part of the test set, so no own model can be scored. Use own_test=classes.")
    worst = each[: max(round(len(each) / 10), 1)].mean()
    return Score(
        accuracy=100 * float(right.sum() / tested.sum()),
        loss=float(loss.sum() / tested.sum()),
        worst=100 * float(worst),
        spread=100 * float(each.std(correction=0)),
    )


def _own(runtime: Runtime, state: State, client: int) -> Params:
    row = state.clients.read(client)
    return {} if row is None else trees.restrict(row.own, runtime.layout.own)


def _clients_at_once(runtime: Runtime) -> int:
    """Returns how many clients' models to evaluate at once: one on a CPU, where vmap gains nothing."""
    longest = max(len(part) for part in runtime.data.test_parts)
    return max(scored_at_once(runtime.sim.device) // max(longest, 1), 1) if runtime.sim.device.startswith("cuda") else 1


def _own_outcomes(
    runtime: Runtime, server: Params, own: list[Params], parts: list[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Returns for each client's test samples whether its model is correct, and its loss."""
    if len(own) > 1:
        try:
            return _together(runtime, server, own, parts)
        except RuntimeError:  # a model that cannot be vectorised, or too little memory
            pass
    return [_outcomes(runtime, {**server, **tree}, part) for tree, part in zip(own, parts, strict=True)]


@torch.no_grad()
def _together(runtime: Runtime, server: Params, own: list[Params], parts: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    data, dtype = runtime.data, runtime.network.dtype
    rows = pad_sequence(parts, batch_first=True).to(runtime.sim.device)
    x, y = normalise(data.test_x[rows.flatten()], data.recipe, dtype).unflatten(0, rows.shape), data.test_y[rows]
    logits = torch.vmap(lambda tree, images: runtime.network.predict({**server, **tree}, images))(trees.stack(own), x)
    right, loss = logits.argmax(2) == y, F.cross_entropy(logits.movedim(2, 1), y, reduction="none")
    return [(right[i, : len(part)], loss[i, : len(part)]) for i, part in enumerate(parts)]


@torch.no_grad()
def _outcomes(runtime: Runtime, params: Params, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns for each test sample whether a model is correct, and its loss."""
    data, dtype, right, losses = runtime.data, runtime.network.dtype, [], []
    for some in rows.to(runtime.sim.device).split(scored_at_once(runtime.sim.device)):
        y = data.test_y[some]
        logits = runtime.predict(params, normalise(data.test_x[some], data.recipe, dtype))
        right.append(logits.argmax(1) == y)
        losses.append(F.cross_entropy(logits, y, reduction="none"))
    return torch.cat(right), torch.cat(losses)


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a, b)  # only the second waits for a GPU
