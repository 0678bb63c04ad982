"""Scores of the models of a round, on the test set and on the training images of the round's clients."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from fedatoms.core.trees import Params
from fedatoms.engine.evaluation import score
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.evidence.measures.networks import scored_on_training
from fedatoms.nn.atoms import fuse
from fedatoms.personal.base import Personal


@dataclass(frozen=True)
class Scores:
    """Accuracy and loss on the test set, and loss on the training images of the round's clients."""

    accuracy: float  # in per cent
    loss: float
    train_loss: float


class Judge(NamedTuple):
    """A network with the test set, and with the training images of some clients in its place."""

    test: Runtime
    train: Runtime


def judge_of(runtime: Runtime, clients: Sequence[int]) -> Judge:
    """Prepares to score models on the test set and on the training images of some clients."""
    rows = torch.cat([runtime.data.parts[client] for client in clients])
    return Judge(runtime, scored_on_training(runtime, rows))


def of_plain_network(judge: Judge) -> Judge:
    """Prepares to score plain twins of a decomposed network, whose filters need not be a product."""
    model, nobody = fuse(judge.test.sim.model), Personal()  # personal parameters, if any, have other names there
    test = prepare(replace(judge.test.sim, model=model, personal=nobody), like=judge.test)
    return Judge(test, prepare(replace(judge.train.sim, model=model, personal=nobody), like=test))


def scores_of(judge: Judge, params: Params) -> Scores:
    """Scores one model."""
    test, train = score(judge.test, params), score(judge.train, params)
    return Scores(test.accuracy, test.loss, train.loss)
