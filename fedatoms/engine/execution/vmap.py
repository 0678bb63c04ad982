"""Many clients at once: one client's round vectorised over a leading client axis by ``torch.vmap``."""

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.utils import _pytree as pytree

from fedatoms.algorithms.base import Server
from fedatoms.core import trees
from fedatoms.data.batches import move, pad_steps
from fedatoms.engine.client_round import Job, Learner, Reply
from fedatoms.engine.execution.block_round import local_rounds
from fedatoms.engine.execution.loop import MapClients
from fedatoms.nn.vectorising import first_sentence, why_refused


class NotVectorisable(ValueError):
    """A model that cannot be trained for many clients at once, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"map=vectorised: this model cannot be vectorised: {reason}. Use map=one_by_one.")
        self.reason = reason


def vectorised(block: int) -> MapClients:
    """Trains ``block`` clients at once with ``torch.vmap``, as on GPUs; memory grows with the block only."""

    def map_clients(learner: Learner, broadcast: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
        rest = iter(jobs)
        while some := list(itertools.islice(rest, block)):
            with naming_refusals():
                reply = local_rounds(learner, broadcast, stack(some))
            yield reply

    return map_clients


def stack(jobs: list[Job], steps: int = 0) -> Job:
    """Stacks jobs along a leading client axis, padded to the longest or to ``steps`` steps."""
    params = trees.stack([job.params for job in jobs])
    memory = {kind: trees.stack([job.memory[kind] for job in jobs]) for kind in jobs[0].memory}
    plan = pad_steps([job.plan for job in jobs], steps)
    told = pytree.tree_map(lambda *leaves: torch.stack(leaves), *(job.told for job in jobs))
    return Job(params, memory, move(plan, next(iter(params.values())).device), told)


def refusing(reason: str) -> MapClients:
    """Raises ``NotVectorisable``: the map of a model that is known not to be vectorisable."""

    def map_clients(learner: Learner, broadcast: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
        raise NotVectorisable(reason)

    return map_clients


@contextmanager
def naming_refusals() -> Iterator[None]:
    """Turns torch's refusal to vectorise a model, however wrapped, into NotVectorisable; other errors stay.

    >>> with naming_refusals():
    ...     raise RuntimeError("cannot trace") from RuntimeError("vmap: no such rule. Please file an issue.")
    Traceback (most recent call last):
    ...
    fedatoms.engine.execution.vmap.NotVectorisable: map=vectorised: this model cannot be vectorised: vmap: no
    such rule. Use map=one_by_one.
    """
    try:
        yield
    except RuntimeError as error:
        if (refusal := why_refused(error)) is None:
            raise
        raise NotVectorisable(refusal) from error


def why(error: BaseException) -> str:
    """Returns the first sentence of an error, without the advice that follows.

    >>> why(RuntimeError("vmap: no such thing. Please file an issue."))
    'vmap: no such thing'
    """
    return error.reason if isinstance(error, NotVectorisable) else first_sentence(error)
