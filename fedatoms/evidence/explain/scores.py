"""Scores of the models of a round, on the test set and on the training images of the round's clients."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from fedatoms.core.trees import Params
from fedatoms.engine.evaluate import score
from fedatoms.engine.spec import Simulation, sharing
from fedatoms.evidence.measures.networks import scored_on_training
from fedatoms.nn.atoms import fuse


@dataclass(frozen=True)
class Scores:
    """Accuracy and loss on the test set, and loss on the training images of the round's clients."""

    accuracy: float  # in per cent
    loss: float
    train_loss: float


class Judge(NamedTuple):
    """A network with the test set, and with the training images of some clients in its place."""

    test: Simulation
    train: Simulation


def judge_of(sim: Simulation, clients: Sequence[int]) -> Judge:
    """Prepares to score models on the test set and on the training images of some clients."""
    rows = torch.cat([sim.data.parts[client] for client in clients])
    return Judge(sim, sharing(scored_on_training(sim, rows), sim, "network", "predict"))


def of_plain_network(judge: Judge) -> Judge:
    """Prepares to score plain twins of a decomposed network, whose filters need not be a product."""
    test = sharing(replace(judge.test, model=fuse(judge.test.model)), judge.test, "pool")
    train = sharing(replace(judge.train, model=test.model), judge.train, "pool")
    return Judge(test, sharing(train, test, "network", "predict"))


def scores_of(judge: Judge, params: Params) -> Scores:
    """Scores one model."""
    test, train = score(judge.test, params), score(judge.train, params)
    return Scores(test.accuracy, test.loss, train.loss)
