"""Ways to map one client's round over many clients: each gives the same replies, in order, in blocks."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from fedatoms import trees
from fedatoms.algorithms.base import Server
from fedatoms.data.batches import move, pad_steps
from fedatoms.local import Job, Learner, Reply, local_round, local_rounds
from fedatoms.trees import Memory, Params

MapClients = Callable[[Learner, Server, Iterable[Job]], Iterator[Reply]]


def one_by_one(learner: Learner, heard: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
    """Trains client after client: the way for CPUs, and for models that cannot be vectorised."""
    devices = [learner.data.x.device] if learner.data.x.is_cuda else []
    for job in jobs:
        # A model may draw from the global stream (F.dropout): let that be a function of client and round too.
        with torch.random.fork_rng(devices):
            torch.manual_seed(int(job.plan.key))
            reply = local_round(learner, heard, job)
        yield Reply(
            _lead(reply.params), _lead_all(reply.upload), _lead_all(reply.memory), reply.losses[None], reply.steps[None]
        )


def vectorised(block: int) -> MapClients:
    """Trains ``block`` clients at once with ``torch.vmap``: the way for GPUs; memory grows with the block only."""

    def map_clients(learner: Learner, heard: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
        rest = iter(jobs)
        while some := list(itertools.islice(rest, block)):
            try:
                yield local_rounds(learner, heard, stack(some))
            except RuntimeError as error:
                if "vmap" not in str(error):
                    raise
                reason = str(error).strip().splitlines()[0]
                raise ValueError(
                    f"map=vectorised: this model cannot be vectorised: {reason} Use map=one_by_one."
                ) from error

    return map_clients


def stack(jobs: list[Job], steps: int = 0) -> Job:
    """Stacks jobs along a leading client axis, padded to the longest or to ``steps`` steps."""
    params = trees.stack([job.params for job in jobs])
    memory = {kind: trees.stack([job.memory[kind] for job in jobs]) for kind in jobs[0].memory}
    plan = pad_steps([job.plan for job in jobs], steps)
    return Job(params, memory, move(plan, next(iter(params.values())).device))


def _lead(tree: Mapping[str, Tensor]) -> Params:
    return trees.apply(lambda leaf: leaf.unsqueeze(0), tree)


def _lead_all(memory: Memory) -> Memory:
    return {kind: _lead(tree) for kind, tree in memory.items()}
