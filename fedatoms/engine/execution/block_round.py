"""The round of a block of clients at once: one client's steps, vectorised over the leading client axis."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedatoms.algorithms.base import Server
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params
from fedatoms.data.batches import Plan
from fedatoms.engine.accumulation import Batch, Gradient
from fedatoms.engine.client_round import Carry, Job, Learner, Loss, Reply, begin, data_of, expect, finish, local_step
from fedatoms.optimisers.schedules import factors_at

BlockStep = Callable[[Carry, Memory, Plan, Tensor, Server, Tensor], tuple[Carry, Tensor]]


def local_rounds(learner: Learner, broadcast: Server, jobs: Job) -> Reply:
    """Trains a block of clients at once: the same steps, each vectorised over the leading client axis."""
    step = block_step(learner)
    rate = torch.tensor(learner.rate, dtype=learner.network.dtype, device=jobs.plan.rows.device)
    carry, losses = begin_block(learner, jobs), []
    for s in range(jobs.plan.rows.shape[1]):
        expect(learner, jobs.plan, s)
        carry, loss = step(carry, jobs.memory, jobs.plan, torch.tensor([s], device=rate.device), broadcast, rate)
        losses.append(loss)
    return finish_block(learner, broadcast, jobs, carry, torch.stack(losses, 1), rate)


def block_step(learner: Learner) -> BlockStep:
    """Returns one step of a block of clients, number ``s`` (one element); a client whose rows are all padding stays."""
    step = local_step(learner, _by_transform)

    def unless_padding(
        carry: Carry, memory: Memory, batch: Batch, broadcast: Server, rate: Tensor
    ) -> tuple[Carry, Tensor]:
        assert batch.real is not None
        alive = batch.real.any()
        new, loss = step(carry, memory, batch, broadcast, rate)

        def kept(old: Params, new: Params) -> Params:  # in the order of the old one, which a graph's buffers have
            return trees.apply(lambda o, n: torch.where(alive, n, o), old, new)

        state = {kind: kept(tree, new.state[kind]) for kind, tree in carry.state.items()}
        return Carry(kept(carry.params, new.params), state), loss

    of_step = learner.training.of_step
    every_client = torch.vmap(unless_padding, in_dims=(0, 0, 0, None, None if of_step is None else 0))

    def run(
        carry: Carry, memory: Memory, plan: Plan, s: Tensor, broadcast: Server, rate: Tensor
    ) -> tuple[Carry, Tensor]:
        rows, real, flip, shift = (leaf.index_select(1, s).squeeze(1) for leaf in plan[:4])
        now = Plan(rows, real, flip, shift, plan.key + s * learner.training.accumulate)
        x, y = data_of(learner, now, (), now.key)
        if of_step is not None:  # by the steps that each client has
            rate = rate * factors_at(of_step, s.double(), plan.real.any(-1).sum(-1).double()).to(rate.dtype)
        return every_client(carry, memory, Batch(x, y, now.real, now.key), broadcast, rate)

    return run


def begin_block(learner: Learner, jobs: Job) -> Carry:
    """Returns what the first step of a block of clients starts from."""
    return Carry(jobs.params, torch.vmap(lambda job: begin(learner, job).state)(jobs))


def finish_block(learner: Learner, broadcast: Server, jobs: Job, carry: Carry, losses: Tensor, rate: Tensor) -> Reply:
    """Makes the replies of a block of clients."""
    every_client = torch.vmap(lambda job, carry, losses: finish(learner, broadcast, job, carry, losses, rate))
    return every_client(jobs, carry, losses)


def _by_transform(loss: Loss, weights: Params) -> Gradient:
    gradient, (value, buffers) = torch.func.grad_and_value(loss, has_aux=True)(weights)
    return gradient, value, buffers
