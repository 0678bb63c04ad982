"""Ways to map one client's round over many clients: each gives the same replies, in order, in blocks."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from fedatoms.algorithms.base import Server
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params
from fedatoms.data.batches import move, pad_steps
from fedatoms.engine.client_round import Job, Learner, Reply, local_round, local_rounds

MapClients = Callable[[Learner, Server, Iterable[Job]], Iterator[Reply]]


class NotVectorisable(ValueError):
    """A model that cannot be trained for many clients at once, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"map=vectorised: this model cannot be vectorised: {reason}. Use map=one_by_one.")
        self.reason = reason


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
            with naming_refusals():
                reply = local_rounds(learner, heard, stack(some))
            yield reply

    return map_clients


def stack(jobs: list[Job], steps: int = 0) -> Job:
    """Stacks jobs along a leading client axis, padded to the longest or to ``steps`` steps."""
    params = trees.stack([job.params for job in jobs])
    memory = {kind: trees.stack([job.memory[kind] for job in jobs]) for kind in jobs[0].memory}
    plan = pad_steps([job.plan for job in jobs], steps)
    return Job(params, memory, move(plan, next(iter(params.values())).device))


def refusing(reason: str) -> MapClients:
    """Trains nobody: the map of a model that is known not to be vectorisable."""

    def map_clients(learner: Learner, heard: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
        raise NotVectorisable(reason)

    return map_clients


@contextmanager
def naming_refusals() -> Iterator[None]:
    """Turns torch's refusal to vectorise a model, however wrapped, into NotVectorisable; other errors stay.

    >>> with naming_refusals():
    ...     raise RuntimeError("cannot trace") from RuntimeError("vmap: called random operation. Please do not.")
    Traceback (most recent call last):
    ...
    fedatoms.engine.execution.vmap.NotVectorisable: map=vectorised: this model cannot be vectorised: vmap: called
    random operation. Use map=one_by_one.
    """
    try:
        yield
    except RuntimeError as error:
        refusal = next((words for words in map(why, causes(error)) if "vmap" in words or "functorch" in words), None)
        if refusal is None:
            raise
        raise NotVectorisable(refusal) from error


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and all that it was raised from, or while handling: compilers wrap what they meet."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def why(error: BaseException) -> str:
    """Returns the first sentence of an error, without the advice that follows.

    >>> why(RuntimeError("vmap: no such thing. Please file an issue."))
    'vmap: no such thing'
    """
    if isinstance(error, NotVectorisable):
        return error.reason
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].split(". ")[0].rstrip(".")


def _lead(tree: Mapping[str, Tensor]) -> Params:
    return trees.apply(lambda leaf: leaf.unsqueeze(0), tree)


def _lead_all(memory: Memory) -> Memory:
    return {kind: _lead(tree) for kind, tree in memory.items()}
