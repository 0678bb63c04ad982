"""The round of a block of clients at once: one client's steps, vectorised over the leading client axis."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedatoms.algorithms.base import Server
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params
from fedatoms.data.batches import Plan, bounded, largest_input
from fedatoms.engine.accumulation import Batch, Gradient
from fedatoms.engine.client_round import Carry, Job, Learner, Loss, Reply, begin, data_of, expect, finish, local_step
from fedatoms.engine.training import Told
from fedatoms.optimisers.schedules import factors_at

BlockStep = Callable[[Carry, Job, Tensor, Server, Tensor], tuple[Carry, Tensor]]


def local_rounds(learner: Learner, broadcast: Server, jobs: Job) -> Reply:
    """Trains a block of clients at once: the same steps, each vectorised over the leading client axis."""
    step = block_step(learner)
    rate = torch.tensor(learner.rate, dtype=learner.network.dtype, device=jobs.plan.rows.device)
    carry, losses = begin_block(learner, jobs), []
    for s in range(jobs.plan.rows.shape[1]):
        expect(learner, jobs.plan, s)
        carry, loss = step(carry, jobs, torch.tensor([s], device=rate.device), broadcast, rate)
        losses.append(loss)
    return finish_block(learner, broadcast, jobs, carry, torch.stack(losses, 1), rate)


def block_step(learner: Learner) -> BlockStep:
    """Returns one step of a block of clients, number ``s`` (one element); a client whose rows are all padding stays."""
    data = learner.data
    largest = largest_input(data.x, data.recipe) if data.lazy is None else None  # which no recipe normalises

    def unless_padding(
        carry: Carry, memory: Memory, batch: Batch, broadcast: Server, rate: Tensor, told: Told | tuple[()]
    ) -> tuple[Carry, Tensor]:
        assert batch.real is not None
        alive = batch.real.any()
        if largest is not None and isinstance(batch.x, Tensor):
            batch = batch._replace(x=bounded(batch.x, largest))
        step = local_step(_of_run(learner, told), _by_transform)
        new, loss = step(carry, memory, batch, broadcast, rate)

        # in the order of the old one, which a graph's buffers have; each a new tensor, never an input itself, which a
        # compiler might copy when it has its new value
        def kept(old: Params, new: Params) -> Params:
            return trees.apply(lambda o, n: torch.where(alive, n, o), old, new)

        state = {kind: kept(tree, new.state[kind]) for kind, tree in carry.state.items()}
        return Carry(kept(carry.params, new.params), state), loss

    of_step = learner.training.of_step

    def run(carry: Carry, jobs: Job, s: Tensor, broadcast: Server, rate: Tensor) -> tuple[Carry, Tensor]:
        plan, several = jobs.plan, None
        if jobs.told:  # by several runs, to each client by its own
            broadcast, rate, several = jobs.told.broadcast, jobs.told.rate, 0
        rows, real, flip, shift = (leaf.index_select(1, s).squeeze(1) for leaf in plan[:4])
        now = Plan(rows, real, flip, shift, plan.key + s * learner.training.accumulate)
        x, y = data_of(learner, now, (), now.key)
        if of_step is not None:  # by the steps that each client has
            rate = rate * factors_at(of_step, s.double(), plan.real.any(-1).sum(-1).double()).to(rate.dtype)
        axes = (0, 0, 0, several, several if of_step is None else 0, several)
        batch = Batch(x, y, now.real, now.key)
        return torch.vmap(unless_padding, axes)(carry, jobs.memory, batch, broadcast, rate, jobs.told)

    return run


def begin_block(learner: Learner, jobs: Job) -> Carry:
    """Returns what the first step of a block of clients starts from; what is alike for all of them is made once."""
    alike = {name: trees.is_shared(leaf) for name, leaf in jobs.params.items()}
    params = {name: leaf[0] if alike[name] else leaf for name, leaf in jobs.params.items()}
    axes = {name: None if alike[name] else 0 for name in params}
    # keys tell vmap how many clients there are, where they share all parameters
    state = torch.vmap(lambda params, _: begin(learner, params).state, (axes, 0))(params, jobs.plan.key)
    return Carry(jobs.params, state)


def finish_block(learner: Learner, broadcast: Server, jobs: Job, carry: Carry, losses: Tensor, rate: Tensor) -> Reply:
    """Makes the replies of a block of clients."""

    def one(job: Job, carry: Carry, losses: Tensor) -> Reply:
        if job.told:
            return finish(_of_run(learner, job.told), job.told.broadcast, job, carry, losses, job.told.unit)
        return finish(learner, broadcast, job, carry, losses, rate)

    return torch.vmap(one)(jobs, carry, losses)


def _of_run(learner: Learner, told: Told | tuple[()]) -> Learner:
    """Returns what a client learns by, with the numbers that its run told it, if several runs train in one block."""
    if not told:
        return learner
    strength = learner.algorithm.strength
    algorithm = learner.algorithm if strength is None else strength.told(told.strength)
    return learner._replace(atoms_lr=told.atoms_lr, algorithm=algorithm)


def _by_transform(loss: Loss, weights: Params) -> Gradient:
    gradient, (value, buffers) = torch.func.grad_and_value(loss, has_aux=True)(weights)
    return gradient, value, buffers
