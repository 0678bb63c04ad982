"""Scores latent clients one by one: the coefficients of one client with the atoms of another, beside real clients."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean

import torch

from fedatoms.core.randomness import generator
from fedatoms.core.trees import Params
from fedatoms.evidence.explain.aggregates import mean_model
from fedatoms.evidence.explain.factors import Layer
from fedatoms.evidence.explain.replayed_round import Replay, Tick
from fedatoms.evidence.explain.scores import Judge, Scores, scores_of


@dataclass(frozen=True)
class Product:
    """A model of one client's coefficients and one client's atoms: a real client if both are the same."""

    coefficients: int
    atoms: int
    scores: Scores


@dataclass(frozen=True)
class Latent:
    """Real and latent clients of a round; all other parameters are averaged, so that only filters differ.

    ``bounded`` is the share of latent clients whose loss is at most that of the worst real one, ``by_parents`` the
    share whose loss is at most that of the worse of the two clients that they combine.
    """

    real: list[Product]
    latent: list[Product]
    of: int  # latent clients of the round; with many clients only some are scored
    loss_real: float
    loss_latent: float
    accuracy_real: float
    accuracy_latent: float
    worst_real: float
    worst_latent: float
    bounded: float
    by_parents: float
    whole: Scores  # mean over the clients' own models, in which nothing is averaged


def chosen(clients: int, most: int, draw: torch.Generator) -> list[int]:
    """Draws the clients of a round to combine, by their positions: all, or ``most`` of them.

    >>> chosen(3, most=10, draw=generator(0, "doctest")), len(chosen(100, most=10, draw=generator(0, "doctest")))
    ([0, 1, 2], 10)
    """
    return torch.randperm(clients, generator=draw)[:most].sort().values.tolist()


def score_latent(
    replay: Replay, layers: Sequence[Layer], judge: Judge, *, most: int, seed: int, tick: Tick = lambda done, of: None
) -> Latent:
    """Scores the real and latent clients of a round; at most ``most`` clients are combined."""
    some = chosen(len(replay.clients), most, generator(seed, "latent", replay.before.round))
    pairs = [(i, j) for i in some for j in some]
    products, whole = list[Product](), list[Scores]()
    for i, j in pairs:
        tick(len(products), len(pairs))
        scores = scores_of(judge, product_of(replay, layers, i, j))
        products.append(Product(replay.clients[i], replay.clients[j], scores))
        if i == j:
            whole.append(scores_of(judge, replay.models[i]))
    return summary(products, whole, of=len(replay.clients) * (len(replay.clients) - 1))


def product_of(replay: Replay, layers: Sequence[Layer], i: int, j: int) -> Params:
    """Returns the averaged model with the coefficients of the round's client i and the atoms of client j."""
    coefficients = {layer.coefficients: replay.models[i][layer.coefficients] for layer in layers}
    atoms = {layer.atoms: replay.models[j][layer.atoms] for layer in layers}
    return {**mean_model(replay), **coefficients, **atoms}


def summary(products: Sequence[Product], whole: Sequence[Scores], of: int) -> Latent:
    """Summarises all products of two or more clients.

    >>> def product(i, j, loss):
    ...     return Product(i, j, Scores(accuracy=50.0, loss=loss, train_loss=loss))
    >>> products = [product(0, 0, 1.0), product(0, 1, 3.0), product(1, 0, 2.0), product(1, 1, 2.0)]
    >>> found = summary(products, [Scores(50.0, 1.0, 1.0)], of=2)
    >>> found.loss_real, found.loss_latent, found.worst_latent, found.bounded
    (1.5, 2.5, 3.0, 0.5)
    """
    real = [each for each in products if each.coefficients == each.atoms]
    latent = [each for each in products if each.coefficients != each.atoms]
    loss = {each.atoms: each.scores.loss for each in real}
    worst = max(loss.values())
    return Latent(
        real=real,
        latent=latent,
        of=of,
        loss_real=fmean(loss.values()),
        loss_latent=fmean(each.scores.loss for each in latent),
        accuracy_real=fmean(each.scores.accuracy for each in real),
        accuracy_latent=fmean(each.scores.accuracy for each in latent),
        worst_real=worst,
        worst_latent=max(each.scores.loss for each in latent),
        bounded=fmean(each.scores.loss <= worst for each in latent),
        by_parents=fmean(each.scores.loss <= max(loss[each.coefficients], loss[each.atoms]) for each in latent),
        whole=Scores(*(fmean(getattr(each, field.name) for each in whole) for field in fields(Scores))),
    )
