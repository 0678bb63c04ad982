"""Clients of several runs in one block: each is told what its own run says, and its reply goes back to that run."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedatoms.algorithms.base import Algorithm, Server, Strength, as_it_is, upload_params
from fedatoms.data.federations import Federation
from fedatoms.engine.client_round import Job, Learner, Reply, rate_of
from fedatoms.engine.execution.loop import MapClients
from fedatoms.engine.training import Told, Training
from fedatoms.nn.pure import Network

T = TypeVar("T")
_NOTHING = Server({}, {})


class Request(NamedTuple):
    """What a run asks of a map: to train some of its clients."""

    learner: Learner
    broadcast: Server
    jobs: list[Job]


class Basis(NamedTuple):
    """What runs that share blocks have in common: layers, and one pool of samples; its parts are those of all runs."""

    network: Network
    data: Federation


def kind_of(learner: Learner) -> object:
    """Returns what two requests must have in common to be trained in one block."""
    sets = (learner.trained, learner.travelling, learner.statistics)
    return (*sets, _on_clients(learner.algorithm), _without_numbers(learner.training), learner.align, learner.head)


def train_several(map_clients: MapClients, basis: Basis, requests: Sequence[Request]) -> list[list[Reply]]:
    """Trains the clients of requests of one kind, and returns the replies to each of them."""
    learner = requests[0].learner
    learner = learner._replace(**basis._asdict(), training=_without_numbers(learner.training), rate=1.0, atoms_lr=1.0)
    learner = learner._replace(algorithm=_on_clients(learner.algorithm))
    jobs = [job._replace(told=told) for each in requests for told in [told_by(each)] for job in each.jobs]
    sizes, answers = [len(each.jobs) for each in requests], [list[Reply]() for _ in requests]
    first = 0
    for reply in map_clients(learner, _NOTHING, jobs):
        count = len(reply.steps)
        # a CUDA graph writes the next block to the same memory
        reply = reply if count == len(jobs) else _each(torch.clone, reply)
        for answer, start, end in zip(answers, *_shares(sizes, first, count), strict=True):
            if start < end:
                steps = max(len(job.plan.rows) for job in jobs[first + start : first + end])
                answer.append(_cut(reply, slice(start, end), steps))
        first += count
    return answers


def told_by(request: Request) -> Told:
    """Returns what a run tells its clients in a round."""
    learner, device = request.learner, request.learner.data.y.device
    training, dtype = learner.training, learner.network.dtype

    def number(value: float | Tensor) -> Tensor:  # filled on the device: a copy from the host would wait for it
        return torch.full((), float(value), dtype=dtype, device=device)

    unit = rate_of(training, 0) if training.controls == "first" else learner.rate
    broadcast, strength = request.broadcast if _listens(learner.algorithm) else _NOTHING, learner.algorithm.strength
    numbers = (learner.rate, unit, learner.atoms_lr, math.nan if strength is None else strength.value)
    return Told(broadcast, *map(number, numbers))


def _without_numbers(training: Training) -> Training:
    """Returns a training without the numbers that a run tells its own clients."""
    return training._replace(lr=1.0, lr_decay=1.0, atoms_lr=1.0, controls="current")


def _on_clients(algorithm: Algorithm) -> Algorithm:
    """Returns what an algorithm is to clients that are told its strength: the same whatever that is."""
    return algorithm if algorithm.strength is None else _of_any_strength(algorithm.strength._replace(value=0.0))


@cache
def _of_any_strength(strength: Strength) -> Algorithm:
    return strength.told(torch.full((), math.nan))._replace(strength=strength)  # whoever is not told it learns nothing


def _listens(algorithm: Algorithm) -> bool:
    """Returns whether a client's steps or report may read the broadcast; its model it has anyway."""
    return not (algorithm.correct is as_it_is and algorithm.report is upload_params and algorithm.penalty is None)


def _shares(sizes: Sequence[int], first: int, count: int) -> tuple[list[int], list[int]]:
    """Returns where each run's clients start and end among ``count`` of all, from number ``first`` on.

    >>> _shares([3, 2, 2], first=2, count=4)
    ([0, 1, 3], [1, 3, 4])
    """
    ends = [min(max(sum(sizes[: place + 1]) - first, 0), count) for place in range(len(sizes))]
    return [0, *ends[:-1]], ends


def _cut(reply: Reply, some: slice, steps: int) -> Reply:
    """Returns the replies of some clients, with the losses of as many steps as a run of their own would have."""
    own = _each(lambda leaf: leaf[some], reply)
    return own._replace(losses=own.losses[:, :steps])


def _each(function: Callable[[Tensor], Tensor], tree: T) -> T:
    return cast(T, pytree.tree_map(function, tree))
