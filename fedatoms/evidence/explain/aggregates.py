"""Two averages of the same clients: with latent clients (mean coefficients x mean atoms) and without (mean filters)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedatoms.core.trees import Params
from fedatoms.evidence.explain.factors import Layer, factors_of, filters
from fedatoms.evidence.explain.replayed_round import Replay
from fedatoms.evidence.explain.scores import Judge, Scores, of_plain_network, scores_of


@dataclass(frozen=True)
class Apart:
    """The distance between the two aggregates, and the move of the one with latent clients in the round."""

    difference: float
    move: float

    @property
    def ratio(self) -> float:
        """The difference as a share of the move; 0 if nothing differs.

        >>> Apart(difference=1.0, move=4.0).ratio
        0.25
        """
        if not self.difference:
            return 0.0
        return self.difference / self.move if self.move else math.inf


@dataclass(frozen=True)
class Aggregates:
    """Both averages of a round: their distance, over all decomposed filters and by layer, and their scores."""

    apart: Apart
    layers: dict[str, Apart]
    on: Scores  # with latent clients
    off: Scores


def compare_aggregates(replay: Replay, layers: Sequence[Layer], judge: Judge) -> Aggregates:
    """Measures and scores both averages of a round.

    All other parameters (biases, linear layers) are averaged alike in both. With latent clients the model is
    ``selected``, which is the server's next one unless the algorithm's server does more than average.
    """
    found = {layer.name: _apart(replay, layer) for layer in layers}
    on, off = mean_model(replay), mean_of_filters(replay, layers)
    return Aggregates(
        together(list(found.values())), found, scores_of(judge, on), scores_of(of_plain_network(judge), off)
    )


def mean_model(replay: Replay) -> Params:
    """Returns the mean of the clients' models, coefficients and atoms separately: with latent clients."""
    assert replay.after.selected is not None, "a round without clients has no mean"
    return replay.after.selected


def mean_of_filters(replay: Replay, layers: Sequence[Layer]) -> Params:
    """Returns the plain network whose filters are the mean of the clients' own filters: without latent clients."""
    mean = mean_model(replay)
    factors = {name for layer in layers for name in (layer.coefficients, layer.atoms)}
    rest = {name: leaf for name, leaf in mean.items() if name not in factors}
    return {**rest, **{layer.weight: _mean_filter(replay, layer) for layer in layers}}


def together(parts: Sequence[Apart]) -> Apart:
    """Combines the distances of layers into one over all of them.

    >>> together([Apart(3.0, 6.0), Apart(4.0, 8.0)])
    Apart(difference=5.0, move=10.0)
    """
    squares = torch.tensor([[part.difference, part.move] for part in parts], dtype=torch.float64).square().sum(0)
    return Apart(*squares.sqrt().tolist())


def _apart(replay: Replay, layer: Layer) -> Apart:
    clients = factors_of(layer, replay)
    move = clients.a @ clients.d - filters(replay.before.server.params, layer)
    return Apart(float(clients.shift.norm()), float(move.norm()))


def _mean_filter(replay: Replay, layer: Layer) -> Tensor:
    clients, like = factors_of(layer, replay), replay.before.server.params
    theta = clients.a @ clients.d + clients.shift
    O, I = like[layer.coefficients].shape[:2]  # noqa: E741
    return theta.reshape(O, I, *like[layer.atoms].shape[1:]).to(like[layer.atoms].dtype)
