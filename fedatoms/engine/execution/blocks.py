"""Blocks of clients: how many train at once, half as many when memory runs out, one by one if the model needs it."""

import gc
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator

import torch
from torch.utils import _pytree as pytree

from fedatoms.algorithms.base import Server
from fedatoms.engine.client_round import Job, Learner, Reply, begin
from fedatoms.engine.execution.block_round import local_rounds
from fedatoms.engine.execution.loop import MapClients
from fedatoms.engine.execution.vmap import naming_refusals, stack, why
from fedatoms.nn.vectorising import causes

MakeMap = Callable[[int], MapClients]  # from the size of a block
ChooseSize = Callable[[Learner, Server, Job], int]

UNMEASURED = 32  # clients at once where free memory is unknown
MOST = 128  # fewer keep a GPU busy; more would only take memory from clients' states, which grow round by round
SHARE = 0.8  # of free memory; the rest is for scores, clients' states and what the allocator cannot use
GRAPHS = 2  # a fast and a slow round each keep the memory of a step
COPIES = 4  # of a client's job: stacked, in a graph's buffers, in its reply and in the reply of the block before


def in_blocks(make: MakeMap, choose: ChooseSize, otherwise: MapClients | None = None) -> MapClients:
    """Maps block after block with ``make(size)``; ``choose`` returns the size, given the first job.

    Out of memory halves the size; a model that cannot be vectorised goes to ``otherwise``. Either applies to the same
    jobs and to all later rounds, with a warning. Without ``otherwise``, or if it fails too, the error is raised.
    """
    size = 0
    train: MapClients | None = None
    instead: MapClients | None = None  # the fallback after a failure

    def map_clients(learner: Learner, broadcast: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
        nonlocal size, train, instead
        rest = iter(jobs)
        # jobs are drawn outside of the try: an error in making them would recur, and lose those after it
        while instead is None and (some := list(itertools.islice(rest, max(size, 1)))):
            try:
                if size:
                    train = train or make(size)
                    replies = list(train(learner, broadcast, some))
                else:
                    size, rest, replies = choose(learner, broadcast, some[0]), itertools.chain(some, rest), []
            except Exception as error:
                full = _is_out_of_memory(error)
                if not full and otherwise is None:
                    raise
                reason = why(error)
            else:
                yield from replies  # a block is complete before any of it is yielded
                continue
            # after the handler, whose traceback keeps the memory of the failed attempt
            train, rest = None, itertools.chain(some, rest)
            if full:
                size = _smaller(size)
            elif otherwise is not None:
                yield from _trying(otherwise, reason, learner, broadcast, rest)
                instead = otherwise
        if instead is not None:
            yield from instead(learner, broadcast, rest)

    return map_clients


def even_blocks(sampled: int, fits: int) -> int:
    """Returns the size of the fewest blocks of at most ``fits`` clients, so that no block is half empty.

    >>> even_blocks(100, fits=64), even_blocks(10, fits=64), even_blocks(7, fits=3)
    (50, 10, 3)
    """
    blocks = -(-sampled // fits)
    return -(-sampled // blocks)


def room(learner: Learner, broadcast: Server, job: Job, beside: int = 0) -> int:
    """Returns how many clients fit into a GPU's free memory, at most ``MOST``, by training one for one step.

    ``beside`` is what the round will need there for other things, in bytes.
    """
    device = learner.data.y.device
    try:
        step = _peak_of_a_step(learner, broadcast, job)
    except torch.OutOfMemoryError:
        return 1
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    leaves = pytree.tree_leaves((job, begin(learner, job.params)))
    held = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
    return that_fit(max(torch.cuda.mem_get_info(device)[0] + unused - beside, 0), step, held)


def that_fit(free: int, step: int, held: int) -> int:
    """Returns how many clients fit into ``free`` bytes if each needs ``step`` to compute a step and holds ``held``.

    >>> that_fit(1000, step=8, held=1), that_fit(1000, step=0, held=1), that_fit(1000, step=900, held=1)
    (40, 128, 1)
    """
    return min(max(int(SHARE * free / (GRAPHS * step + COPIES * held)), 1), MOST)


def _peak_of_a_step(learner: Learner, broadcast: Server, job: Job) -> int:
    device = learner.data.y.device
    rows, real, flip, shift = (leaf[:1] for leaf in job.plan[:4])
    one = stack([job._replace(plan=job.plan._replace(rows=rows, real=real, flip=flip, shift=shift))])
    cudnn = torch.backends.cudnn
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    # benchmarking kernels would take a second, and memory that no later step needs
    with naming_refusals(), cudnn.flags(True, False, deterministic=cudnn.deterministic, allow_tf32=cudnn.allow_tf32):
        local_rounds(learner, broadcast, one)
    return torch.cuda.max_memory_allocated(device) - before


def _smaller(size: int) -> int:
    """Frees the memory of a failed attempt, and returns how many clients to try next."""
    gc.collect()  # graphs and their buffers refer to each other
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if size <= 1:
        raise MemoryError(
            "out of memory with a single client. Use a smaller batch_size, client_state='host', or map='one_by_one'."
        )
    half = -(-size // 2)
    warnings.warn(
        f"out of memory with {size} clients at once: going on with {half} (block={half} starts there)",
        stacklevel=3,
    )
    return half


def _trying(way: MapClients, reason: str, learner: Learner, broadcast: Server, jobs: Iterator[Job]) -> Iterator[Reply]:
    """Trains the first client, and warns only once the fallback works."""
    yield from way(learner, broadcast, [next(jobs)])
    warnings.warn(f"this model cannot be vectorised ({reason}): training client after client", stacklevel=3)


def _is_out_of_memory(error: Exception) -> bool:
    # a capture that fails for want of memory ends in another error, raised while handling this one
    return any(isinstance(each, torch.OutOfMemoryError) for each in causes(error))
