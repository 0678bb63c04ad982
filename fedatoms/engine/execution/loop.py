"""One client after another: for CPUs, and for models that cannot be vectorised."""

from collections.abc import Callable, Iterable, Iterator

import torch

from fedatoms.algorithms.base import Server
from fedatoms.core import trees
from fedatoms.engine.client_round import Job, Learner, Reply, local_round

MapClients = Callable[[Learner, Server, Iterable[Job]], Iterator[Reply]]  # the same replies, in order, in blocks


def one_by_one(learner: Learner, broadcast: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
    """Trains client after client; each reply is a block of one."""
    devices = [learner.data.y.device] if learner.data.y.is_cuda else []
    # On a CPU torch.manual_seed writes down the stack for each client, in case a GPU is used later.
    seed = torch.default_generator.manual_seed if learner.data.y.device.type == "cpu" else torch.manual_seed
    for job in jobs:
        # A model may draw from the global stream (F.dropout): make that a function of client and round too.
        with torch.random.fork_rng(devices):
            seed(int(job.plan.key))
            reply = local_round(learner, broadcast, job)
        upload, memory = (
            {kind: trees.lead(tree) for kind, tree in those.items()} for those in (reply.upload, reply.memory)
        )
        yield Reply(trees.lead(reply.params), upload, memory, reply.losses[None], reply.steps[None])
