"""One client after another: for CPUs, and for models that cannot be vectorised."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from fedatoms.algorithms.base import Server
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params
from fedatoms.engine.client_round import Job, Learner, Reply, local_round

MapClients = Callable[[Learner, Server, Iterable[Job]], Iterator[Reply]]  # the same replies, in order, in blocks


def one_by_one(learner: Learner, broadcast: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
    """Trains client after client; each reply is a block of one."""
    devices = [learner.data.x.device] if learner.data.x.is_cuda else []
    for job in jobs:
        # A model may draw from the global stream (F.dropout): make that a function of client and round too.
        with torch.random.fork_rng(devices):
            torch.manual_seed(int(job.plan.key))
            reply = local_round(learner, broadcast, job)
        yield Reply(
            _lead(reply.params), _lead_all(reply.upload), _lead_all(reply.memory), reply.losses[None], reply.steps[None]
        )


def _lead(tree: Mapping[str, Tensor]) -> Params:
    return trees.apply(lambda leaf: leaf.unsqueeze(0), tree)


def _lead_all(memory: Memory) -> Memory:
    return {kind: _lead(tree) for kind, tree in memory.items()}
